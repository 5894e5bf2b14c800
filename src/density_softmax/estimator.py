"""Density-Softmax for tables, as a scikit-learn classifier."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from density_softmax.config import from_dict
from density_softmax.engine import EngineConfig, fit
from density_softmax.errors import UserError
from density_softmax.methods import DensitySoftmax
from density_softmax.nn.densities import DensityConfig
from density_softmax.nn.penalty import FrobeniusPenalty
from density_softmax.nn.resffn import ResFFN
from density_softmax.optimization import Adam, Descent, OneCycle
from density_softmax.types import Prediction

__all__ = ["DensitySoftmaxClassifier"]


class DensitySoftmaxClassifier(ClassifierMixin, BaseEstimator):
    def __init__(
        self,
        *,
        width=64,
        depth=2,
        epochs=None,
        batch_size=64,
        learning_rate=5e-3,
        weight_decay=0.0,
        gradient_penalty=1e-2,
        density="tied",
        patience=None,
        validation_fraction=0.2,
        random_state=None,
        device="cpu",
        verbose=0,
        steps=300,
        min_epochs=20,
        scale=None,
    ):
        self.__dict__.update({k: v for k, v in locals().items() if k != "self"})

    def fit(self, X, y):
        X, y = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise UserError("y has one class only")
        rng = np.random.RandomState() if self.random_state is None else check_random_state(self.random_state)
        seed = int(rng.randint(2**31))
        train, heldout = hold_out(labels, self.validation_fraction, seed)
        scaler = StandardScaler().fit(X[train])
        x = scaler.transform(X)
        with one_thread():
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                method = DensitySoftmax(ResFFN(X.shape[1], self.depth, self.width), len(self.classes_), self._config(len(train)))
            engine = EngineConfig(accelerator=self.device, predict_batch_size=8192)
            self.record_ = fit(method, (x[train], labels[train]), (x[heldout], labels[heldout]), seed=seed, engine=engine, progress=bool(self.verbose))
            method.cpu().double()
            method.encoder = nn.Sequential(Standardize(scaler), method.encoder)
            self.model_ = method
        self.heldout_epistemic_ = np.sort(self._predict(X[heldout]).epistemic.numpy())
        return self

    def _config(self, n):
        steps = math.ceil(n / self.batch_size)
        epochs = self.epochs or max(self.min_epochs, math.ceil(self.steps / steps))
        from density_softmax.nn.densities import GaussianMixtureDensity as G
        d = G.Config(tied=True) if self.density=="tied" else self.density if not isinstance(self.density, str) else from_dict(DensityConfig, {"kind": self.density})
        from density_softmax.nn.scale import QuantileScale
        kw = {"scale": QuantileScale.Config(quantile=.25)} if self.scale is None else {"scale": self.scale}
        return DensitySoftmax.Config(
            penalty=FrobeniusPenalty.Config(weight=self.gradient_penalty, exact_below=0),
            density=d,
            representation=Descent(epochs, self.batch_size, Adam(lr=self.learning_rate, weight_decay=self.weight_decay), OneCycle(), patience=self.patience),
            head=None, **kw)

    def _predict(self, X):
        return self.model_.predict(torch.from_numpy(X))

    def _checked(self, X):
        check_is_fitted(self)
        return validate_data(self, X, dtype=np.float64, reset=False)

    def predict_proba(self, X):
        p = self._predict(self._checked(X)).probs.double()
        return (p / p.sum(1, keepdim=True)).numpy()

    def predict(self, X, abstain=None):
        return self.classes_[self.predict_proba(X).argmax(1)]

    def score_samples(self, X):
        return -self._predict(self._checked(X)).epistemic.double().numpy()


class Standardize(nn.Module):
    def __init__(self, scaler):
        super().__init__()
        self.register_buffer("mean", torch.from_numpy(scaler.mean_))
        self.register_buffer("scale", torch.from_numpy(scaler.scale_))

    def forward(self, x):
        return (x - self.mean) / self.scale


def hold_out(y, fraction, seed):
    rng = np.random.default_rng(seed)
    order = np.lexsort((rng.random(len(y)), y))
    first = np.unique(y[order], return_index=True)[1]
    spare = np.delete(order, first)
    num = min(max(1, round(fraction * len(y))), len(spare))
    if num == 0:
        return order, order
    heldout = spare[((np.arange(num) + 0.5) * len(spare) / num).astype(int)]
    return np.setdiff1d(order, heldout), heldout


@contextlib.contextmanager
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
