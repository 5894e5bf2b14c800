"""Any scikit-learn classifier, its probabilities scaled by the density of its inputs."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, clone
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import _safe_indexing, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    check_array,
    check_consistent_length,
    check_is_fitted,
    validate_data,
)
from torch import Tensor

from density_softmax.decide.explain import Explanation
from density_softmax.engine.calibration import judge, scores
from density_softmax.errors import CalibrationWarning, UserError
from density_softmax.estimators.abstaining import (
    AbstainingClassifier,
    Floats,
    divided,
    drawn_seed,
    numbered,
    weighted_rows,
)
from density_softmax.nn.densities import GaussianDensity
from density_softmax.nn.execution import digests
from density_softmax.nn.softmax.attribution import divide
from density_softmax.nn.softmax.budget import FOLDS
from density_softmax.nn.softmax.head import entropy_of_logits
from density_softmax.nn.softmax.scale import Scale
from density_softmax.nn.softmax.typicality import Evidence, Typicality
from density_softmax.recipes.table import DENSITY_SOFTMAX, HELDOUT, SCALE
from density_softmax.training import Estimate, folds
from density_softmax.types import Batch, Prediction

# Trees are certain of some classes, and the logarithm of 0 is infinite.
LEAST_PROBABILITY = 1e-7
# Added to the likeliest class, because far away probabilities are equal to rounding.
TIE = 1e-9


class Rows(NamedTuple):
    """Rows of a table, as the classifier reads them, and their labels.

    Attributes:
        X: (rows, columns).
        y: (rows,).
    """

    X: Any
    y: NDArray[Any]

    def take(self, indices: NDArray[np.intp]) -> Rows:
        """Some of them, by their indices."""
        return Rows(_safe_indexing(self.X, indices), self.y[indices])


class DensityScaledClassifier(AbstainingClassifier):
    """A classifier that loses confidence where rows are unlike those it was trained on.

    The probabilities q of `estimator` become softmax(s(log p(x)) · log q(x) / T). The density p is
    a Gaussian of the standardised columns that the classifier reads; held-out rows fit the scale s
    and the temperature T. Labels are what `estimator.predict` says, also where that is not the
    likeliest class, as of an SVC or a TunedThresholdClassifierCV.

    Args:
        estimator: a classifier with `predict_proba`; None is a logistic regression. `fit` trains a
            clone of it on the rows that are not held out. One that is trained already is given to
            `density_softmax.attach`, or passed as `sklearn.frozen.FrozenEstimator(classifier)`,
            and then `fit` gets rows that it has not been trained on. Of a `Pipeline`, the density
            reads what its last step reads, and X may be whatever its first step reads.
        validation_fraction: share of the rows that is held out.
        random_state: decides which rows are held out.

    Attributes:
        estimator_: the trained classifier.
        classes_: its labels, sorted.
        n_features_in_: number of columns of X.
        feature_names_in_: their names, if X was a data frame.
        heldout_epistemic_: epistemic uncertainty of the held-out rows, ascending.
        typical_row_: the held-out row with the lowest epistemic uncertainty, as the classifier or
            the last step of a pipeline reads it, (columns,): what `explain` compares with.
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

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> DensityScaledClassifier:
        """Train the classifier, the density of its inputs and the scale.

        Args:
            X: what the classifier reads: numbers, (rows, columns), unless it is a pipeline.
            y: labels of any type that can be sorted, (rows,).
            sample_weight: how much each row counts, (rows,), for the classifier, the density and
                the scale, by copies as in `DensitySoftmaxClassifier.fit`: so the classifier need
                not know weights.
        """
        rows = self._checked(X, y)
        seed = drawn_seed(self.random_state)
        if sample_weight is not None:
            rows = rows.take(weighted_rows(sample_weight, rows.X, seed))
        _, numbers = numbered(rows.y)
        if isinstance(rows.X, np.ndarray) and rows.X.dtype == np.float64:
            order = np.lexsort((numbers, *rows.X.T))  # so the order of rows makes no difference
            rows, numbers = rows.take(order), numbers[order]
        train, heldout = divided(numbers, self.validation_fraction, seed)
        plain = make_pipeline(StandardScaler(), LogisticRegression())
        chosen = plain if self.estimator is None else clone(self.estimator)
        trained = chosen.fit(*rows.take(train))
        return self._around(
            trained, rows.take(train), rows.take(heldout if len(heldout) else train)
        )

    def _checked(self, X: Any, y: Any, reset: bool = True) -> Rows:
        """Check rows with labels; only pipelines read more than numbers."""
        if _divided(self.estimator)[0] is None:
            numbers: Any = {"dtype": np.float64, "ensure_min_samples": 2}
            X, y = validate_data(self, X, y, reset=reset, **numbers)
        else:
            X = validate_data(self, X, reset=reset, skip_check_array=True)
            y = column_or_1d(y, warn=True)
            check_consistent_length(X, y)
        check_classification_targets(y)
        return Rows(X, np.asarray(y))

    def predict(self, X: Any, abstain: float | None = None) -> NDArray[Any]:
        """Return the label that `estimator_` gives each row, or None where the model abstains.

        Args:
            X: (rows, columns).
            abstain: as for `DensitySoftmaxClassifier.predict`.
        """
        rows = self._rows(X)
        _, last = _divided(self.estimator_)
        labels: NDArray[Any] = np.asarray(last.predict(_named(last, self._read(rows))))
        return labels if abstain is None else self._abstained(labels, self._serve(rows), abstain)

    def _rows(self, X: Any) -> Any:
        check_is_fitted(self)
        if _divided(self.estimator)[0] is None:
            return super()._rows(X)
        return validate_data(self, X, reset=False, skip_check_array=True)

    @torch.no_grad()
    def _explained(self, X: Any, names: list[str], reference: Floats) -> Explanation:
        """Divide the distance of the density among the columns that it reads."""
        inputs, names = self._read(X), self._names_read(names)
        no_logits = torch.zeros(0)  # the density of columns is the only expert

        def evidence(rows: Any) -> Evidence:
            return self._typicality(self._standardized(rows), no_logits)

        _, surprise, contributions = evidence(inputs)
        channels = [("columns", name) for name in names]
        z = self._standardized(inputs)
        parts, whose = divide(self._typicality, z, contributions, channels)
        found = Explanation(surprise.numpy(), parts.numpy(), whose)
        return found.with_columns(
            lambda rows: evidence(rows).surprise.numpy(), _dense(inputs), names, reference
        )

    def _names_read(self, names: list[str]) -> list[str]:
        """Names of the columns that the density reads: X's, or what a pipeline makes of them."""
        steps, _ = _divided(self.estimator_)
        if steps is None:
            return names
        try:
            return [str(name) for name in steps.get_feature_names_out(names)]
        except (AttributeError, ValueError):  # of steps that do not name what they make
            return [str(number) for number in range(len(self.typical_row_))]

    @torch.no_grad()
    def _around(self, trained: Any, train: Rows, heldout: Rows) -> DensityScaledClassifier:
        """Fit density and scale to a trained classifier."""
        self.estimator_, self.classes_ = trained, trained.classes_
        self._scaler = StandardScaler().fit(_dense(self._read(train.X)))
        batches = {"train": self._batch(train), "heldout": self._batch(heldout)}
        num_columns = batches["train"].x.shape[1]
        density = DENSITY_SOFTMAX.density.build(num_columns, len(self.classes_))
        assert isinstance(density, GaussianDensity)
        self._typicality = Typicality({"columns": (density, slice(0, num_columns))}).double().eval()
        for stage in self._typicality.stages():
            assert isinstance(stage, Estimate)
            stage.finish(stage.statistics(batches[stage.split]))
        log_prob = density.log_prob(batches["heldout"].x)
        logits = self._logits(self._read(heldout.X))
        self._scale, self._temperature = _fitted_scale(log_prob, logits, batches["heldout"].y)
        self._keep_typical(self._serve(heldout.X), _dense(self._read(heldout.X)))
        return self

    @torch.no_grad()
    def _serve(self, X: Any) -> Prediction:
        inputs = self._read(X)
        raw = self._logits(inputs)
        evidence = self._typicality(self._standardized(inputs), raw)
        probs = _scaled(raw, evidence.log_prob, self._scale, self._temperature)
        probs[torch.arange(len(probs)), raw.argmax(-1)] += TIE
        probs /= probs.sum(-1, keepdim=True)
        entropy = entropy_of_logits(raw / self._temperature)
        return Prediction(probs, entropy, evidence.surprise).made_of(evidence.contributions)

    def _batch(self, rows: Rows) -> Batch:
        """Standardised columns and numbers of classes."""
        if unknown := set(rows.y) - set(self.classes_):
            raise UserError(f"y has labels that the classifier does not know: {sorted(unknown)}")
        numbers = np.searchsorted(self.classes_, rows.y)
        return Batch(self._standardized(self._read(rows.X)), torch.from_numpy(numbers))

    def _read(self, X: Any) -> Any:
        """What the classifier, or the last step of a pipeline, reads."""
        steps, _ = _divided(self.estimator_)
        return X if steps is None else steps.transform(X)

    def _logits(self, inputs: Any) -> Tensor:
        _, last = _divided(self.estimator_)
        probs: NDArray[np.float64] = last.predict_proba(_named(last, inputs))
        return torch.from_numpy(np.log(np.maximum(probs, LEAST_PROBABILITY).astype(np.float64)))

    def _standardized(self, inputs: Any) -> Tensor:
        return torch.from_numpy(self._scaler.transform(_dense(inputs)))


def _divided(classifier: Any) -> tuple[Any | None, Any]:
    """Return the preprocessing of a pipeline, or None, and what reads its result."""
    if isinstance(classifier, FrozenEstimator):
        classifier = classifier.estimator
    if isinstance(classifier, Pipeline) and len(classifier) > 1:
        return classifier[:-1], classifier[-1]
    return None, classifier


def _named(classifier: Any, inputs: Any) -> Any:
    """Return the inputs with the names of columns that the classifier was trained with, if any."""
    names = getattr(classifier, "feature_names_in_", None)
    if names is None or not isinstance(inputs, np.ndarray):
        return inputs
    import pandas as pd

    return pd.DataFrame(inputs, columns=names)


def _dense(inputs: Any) -> Floats:
    found: Floats = inputs.toarray() if hasattr(inputs, "toarray") else inputs
    return check_array(found, dtype=np.float64, input_name="what the classifier reads")


def _fitted_scale(log_prob: Tensor, logits: Tensor, y: Tensor) -> tuple[Scale, float]:
    scale = SCALE.build().double()
    return scale, scale.fit(lambda rows: log_prob, logits, y)


def _scaled(raw: Tensor, log_prob: Tensor, scale: Scale, temperature: float) -> Tensor:
    return (scale(log_prob)[:, None] * raw / temperature).softmax(-1)


@torch.no_grad()
def attach_to_classifier(
    classifier: Any, train: Any, calibration: Any, *, seed: int = 0, progress: bool = True
) -> DensityScaledClassifier:
    """Put the density of its inputs around a trained scikit-learn classifier.

    Args:
        classifier: with `predict_proba`; it stays as it is.
        train: what it was trained on, a pair (X, y).
        calibration: rows that it was not trained on, a pair (X, y).
        seed: the `random_state` of what is returned, for when it is fitted again.
        progress: print NLL and ECE before and after.
    """
    _check_trained(classifier)
    scaled = DensityScaledClassifier(classifier, random_state=seed)
    known = scaled._checked(*_pair("train", train))
    fresh = scaled._checked(*_pair("calibration", calibration), reset=False)
    scaled._around(classifier, known, fresh)
    rows = {"train": _judged(scaled, known), "heldout": _judged(scaled, fresh)}
    for weakness in judge(rows, len(scaled.classes_), answers=False):
        warnings.warn(weakness, CalibrationWarning, stacklevel=3)
    if progress:
        print(_change(scaled, known, fresh))
    return scaled


def _check_trained(classifier: Any) -> None:
    name = type(classifier).__name__
    try:
        check_is_fitted(classifier)
    except NotFittedError as error:
        raise UserError(
            f"the {name} is not fitted: call its fit first, or let "
            "DensityScaledClassifier(classifier).fit(X, y) train and calibrate it"
        ) from error
    except TypeError:  # no estimator of scikit-learn
        pass
    if not hasattr(classifier, "predict_proba") or not hasattr(classifier, "classes_"):
        raise UserError(
            f"the {name} has no predict_proba and classes_: attach to a torch model, or to a "
            "scikit-learn classifier that gives probabilities (CalibratedClassifierCV makes some)"
        )


def _pair(name: str, value: Any) -> tuple[Any, Any]:
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise UserError(f"{name}: pass a pair (X, y), as the classifier's fit takes them")
    return value[0], value[1]


def _judged(scaled: DensityScaledClassifier, rows: Rows) -> dict[str, Tensor]:
    """What `judge` looks at; labels are numbers."""
    z, y = scaled._batch(rows)
    return {"z": z, "y": y, "digest": digests(z), "level": z.mean(1), "size": z.abs().mean(1)}


def _change(scaled: DensityScaledClassifier, known: Rows, fresh: Rows) -> str:
    """What changed on the calibration rows, each judged by a scale fitted to others."""
    z, y = scaled._batch(fresh)
    raw = scaled._logits(scaled._read(fresh.X))
    log_prob = scaled._typicality(z, raw).log_prob
    probs = raw.softmax(-1)
    before = scores(probs, y)
    for inside, outside in folds(len(y), FOLDS):
        scale, temperature = _fitted_scale(log_prob[inside], raw[inside], y[inside])
        probs[outside] = _scaled(raw[outside], log_prob[outside], scale, temperature)
    after = scores(probs, y)
    return (
        f"attached to a {type(scaled.estimator_).__name__} that reads {z.shape[1]} columns; "
        f"{len(known.y):,} training and {len(y):,} calibration rows\n"
        f"  NLL {before.nll:.4f} → {after.nll:.4f}, ECE {before.ece:.4f} → {after.ece:.4f}"
    )
