"""The handwritten digits of scikit-learn: real images, no download, a minute on a CPU."""

from __future__ import annotations

from dataclasses import replace

from density_softmax.data.image_data import ImageData
from density_softmax.engine.runtime import EngineConfig
from density_softmax.methods import MethodConfig
from density_softmax.nn.backbones.wide_resnet import WideResNet
from density_softmax.nn.lipschitz.penalty import FrobeniusPenalty
from density_softmax.nn.softmax.scale import QuantileScale
from density_softmax.recipes.attach import closed_form
from density_softmax.recipes.bounded import bounded_on_small_images
from density_softmax.recipes.kernels import kernels_on_small_images
from density_softmax.recipes.one_network import one_network_on_small_images
from density_softmax.recipes.plain import plain_methods
from density_softmax.recipes.posteriors import posteriors_on_small_images
from density_softmax.recipes.recipe import Recipe, choose
from density_softmax.recipes.varied_weights import varied_weights
from density_softmax.training import Adam, Descent, OneCycle

__all__ = ["digits"]


def digits(method: str = "density_softmax") -> Recipe:
    """Digits of 8×8 with a WRN-10-1; shifts are their 15 corruptions in five severities."""
    train = Descent(epochs=30, batch_size=64, optimizer=Adam(lr=5e-3), schedule=OneCycle())
    penalty = FrobeniusPenalty.Config(weight=1e-3)
    methods: dict[str, MethodConfig] = {
        **plain_methods(train, penalty),
        **bounded_on_small_images(sngp=train, ddu=train),
        # 500 steps of 5e-3 are too few for the means of DUE's process.
        **kernels_on_small_images(duq=train, due=replace(train, optimizer=Adam(lr=2e-2))),
        **one_network_on_small_images(train),
        **posteriors_on_small_images(posterior=train, natural=train),
        **varied_weights(train),
        "density_softmax": replace(
            closed_form(("group1", "group2")),
            penalty=penalty,
            representation=train,
            # An easy task has less to give away: by held-out digits, clean and under the four
            # corruptions that are not among the shifts, with seeds 5, 11 and 12.
            scale=QuantileScale.Config(budget=2.5e-4),
        ),
    }
    return Recipe(
        name="digits",
        # Mirrored digits are other signs.
        data=ImageData(train="digits", shifts=("digits-c",), heldout=0.2, padding=1, flip=False),
        encoder=WideResNet.Config(depth=10, width=1),
        method=choose("digits", methods, method),
        engine=EngineConfig(threads=1),
    )
