"""The card of an exported model: everything besides the graph that serving needs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from density_softmax.decide.conformal import smallest_sample
from density_softmax.decide.policy import Policy
from density_softmax.errors import UserError
from density_softmax.serve.batches import UNKNOWN
from density_softmax.serve.batches import batch_size as chosen

# At which inputs are called unknown by a policy that promises nothing.
DEFAULT_RATE = 0.05


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
        kind, columns = values["kind"], values.get("columns", ())
        mean, std = (_numbers(name, values[name]) for name in ("mean", "std"))
        if kind not in ("images", "table"):
            raise UserError(f"normalisation kind '{kind}': choose images or table")
        if (
            len(mean) != len(std)
            or not np.isfinite((*mean, *std)).all()
            or min(std, default=0) <= 0
        ):
            raise UserError(
                f"normalisation with mean {mean} and std {std}: "
                "as many positive std as mean are needed, all finite"
            )
        if isinstance(columns, str) or not all(isinstance(name, str) for name in columns):
            raise UserError(f"normalisation with columns {columns!r}: pass a list of names")
        return cls(kind, mean, std, tuple(columns))

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Raise if inputs of this shape, without the batch, cannot be normalised this way."""
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
        """(x/255 − mean)/std of images, (x − mean)/std of tables.

        The operations, their order and their precision (float32 for images, float64 for tables)
        are those of training.

        Args:
            raw: bytes (batch, channels, height, width), or numbers (batch, columns).
        """
        if self.kind == "table":
            with np.errstate(over="ignore"):  # the graph flags what becomes infinite
                return ((raw - np.array(self.mean)) / np.array(self.std)).astype(np.float32)
        x = raw.astype(np.float32)
        mean, std = (np.array(values, np.float32) for values in (self.mean, self.std))
        mean, std = mean.reshape(-1, 1, 1), std.reshape(-1, 1, 1)
        x *= 1 / (255 * std)
        x -= mean / std
        return x


@dataclass(frozen=True)
class Card:
    """Written beside the graph.

    Attributes:
        version: of this package, at export.
        method: the registry key of the method.
        class_names: of the columns of `probs`.
        input_shape: of one input, without the batch.
        normalisation: how raw inputs are prepared; None if unknown.
        policy: what to do with predictions; None without held-out data.
        notes: results of the checks at export.
        experts: names of the columns of `contributions`; empty if the graph has none.
        bytes_per_input: what the widest layer reads and writes for one input; 0 if unknown.
    """

    version: str
    method: str
    class_names: tuple[str, ...]
    input_shape: tuple[int, ...]
    normalisation: Normalisation | None = None
    policy: Policy | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)
    experts: tuple[str, ...] = ()
    bytes_per_input: float = 0.0

    @property
    def batch_size(self) -> int:
        """How many inputs to compute at a time."""
        return chosen(self.bytes_per_input) if self.bytes_per_input else UNKNOWN

    def to_strings(self) -> dict[str, str]:
        """As strings for the metadata of a file; all but version and method are JSON."""
        values: dict[str, Any] = {
            "class_names": self.class_names,
            "input_shape": self.input_shape,
            "experts": self.experts,
            "bytes_per_input": self.bytes_per_input,
            "notes": dict(self.notes),
            "policy": self.policy and self.policy.to_dict(),
        }
        if self.normalisation is not None:
            values["normalisation"] = vars(self.normalisation)
        texts = {name: json.dumps(value) for name, value in values.items() if value}
        return {"version": self.version, "method": self.method, **texts}

    @classmethod
    def from_strings(cls, texts: Mapping[str, str], where: str) -> Card:
        """The card that `to_strings` made.

        Args:
            texts: strings by name.
            where: the file, for error messages.
        """
        try:
            shape, names = json.loads(texts["input_shape"]), json.loads(texts["class_names"])
            policy = json.loads(texts.get("policy", "null"))
            normalisation = json.loads(texts.get("normalisation", "null"))
            card = cls(
                version=texts["version"],
                method=texts["method"],
                class_names=tuple(names),
                input_shape=tuple(shape),
                normalisation=None if normalisation is None else Normalisation.of(normalisation),
                policy=None if policy is None else Policy.from_dict(policy),
                experts=tuple(json.loads(texts.get("experts", "[]"))),
                notes=json.loads(texts.get("notes", "{}")),
                bytes_per_input=json.loads(texts.get("bytes_per_input", "0.0")),
            )
            card._check()
        except UserError as error:
            raise UserError(f"{where}: its card does not fit: {error}; export it again") from None
        # Texts that someone else wrote may be nested deeper than json can follow.
        except (KeyError, ValueError, AttributeError, TypeError, RecursionError) as error:
            raise UserError(
                f"{where}: was not exported by density-softmax ({error!r}); "
                "make it with density_softmax.export"
            ) from None
        return card

    def _check(self) -> None:
        """Raise if its values are not of their kinds, or do not fit each other."""
        shape, names = self.input_shape, self.class_names
        if not names or not all(isinstance(name, str) for name in names):
            raise UserError(f"class_names {list(names)}: not a list of names")
        if not shape or not all(type(size) is int and size > 0 for size in shape):
            raise UserError(f"input_shape {list(shape)}: not a list of sizes")
        if not all(isinstance(name, str) for name in self.experts):
            raise UserError(f"experts {list(self.experts)}: not a list of names")
        size = self.bytes_per_input
        if type(size) not in (int, float) or not 0 <= size < math.inf:
            raise UserError(f"bytes_per_input {size!r}: not a number")
        if self.normalisation is not None:
            self.normalisation.check_shape(shape)

    def check_graph(
        self, inputs: Mapping[str, Sequence[Any]], outputs: Mapping[str, Sequence[Any]]
    ) -> None:
        """Raise if it does not describe a graph.

        Args:
            inputs: the shapes of the graph's inputs by name, with names in place of free sizes.
            outputs: the same of its outputs.
        """
        shapes = {name: tuple(shape) for name, shape in inputs.items()}
        fits = [
            len(shape) == len(self.input_shape) + 1
            and all(
                a == b for a, b in zip(shape[1:], self.input_shape, strict=True) if type(a) is int
            )
            for shape in shapes.values()
        ]
        if fits != [True]:
            raise UserError(f"input_shape {self.input_shape}: the graph reads {shapes}")
        widths = {"probs": ("class_names", self.class_names)}
        if self.experts or "contributions" in outputs:
            widths["contributions"] = ("experts", self.experts)
        for output, (name, names) in widths.items():
            shape = outputs.get(output, ())
            if len(shape) != 2 or (type(shape[1]) is int and shape[1] != len(names)):
                raise UserError(f"{len(names)} {name}: the graph returns {output} of shape {shape}")
        if self.policy is not None and self.policy.class_names != self.class_names:
            raise UserError(f"class_names {list(self.class_names)}: its policy is for others")

    def with_policy(self, policy: Policy | str | Path | None) -> Card:
        """The same card with another policy, which is checked to be for the same classes.

        Args:
            policy: one, or the .json file of one; None keeps that of the card.
        """
        if policy is None:
            return self
        found = policy if isinstance(policy, Policy) else Policy.load(policy)
        return replace(self, policy=found.named(self.class_names))

    def deciding(self, false_alarms: float | None = None) -> Policy | None:
        """The policy that decisions are made by; None if the card has none.

        Args:
            false_alarms: share of inputs drawn like the held-out ones that may be called unknown.
                None takes that of the policy. A policy that promises nothing takes 0.05, if it was
                fitted to enough inputs for that.
        """
        policy = self.policy
        if policy is None or false_alarms is not None or policy.promises:
            return policy and policy.at(false_alarms)
        enough = policy.typical.count >= smallest_sample(DEFAULT_RATE)
        return policy.at(DEFAULT_RATE) if enough else policy

    @property
    def thresholds(self) -> dict[float, float]:
        """By share of false alarms, the epistemic uncertainty above which an input is unknown."""
        return {} if self.policy is None else self.policy.typical.thresholds


def _numbers(name: str, values: Any) -> tuple[float, ...]:
    try:
        return tuple(map(float, values))
    except (TypeError, ValueError):
        raise UserError(
            f"normalisation with {name} {values!r}: pass numbers, one per channel or column, "
            "such as (0.5,)"
        ) from None
