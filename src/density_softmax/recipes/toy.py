"""Two moons and two ovals with ResFFN-12-128 (paper, Table "hyper-params", first block)."""

from __future__ import annotations

import math
from dataclasses import replace

from density_softmax import methods
from density_softmax.data.toy import Toy
from density_softmax.engine.runtime import EngineConfig
from density_softmax.nn.backbones.resffn import ResFFN
from density_softmax.nn.densities import FlowDensity
from density_softmax.nn.layers.processes import RandomFeatureProcess
from density_softmax.nn.lipschitz.penalty import PenaltyOptions, SpectralPenalty
from density_softmax.nn.softmax.scale import QuantileScale
from density_softmax.recipes.recipe import Methods, Suite
from density_softmax.training import Adam, Descent

# Epochs, batch size and rate are the paper's: 700 steps of 1e-4.
TRAIN = Descent(epochs=100, batch_size=128, optimizer=Adam(lr=1e-4))
# Ours, where that is too little: DUE's means hardly leave 0, DUQ's held-out cross entropy stays at
# twice its value, the parameters of Posterior Network's flows move by .07 at most, and MIMO's three
# members, who share the width of one, do not learn to tell three inputs apart.
FASTER = replace(TRAIN, optimizer=Adam(lr=1e-3))
PENALTY = SpectralPenalty.Config(weight=1e-2)

METHODS: Methods = {
    "deterministic": lambda: methods.Deterministic.Config(descent=TRAIN),
    "temperature_scaling": lambda: methods.TemperatureScaling.Config(descent=TRAIN),
    "constant_temperature": lambda: methods.ConstantTemperature.Config(
        penalty=PENALTY, descent=TRAIN
    ),
    # Four members as in the paper's tables and in uncertainty-baselines.
    "deep_ensemble": lambda: methods.DeepEnsemble.Config(
        member=methods.Deterministic.Config(descent=TRAIN), num_members=4
    ),
    # Bound, kernel and factor of https://www.tensorflow.org/tutorials/understanding/sngp, with
    # orthogonal frequencies.
    "sngp": lambda: methods.SNGP.Config(
        bound=0.9,
        process=RandomFeatureProcess.Config(length_scale=1.0, scaled=True),
        mean_field_factor=math.pi / 8,
        descent=TRAIN,
    ),
    # `notebooks/two_moons.ipynb` in https://github.com/omegafragger/DDU.
    "ddu": lambda: methods.DDU.Config(bound=0.65, num_iterations=5, descent=TRAIN),
    # `two_moons.ipynb` in https://github.com/y0ast/deterministic-uncertainty-quantification.
    "duq": lambda: methods.DUQ.Config(
        length_scale=0.3,
        momentum=0.99,
        centroid_size=10,
        penalty=PenaltyOptions(weight=1.0),
        descent=FASTER,
    ),
    # `toy_regression.ipynb` in https://github.com/y0ast/DUE, its rate included.
    "due": lambda: methods.DUE.Config(bound=0.95, num_inducing=20, descent=FASTER),
    "mc_dropout": lambda: methods.MCDropout.Config(descent=TRAIN),
    # 1,000 samples in place of 10,000, in every step of a training that takes seconds otherwise:
    # the error of a mean probability is then at most .5 / √1000 = .016.
    "heteroscedastic": lambda: methods.Heteroscedastic.Config(num_samples=1_000, descent=TRAIN),
    "mimo": lambda: methods.MIMO.Config(descent=FASTER),
    "posterior_network": lambda: methods.PosteriorNetwork.Config(descent=FASTER),
    "natural_posterior_network": lambda: methods.NaturalPosteriorNetwork.Config(descent=TRAIN),
    # The divergence is annealed over four fifths of the training, as over 200 of 250 epochs on
    # CIFAR. In 700 steps of 1e-4 these posteriors stay near where they start.
    "mean_field": lambda: methods.MeanField.Config(annealing_epochs=80, descent=TRAIN),
    "rank1_bnn": lambda: methods.Rank1BNN.Config(annealing_epochs=80, descent=TRAIN),
    "batch_ensemble": lambda: methods.BatchEnsemble.Config(descent=TRAIN),
    "density_softmax": lambda: methods.DensitySoftmax.Config(
        penalty=PENALTY,
        representation=TRAIN,
        density=FlowDensity.Config(descent=replace(TRAIN, epochs=300)),
        # Where hardly a point is wrong, no likelihood can be given away: what the density has not
        # seen is left to the decay beyond the held-out points.
        scale=QuantileScale.Config(far=2.0),
        head=replace(TRAIN, epochs=1),
    ),
}


def toy() -> Suite:
    """The paper's toy experiments; `data.shape` chooses between moons and ovals.

    Epochs, batch size, optimizer, λ and the flow are the paper's. Ours are the standardised
    features, without which the flow does not see the OOD cluster, and the quantile scale. The
    penalty is the spectral norm of the paper's text: with the Frobenius norm of its demo
    (`method.penalty=frobenius`) both singular values share a length of 1, and 700 steps separate
    the moons less well.
    """
    return Suite(
        data=Toy(),
        encoder=ResFFN.Config(depth=12, width=128),
        methods=METHODS,
        # Tensors this small are faster on one thread than on several.
        engine=EngineConfig(threads=1),
    )
