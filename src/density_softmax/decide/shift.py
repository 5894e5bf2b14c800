"""How much likelier an input is among target data than among calibration data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np
from numpy.typing import NDArray

from density_softmax.decide.conformal import Floats, GuaranteeError
from density_softmax.errors import UserError

# Fewer effective samples than this say too little about a quantile.
FEWEST_EFFECTIVE = 50


@final
@dataclass(frozen=True)
class DensityRatio:
    """w(x) = p_target(x) / p_source(x) = exp(zᵀ Q z + bᵀ z + c), up to a constant factor.

    z = arsinh((x − center) / scale) bends heavy tails inwards. A Gaussian for each of the two
    densities gives Q, b and c; so does a logistic regression, with Q diagonal.

    Args:
        center: the medians of the source features, (features,).
        scale: their interquartile ranges, (features,).
        quadratic: Q, (features, features).
        linear: b, (features,).
        constant: c.
    """

    center: Floats
    scale: Floats
    quadratic: Floats
    linear: Floats
    constant: float

    @classmethod
    def of(
        cls, source: Floats, target: Floats, kind: Literal["density", "classifier"]
    ) -> DensityRatio:
        """From features of both.

        Args:
            source: of the calibration samples, (n, features).
            target: of unlabelled target inputs, (m, features).
            kind: `density` fits a Gaussian to each, `classifier` a logistic regression that tells
                them apart.
        """
        low, center, high = np.quantile(source, [0.25, 0.5, 0.75], axis=0)
        scale = np.where(high > low, high - low, 1.0)
        z = [np.arcsinh((values - center) / scale) for values in (source, target)]
        found = _gaussians(*z) if kind == "density" else _logistic(*z)
        ratio = cls(center, scale, *found)
        # Only relative weights matter: the largest of the calibration samples is 1.
        constant = ratio.constant - float(ratio.log_weights(source).max())
        return cls(center, scale, ratio.quadratic, ratio.linear, constant)

    def __call__(self, features: Floats) -> Floats:
        """The weights of inputs, (rows,).

        Args:
            features: (rows, features).
        """
        with np.errstate(over="ignore"):  # an infinite weight makes a set of all labels
            return np.exp(self.log_weights(features))

    def log_weights(self, features: Floats) -> Floats:
        """Their logarithms, (rows,)."""
        if features.ndim != 2 or features.shape[1] != len(self.center):
            raise UserError(
                f"features of shape {features.shape}: the policy was fitted with "
                f"(rows, {len(self.center)})"
            )
        z = np.arcsinh((features - self.center) / self.scale)
        bent = np.einsum("ni,ij,nj->n", z, self.quadratic, z)
        return bent + z @ self.linear + self.constant


def _gaussians(source: Floats, target: Floats) -> tuple[Floats, Floats, float]:
    """log N(z; target) − log N(z; source) as Q, b, c."""
    quadratic = np.zeros((source.shape[1],) * 2)
    linear, constant = np.zeros(source.shape[1]), 0.0
    for sign, z in ((1.0, target), (-1.0, source)):
        mean, covariance = z.mean(0), np.atleast_2d(np.cov(z, rowvar=False))
        share = z.shape[1] / (z.shape[1] + len(z))  # few samples: trust correlations less
        variances = np.maximum(np.diag(covariance), 1e-6)
        covariance = (1 - share) * covariance + np.diag(share * variances + 1e-9)
        precision = np.linalg.inv(covariance)
        quadratic -= sign * 0.5 * precision
        linear += sign * precision @ mean
        constant -= sign * 0.5 * (mean @ precision @ mean + np.linalg.slogdet(covariance)[1])
    return quadratic, linear, float(constant)


def _logistic(source: Floats, target: Floats) -> tuple[Floats, Floats, float]:
    """The log odds of a logistic regression of z and z² as Q, b, c."""
    from sklearn.linear_model import LogisticRegression

    z = np.concatenate([source, target])
    is_target = np.repeat([0, 1], [len(source), len(target)])
    width = z.shape[1]
    model = LogisticRegression(max_iter=1000, class_weight="balanced")
    model.fit(np.concatenate([z, z**2], axis=1), is_target)
    weights = model.coef_[0].astype(np.float64)
    return np.diag(weights[width:]), weights[:width], float(model.intercept_[0])


def checked_weights(weights: NDArray[Any], count: int, coverage: float) -> Floats:
    """The weights of calibration samples, refused if too few samples carry them.

    Args:
        weights: not negative, (count,).
        count: how many calibration samples there are.
        coverage: of the sets that they are for.
    """
    found = np.asarray(weights, np.float64)
    if found.shape != (count,) or not np.isfinite(found).all() or (found < 0).any():
        raise UserError(
            f"weights of shape {found.shape}: pass a finite weight ≥ 0 for each of the {count} "
            "calibration samples"
        )
    effective = float(found.sum() ** 2 / max(np.square(found).sum(), 1e-300))
    needed = max(FEWEST_EFFECTIVE, math.ceil(1 / (1 - coverage) - 1e-9))
    if effective < needed:
        raise GuaranteeError(
            f"the target data are too unlike the {count} calibration samples: these count as "
            f"{effective:.1f} effective samples, and coverage={coverage:g} needs {needed}. More "
            "calibration samples like the target data would help, or features in which the two "
            "overlap; labelled target data would do without weights"
        )
    return found
