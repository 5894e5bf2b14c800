"""SNGP and DDU: networks whose layers have bounded norms, so that features keep distances."""

from __future__ import annotations

import math

from density_softmax.methods import DDU, SNGP, MethodConfig
from density_softmax.nn.gaussian_process import RandomFeatureProcess
from density_softmax.optimization import SGD, Descent, Steps

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


def bounded_on_small_images(train: Descent) -> dict[str, MethodConfig]:
    """The bounds of CIFAR, trained like the other methods.

    128 features or fewer need no projection. Uncertainty-baselines' factors are tuned to a network
    that fits 50,000 images without error: less sure ones keep the probit's.
    """
    process = RandomFeatureProcess.Config(num_inputs=None)
    return {
        "sngp": SNGP.Config(bound=6.0, process=process, mean_field_factor=PROBIT, descent=train),
        "ddu": DDU.Config(bound=3.0, descent=train),
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

    Both are trained like ERM. DDU's 1,000 covariances of 2,048 features would take 17 GB: its
    classes share one.
    """
    process = RandomFeatureProcess.Config(num_inputs=None, normalize=False, length_scale=1 / 0.05)
    return {
        "sngp": SNGP.Config(bound=6.0, process=process, mean_field_factor=1.0, descent=train),
        "ddu": DDU.Config(bound=3.0, tied=True, descent=train),
    }
