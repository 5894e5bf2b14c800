"""Density-Aware Calibration: a temperature that grows with the distance from training features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from density_softmax.config import at_least
from density_softmax.methods.posthoc import Calibrator, PostHocConfig
from density_softmax.nn.layers.neighbours import Neighbours
from density_softmax.nn.softmax.calibration import fit_temperature_weights
from density_softmax.training import Estimate, Values
from density_softmax.types import Batch


@final
class DensityAwareCalibration(Calibrator):
    """Density-Aware Calibration (Tomani et al., ICML 2023): softmax(g(z) / T(x)).

    T(x) = w_0 + Σ_l w_l d_l(x) with w ≥ 0; d_l is the distance to the k-th nearest of the training
    features of layer l, averaged over positions and normalised, all of which are stored. The
    weights minimise the NLL of the held-out slice.
    """

    @dataclass(frozen=True)
    class Config(
        PostHocConfig,
        kind="density_aware_calibration",
        title="Density-Aware Calibration",
        rank=24,
        defines=("probs",),
        stores_data=True,
    ):
        """The published settings.

        Attributes:
            layers: names of the encoder's layers to read besides the last features.
            k: which neighbour; null is 50 for up to 10 classes, else 200, as published for
                CIFAR-10 and CIFAR-100.
        """

        layers: tuple[str, ...] = ()
        k: int | None = None

        def __post_init__(self) -> None:
            at_least(self, k=1)

    config: Config
    weights: Tensor

    @property
    def layers(self) -> tuple[str, ...]:
        """Those of the settings."""
        return self.config.layers

    def setup(self, example: Tensor | None) -> None:
        """Add a store of features for every layer, and the weights."""
        super().setup(example)
        k = self.config.k or (50 if self.num_classes <= 10 else 200)
        self.columns, end = [slice(0, self.num_features)], self.num_features
        for mean, *spread in self.reader.pop_by_layer().values():  # of the pass that measured z
            self.columns.append(slice(end, end + mean.shape[1]))
            end += sum(statistic.shape[1] for statistic in (mean, *spread))
        stores = (Neighbours(columns.stop - columns.start, k) for columns in self.columns)
        self.neighbours = nn.ModuleList(stores)
        self.register_buffer("weights", torch.eye(1 + len(self.columns))[0])

    def estimates(self) -> tuple[Estimate, ...]:
        """One pass that stores the training features, then the weights on the held-out slice."""
        store = Estimate(
            "neighbours",
            statistics=self._columns_read,
            finish=self._store,
            reduce="concat",
            on="features",
        )
        fit = Estimate(
            "weights",
            statistics=self._terms,
            finish=self._fit,
            reduce="concat",
            on="features",
            split="heldout",
        )
        return store, fit

    def calibrated(self, features: Tensor, logits: Tensor) -> Tensor:
        """g(z) / T(x)."""
        temperature = self.weights[0] + self.distances(features) @ self.weights[1:]
        return logits / temperature[:, None]

    def distances(self, features: Tensor) -> Tensor:
        """d_l of the last features and of every layer, (batch, 1 + layers)."""
        pairs = zip(self.neighbours, self.columns, strict=True)
        return torch.stack([store(features[:, columns]) for store, columns in pairs], dim=-1)

    def _columns_read(self, batch: Batch) -> Values:
        return {str(n): batch.x[:, columns] for n, columns in enumerate(self.columns)}

    def _store(self, total: Values) -> None:
        for number, store in enumerate(self.neighbours):
            assert isinstance(store, Neighbours)
            store.store(total[str(number)])

    def _terms(self, batch: Batch) -> Values:
        logits = self.head.raw(self.last(batch.x))
        return {"logits": logits, "distances": self.distances(batch.x), "y": batch.y}

    def _fit(self, total: Values) -> None:
        found = fit_temperature_weights(total["logits"], total["y"], total["distances"])
        self.weights.copy_(found)
