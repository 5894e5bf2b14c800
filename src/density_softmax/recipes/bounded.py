"""SNGP and DDU: networks whose layers have bounded norms, so that features keep distances."""

from __future__ import annotations

import math
from dataclasses import replace

from density_softmax.methods import DDU, SNGP, MethodConfig
from density_softmax.nn.layers.processes import RandomFeatureProcess
from density_softmax.training import SGD, Descent, Steps

__all__ = [
    "bounded_on_cifar",
    "bounded_on_imagenet",
    "bounded_on_points",
    "bounded_on_small_images",
]

# The mean-field factor for the probit (Liu et al. 2020), where none is tuned.
PROBIT = math.pi / 8


def bounded_on_points(train: Descent) -> dict[str, MethodConfig]:
    """The authors' own two moons.

    SNGP: bound, kernel and factor of https://www.tensorflow.org/tutorials/understanding/sngp, with
    orthogonal frequencies. DDU: bound and iterations of `notebooks/two_moons.ipynb` in
    https://github.com/omegafragger/DDU.
    """
    process = RandomFeatureProcess.Config(
        num_features=1024, num_inputs=None, normalize=False, length_scale=1.0, scaled=True
    )
    return {
        "sngp": SNGP.Config(bound=0.9, process=process, mean_field_factor=PROBIT, descent=train),
        "ddu": DDU.Config(bound=0.65, num_iterations=5, descent=train),
    }


def bounded_on_small_images(
    sngp: Descent, ddu: Descent, l2: float = 0.0, mean_field_factor: float = PROBIT
) -> dict[str, MethodConfig]:
    """The bounds of CIFAR, trained like the other methods.

    128 features or fewer need no projection. The variance falls with the number of samples, so
    that its factor must rise with them: uncertainty-baselines' 20 for all of CIFAR-10 would leave
    no confidence behind a thousand images.

    Args:
        sngp: without weight decay, which would take hold of the process as well.
        ddu: how DDU is trained.
        l2: of SNGP's encoder, in place of a weight decay.
        mean_field_factor: of SNGP.
    """
    process = RandomFeatureProcess.Config(num_inputs=None)
    return {
        "sngp": SNGP.Config(
            bound=6.0, process=process, mean_field_factor=mean_field_factor, l2=l2, descent=sngp
        ),
        "ddu": DDU.Config(bound=3.0, descent=ddu),
    }


def bounded_on_cifar(base_rate: float, mean_field_factor: float) -> dict[str, MethodConfig]:
    """SNGP of uncertainty-baselines (`baselines/cifar/experiments/sngp_tune*.py`), DDU's own code.

    Without the filter-wise dropout of rate .1 in training that uncertainty-baselines adds to SNGP.
    """
    sngp = Descent(
        epochs=250,
        batch_size=256,
        optimizer=SGD(lr=base_rate * 256 / 128, momentum=0.9, nesterov=True),
        schedule=Steps(milestones=(60, 120, 160), ratio=0.2, warmup_epochs=1, nominal_epochs=200),
    )
    ddu = Descent(
        epochs=350,
        batch_size=128,
        optimizer=SGD(lr=0.1, momentum=0.9, nesterov=False, weight_decay=5e-4),
        schedule=Steps(milestones=(150, 250), ratio=0.1, warmup_epochs=0, nominal_epochs=350),
    )
    return {
        "sngp": SNGP.Config(
            bound=6.0,
            num_iterations=1,
            process=RandomFeatureProcess.Config(
                num_features=1024, num_inputs=128, normalize=True, length_scale=1 / 0.05, ridge=1.0
            ),
            mean_field_factor=mean_field_factor,
            l2=3e-4,
            descent=sngp,
        ),
        "ddu": DDU.Config(bound=3.0, descent=ddu),
    }


def bounded_on_imagenet(train: Descent) -> dict[str, MethodConfig]:
    """SNGP's process is that of `baselines/imagenet/sngp.py` in uncertainty-baselines.

    Both are trained like ERM, SNGP with an l2 of its encoder in place of the weight decay, which
    would take hold of the process as well. DDU's 1,000 covariances of 2,048 features would take
    17 GB: its classes share one.
    """
    undecayed = replace(train, optimizer=SGD(lr=0.05))
    process = RandomFeatureProcess.Config(num_inputs=None, normalize=False, length_scale=1 / 0.05)
    return {
        "sngp": SNGP.Config(
            bound=6.0, process=process, mean_field_factor=1.0, l2=1e-4, descent=undecayed
        ),
        "ddu": DDU.Config(bound=3.0, tied=True, descent=train),
    }
