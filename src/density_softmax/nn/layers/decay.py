"""Weight decay of some parameters only."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn


class Undecayed(nn.Module, ABC):
    """A module some of whose parameters are exempt from weight decay."""

    @abstractmethod
    def undecayed(self) -> tuple[Tensor, ...]:
        """Those parameters."""


def sum_of_squares(network: nn.Module) -> Tensor:
    """Σ w² over the parameters that decay: Keras' l2 but for its factor.

    A term of the loss, because an optimizer's weight decay applies to all that it is given.

    Args:
        network: any; the parameters that an `Undecayed` module in it names do not count.
    """
    exempt = {id(w) for m in network.modules() if isinstance(m, Undecayed) for w in m.undecayed()}
    return torch.stack(
        [w.square().sum() for w in network.parameters() if id(w) not in exempt]
    ).sum()
