"""A trained classifier as an encoder: what its head is given are the features."""

from __future__ import annotations

from typing import Any, final

from torch import Tensor, nn

from density_softmax.errors import UserError

__all__ = ["Headless"]


@final
class Headless(nn.Module):
    """z = what the model hands to its linear head.

    The model runs as it is, head included, and is not changed: whatever it does around the head
    does not matter, and nothing has to be known of its code.

    Args:
        model: any classifier with a linear head.
        head: the name of that layer, as in `model.named_modules()`.
    """

    def __init__(self, model: nn.Module, head: str) -> None:
        super().__init__()
        linear = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}
        if head not in linear:
            known = ", ".join(linear) or "none"
            raise UserError(f"the model has no linear layer '{head}'; there are: {known}")
        self.model = model
        self.head_name = head
        self.num_features = linear[head].in_features
        self._seen: list[Tensor] = []
        linear[head].register_forward_pre_hook(self._see)

    @property
    def head(self) -> nn.Linear:
        """The model's own head."""
        head = self.model.get_submodule(self.head_name)
        assert isinstance(head, nn.Linear)
        return head

    def forward(self, x: Tensor) -> Tensor:
        """The features of a batch, (batch, num_features)."""
        self._seen.clear()
        self.model(x)
        if not self._seen:
            raise UserError(f"the model does not call its layer '{self.head_name}'")
        return self._seen.pop()

    def _see(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._seen.append(inputs[0])
