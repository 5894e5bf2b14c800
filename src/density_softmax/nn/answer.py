"""What a model answers: a prediction, and what is known of its inputs and of held-out ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from density_softmax.decide.conformal import Ranks
from density_softmax.errors import UserError
from density_softmax.types import Prediction


class Answer(Prediction):
    """What `predict` returns: a prediction that also knows how strange held-out inputs are.

    Attributes:
        typical: the ranks of the epistemic uncertainty of held-out data, by the model's policy
            or, if it has none, by `attach`; None if neither is there.
        experts: the names of the columns of `contributions`; none if there are no contributions.
        inputs: paths or the numbers of rows, of inputs that were read from a path.
        notes: why such an input could not be read; empty if it could.
    """

    typical: Ranks | None = None
    experts: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def typicality(self) -> Tensor:
        """The share of held-out inputs that are at least as strange as each input, (batch,).

        It is a conformal p-value: at most a share ε of inputs drawn like the held-out ones has a
        typicality of at most ε. The samples of `attach` also set the scale; those of a policy did
        not, and make it exact.
        """
        if self.typical is None:
            raise UserError(
                "typicality: this model knows no held-out inputs; `attach` does, or set "
                "model.policy = density_softmax.Policy.fit(model, data)"
            )
        p_values = self.typical.p_values(self.epistemic.detach().double().cpu().numpy())
        return torch.from_numpy(p_values).to(self.epistemic)

    def to_pandas(self) -> Any:
        """A data frame: a row per sample, the probabilities of the classes in its last columns."""
        import pandas

        columns = {
            name: getattr(self, name) for name in ("labels", "confidence", *self._fields[1:])
        }
        if self.typical is not None:
            columns["typicality"] = self.typicality
        if self.contributions is not None:
            columns |= dict(zip(self.experts, self.contributions.unbind(1), strict=True))
        columns |= {f"p{number}": column for number, column in enumerate(self.probs.unbind(1))}
        frame = pandas.DataFrame({name: each.cpu().numpy() for name, each in columns.items()})
        if self.inputs:
            frame.insert(0, "input", self.inputs)
        return frame
