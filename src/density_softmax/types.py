"""The nouns that every part of the package shares."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from density_softmax.decide.conformal import Ranks
from density_softmax.errors import UserError

if TYPE_CHECKING:
    from typing_extensions import Self


@final
class Inputs:
    """A batch for a network that is called with several tensors, or by keyword.

    It is counted, indexed and moved as a tensor of (batch, ...) is.

    Args:
        tensors: by the name of the argument, each (batch, ...); "0", "1", ... go by position.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = dict(tensors)
        sizes = {name: len(each) for name, each in self.tensors.items()}
        if len(set(sizes.values())) != 1:
            found = ", ".join(f"{name} {size}" for name, size in sizes.items()) or "none"
            raise UserError(f"inputs that differ in their number of rows: {found}; pass a row each")

    def __len__(self) -> int:
        return len(self._first)

    def __getitem__(self, rows: Any) -> Inputs:
        """Some of the rows."""
        return Inputs({name: each[rows] for name, each in self.tensors.items()})

    def __repr__(self) -> str:
        """Names, shapes and types."""
        shown = (f"{n} {tuple(t.shape)} {t.dtype}" for n, t in self.tensors.items())
        return f"Inputs({', '.join(shown)})"

    def to(self, *where: Any, **options: Any) -> Inputs:
        """On another device."""
        return Inputs({name: each.to(*where, **options) for name, each in self.tensors.items()})

    def index_select(self, dim: int, rows: Tensor) -> Inputs:
        """Some of the rows."""
        return Inputs({name: each.index_select(dim, rows) for name, each in self.tensors.items()})

    @property
    def _first(self) -> Tensor:
        return next(iter(self.tensors.values()))

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self._first.device

    @property
    def positional(self) -> list[Tensor]:
        """Those without a name."""
        return [each for name, each in self.tensors.items() if name.isdigit()]

    @property
    def named(self) -> dict[str, Tensor]:
        """Those that are passed by keyword."""
        return {name: each for name, each in self.tensors.items() if not name.isdigit()}


# What a batch or its rows call their labels, in the order in which they are looked for.
LABELS = ("labels", "label", "targets", "target", "y")


def as_inputs(values: Any) -> Inputs | None:
    """What a network is called with, of a mapping or of several tensors; None if it is neither.

    Labels, texts and other things that are no numbers are left out.

    Args:
        values: a mapping such as a tokenizer returns, or a tuple of tensors or arrays.
    """
    if isinstance(values, Inputs):
        return values
    if isinstance(values, tuple | list):
        several = len(values) > 0 and all(isinstance(e, Tensor | np.ndarray) for e in values)
        values = {str(number): each for number, each in enumerate(values)} if several else None
    if not isinstance(values, Mapping):
        return None
    given = {str(name): each for name, each in values.items() if name not in LABELS}
    found = {name: _numbers_or_none(each) for name, each in given.items()}
    tensors = {n: each for n, each in found.items() if each is not None and each.ndim > 0}
    if not tensors:
        names = ", ".join(map(str, values))
        raise UserError(f"inputs are a {type(values).__name__} of {names}: none of it is a tensor")
    return Inputs(tensors)


def without_labels(item: Any) -> Any:
    """The inputs of what a DataLoader yields.

    Args:
        item: inputs, alone or in a list; a pair (inputs, labels); a mapping, perhaps with labels.
    """
    return item[0] if isinstance(item, tuple | list) and 0 < len(item) <= 2 else item


def _numbers_or_none(values: Any) -> Tensor | None:
    try:
        found = as_numbers(values)
    except ValueError:  # rows that differ in length
        return None
    return found.float() if found is not None and found.dtype == torch.float64 else found


class Batch(NamedTuple):
    """What a loss sees: inputs (or cached features) and their labels.

    `x` is a tensor, or `Inputs` of a network that is called with several.
    """

    x: Any
    y: Tensor


class _Fields(NamedTuple):
    probs: Tensor
    aleatoric: Tensor
    epistemic: Tensor


class Prediction(_Fields):
    """What a method says about a batch, all of it from one forward pass: a tuple of three tensors.

    Attributes:
        probs: class probabilities, (batch, classes).
        aleatoric: entropy in nats that more data would not remove, (batch,).
        epistemic: how little is known about the input, higher = less known, (batch,).
        contributions: what each expert adds to `epistemic`, (batch, experts); no part of the
            tuple, and None in methods whose uncertainty is no sum over experts.
    """

    contributions: Tensor | None = None

    def made_of(self, contributions: Tensor | None) -> Self:
        """The same prediction, which now has contributions.

        Args:
            contributions: of the experts, (batch, experts), whose sum is `epistemic`.
        """
        self.contributions = contributions
        return self

    @property
    def labels(self) -> Tensor:
        """The likeliest class of each sample, (batch,)."""
        return self.probs.argmax(-1)

    @property
    def confidence(self) -> Tensor:
        """The probability of that class, (batch,)."""
        return self.probs.amax(-1)

    @property
    def entropy(self) -> Tensor:
        """Entropy of `probs` in nats, (batch,): all of the uncertainty about the class."""
        return torch.special.entr(self.probs).sum(-1)

    def __repr__(self) -> str:
        """One line: sizes and means, not the tensors."""
        num_samples, num_classes = self.probs.shape
        size = f"{num_samples} sample{'s' * (num_samples != 1)}, {num_classes} classes"
        if num_samples == 0:
            return f"Prediction({size})"
        means = (self.confidence, self.aleatoric, self.epistemic)
        values = [f"{mean.double().mean():.3g}" for mean in means]
        return "Prediction({}; mean confidence {}, aleatoric {}, epistemic {})".format(
            size, *values
        )


@dataclass(frozen=True)
class Scores:
    """How good and how honest probabilities are.

    Attributes:
        accuracy: share of samples whose likeliest class is right.
        nll: negative log-likelihood in nats.
        ece: expected calibration error.
    """

    accuracy: float
    nll: float
    ece: float


# Of the digests of calibration inputs so many are kept.
NUM_DIGESTS = 512


@dataclass(frozen=True)
class Calibration:
    """What `attach` read, and what it did to the probabilities.

    Attributes:
        head: the name of the network's last linear layer.
        layers: names of the other layers that are read.
        num_train: training samples.
        num_calibration: calibration samples.
        temperature: what the logits are divided by; None if the method has no temperature.
        before: scores of the network alone on the calibration data.
        after: scores of the method there. Cross-validated: what is fitted to calibration data was
            fitted to other samples than those it is scored on.
        warnings: what is weak about the data.
        typical: the ranks of the epistemic uncertainties of the calibration samples.
        digests: the smallest 64-bit digests of the calibration inputs, ascending, by which they
            are known again: all of them, or `NUM_DIGESTS`.
        reference: the most typical calibration sample, if samples are rows of numbers.
        train_digests: those of the training inputs.
    """

    head: str
    layers: tuple[str, ...]
    num_train: int
    num_calibration: int
    temperature: float | None
    before: Scores
    after: Scores
    warnings: tuple[str, ...]
    typical: Ranks
    digests: tuple[int, ...] = ()
    reference: tuple[float, ...] = ()
    train_digests: tuple[int, ...] = ()

    @property
    def thresholds(self) -> dict[float, float]:
        """By share of false alarms, the epistemic uncertainty that at most this share exceeds."""
        return self.typical.thresholds

    def lines(self) -> list[str]:
        """A few lines of text."""
        shares = ", ".join(f"{share:.0%}: {value:.4g}" for share, value in self.thresholds.items())
        temperature = "" if self.temperature is None else f"temperature {self.temperature:.3g}; "
        return [
            f"  {self.read()}",
            f"  {self.num_train:,} training and {self.num_calibration:,} calibration samples",
            f"  {temperature}epistemic thresholds by share of false alarms {shares}",
            f"  {self.change()}",
            *(f"  warning: {warning}" for warning in self.warnings),
        ]

    def read(self) -> str:
        """Which layers are read, in one line."""
        return f"head {self.head}" + (f"; layers {', '.join(self.layers)}" if self.layers else "")

    def change(self) -> str:
        """What became of NLL and ECE, in one line."""
        before, after = self.before, self.after
        return (
            f"NLL {before.nll:.4f} -> {after.nll:.4f}, ECE {before.ece:.4f} -> {after.ece:.4f}, "
            f"accuracy {before.accuracy:.4f} -> {after.accuracy:.4f} (calibration data, "
            "cross-validated)"
        )


class Needs(NamedTuple):
    """What a method needs beyond a plain classifier, for tables that compare methods.

    Attributes:
        passes: how often the encoder sees an input for one prediction.
        networks: how many encoders there are.
        prior: the distribution that has to be chosen before training; empty if there is none.
        inside: what is changed inside the encoder; empty if its layers are left alone.
    """

    passes: int = 1
    networks: int = 1
    prior: str = ""
    inside: str = ""


class Row(NamedTuple):
    """One reported number: every result that the software shows is one of these."""

    recipe: str
    method: str
    variant: str
    seed: int
    split: str
    metric: str
    value: float


class Source(ABC):
    """A data set that can be read by index, in batches, in any order.

    Attributes:
        batch_size: what its owner chose; None leaves it to the stage that reads.
    """

    batch_size: int | None = None

    @abstractmethod
    def __len__(self) -> int:
        """The number of samples."""

    @abstractmethod
    def order(self, seed: int) -> Sequence[int]:
        """The indices of one training epoch; the seed decides their order."""

    def original_index(self, index: int) -> int:
        """Return the index of a sample in its owner's data, as messages name it."""
        return index

    @abstractmethod
    def read(
        self, batches: Sequence[Sequence[int]], device: torch.device, seed: int | None = None
    ) -> Iterator[Batch]:
        """One batch per list of indices, on `device`; a seed turns on training augmentation."""


@dataclass(frozen=True)
class Split:
    """A named set to evaluate on.

    `role` says what may be asked of it: accuracy and calibration of an `iid` or `shift` set,
    detection on an `ood` set, whose labels mean nothing, and pictures of a `surface`.
    """

    name: str
    role: Literal["iid", "shift", "ood", "surface"]
    source: Source


@dataclass(frozen=True)
class Task:
    """What is to be learned, known before any data is seen."""

    class_names: tuple[str, ...]
    input_shape: tuple[int, ...]

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return len(self.class_names)


@dataclass(frozen=True)
class Data:
    """Everything a run reads: a training set, a slice held out of it, and sets to evaluate on.

    `heldout` is None where all training data train.

    `normalisation` says in plain values how a raw input becomes what a network reads, for those
    who serve a model without this data: `kind` is `images` or `table`, `mean` and `std` are per
    channel or column, and `columns` names the columns of a table. Empty if inputs are used as is.
    `about` is a line that tells a user how the data were read, or nothing.
    """

    task: Task
    train: Source
    heldout: Source | None
    splits: tuple[Split, ...]
    normalisation: Mapping[str, Any] = field(default_factory=dict)
    about: str = ""


def as_numbers(values: Any) -> Tensor | None:
    """What a user calls numbers as a tensor, or None if they are none.

    Args:
        values: a tensor, an array, or anything that numpy makes one of.
    """
    if isinstance(values, Tensor):
        return None if values.is_complex() else values
    # Torch takes neither read-only arrays nor negative strides: such are copied.
    array = np.require(values, requirements=["C", "W"])
    return torch.as_tensor(array) if array.dtype.kind in "biuf" else None


def tensors_of(x: Tensor | Inputs) -> list[Tensor]:
    """The tensors of a batch, each (batch, ...).

    Args:
        x: a batch.
    """
    return list(x.tensors.values()) if isinstance(x, Inputs) else [x]
