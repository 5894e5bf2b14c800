"""The handwritten digits of scikit-learn: real images, no download, a minute on a CPU."""

from __future__ import annotations

import math
from dataclasses import replace

from density_softmax import methods
from density_softmax.data.image_data import ImageData
from density_softmax.engine.runtime import EngineConfig
from density_softmax.nn.backbones.wide_resnet import WideResNet
from density_softmax.nn.lipschitz.penalty import FrobeniusPenalty
from density_softmax.recipes.attach import closed_form
from density_softmax.recipes.recipe import Methods, Suite
from density_softmax.training import Adam, Descent, OneCycle

# Ours; where nothing else is said, a method has its published settings for CIFAR, which are the
# defaults of its config.
TRAIN = Descent(epochs=30, batch_size=64, optimizer=Adam(lr=5e-3), schedule=OneCycle())
PENALTY = FrobeniusPenalty.Config(weight=1e-3)

METHODS: Methods = {
    "deterministic": lambda: methods.Deterministic.Config(descent=TRAIN),
    "temperature_scaling": lambda: methods.TemperatureScaling.Config(descent=TRAIN),
    "constant_temperature": lambda: methods.ConstantTemperature.Config(
        penalty=PENALTY, descent=TRAIN
    ),
    "deep_ensemble": lambda: methods.DeepEnsemble.Config(
        member=methods.Deterministic.Config(descent=TRAIN), num_members=4
    ),
    # The variance falls with the number of samples, so its factor must rise with them. π/8 is right
    # for the probit (Liu et al. 2020), and held-out digits ask for no more: with seeds 5, 11 and 12
    # their mean NLL is .0235 at 0, .0238 at π/8, .0256 at 2 and .0776 at the 20 of CIFAR-10.
    "sngp": lambda: methods.SNGP.Config(mean_field_factor=math.pi / 8, descent=TRAIN),
    "ddu": lambda: methods.DDU.Config(descent=TRAIN),
    # Centroids that follow within a training of hundreds of steps.
    "duq": lambda: methods.DUQ.Config(momentum=0.99, descent=TRAIN),
    # 500 steps of 5e-3 are too few for the means of its process.
    "due": lambda: methods.DUE.Config(descent=replace(TRAIN, optimizer=Adam(lr=2e-2))),
    "mc_dropout": lambda: methods.MCDropout.Config(chunk=10, descent=TRAIN),
    # As many samples as in the toy recipe.
    "heteroscedastic": lambda: methods.Heteroscedastic.Config(
        num_samples=1_000, chunk=250, descent=TRAIN
    ),
    # Two members: the network is narrow.
    "mimo": lambda: methods.MIMO.Config(num_members=2, batch_repetition=2, descent=TRAIN),
    "posterior_network": lambda: methods.PosteriorNetwork.Config(descent=TRAIN),
    "natural_posterior_network": lambda: methods.NaturalPosteriorNetwork.Config(descent=TRAIN),
    # Annealed over four fifths of the training, as on CIFAR.
    "mean_field": lambda: methods.MeanField.Config(annealing_epochs=24, descent=TRAIN),
    "rank1_bnn": lambda: methods.Rank1BNN.Config(annealing_epochs=24, descent=TRAIN),
    "batch_ensemble": lambda: methods.BatchEnsemble.Config(descent=TRAIN),
    "density_softmax": lambda: replace(
        closed_form(("group1", "group2")),
        penalty=PENALTY,
        representation=TRAIN,
    ),
}


def digits() -> Suite:
    """Digits of 8×8 with a WRN-10-1; shifts are their 15 corruptions in five severities."""
    return Suite(
        # Mirrored digits are other signs.
        data=ImageData(train="digits", shifts=("digits-c",), heldout=0.2, padding=1, flip=False),
        encoder=WideResNet.Config(depth=10, width=1),
        methods=METHODS,
        engine=EngineConfig(threads=1),
    )
