"""What an exported model answers, as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from density_softmax.decide.conformal import Ranks
from density_softmax.errors import UserError

Floats = NDArray[np.float32]


class _Fields(NamedTuple):
    probs: Floats
    aleatoric: Floats
    epistemic: Floats


class Answer(_Fields):
    """A model's answer to a batch: a tuple of three arrays, the fields of `Prediction`.

    Attributes:
        probs: class probabilities, (batch, classes).
        aleatoric: entropy in nats that more data would not remove, (batch,).
        epistemic: how little is known about the input, higher = less known, (batch,).
        contributions: what each expert adds to `epistemic`, (batch, experts); None if the model
            has no experts, or was exported before they were kept.
        experts: the names of these columns.
        typical: the ranks of the epistemic uncertainty of held-out inputs; None if the model knows
            none.
    """

    contributions: Floats | None = None
    experts: tuple[str, ...] = ()
    typical: Ranks | None = None

    @classmethod
    def of(cls, outputs: Mapping[str, Floats], experts: tuple[str, ...] = ()) -> Answer:
        """From the outputs of a graph by name.

        Args:
            outputs: `probs`, `aleatoric`, `epistemic` and perhaps `contributions`.
            experts: the names of the columns of `contributions`.
        """
        answer = cls(*(outputs[name] for name in cls._fields))
        answer.contributions = outputs.get("contributions")
        answer.experts = experts
        return answer

    @classmethod
    def joined(cls, answers: Sequence[Answer]) -> Answer:
        """The answers to several batches of one model as one, in their order.

        Args:
            answers: at least one.
        """
        parts = [answer.outputs() for answer in answers]
        whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        joined = cls.of(whole, answers[0].experts)
        joined.typical = answers[0].typical
        return joined

    def outputs(self) -> dict[str, Floats]:
        """The arrays by name, `contributions` only if there are any."""
        found: dict[str, Floats] = self._asdict()
        if self.contributions is not None:
            found["contributions"] = self.contributions
        return found

    @property
    def labels(self) -> NDArray[np.intp]:
        """The likeliest class of each input, (batch,)."""
        return self.probs.argmax(-1)

    @property
    def confidence(self) -> Floats:
        """The probability of that class, (batch,)."""
        return self.probs.max(-1)

    @property
    def entropy(self) -> Floats:
        """Entropy of `probs` in nats, (batch,): all of the uncertainty about the class."""
        return -(self.probs * np.log(np.where(self.probs > 0, self.probs, 1))).sum(-1)

    @property
    def typicality(self) -> NDArray[np.float64]:
        """The share of held-out inputs that are at least as strange as each input, (batch,)."""
        if self.typical is None:
            raise UserError(
                "typicality: the model knows no held-out inputs; export it with heldout= or policy="
            )
        return self.typical.p_values(self.epistemic.astype(np.float64))

    def to_pandas(self) -> Any:
        """A data frame: a row per input, the probabilities of the classes in its last columns."""
        import pandas

        names = ("labels", "confidence", *self._fields[1:])
        columns = {name: getattr(self, name) for name in names}
        if self.typical is not None:
            columns["typicality"] = self.typicality
        if self.contributions is not None:
            columns |= dict(zip(self.experts, self.contributions.T, strict=True))
        columns |= {f"p{number}": column for number, column in enumerate(self.probs.T)}
        return pandas.DataFrame(columns)

    def __repr__(self) -> str:
        """One line: sizes and means, not the arrays."""
        number, num_classes = self.probs.shape
        size = f"{number} input{'s' * (number != 1)}, {num_classes} classes"
        if number == 0:
            return f"Answer({size})"
        means = (self.confidence, self.aleatoric, self.epistemic)
        values = [f"{mean.mean(dtype=np.float64):.3g}" for mean in means]
        return "Answer({}; mean confidence {}, aleatoric {}, epistemic {})".format(size, *values)
