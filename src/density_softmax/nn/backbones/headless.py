"""A trained classifier as an encoder: its features are the inputs of its head."""

from __future__ import annotations

from typing import Any, final

from torch import Tensor, nn

from density_softmax.errors import UserError, choices
from density_softmax.nn.taps import CallRecorder


@final
class Headless(nn.Module):
    """z = the input of the model's linear head.

    The model runs as it is, head included, and is not changed: nothing has to be known about its
    code before and after the head.

    Args:
        model: any classifier with a linear head.
        head: the name of that layer, as in `model.named_modules()`.
    """

    def __init__(self, model: nn.Module, head: str) -> None:
        super().__init__()
        linear = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}
        if head not in linear:
            raise UserError(f"the model has no linear layer '{head}'; {choices(head, linear)}")
        self.model = model
        self.head_name = head
        self.num_features = linear[head].in_features
        self._recorder = CallRecorder((head,), _first_input)

    @property
    def head(self) -> nn.Linear:
        """The model's own head."""
        head = self.model.get_submodule(self.head_name)
        assert isinstance(head, nn.Linear)
        return head

    def forward(self, x: Tensor) -> Tensor:
        """The features of a batch, (batch, num_features)."""
        with self._recorder.recording(self.model):
            self.model(x)
        found = self._recorder.pop()
        if not found:
            raise UserError(f"the model does not call its layer '{self.head_name}'")
        z: Tensor = found[self.head_name]
        return z


def _first_input(name: str, inputs: Any, output: Any) -> Any:
    if not inputs:
        raise UserError(f"the model calls its layer '{name}' by keyword: call it as {name}(z)")
    return inputs[0]
