"""Posterior Network and NatPN: Dirichlet posteriors from densities of a narrow latent space."""

from __future__ import annotations

from dataclasses import replace

from density_softmax.methods import MethodConfig, NaturalPosteriorNetwork, PosteriorNetwork
from density_softmax.optimization import Adam, Descent

__all__ = [
    "posteriors_on_cifar",
    "posteriors_on_imagenet",
    "posteriors_on_points",
    "posteriors_on_small_images",
]


def posteriors_on_points(train: Descent) -> dict[str, MethodConfig]:
    """The settings of CIFAR, with NatPN's own rate, which is ten times that of other methods.

    In 700 steps of 1e-4 a flow's parameters move by .07 at most: Posterior Network then hardly
    leaves its prior.
    """
    return _trained_for(replace(train, optimizer=Adam(lr=1e-3)), warmup=5, finetune=100)


def posteriors_on_small_images(posterior: Descent, natural: Descent) -> dict[str, MethodConfig]:
    """The settings of CIFAR; `posterior` must be Adam's for the reason given there."""
    methods = _trained_for(natural, warmup=5, finetune=50)
    return methods | {"posterior_network": PosteriorNetwork.Config(descent=posterior)}


def posteriors_on_cifar(train: Descent) -> dict[str, MethodConfig]:
    """Latents of 16, flows of 8 layers and λ = .01 and 1e-5; the originals' data sets were others.

    Posterior Network's paper has 6, 6 and 1e-5. Adam with a rate of 1e-3 and without weight decay
    is NatPN's. Posterior Network needs it too: it begins with pseudo-counts of 5000 · e^−15, its
    gradients are as small, and SGD leaves it where it is. Epochs and steps of the rate are ERM's;
    the flow is fitted as long as Density-Softmax's density.
    """
    return _trained_for(replace(train, optimizer=Adam(lr=1e-3)), warmup=5, finetune=50)


def posteriors_on_imagenet(train: Descent) -> dict[str, MethodConfig]:
    """The settings of CIFAR; neither was published on ImageNet."""
    return _trained_for(replace(train, optimizer=Adam(lr=1e-3)), warmup=1, finetune=10)


def _trained_for(train: Descent, warmup: int, finetune: int) -> dict[str, MethodConfig]:
    """Both methods with one training of the network, and NatPN's flow fitted before and after."""
    flow = Descent(epochs=finetune, batch_size=train.batch_size, optimizer=Adam(lr=1e-3))
    return {
        "posterior_network": PosteriorNetwork.Config(
            latent=16, layers=8, entropy_weight=0.01, descent=train
        ),
        "natural_posterior_network": NaturalPosteriorNetwork.Config(
            latent=16,
            layers=8,
            entropy_weight=1e-5,
            warmup=replace(flow, epochs=warmup),
            descent=train,
            finetune=flow,
        ),
    }
