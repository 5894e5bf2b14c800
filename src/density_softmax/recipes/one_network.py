"""Methods that get several predictions out of one network: MC Dropout, Heteroscedastic, MIMO."""

from __future__ import annotations

from dataclasses import replace

from density_softmax.methods import MIMO, Heteroscedastic, MCDropout, MethodConfig
from density_softmax.training import SGD, Adam, Descent, Steps

__all__ = [
    "one_network_on_cifar",
    "one_network_on_imagenet",
    "one_network_on_points",
    "one_network_on_small_images",
]

# In place of 10,000, in every step of a training that takes seconds otherwise: the error of a
# mean probability is then at most .5 / √1000 = .016.
FEW_SAMPLES = 1_000


def one_network_on_points(train: Descent) -> dict[str, MethodConfig]:
    """The settings of CIFAR.

    MIMO takes ten times the rate: 700 steps of 1e-4 do not teach three members, who share the
    width of one, to tell three inputs apart.
    """
    faster = replace(train, optimizer=Adam(lr=1e-3))
    return {
        "mc_dropout": MCDropout.Config(descent=train),
        "heteroscedastic": Heteroscedastic.Config(num_samples=FEW_SAMPLES, descent=train),
        "mimo": MIMO.Config(descent=faster),
    }


def one_network_on_small_images(train: Descent, num_masks: int = 30) -> dict[str, MethodConfig]:
    """The settings of CIFAR, trained like ERM, but two members of MIMO: the networks are narrow."""
    return {
        "mc_dropout": MCDropout.Config(num_samples=num_masks, chunk=10, descent=train),
        "heteroscedastic": Heteroscedastic.Config(
            num_samples=FEW_SAMPLES, chunk=250, descent=train
        ),
        "mimo": MIMO.Config(num_members=2, batch_repetition=2, descent=train),
    }


def one_network_on_cifar(train: Descent) -> dict[str, MethodConfig]:
    """The settings of uncertainty-baselines for WRN-28-10, at the paper's batch size.

    Its files in `baselines/cifar` are dropout.py, heteroscedastic.py and mimo.py. Rates are
    base · 64 / 128, with a base of .05 for MC Dropout and of .1 for the others; an l2 of 3e-4 is a
    weight decay of 6e-4.
    """
    dropout = replace(train, optimizer=SGD(lr=0.025, weight_decay=6e-4))
    mimo = replace(
        train,
        epochs=250,
        optimizer=SGD(lr=0.05, weight_decay=6e-4),
        schedule=Steps(milestones=(80, 160, 180)),
    )
    return {
        "mc_dropout": MCDropout.Config(rate=0.1, num_samples=30, chunk=3, descent=dropout),
        "heteroscedastic": Heteroscedastic.Config(
            num_factors=6, temperature=1.3, num_samples=10_000, chunk=500, descent=train
        ),
        "mimo": MIMO.Config(num_members=3, batch_repetition=4, input_repetition=0.0, descent=mimo),
    }


def one_network_on_imagenet(train: Descent) -> dict[str, MethodConfig]:
    """The settings of uncertainty-baselines for ResNet-50, at the paper's batch size and rate.

    Its files in `baselines/imagenet` bear the same names; there too the rate of MC Dropout is half
    that of the others. It drops whole channels behind every layer, here it is single values once
    in a block, as on CIFAR. The 15 factors and two members are also what the paper's numbers of
    parameters say.
    """
    dropout = replace(train, epochs=200, optimizer=SGD(lr=0.025, weight_decay=2e-4))
    return {
        "mc_dropout": MCDropout.Config(rate=0.05, num_samples=10, chunk=1, descent=dropout),
        "heteroscedastic": Heteroscedastic.Config(
            num_factors=15,
            temperature=1.5,
            num_samples=5_000,
            chunk=100,
            descent=replace(train, epochs=180),
        ),
        "mimo": MIMO.Config(
            num_members=2,
            batch_repetition=2,
            input_repetition=0.6,
            descent=replace(train, epochs=150),
        ),
    }
