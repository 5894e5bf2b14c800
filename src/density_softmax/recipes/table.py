"""A table of one's own: a CSV file, or vectors in an .npz file."""

# The estimator imports this module, and in that cycle mypy does not find `methods.__getattr__`.
# mypy: disable-error-code="attr-defined"

from __future__ import annotations

import math
from dataclasses import replace

from density_softmax import methods
from density_softmax.data.tables import Table
from density_softmax.engine.runtime import EngineConfig
from density_softmax.methods.density_softmax import DensitySoftmax
from density_softmax.nn.backbones.resffn import ResFFN
from density_softmax.nn.densities import GaussianDensity
from density_softmax.nn.layers.processes import RandomFeatureProcess
from density_softmax.nn.lipschitz.penalty import FrobeniusPenalty
from density_softmax.nn.softmax.scale import QuantileScale
from density_softmax.recipes.recipe import Methods, Suite
from density_softmax.training import Adam, Descent, OneCycle

# Of Density-Softmax here and in `DensitySoftmaxClassifier`, which can choose others.
ENCODER = ResFFN.Config(depth=2, width=64, clip=3.0)
OPTIMIZER = Adam(lr=1e-2, weight_decay=1e-4)
# Tables of a hundred rows need the steps, tables of a hundred thousand the epochs. Of all epochs
# the one with the lowest held-out NLL is kept.
TRAIN = Descent(
    epochs=20,
    min_steps=300,
    batch_size=256,
    optimizer=OPTIMIZER,
    schedule=OneCycle(),
    patience=10,
    min_batches=8,
)
# For methods of which some parameters must not decay.
UNDECAYED = replace(TRAIN, optimizer=replace(OPTIMIZER, weight_decay=0.0))
# Always by projections, because the exact norm takes one pass per column.
PENALTY = FrobeniusPenalty.Config(weight=1e-2, exact_below=0, every=8)
# Rows that drift by little are the rule for tables, and nobody knows whether the labels are harder
# or easier where they drift to. So confidence is lost slowly: a seventh of the slope that images
# get, and two fifths beyond all held-out rows. Chosen on eight tables that docs/tables.md does not
# report on.
SCALE = QuantileScale.Config(budget=0.01, steepest=0.15, far=0.2)
# Gaussians of the columns, which fall without end where clipped features do not, and of the last
# features. Shrunk by half, they do not take a column that drifts by a quarter of its deviation for
# another world, whatever columns it is correlated with. Experts that know the classes take it for
# that, and are left to the epistemic uncertainty.
DENSITY_SOFTMAX = DensitySoftmax.Config(
    penalty=PENALTY,
    density=GaussianDensity.Config(least_shrinkage=0.5),
    layers=("columns",),
    classes=True,
    classes_scale=False,
    energy=True,
    scale=SCALE,
    representation=TRAIN,
    head=None,
)
HELDOUT = 0.2

# Where nothing else is said, a method has the defaults of its config.
METHODS: Methods = {
    "deterministic": lambda: methods.Deterministic.Config(descent=TRAIN),
    "temperature_scaling": lambda: methods.TemperatureScaling.Config(descent=TRAIN),
    "constant_temperature": lambda: methods.ConstantTemperature.Config(
        penalty=PENALTY, descent=TRAIN
    ),
    "deep_ensemble": lambda: methods.DeepEnsemble.Config(
        member=methods.Deterministic.Config(descent=TRAIN), num_members=4
    ),
    # As in the recipe of digits, which has about as many samples.
    "sngp": lambda: methods.SNGP.Config(
        process=RandomFeatureProcess.Config(num_inputs=None),
        mean_field_factor=math.pi / 8,
        descent=UNDECAYED,
    ),
    "ddu": lambda: methods.DDU.Config(tied=True, descent=TRAIN),
    "duq": lambda: methods.DUQ.Config(momentum=0.99, descent=TRAIN),
    "due": lambda: methods.DUE.Config(descent=replace(TRAIN, optimizer=Adam(lr=2e-2))),
    "mc_dropout": lambda: methods.MCDropout.Config(descent=TRAIN),
    "heteroscedastic": lambda: methods.Heteroscedastic.Config(num_samples=1_000, descent=TRAIN),
    "mimo": lambda: methods.MIMO.Config(num_members=2, batch_repetition=2, descent=TRAIN),
    "posterior_network": lambda: methods.PosteriorNetwork.Config(descent=TRAIN),
    "natural_posterior_network": lambda: methods.NaturalPosteriorNetwork.Config(descent=TRAIN),
    # Annealed over four fifths of the least number of epochs.
    "mean_field": lambda: methods.MeanField.Config(annealing_epochs=16, descent=UNDECAYED),
    "rank1_bnn": lambda: methods.Rank1BNN.Config(annealing_epochs=16, descent=UNDECAYED),
    "batch_ensemble": lambda: methods.BatchEnsemble.Config(descent=UNDECAYED),
    "density_softmax": lambda: DENSITY_SOFTMAX,
}


def table() -> Suite:
    """A table of your own with ResFFN-2-64; `data.train` names the file."""
    return Suite(
        data=Table(train="", heldout=HELDOUT),
        encoder=ENCODER,
        methods=METHODS,
        # Tensors this small are faster on one thread than on several.
        engine=EngineConfig(threads=1),
    )
