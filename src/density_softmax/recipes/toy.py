"""Two moons and two ovals with ResFFN-12-128 (paper, Table "hyper-params", first block)."""

from __future__ import annotations

from density_softmax.data.toy import Toy
from density_softmax.engine.runtime import EngineConfig
from density_softmax.methods import DensitySoftmax, MethodConfig
from density_softmax.nn.backbones.resffn import ResFFN
from density_softmax.nn.densities import FlowDensity
from density_softmax.nn.lipschitz.penalty import SpectralPenalty
from density_softmax.recipes.bounded import bounded_on_points
from density_softmax.recipes.kernels import kernels_on_points
from density_softmax.recipes.one_network import one_network_on_points
from density_softmax.recipes.plain import plain_methods
from density_softmax.recipes.posteriors import posteriors_on_points
from density_softmax.recipes.recipe import Recipe, choose
from density_softmax.recipes.varied_weights import varied_weights
from density_softmax.training import Adam, Descent

__all__ = ["toy"]


def toy(method: str = "density_softmax") -> Recipe:
    """The paper's toy experiments; `data.shape` chooses between moons and ovals.

    Epochs, batch size, optimizer, λ and the flow are the paper's. Ours are the standardised
    features, without which the flow does not see the OOD cluster, and the quantile scale. The
    penalty is the spectral norm of the paper's text: with the Frobenius norm of its demo
    (`method.penalty=frobenius`) both singular values share a length of 1, and 700 steps separate
    the moons less well.
    """
    train, penalty = _adam(epochs=100), SpectralPenalty.Config(weight=1e-2)
    methods: dict[str, MethodConfig] = {
        **plain_methods(train, penalty),
        **bounded_on_points(train),
        **kernels_on_points(train),
        **one_network_on_points(train),
        **posteriors_on_points(train),
        # In 700 steps of 1e-4 their posteriors stay near where they start.
        **varied_weights(train),
        "density_softmax": DensitySoftmax.Config(
            penalty=penalty,
            representation=train,
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
