"""Posterior Network and NatPN: Dirichlet posteriors from densities of a narrow latent space."""

from __future__ import annotations

from dataclasses import replace

from density_softmax.methods import MethodConfig, NaturalPosteriorNetwork, PosteriorNetwork
from density_softmax.training import Adam, Descent

__all__ = [
    "posteriors_on_cifar",
    "posteriors_on_imagenet",
    "posteriors_on_points",
    "posteriors_on_small_images",
]

# Ours, where NatPN's rate of 1e-3 has too few steps: on two moons 700 of them fit the flow to a
# held-out log density of 6 nats, these 350 to one of 34.
QUICK_FLOW = Descent(epochs=50, optimizer=Adam(lr=3e-2), clip_norm=10.0)


def posteriors_on_points(train: Descent) -> dict[str, MethodConfig]:
    """The settings of CIFAR; Posterior Network with ten times the rate of the other methods.

    Its flows learn in no other stage, and in 700 steps of 1e-4 their parameters move by .07 at
    most: it then hardly leaves its prior.
    """
    faster = replace(train, optimizer=Adam(lr=1e-3))
    return _trained(posterior=faster, natural=train, flow=QUICK_FLOW, warmup_epochs=5)


def posteriors_on_small_images(posterior: Descent, natural: Descent) -> dict[str, MethodConfig]:
    """The settings of CIFAR; `posterior` must be Adam's for the reason given there."""
    return _trained(posterior, natural, flow=QUICK_FLOW, warmup_epochs=5)


def posteriors_on_cifar(train: Descent) -> dict[str, MethodConfig]:
    """Epochs and steps of the rate are ERM's; the flow has as many as Density-Softmax's density.

    Adam with a rate of 1e-3 and without weight decay is NatPN's. Posterior Network needs Adam
    too: it begins with pseudo-counts of 5000 · e^−15, its gradients are as small, and SGD leaves
    it where it is.
    """
    adam = replace(train, optimizer=Adam(lr=1e-3))
    flow = Descent(epochs=50, batch_size=train.batch_size, optimizer=Adam(lr=1e-3))
    return _trained(adam, adam, flow, warmup_epochs=5)


def posteriors_on_imagenet(train: Descent) -> dict[str, MethodConfig]:
    """The settings of CIFAR; neither was published on ImageNet."""
    adam = replace(train, optimizer=Adam(lr=1e-3))
    flow = Descent(epochs=10, batch_size=train.batch_size, optimizer=Adam(lr=1e-3))
    return _trained(adam, adam, flow, warmup_epochs=1)


def _trained(
    posterior: Descent, natural: Descent, flow: Descent, warmup_epochs: int
) -> dict[str, MethodConfig]:
    """Both methods at the size of NatPN: 16 latent dimensions and flows of 8 layers.

    The weight 1e-5 of NatPN's entropy is its paper's, and .01 is Posterior Network's at this size;
    the latter's own paper has 6 dimensions, 6 layers and 1e-5.
    """
    return {
        "posterior_network": PosteriorNetwork.Config(
            latent=16, layers=8, entropy_weight=0.01, descent=posterior
        ),
        "natural_posterior_network": NaturalPosteriorNetwork.Config(
            latent=16,
            layers=8,
            entropy_weight=1e-5,
            warmup=replace(flow, epochs=warmup_epochs),
            descent=natural,
            finetune=flow,
        ),
    }
