"""Two moons and two ovals with ResFFN-12-128 (paper, Table "hyper-params", first block)."""

from __future__ import annotations

from density_softmax.data.toy import Toy
from density_softmax.engine.runtime import EngineConfig
from density_softmax.methods import DensitySoftmax, Deterministic, MethodConfig
from density_softmax.nn.densities import FlowDensity
from density_softmax.nn.penalty import FrobeniusPenalty
from density_softmax.nn.resffn import ResFFN
from density_softmax.optimization import Adam, Descent
from density_softmax.recipes.base import Recipe, choose

__all__ = ["toy"]


def toy(method: str = "density_softmax") -> Recipe:
    """The paper's toy experiments; `data.shape` chooses between moons and ovals.

    Epochs, batch size, optimizer, λ and the flow are the paper's. Ours are the standardised
    features, without which the flow does not see the OOD cluster, and the quantile scale.
    """
    methods: dict[str, MethodConfig] = {
        "deterministic": Deterministic.Config(descent=_adam(epochs=100)),
        "density_softmax": DensitySoftmax.Config(
            penalty=FrobeniusPenalty.Config(weight=1e-2),
            representation=_adam(epochs=100),
            density=FlowDensity.Config(descent=_adam(epochs=300)),
            head=_adam(epochs=1),
        ),
    }
    return Recipe(
        name="toy",
        data=Toy(),
        encoder=ResFFN.Config(depth=12, width=128),
        method=choose("toy", methods, method),
        # Tensors this small are faster on one thread than on several.
        engine=EngineConfig(threads=1),
    )


def _adam(epochs: int) -> Descent:
    return Descent(epochs=epochs, batch_size=128, optimizer=Adam(lr=1e-4))
