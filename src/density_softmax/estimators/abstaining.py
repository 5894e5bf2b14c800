"""What classifiers of tables have in common: labels of which they abstain, and held-out rows."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from typing import Any, SupportsFloat, TypeAlias

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from density_softmax.data.sources import Indices, hold_out_by_class
from density_softmax.decide.explain import Explanation
from density_softmax.errors import CalibrationWarning, UserError
from density_softmax.nn.softmax.budget import FOLDS
from density_softmax.types import Prediction

Floats: TypeAlias = NDArray[np.float64]

# How many copies a row may have in the mean, where weights become copies.
MOST_COPIES = 5
# Held-out rows below which `fit` warns: the scale can then not judge a decay by other rows.
FEW_HELDOUT = 2 * FOLDS


class AbstainingClassifier(ClassifierMixin, BaseEstimator, ABC):  # type: ignore[misc]
    """A classifier that tells how unlike its training rows a row is, and abstains if asked to.

    Attributes:
        classes_: the labels, sorted.
        heldout_epistemic_: epistemic uncertainty of rows like the training data, ascending.
        typical_row_: the held-out row with the lowest epistemic uncertainty, as the density reads
            it, (columns,): what `explain` compares with.
    """

    classes_: NDArray[Any]
    heldout_epistemic_: Floats
    typical_row_: Floats

    @abstractmethod
    def _serve(self, X: Any) -> Prediction:
        """Return predictions for checked rows, in float64."""

    @abstractmethod
    def _explained(self, X: Any, names: list[str], reference: Floats) -> Explanation:
        """Explain checked rows.

        Args:
            X: (rows, columns).
            names: of the columns of X.
            reference: the row to compare with, as the density reads it, (columns,).
        """

    def predict_proba(self, X: Any) -> Floats:
        """Return probabilities, (rows, classes), columns as in `classes_`; uniform far away."""
        return self._prediction(X).probs.numpy()

    def predict(self, X: Any, abstain: float | None = None) -> NDArray[Any]:
        """Return the likeliest label of each row, or None where the model abstains.

        Args:
            X: (rows, columns).
            abstain: share of rows like the training data on which the model may abstain, such as
                0.05: rows with a higher epistemic uncertainty than that quantile of the held-out
                rows get None. With n rows held out, the smallest share is 1 / (n + 1).

        Returns:
            Labels as in `classes_`. With `abstain` the dtype is object, because None is no label,
            whatever the labels are: `pandas.isna(labels)` and `labels == None` find it.
        """
        prediction = self._prediction(X)
        labels: NDArray[Any] = self.classes_[prediction.probs.argmax(-1).numpy()]
        return labels if abstain is None else self._abstained(labels, prediction, abstain)

    def _abstained(self, labels: NDArray[Any], prediction: Prediction, rate: float) -> NDArray[Any]:
        """Labels, with None where the epistemic uncertainty is above the threshold of a rate."""
        labels = labels.astype(object)
        labels[prediction.epistemic.numpy() > self._threshold(rate)] = None
        return labels

    def score_samples(self, X: Any) -> Floats:
        """Return minus the epistemic uncertainty of each row: low if unlike the training data.

        It is −inf where a row is too far away for the density to be computed.
        """
        return -self._prediction(X).epistemic.numpy()

    def uncertainty(self, X: Any) -> tuple[Floats, Floats]:
        """Return aleatoric and epistemic uncertainty of each row.

        The first is the entropy in nats of the softmax before the density scales it, which more
        data would not remove; the second is the sum of surprises of all experts.
        """
        _, aleatoric, epistemic = self._prediction(X)
        return aleatoric.numpy(), epistemic.numpy()

    def explain(self, X: Any, *, reference: Any = None) -> Explanation:
        """What makes each row strange: numbers that add up to its epistemic uncertainty.

        `columns` of the result says what each column adds to `base`, the uncertainty of a typical
        row, by Shapley values; `parts` divides the uncertainty among the experts and what they
        read. `draw(file, row)` shows both as bars. It takes a few passes for each column of a row.

        Args:
            X: (rows, columns).
            reference: a row to compare with, as the density reads it, (columns,); by default
                `typical_row_`.
        """
        rows = self._rows(X)
        names = getattr(self, "feature_names_in_", None)
        named = [str(name) for name in (range(self.n_features_in_) if names is None else names)]
        return self._explained(rows, named, self.typical_row_ if reference is None else reference)

    def _prediction(self, X: Any) -> Prediction:
        return self._serve(self._rows(X))

    def _rows(self, X: Any) -> Any:
        """Check rows to predict."""
        check_is_fitted(self)
        return validate_data(self, X, dtype=np.float64, reset=False)

    def _keep_typical(self, served: Prediction, read: Floats) -> None:
        """Note what is typical of the rows that are held out.

        Args:
            served: predictions for them.
            read: the rows as the density reads them, (rows, columns).
        """
        epistemic = served.epistemic.numpy()
        self.heldout_epistemic_ = np.sort(epistemic)
        self.typical_row_ = read[int(epistemic.argmin())]

    def _threshold(self, rate: float) -> float:
        """Return what a new row like the n held-out ones exceeds with probability <= `rate`.

        If all n + 1 are exchangeable, the new one is among the k highest with probability
        k / (n + 1).
        """
        num_heldout = len(self.heldout_epistemic_)
        share = number("abstain", rate)
        # The margin keeps rates of exactly k / (n + 1) from being rounded down.
        highest = math.floor((num_heldout + 1) * share + 1e-9) if 0 < share < 1 else 0
        if highest == 0:
            raise UserError(
                f"abstain={rate}: choose a rate below 1 and of at least 1/{num_heldout + 1}, "
                f"because {num_heldout} rows were held out; more rows or a larger "
                "validation_fraction allow a smaller one"
            )
        threshold = float(self.heldout_epistemic_[-highest])
        # This margin keeps a row from exceeding its own duplicate among the held-out ones.
        return threshold + 1e-9 * abs(threshold)


def drawn_seed(random_state: int | np.random.RandomState | None) -> int:
    """Return a seed that the setting of an estimator decides.

    Args:
        random_state: None takes one from the operating system.
    """
    # For None, check_random_state would return the global generator.
    state = np.random.RandomState() if random_state is None else random_state
    return int(check_random_state(state).randint(np.iinfo(np.int32).max))


def numbered(y: NDArray[Any]) -> tuple[NDArray[Any], Indices]:
    """Return the classes, sorted, and the number of each row's class; refuses a single class.

    Args:
        y: labels, (rows,).
    """
    classes, numbers = np.unique(y, return_inverse=True)
    if len(classes) < 2:
        raise UserError(f"y has one class only ({classes[0]!r}): it needs two")
    return classes, numbers


def divided(y: Indices, fraction: Any, seed: int) -> tuple[Indices, Indices]:
    """Split rows into those to train on and those held out; warns if the latter are few.

    Args:
        y: the class of every row, (rows,).
        fraction: the setting `validation_fraction`.
        seed: decides which.
    """
    train, heldout = hold_out_by_class(y, _share("validation_fraction", fraction), seed)
    if len(heldout) < FEW_HELDOUT:
        warnings.warn(
            f"{len(heldout)} of {len(y)} rows are held out to calibrate on, fewer than "
            f"{FEW_HELDOUT}: probabilities and thresholds are rough; give more rows, or raise "
            "validation_fraction",
            CalibrationWarning,
            stacklevel=3,
        )
    return train, heldout


def weighted_rows(sample_weight: Any, X: Any, seed: int) -> Indices:
    """Return the index of each row as often as its weight says.

    Whole numbers are taken as they are. Others, and those that would make the table too large, are
    scaled and rounded up or down by systematic sampling, which is right in the mean.

    Args:
        sample_weight: as `fit` gets it, (rows,).
        X: the rows.
        seed: of the sampling.
    """
    if not np.asarray(sample_weight).any():
        raise UserError(
            "sample_weight: all weights are 0. Sample weights must contain at least one non-zero "
            "number: the rows with weight 0 are left out"
        )
    weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    if weight.sum() > MOST_COPIES * len(weight) or (weight % 1).any():
        weight = weight / max(weight[weight > 0].min(), weight.mean() / MOST_COPIES)
        edges = np.cumsum(weight) + np.random.default_rng(seed).random()
        weight = np.diff(np.floor(edges), prepend=0.0)
    return np.repeat(np.arange(len(weight)), weight.astype(np.intp))


def number(name: str, value: Any) -> float:
    """Check a setting that is a number.

    Args:
        name: of the setting.
        value: what it was set to.
    """
    if not isinstance(value, SupportsFloat):
        raise UserError(f"{name}={value!r}: choose a number")
    return float(value)


def _share(name: str, value: Any) -> float:
    if not 0 < number(name, value) < 1:
        raise UserError(f"{name}={value}: choose a share between 0 and 1")
    return float(value)
