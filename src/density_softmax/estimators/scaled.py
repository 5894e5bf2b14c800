"""Any scikit-learn classifier, its probabilities scaled by the density of its inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data
from torch import Tensor

from density_softmax.data.sources import Indices
from density_softmax.errors import UserError
from density_softmax.estimators.abstaining import AbstainingClassifier, Floats, divided, drawn_seed
from density_softmax.nn.densities import ClassAwareDensity, Density, GaussianDensity
from density_softmax.nn.softmax.head import entropy_of_logits
from density_softmax.nn.softmax.typicality import Typicality
from density_softmax.recipes.table import HELDOUT, SCALE
from density_softmax.training import Estimate
from density_softmax.types import Batch, Prediction

# Trees are certain of some classes, and the logarithm of 0 is infinite.
LEAST_PROBABILITY = 1e-7
# Added to the likeliest class, because far away probabilities are equal to rounding.
TIE = 1e-9


class DensityScaledClassifier(AbstainingClassifier):
    """A classifier that loses confidence where rows are unlike those it was trained on.

    The probabilities q of `estimator` become softmax(s(log p(x)) · log q(x) / T). The density p is
    made of Gaussians of the standardised columns, of all rows and of each class; held-out rows fit
    the scale s and the temperature T. Labels stay those of `estimator`.

    Args:
        estimator: a classifier with `predict_proba`; None is a logistic regression. `fit` trains a
            clone of it on the rows that are not held out. One that is trained already is passed as
            `sklearn.frozen.FrozenEstimator(classifier)`, and then `fit` gets rows that it has not
            been trained on.
        validation_fraction: share of the rows that is held out.
        random_state: decides which rows are held out.

    Attributes:
        estimator_: the trained classifier.
        classes_: its labels, sorted.
        n_features_in_: number of columns of X.
        feature_names_in_: their names, if X was a data frame.
        heldout_epistemic_: epistemic uncertainty of the held-out rows, ascending.
    """

    def __init__(
        self,
        estimator: ClassifierMixin | None = None,
        *,
        validation_fraction: float = HELDOUT,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.estimator, self.random_state = estimator, random_state
        self.validation_fraction = validation_fraction

    def fit(self, X: Any, y: Any) -> DensityScaledClassifier:
        """Train the classifier, the density of its inputs and the scale.

        Args:
            X: numbers, (rows, columns).
            y: labels of any type that can be sorted, (rows,).
        """
        X, y = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
        check_classification_targets(y)
        seed = drawn_seed(self.random_state)
        numbers = np.unique(y, return_inverse=True)[1]
        train, heldout = divided(numbers, self.validation_fraction, seed)
        plain = make_pipeline(StandardScaler(), LogisticRegression())
        chosen = plain if self.estimator is None else clone(self.estimator)
        self.estimator_ = chosen.fit(X[train], y[train])
        self.classes_ = self.estimator_.classes_
        if unknown := set(y) - set(self.classes_):
            raise UserError(f"y has labels that the classifier does not know: {sorted(unknown)}")
        heldout = heldout if len(heldout) else train
        self._fit_scale(X, np.searchsorted(self.classes_, y), train, heldout)
        self.heldout_epistemic_ = np.sort(self._serve(X[heldout]).epistemic.numpy())
        return self

    @torch.no_grad()
    def _fit_scale(self, X: Floats, y: Indices, train: Indices, heldout: Indices) -> None:
        self._scaler = StandardScaler().fit(X[train])
        columns, num_classes = slice(0, X.shape[1]), len(self.classes_)
        densities: dict[str, tuple[Density, slice]] = {
            "columns": (GaussianDensity(X.shape[1]), columns),
            "classes": (ClassAwareDensity(X.shape[1], num_classes), columns),
        }
        self._typicality = Typicality(densities).double().eval()
        batches = {
            split: Batch(self._standardized(X[rows]), torch.from_numpy(y[rows]))
            for split, rows in (("train", train), ("heldout", heldout))
        }
        for stage in self._typicality.stages():
            assert isinstance(stage, Estimate)
            stage.finish(stage.statistics(batches[stage.split]))
        logits = self._logits(X[heldout])
        experts = self._typicality.experts(batches["heldout"].x, logits)

        def log_prob(rows: Tensor) -> Tensor:
            self._typicality.fit(experts[rows])
            return self._typicality.combined(experts).log_prob

        self._scale = SCALE.build().double()
        self._temperature = self._scale.fit(log_prob, logits, batches["heldout"].y)
        self._typicality.fit(experts)

    @torch.no_grad()
    def _serve(self, X: Floats) -> Prediction:
        raw = self._logits(X)
        evidence = self._typicality(self._standardized(X), raw)
        logits = raw / self._temperature
        probs = (self._scale(evidence.log_prob)[:, None] * logits).softmax(-1)
        probs[torch.arange(len(probs)), raw.argmax(-1)] += TIE
        probs /= probs.sum(-1, keepdim=True)
        prediction = Prediction(probs, entropy_of_logits(logits), evidence.surprise)
        return prediction.made_of(evidence.contributions)

    def _logits(self, X: Floats) -> Tensor:
        probs: NDArray[np.float64] = self.estimator_.predict_proba(X)
        return torch.from_numpy(np.log(np.maximum(probs, LEAST_PROBABILITY)))

    def _standardized(self, X: Floats) -> Tensor:
        return torch.from_numpy(self._scaler.transform(X))
