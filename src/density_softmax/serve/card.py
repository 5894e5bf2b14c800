"""What an exported model says about itself: everything besides the graph that serving needs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from density_softmax.errors import UserError

__all__ = ["FALSE_ALARMS", "Card", "Normalisation", "thresholds_of"]

# Shares of in-domain inputs that may be flagged as unknown; a threshold is kept for each.
FALSE_ALARMS = (0.01, 0.05, 0.1)


@dataclass(frozen=True)
class Normalisation:
    """How a raw input becomes what the network reads.

    Attributes:
        kind: `images` are bytes, `table` are numbers in columns.
        mean: per channel, of pixel values between 0 and 1, or per column.
        std: likewise.
        columns: the names of a table's columns; empty if they have none.
    """

    kind: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    columns: tuple[str, ...] = ()

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Normalisation:
        """From a mapping such as {"kind": "images", "mean": [...], "std": [...]}."""
        wanted = {"kind", "mean", "std"}
        if not wanted <= set(values) <= wanted | {"columns"}:
            raise UserError(
                f"normalisation has {', '.join(values) or 'nothing'}: it needs kind, mean and "
                "std, and may have columns"
            )
        mean, std = (_numbers(name, values[name]) for name in ("mean", "std"))
        normalisation = cls(values["kind"], mean, std, tuple(values.get("columns", ())))
        normalisation.check()
        return normalisation

    def check(self) -> None:
        """Raise if this cannot be a normalisation."""
        if self.kind not in ("images", "table"):
            raise UserError(f"normalisation kind '{self.kind}': choose images or table")
        finite = np.isfinite((*self.mean, *self.std)).all()
        if len(self.mean) != len(self.std) or not finite or min(self.std, default=0.0) <= 0:
            raise UserError(
                f"normalisation with mean {self.mean} and std {self.std}: "
                "as many positive std as mean are needed, all finite"
            )

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Raise if inputs of this shape, without the batch, cannot be normalised so."""
        if self.kind == "images" and len(shape) != 3:
            raise UserError(
                f"normalisation of images for inputs of shape {shape}: the model must read "
                "(channels, height, width)"
            )
        number, what = (shape[0], "channel") if self.kind == "images" else (shape[-1], "column")
        for name, values in (("mean", self.mean), ("std", self.std), ("columns", self.columns)):
            if len(values) != number and (values or name != "columns"):
                raise UserError(
                    f"normalisation has {len(values)} {name} for inputs of shape {shape}: "
                    f"pass one per {what}, {number}"
                )

    def __call__(self, raw: NDArray[Any]) -> NDArray[np.float32]:
        """What the network reads: (x/255 − mean)/std of images, (x − mean)/std of tables.

        Images are bytes (batch, channels, height, width); the same operations, in the same
        order and precision, as in training: float32 for images, float64 for tables.
        """
        if self.kind == "table":
            with np.errstate(over="ignore"):  # what becomes infinite is flagged by the graph
                return ((raw - np.array(self.mean)) / np.array(self.std)).astype(np.float32)
        x = raw.astype(np.float32)
        mean, std = (np.array(values, np.float32) for values in (self.mean, self.std))
        mean, std = mean.reshape(-1, 1, 1), std.reshape(-1, 1, 1)
        x *= 1 / (255 * std)
        x -= mean / std
        return x


@dataclass(frozen=True)
class Card:
    """What is written beside the graph.

    Attributes:
        version: of this package, at export.
        method: the registry key of the method.
        class_names: what the columns of `probs` mean.
        input_shape: of one input, without the batch.
        normalisation: how raw inputs are prepared; None if nobody said.
        thresholds: by share of false alarms, the epistemic uncertainty above which an input
            counts as unknown; empty without held-out data.
        notes: how the export was checked, for whoever reads the file.
    """

    version: str
    method: str
    class_names: tuple[str, ...]
    input_shape: tuple[int, ...]
    normalisation: Normalisation | None = None
    thresholds: Mapping[float, float] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)

    def to_strings(self) -> dict[str, str]:
        """As texts by name: what the metadata of a file can hold. All but two are JSON."""
        values: dict[str, Any] = {
            "class_names": self.class_names,
            "input_shape": self.input_shape,
            "thresholds": {str(share): value for share, value in self.thresholds.items()},
            "notes": dict(self.notes),
        }
        if self.normalisation is not None:
            values["normalisation"] = vars(self.normalisation)
        texts = {name: json.dumps(value) for name, value in values.items() if value}
        return {"version": self.version, "method": self.method, **texts}

    @classmethod
    def from_strings(cls, texts: Mapping[str, str], where: str) -> Card:
        """What `to_strings` made; an error names `where` it is from."""
        try:
            shape, names = json.loads(texts["input_shape"]), json.loads(texts["class_names"])
            thresholds = json.loads(texts.get("thresholds", "{}"))
            normalisation = json.loads(texts.get("normalisation", "null"))
            return cls(
                version=texts["version"],
                method=texts["method"],
                class_names=tuple(names),
                input_shape=tuple(shape),
                normalisation=None if normalisation is None else Normalisation.of(normalisation),
                thresholds={float(share): value for share, value in thresholds.items()},
                notes=json.loads(texts.get("notes", "{}")),
            )
        except (KeyError, ValueError, AttributeError, TypeError) as error:
            raise UserError(
                f"{where}: was not exported by density-softmax ({error!r}); "
                "make it with density_softmax.export"
            ) from None

    def threshold(self, false_alarms: float, where: str = "the model") -> float | None:
        """The threshold for a share of false alarms; None if the model has none at all."""
        if self.thresholds and false_alarms not in self.thresholds:
            known = ", ".join(map(str, self.thresholds))
            raise UserError(f"{where}: no threshold for {false_alarms} false alarms, only {known}")
        return self.thresholds.get(false_alarms)


def thresholds_of(epistemic: Sequence[float] | NDArray[Any]) -> dict[float, float]:
    """The smallest values that at most 1 %, 5 % and 10 % of held-out inputs exceed."""
    values = np.asarray(epistemic, dtype=np.float64)
    found = {
        share: float(np.quantile(values, 1 - share, method="inverted_cdf"))
        for share in FALSE_ALARMS
    }
    if not np.isfinite(list(found.values())).all():
        number = (~np.isfinite(values)).sum()
        raise UserError(
            f"{number} of {len(values)} held-out inputs hold a NaN or are too far away to compute "
            "with, too many for thresholds: leave them out of the held-out data"
        )
    return found


def _numbers(name: str, values: Any) -> tuple[float, ...]:
    try:
        return tuple(map(float, values))
    except (TypeError, ValueError):
        raise UserError(
            f"normalisation with {name} {values!r}: pass numbers, one per channel or column, "
            "such as (0.5,)"
        ) from None
