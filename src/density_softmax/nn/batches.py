"""Batches as they are computed: how many inputs, bad rows among them, and several as one."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from density_softmax.errors import UserError
from density_softmax.nn.execution import evaluating, seeded
from density_softmax.nn.taps import CallRecorder
from density_softmax.types import Inputs, Prediction, tensors_of

# So many numbers are looked at one by one.
FEW = 64


@torch.no_grad()
def widest_layer(network: nn.Module, x: Tensor | Inputs) -> float:
    """Bytes per input that the layer with the largest activations reads and writes.

    The network runs once, as far as it can: what stands behind an encoder may not be fitted, and
    inputs that it cannot read are told by the pass that follows. Layers are modules without
    children.

    Args:
        network: any that takes a batch.
        x: a batch like those that it will read, (batch, ...); two inputs are enough.
    """
    layers = [name for name, layer in network.named_modules() if not any(layer.children())]
    sizes = [sum(part.nbytes for part in tensors_of(x))]

    def note(name: str, inputs: Any, output: Any) -> None:
        sizes.append(_bytes_of(inputs) + _bytes_of(output))

    recorder = CallRecorder(tuple(name for name in layers if name), note)
    with (
        contextlib.suppress(RuntimeError, IndexError, UserError),
        evaluating(network),
        seeded(0, x.device),
        recorder.recording(network),
    ):
        network(x)
    return max(sizes) / len(x)


def _bytes_of(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.nbytes
    if isinstance(value, Mapping):
        value = list(value.values())
    return sum(map(_bytes_of, value)) if isinstance(value, list | tuple) else 0


def on_cpu(found: Prediction) -> Prediction:
    """A prediction, with its contributions, on the CPU.

    Args:
        found: on any device.
    """
    contributions = found.contributions
    return Prediction(*(field.cpu() for field in found)).made_of(
        None if contributions is None else contributions.cpu()
    )


def joined(parts: Sequence[Prediction]) -> Prediction:
    """The predictions of one batch after another as one.

    Args:
        parts: at least one.
    """
    fields = (torch.cat(each) for each in zip(*parts, strict=True))
    contributions = [part.contributions for part in parts if part.contributions is not None]
    return Prediction(*fields).made_of(torch.cat(contributions) if contributions else None)


def divided(x: Tensor | Inputs, size: int) -> Iterator[Tensor | Inputs]:
    """One part of a batch after another.

    Args:
        x: inputs, (batch, ...).
        size: how many of them are in each part but the last.
    """
    if size < 1:
        raise UserError(f"batch_size={size}: choose 1 or more, or None")
    return (x[start : start + size] for start in range(0, len(x), size))


def surely_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether all are finite, where that is known at once: not on a GPU, nor in a traced graph.

    Args:
        tensors: of any shapes.
    """
    if torch.compiler.is_compiling():
        return False
    return all(each.device.type == "cpu" and _is_finite(each) for each in tensors)


def _is_finite(x: Tensor) -> bool:
    # A few numbers are looked at sooner than summed. A sum keeps what is no number, and one that
    # overflows is looked at row by row.
    found = x.flatten().tolist() if x.numel() <= FEW else [x.sum(dtype=torch.float32).item()]
    return all(map(math.isfinite, found))


def without_bad_rows(x: Tensor | Inputs) -> tuple[Tensor, Any]:
    """A number for each row, which is NaN unless the row is finite, and x with 0 in such rows.

    Args:
        x: inputs, (batch, ...).
    """
    # Few operations: 0 times a number is 0, and times anything else NaN, which a sum keeps.
    zeros = [(part * 0).flatten(1).sum(1) for part in tensors_of(x)]
    zero = zeros[0] if len(zeros) == 1 else torch.stack([z.float() for z in zeros]).sum(0)
    return zero, in_finite_rows(zero == 0, x)


def in_finite_rows(finite: Tensor, x: Tensor | Inputs) -> Any:
    """The inputs, with 0 in rows that are not finite.

    Args:
        finite: which rows are, (batch,).
        x: inputs, (batch, ...).
    """
    if isinstance(x, Inputs):
        return Inputs({name: in_finite_rows(finite, each) for name, each in x.tensors.items()})
    return x.where(finite.view(-1, *[1] * (x.ndim - 1)), 0)


def zeros(
    shape: tuple[int, ...] | None,
    dtype: torch.dtype | None,
    several: Mapping[str, tuple[list[int], str]] | None,
    device: torch.device,
) -> Tensor | Inputs | None:
    """Two inputs of known shapes, all zero; None if none are known.

    Args:
        shape: of one input.
        dtype: of it.
        several: shapes and types by name, of a network that is called with several tensors.
        device: where they are made.
    """
    if several is not None:
        return Inputs(
            {
                name: torch.zeros(2, *each, dtype=getattr(torch, kind), device=device)
                for name, (each, kind) in several.items()
            }
        )
    return None if shape is None else torch.zeros(2, *shape, dtype=dtype, device=device)
