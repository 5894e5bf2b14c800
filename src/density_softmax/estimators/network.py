"""Density-Softmax for tables, as a scikit-learn classifier."""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from collections.abc import Iterator
from dataclasses import replace
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.preprocessing import StandardScaler
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data
from torch import Tensor, nn
from torch.nn import functional as F

from density_softmax.config import from_dict
from density_softmax.data.sources import Indices
from density_softmax.decide.explain import Explanation
from density_softmax.engine import EngineConfig, fit
from density_softmax.engine.calibration import refit
from density_softmax.engine.passes import num_batches
from density_softmax.engine.runtime import start
from density_softmax.errors import UserError
from density_softmax.estimators.abstaining import (
    AbstainingClassifier,
    Floats,
    divided,
    drawn_seed,
    number,
    numbered,
    weighted_rows,
)
from density_softmax.methods.density_softmax import DensitySoftmax
from density_softmax.nn.backbones.resffn import ResFFN
from density_softmax.nn.densities import DensityConfig, GaussianMixtureDensity
from density_softmax.recipes.table import (
    DENSITY_SOFTMAX,
    ENCODER,
    HELDOUT,
    OPTIMIZER,
    PENALTY,
    TRAIN,
)
from density_softmax.training import Descent
from density_softmax.types import Batch, Prediction

if TYPE_CHECKING:
    from lightning_fabric import Fabric

# Rows predicted at a time.
ROWS = 4096
# Fewer epochs of patience than the recipe's are enough where they have so many steps. In tables of
# a hundred rows an epoch is three steps, and after fifteen the rate may still be rising.
LEAST_PATIENCE, PATIENT_STEPS = 5, 30
# Added to the likeliest class, because float32 may not tell probabilities apart.
TIE = 1e-9
# Held by the only fit that may run: torch's generator and thread count are global.
TRAINING = threading.Lock()


class DensitySoftmaxClassifier(AbstainingClassifier):
    """A small residual network that knows which rows are unlike those it was trained on.

    Inputs are standardised and labels encoded. A stratified share of the training data is held
    out: it fits the temperature and the scale that calibrate the probabilities, and it sets the
    thresholds of `predict(X, abstain=rate)`. Networks this small train fastest on one CPU thread,
    which is what `fit` uses; the `n_jobs` of `GridSearchCV` and the like can use more.

    Args:
        width: number of features in every layer of the network.
        depth: number of residual layers.
        epochs: passes over the training data. None takes as many as give 300 steps of the
            optimizer, and at least 20; training stops early once the held-out NLL has not
            improved for 10 epochs, or for 5 to 9 that have 30 steps.
        batch_size: rows per step; larger ones are faster on tables of more than 10,000 rows.
        learning_rate: peak learning rate of Adam, on a one-cycle schedule.
        gradient_penalty: how strongly the network's Jacobian norm is pulled to 1 (λ of Eq. 4),
            so that distances between rows survive in the features; 0 turns it off.
        density: of the columns and of the features; experts that know the classes stand beside it
            in the epistemic uncertainty. "gaussian" is a single one, whose covariance
            is shrunk by half or more; "gaussian_mixture" has a Gaussian per class, each with its
            own covariance if every class has more training rows than `width` and X has columns,
            and with a shared one otherwise; "radial" and "realnvp" are flows, slower to train. A
            config from `density_softmax.nn.densities` is used as it is.
        validation_fraction: share of the rows that is held out. Every class keeps a row to train
            on; if no class has a second one, the training rows calibrate as well.
        random_state: a number or a RandomState makes `fit` repeatable. None takes a seed from the
            operating system. Global generators are neither used nor changed.
        device: where `fit` computes: "cpu", "cuda" or "auto". The result is always on the CPU, so
            that a pickle can be loaded anywhere. A pickle can execute code when it is loaded: load
            only those that you trust, or keep the model as ONNX (`density_softmax.export(model_)`).
        verbose: 1 shows progress bars.

    Attributes:
        classes_: the labels, sorted.
        n_features_in_: number of columns of X.
        feature_names_in_: their names, if X was a data frame.
        model_: the trained `DensitySoftmax` in float64, which includes the standardisation.
        heldout_epistemic_: epistemic uncertainty of the held-out rows, ascending; empty if no
            row could be held out.
        typical_row_: the held-out row with the lowest epistemic uncertainty, (columns,), which
            `explain` compares with; a training row if none is held out.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from density_softmax import DensitySoftmaxClassifier
        >>> X, y = load_iris(return_X_y=True, as_frame=True)
        >>> classifier = DensitySoftmaxClassifier(random_state=0).fit(X, y)
        >>> classifier.predict(X.tail(1) * 10, abstain=0.05)
        array([None], dtype=object)
    """

    def __init__(
        self,
        *,
        width: int = ENCODER.width,
        depth: int = ENCODER.depth,
        epochs: int | None = None,
        batch_size: int = TRAIN.batch_size,
        learning_rate: float = OPTIMIZER.lr,
        gradient_penalty: float = PENALTY.weight,
        density: str | DensityConfig = DENSITY_SOFTMAX.density.kind,
        validation_fraction: float = HELDOUT,
        random_state: int | np.random.RandomState | None = None,
        device: str = "cpu",
        verbose: int = 0,
    ) -> None:
        self.width, self.depth, self.density = width, depth, density
        self.epochs, self.batch_size, self.learning_rate = epochs, batch_size, learning_rate
        self.gradient_penalty, self.validation_fraction = gradient_penalty, validation_fraction
        self.random_state, self.device, self.verbose = random_state, device, verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> DensitySoftmaxClassifier:
        """Train the model. The order of the rows makes no difference.

        Args:
            X: numbers, (rows, columns).
            y: labels of any type that can be sorted, (rows,).
            sample_weight: how much each row counts, (rows,), in training, density and calibration.
                A row of weight 3 is the same as three rows, some of which may be held out; weight
                0 leaves it out. Weights that are not whole numbers count relative to the smallest
                and are rounded at random. With more than five copies per row in the mean they are
                scaled down, and rounded, too.
        """
        X, y = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
        check_classification_targets(y)
        seed = drawn_seed(self.random_state)
        if sample_weight is not None:
            rows = weighted_rows(sample_weight, X, seed)
            X, y = X[rows], y[rows]
        self.classes_, y = numbered(y)
        order = np.lexsort((y, *X.T))
        X, y = X[order], y[order]
        train, heldout = divided(y, self.validation_fraction, seed)
        with TRAINING, _one_thread():
            self.model_ = self._trained(X, y, train, heldout if len(heldout) else train, seed)
            known = X[heldout if len(heldout) else train]
            self._keep_typical(self._serve(known), known)
        if not len(heldout):
            self.heldout_epistemic_ = np.empty(0)
        return self

    def _explained(self, X: Floats, names: list[str], reference: Floats) -> Explanation:
        """What the model inside says."""
        return self.model_.explain(np.array(X), columns=names, reference=reference)

    def _trained(
        self, X: Floats, y: Indices, train: Indices, heldout: Indices, seed: int
    ) -> DensitySoftmax:
        scaler = StandardScaler().fit(X[train])
        if not scaler.var_.any():
            raise UserError("no column of X varies on the training rows: there is nothing to learn")
        x = scaler.transform(X)
        method = self._untrained(X.shape[1], np.bincount(y[train]), seed)
        engine = EngineConfig(accelerator=self.device, predict_batch_size=ROWS)
        fit(
            method,
            (x[train], y[train]),
            (x[heldout], y[heldout]),
            seed=seed,
            engine=engine,
            fabric=_started(engine),
            progress=bool(self.verbose),
        )
        # In float64 a prediction does not depend on the other rows of its batch.
        method.cpu().double()
        assert isinstance(method.encoder, ResFFN)
        method.encoder.columns = Standardize(scaler)
        _calibrate(method, torch.tensor(X[heldout]), torch.tensor(y[heldout]))
        return method

    def _untrained(self, num_columns: int, class_counts: Indices, seed: int) -> DensitySoftmax:
        depth, width = _integer("depth", self.depth, 0), _integer("width", self.width, 1)
        config = self._config(num_columns, class_counts)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            encoder = ResFFN(num_columns, depth, width, ENCODER.clip)
            example = torch.zeros(1, num_columns)
            return DensitySoftmax(encoder, len(class_counts), config, example)

    def _config(self, num_columns: int, class_counts: Indices) -> DensitySoftmax.Config:
        penalty = number("gradient_penalty", self.gradient_penalty)
        return replace(
            DENSITY_SOFTMAX,
            penalty=replace(PENALTY, weight=penalty),
            density=self._density_config(num_columns, class_counts),
            representation=self._descent(int(class_counts.sum())),
        )

    def _descent(self, num_rows: int) -> Descent:
        train = TRAIN
        if self.epochs is not None:
            train = replace(TRAIN, epochs=_integer("epochs", self.epochs, 1), min_steps=0)
        train = replace(
            train,
            batch_size=_integer("batch_size", self.batch_size, 1),
            optimizer=replace(OPTIMIZER, lr=number("learning_rate", self.learning_rate)),
        )
        num_steps = num_batches(num_rows, train.samples_per_step(num_rows))
        patience = max(LEAST_PATIENCE, math.ceil(PATIENT_STEPS / num_steps))
        return replace(train, patience=min(TRAIN.patience or patience, patience))

    def _density_config(self, num_columns: int, class_counts: Indices) -> DensityConfig:
        if isinstance(self.density, DensityConfig):
            return self.density
        if self.density == DENSITY_SOFTMAX.density.kind:
            return DENSITY_SOFTMAX.density
        if self.density == GaussianMixtureDensity.Config.kind:
            # A covariance has full rank only if it has more rows than features.
            few = bool(class_counts.min() <= max(self.width, num_columns))
            return GaussianMixtureDensity.Config(tied=few)
        return from_dict(DensityConfig, {"kind": self.density}, "density")

    def _serve(self, X: Floats) -> Prediction:
        """Return predictions for checked rows, in float64."""
        x = torch.from_numpy(np.array(X, order="C"))  # a copy: torch takes no read-only arrays
        fields = zip(*map(self._serve_batch, x.split(ROWS)), strict=True)
        return Prediction(*(torch.cat(field).double() for field in fields))

    @torch.no_grad()
    def _serve_batch(self, x: Tensor) -> Prediction:
        probs, aleatoric, epistemic = self.model_.predict(x)
        likeliest = self.model_.head(self.model_.encode(x)).argmax(-1)
        probs = probs.double() + TIE * F.one_hot(likeliest, len(self.classes_))
        return Prediction(probs / probs.sum(-1, keepdim=True), aleatoric, epistemic)


class Standardize(nn.Module):
    """(x − mean) / scale, with the constants of a fitted scaler."""

    mean: Tensor
    scale: Tensor

    def __init__(self, scaler: StandardScaler) -> None:
        super().__init__()
        self.register_buffer("mean", torch.from_numpy(scaler.mean_))
        self.register_buffer("scale", torch.from_numpy(scaler.scale_))

    def forward(self, x: Tensor) -> Tensor:
        """Scale columns to mean 0 and standard deviation 1 on the training rows."""
        return (x - self.mean) / self.scale


@functools.cache
def _started(engine: EngineConfig) -> Fabric:
    """Start Fabric once for all fits on a device: it takes as long as ten steps of training."""
    return start(engine)


@torch.no_grad()
def _calibrate(method: DensitySoftmax, x: Tensor, y: Tensor) -> None:
    """Repeat the scale stage in the precision of predictions.

    Where many rows are alike, the interquartile range of their log densities is nearly 0, and
    the rounding of float32 would make these rows look atypical.
    """
    scale = next(stage for stage in method.stages() if stage.name == "scale")
    batches = zip(x.split(ROWS), y.split(ROWS), strict=True)
    refit(scale, (Batch(method.features(x), y) for x, y in batches))


def _integer(name: str, value: Any, least: int) -> int:
    """Check a setting that is a count; numpy's integers, as grids have them, become plain ones."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise UserError(f"{name}={value!r}: choose {least} or more, a whole number")
    return int(value)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)
