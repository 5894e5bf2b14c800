"""Gradient penalties that pull the encoder towards a Lipschitz constant of 1 (Eq. 4)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from density_softmax.nn.precision import full_precision

__all__ = ["frobenius_penalty"]

# Under the root, because the derivative of sqrt at 0 is infinite.
EPSILON = 1e-12


def frobenius_penalty(encoder: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """Features and the mean of (‖J‖_F − 1)², J = ∂f/∂x, exact by forward mode.

    One Jacobian-vector product per input coordinate, all of them in one vectorised pass that
    shares the forward computation: made for inputs of few coordinates.
    """
    with full_precision(x):
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        directions = torch.eye(x[0].numel(), dtype=x.dtype, device=x.device)
        tangents = directions.view(-1, 1, *x.shape[1:]).expand(-1, *x.shape)

        def column(tangent: Tensor) -> tuple[Tensor, Tensor]:
            return torch.func.jvp(encoder, (x,), (tangent,))  # type: ignore[return-value]

        # None: the features do not depend on the direction and come back once. "same": so does
        # the noise of dropout, because the columns are those of one function.
        z, columns = torch.func.vmap(
            column,
            out_dims=(None, 0),  # type: ignore[arg-type]
            randomness="same",
        )(tangents)
        norm = (columns.square().sum(dim=(0, -1)) + EPSILON).sqrt()
        return z, (norm - 1).square().mean()
