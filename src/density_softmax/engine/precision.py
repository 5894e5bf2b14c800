"""bfloat16 on CPUs that have no instructions for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning_fabric.plugins import MixedPrecision
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

ATEN = torch.ops.aten
PRODUCTS = {
    ATEN.convolution.default,
    ATEN.convolution_backward.default,
    ATEN.mm.default,
    ATEN.addmm.default,
    ATEN.bmm.default,
    ATEN.baddbmm.default,
}


class RoundedPrecision(MixedPrecision):
    """`bf16-mixed` whose products of matrices and convolutions are computed in float32.

    Inputs are bfloat16 numbers, sums are in float32 and results are rounded to bfloat16, as
    instructions for bfloat16 do it: results differ only by the order of sums. oneDNN's kernels for
    bfloat16 are slower on such a CPU, where they convert every number, and crash on some.
    """

    def __init__(self) -> None:
        super().__init__("bf16-mixed", "cpu")

    @contextmanager
    def forward_context(self) -> Iterator[None]:
        """Autocast to bfloat16, with products in float32."""
        with super().forward_context(), _ProductsInFloat32():
            yield

    def backward(self, tensor: Tensor, model: nn.Module | None, *args: Any, **kwargs: Any) -> None:
        """Gradients, whose products are computed in the same way.

        Args:
            tensor: the loss, a scalar.
            model: the module it comes from.
            args: passed on to `Tensor.backward`.
            kwargs: passed on to `Tensor.backward`.
        """
        with _ProductsInFloat32():
            super().backward(tensor, model, *args, **kwargs)


class _ProductsInFloat32(TorchDispatchMode):
    """Below autograd and autocast: what arrives here are the operations that a kernel runs."""

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if operation not in PRODUCTS or args[0].dtype != torch.bfloat16:
            return operation(*args, **(kwargs or {}))
        result = operation(*(_convert(each, torch.float32) for each in args), **(kwargs or {}))
        if isinstance(result, Tensor):
            return _convert(result, torch.bfloat16)
        return tuple(_convert(each, torch.bfloat16) for each in result)


def _convert(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) else value
