"""How a network is called: mode, precision, random seed, inputs, and one caller at a time."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from operator import is_
from typing import Any, Generic, TypeVar, final
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from density_softmax.errors import UserError
from density_softmax.types import Inputs, as_inputs, as_numbers, tensors_of

# Of a large input, so many numbers are enough to know it again.
NUM_HASHED = 4096
# What torch says of inputs whose shape or type a layer does not take.
INPUT_TROUBLE = re.compile(
    r"shapes cannot be multiplied|xpected (input|.* channels|.*\dD)|Given groups"
    r"|xpected tensor for argument|normalized_shape|running_mean should|same dtype|Input type"
    r"|index out of range in self|size of tensor|is invalid for input of size"
)


@contextlib.contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """A context in evaluation mode, after which every module is in its former mode.

    Args:
        network: any.
    """
    training = _in_training_mode(network)
    if training:
        network.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _in_training_mode(network: nn.Module) -> list[nn.Module]:
    """Its modules that are in training mode."""
    return [module for module in _modules_of(network) if module.training]


# By network: its modules, where these keep their children, and the children.
_KNOWN = WeakKeyDictionary[nn.Module, tuple[list[nn.Module], list[Any], list[Any]]]()


def _modules_of(network: nn.Module) -> list[nn.Module]:
    """What `network.modules()` gives, which takes so long that it is felt at batch 1.

    They are looked for again only after one was replaced.
    """
    known = _KNOWN.get(network)
    if known is not None and known[2] == [child for each in known[1] for child in each.values()]:
        return known[0]
    modules = list(network.modules())
    families = [module._modules for module in modules]
    children = [child for each in families for child in each.values()]
    _KNOWN[network] = modules, families, children
    return modules


def first_parameter(network: nn.Module) -> Tensor | None:
    """The first of `network.parameters()`, in a tenth of its time.

    Args:
        network: any.
    """
    for each in network._parameters.values():
        if each is not None:
            return each
    found = (first_parameter(child) for child in network._modules.values() if child is not None)
    return next((each for each in found if each is not None), None)


@contextlib.contextmanager
def seeded(seed: int | None, device: torch.device) -> Iterator[None]:
    """A context that draws from `seed`, after which the generators are restored.

    Args:
        seed: None leaves the generators alone.
        device: whose generator is seeded, besides the CPU's.
    """
    if seed is None:
        yield
        return
    accelerated = device.type not in ("cpu", "meta")
    devices = [device.index or 0] if accelerated else []
    with torch.random.fork_rng(devices, device_type=device.type if accelerated else "cuda"):
        torch.manual_seed(seed)
        yield


def full_precision(like: Tensor) -> AbstractContextManager[object]:
    """A context without autocast.

    Log densities of a few hundred nats and squared Jacobian norms do not survive 8 bits of
    mantissa: flows, scales and penalties compute in float32 whatever the network does.

    Args:
        like: a tensor on the device in question.
    """
    if not torch.is_autocast_enabled(like.device.type):
        return contextlib.nullcontext()  # entering autocast costs as much as a small matmul
    return torch.autocast(like.device.type, enabled=False)


def at_least_float32(x: Tensor) -> Tensor:
    """The tensor in float32, or in float64 if it is already.

    Args:
        x: of any shape.
    """
    return x if x.dtype == torch.float64 else x.float()


T = TypeVar("T")


@final
class Derived(Generic[T]):
    """A value that is computed from tensors, and again only after one of them has changed.

    Changed is a tensor that was written to, or that another one has taken the place of: fitting,
    loading a state and moving a module all are noticed. In an exported graph the value of the last
    call is a constant; in code that is compiled it is computed there. A copy starts without one.

    Args:
        compute: the value, from the tensors.
    """

    def __init__(self, compute: Callable[..., T]) -> None:
        self._compute = compute
        self._known: tuple[tuple[Tensor, ...], list[int], T] | None = None

    def __call__(self, *tensors: Tensor) -> T:
        """The value that belongs to the tensors as they are now.

        Args:
            tensors: what `compute` is given; always the same buffers.
        """
        if torch.compiler.is_exporting() and self._known is not None:
            return self._known[2]
        if torch.compiler.is_compiling():
            return self._compute(*tensors)
        try:
            versions = [each._version for each in tensors]
        except RuntimeError:  # inference tensors do not count what is written to them
            return self._compute(*tensors)
        known = self._known
        if known is not None and known[1] == versions and all(map(is_, known[0], tensors)):
            return known[2]
        with torch.inference_mode(False), torch.no_grad():
            value = self._compute(*tensors)
        self._known = (tensors, versions, value)
        return value

    def __reduce__(self) -> tuple[type[Derived[T]], tuple[Any, ...]]:
        return Derived, (self._compute,)


def call(network: nn.Module, x: Tensor | Inputs) -> Any:
    """What a network returns for a batch.

    A network in half precision is given its inputs in that precision.

    Args:
        network: any.
        x: its inputs.
    """
    parameter = first_parameter(network)
    dtype = torch.float32 if parameter is None else parameter.dtype
    if isinstance(x, Inputs):
        positional, named = x.positional, x.named
        if len(x.tensors) == 1 and not set(named) <= set(_arguments(network)):
            positional, named = list(named.values()), {}
        args = [_in_half(each, dtype) for each in positional]
        return network(*args, **{name: _in_half(each, dtype) for name, each in named.items()})
    return network(_in_half(x, dtype))


def _in_half(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype) if dtype.itemsize == 2 and x.dtype == torch.float32 else x


def _arguments(network: nn.Module) -> list[str]:
    return list(inspect.signature(network.forward).parameters)


def answer_of(output: Any) -> Tensor:
    """The answer of a classifier in what it returned, (batch, outputs).

    Args:
        output: a tensor; something with `logits`, an attribute or an entry; a tuple or a mapping
            whose first tensor is the answer.
    """
    found = getattr(output, "logits", None)
    if isinstance(output, Mapping) and not isinstance(found, Tensor):
        tensors = [value for value in output.values() if isinstance(value, Tensor)]
        found = output.get("logits", tensors[0] if tensors else None)
    if not isinstance(found, Tensor):
        parts = output if isinstance(output, tuple | list) else [output]
        found = next((part for part in parts if isinstance(part, Tensor)), None)
    if not isinstance(found, Tensor):
        raise UserError(
            f"the model returns a {type(output).__name__} without a tensor of logits: return a "
            "tensor (batch, classes), or something that has one as `logits`"
        )
    return _checked_answer(found)


def _checked_answer(found: Tensor) -> Tensor:
    if found.ndim > 2 and found[0].numel() != found.shape[1]:
        kind = "token (token classification)" if found.ndim == 3 else "pixel (segmentation)"
        raise UserError(
            f"the model returns shape {tuple(found.shape)}, an answer for every {kind}: what is "
            "supported is one answer per input, (batch, classes)"
        )
    return found.flatten(1) if found.ndim > 1 else found[:, None]


def as_batch(
    x: Any,
    like: Tensor,
    example_shape: tuple[int, ...] | None,
    example_dtype: torch.dtype | None,
    several: bool = False,
) -> Tensor | Inputs:
    """Inputs as a tensor, or as several, on the device of the network.

    Floats take the network's type. Integers do so only if the network was built with floats:
    for another network they are names of tokens.

    Args:
        x: numbers, (batch, ...).
        like: a parameter of the network.
        example_shape: of one input of the example that the network was built with.
        example_dtype: of that example.
        several: whether the network is called with several tensors: a tuple is these.
    """
    if not isinstance(x, Tensor) and (inputs := _several(x, example_shape, several)) is not None:
        return inputs.to(like.device)
    found = _as_numbers(x)
    if tuple(found.shape) == example_shape or found.ndim < 2:
        raise UserError(
            f"inputs of shape {tuple(found.shape)}: predict takes a batch of them, pass x[None] "
            "for a single one"
        )
    types = (found.dtype, example_dtype)
    if types == (like.dtype, like.dtype) and found.device == like.device:
        return found
    floats = any(dtype is not None and dtype.is_floating_point for dtype in types)
    return found.to(like.device, like.dtype if floats else found.dtype)


def _several(x: Any, example_shape: tuple[int, ...] | None, several: bool) -> Inputs | None:
    """The inputs, if they are several tensors."""
    if isinstance(x, Mapping) and example_shape is not None and not several:
        names = ", ".join(map(str, x))
        raise UserError(
            f"inputs are a dict of {names}: the network reads one tensor, pass one of them"
        )
    named = isinstance(x, Mapping | Inputs)
    return as_inputs(x) if named or (several and isinstance(x, tuple | list)) else None


def digests(x: Tensor | Inputs) -> Tensor:
    """64 bits for each input, alike just if the inputs are, (batch,).

    Zeros at the end of token numbers are padding, and other batches may have less of it.

    Args:
        x: inputs, (batch, ...).
    """
    hashes = [hashlib.blake2b(digest_size=8) for _ in range(len(x))]
    for part in tensors_of(x):
        flat = part.detach().flatten(1)
        flat = flat[:, :: max(1, flat.shape[1] // NUM_HASHED)].cpu().contiguous()
        for each, row in zip(hashes, flat.view(torch.uint8).numpy(), strict=True):
            each.update(row.data if part.is_floating_point() else row.tobytes().rstrip(b"\0"))
    values = [int.from_bytes(each.digest(), "little", signed=True) for each in hashes]
    return torch.tensor(values, dtype=torch.int64)


def explained(
    error: Exception,
    x: Tensor | Inputs,
    example_shape: tuple[int, ...] | None = None,
    example_dtype: torch.dtype | None = None,
) -> Exception:
    """An error of a network in the user's words, if it complains about its inputs.

    Args:
        error: what torch raised.
        x: the inputs, (batch, ...).
        example_shape: of one input of the example that the network was built with.
        example_dtype: of that example.

    Returns:
        A `UserError`, or the error itself if it is about something else.
    """
    reason = str(error).partition("\n")[0]
    if not INPUT_TROUBLE.search(reason):
        return error
    if isinstance(x, Inputs):
        return UserError(f"the network cannot read {x}: pass inputs as in training ({reason})")
    text = f"the network cannot read inputs of shape {tuple(x.shape)} and type {x.dtype}"
    if example_shape is not None:
        sizes = ", ".join(map(str, ("batch", *example_shape)))
        text += f"; it was built with ({sizes}) and {example_dtype}"
    return UserError(f"{text}: pass inputs as it was trained on, a row per sample ({reason})")


def _as_numbers(x: Any) -> Tensor:
    """The tensor of what may be an array; anything else is refused by its kind."""
    if isinstance(x, Tensor) and not x.is_complex():
        return x
    wanted = "predict takes a batch of numbers, a tensor or an array (batch, ...)"
    if isinstance(x, torch.utils.data.Dataset):
        raise UserError(f"inputs are a {type(x).__name__}: {wanted}; pass DataLoader(dataset)")
    try:
        found = as_numbers(_stacked(x))
    except ValueError:
        raise UserError(
            f"inputs are a {type(x).__name__} of rows that differ in shape: {wanted}; pass the "
            "inputs alone, without labels, all of one shape"
        ) from None
    if found is None:
        raise UserError(f"inputs of type {np.asarray(x).dtype}: {wanted}")
    return found


def _stacked(x: Any) -> Any:
    """A list of tensors as one, which numpy would take apart number by number."""
    tensors = isinstance(x, list | tuple) and len(x) > 0 and isinstance(x[0], Tensor)
    return np.stack([part.detach().cpu().numpy() for part in x]) if tensors else x


@final
class CallerLock:
    """A reentrant lock that is not shared with copies of its owner, nor with other processes."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[type[CallerLock], tuple[Any, ...]]:
        return CallerLock, ()
