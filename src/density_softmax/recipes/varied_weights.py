"""Methods that vary the weights of a network: mean-field, Rank-1 BNN and BatchEnsemble.

None of them has a weight decay in the optimizer: their l2 spares some of the parameters and is a
term of the loss.
"""

from __future__ import annotations

from dataclasses import replace

from density_softmax.methods import BatchEnsemble, MeanField, MethodConfig, Rank1BNN
from density_softmax.training import SGD, Descent, Steps

__all__ = ["varied_weights", "varied_weights_cifar", "varied_weights_imagenet"]


def varied_weights(train: Descent, l2: float = 0.0) -> dict[str, MethodConfig]:
    """For recipes of our own: priors and first values of the papers, as long as ERM trains.

    The divergence is annealed over four fifths of the training, as over 200 of 250 epochs on CIFAR.

    Args:
        train: how ERM is trained, without its weight decay.
        l2: half of that weight decay.
    """
    annealing = max(1, 4 * train.epochs // 5)
    return {
        "mean_field": MeanField.Config(annealing_epochs=annealing, l2=l2, descent=train),
        "rank1_bnn": Rank1BNN.Config(annealing_epochs=annealing, l2=l2, descent=train),
        "batch_ensemble": BatchEnsemble.Config(l2=l2, descent=train),
    }


def varied_weights_cifar(train: Descent) -> dict[str, MethodConfig]:
    """The settings of uncertainty-baselines for WRN-28-10 on CIFAR, at the paper's batch size.

    Mean-field draws once for a prediction: the paper's latency of 1.56 times that of ERM is that
    of one pass of Flipout, and uncertainty-baselines draws once on clean images (5 times on
    corrupted ones).
    """
    longer = replace(train, epochs=250, optimizer=SGD(lr=0.05))
    later = replace(longer, schedule=Steps(milestones=(80, 160, 180)))
    return {
        "mean_field": MeanField.Config(
            num_samples=1,
            initial_std=1e-3,
            prior_std=0.1,
            annealing_epochs=200,
            l2=4e-4,
            descent=longer,
        ),
        "rank1_bnn": Rank1BNN.Config(
            num_members=4, prior_std=0.1, annealing_epochs=200, l2=1e-4, descent=later
        ),
        "batch_ensemble": BatchEnsemble.Config(
            num_members=4, initial_std=0.5, fast_gradient=0.5, l2=3e-4, descent=later
        ),
    }


def varied_weights_imagenet(train: Descent) -> dict[str, MethodConfig]:
    """The settings of uncertainty-baselines for ResNet-50, at the paper's batch size and rate.

    Its BatchEnsemble spares batch norms from l2 as well. Mean-field has no published settings
    here: ours are those of CIFAR on the schedule of ERM.
    """
    same = replace(train, optimizer=SGD(lr=0.05))
    longer = replace(same, epochs=135)
    return {
        "mean_field": MeanField.Config(num_samples=1, annealing_epochs=72, l2=1e-4, descent=same),
        "rank1_bnn": Rank1BNN.Config(
            positive=0.75,
            prior_std=0.05,
            annealing_epochs=90,
            member_norm=True,
            l2=1e-4,
            descent=longer,
        ),
        "batch_ensemble": BatchEnsemble.Config(fast_gradient=0.25, l2=1e-4, descent=longer),
    }
