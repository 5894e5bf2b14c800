"""Weight decay of some parameters only."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

__all__ = ["Undecayed", "sum_of_squares"]


class Undecayed(nn.Module, ABC):
    """A part with parameters that weight decay leaves alone."""

    @abstractmethod
    def undecayed(self) -> tuple[Tensor, ...]:
        """Those parameters."""


def sum_of_squares(network: nn.Module) -> Tensor:
    """Σ w² over all other parameters of `network`: Keras' l2 but for its factor.

    A term of the loss, because an optimizer's weight decay takes hold of all it is given.
    """
    parts = [part for part in network.modules() if isinstance(part, Undecayed)]
    spared = {id(w) for part in parts for w in part.undecayed()}
    return torch.stack(
        [w.square().sum() for w in network.parameters() if id(w) not in spared]
    ).sum()
