"""The methods, one file each, found by being in this folder; and how to load one from a file.

`MethodConfig.members` is their registry, by kind.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from density_softmax.config import from_dict
from density_softmax.decide.policy import Policy
from density_softmax.files import (
    CHECKSUM,
    MODEL_FORMAT,
    StorageError,
    differences,
    hash_content,
    load_tensors,
    under,
)
from density_softmax.files.cards import from_json
from density_softmax.lazy import import_modules
from density_softmax.methods.base import SUMS, Group, Method, MethodConfig
from density_softmax.nn.backbones.headless import Headless
from density_softmax.nn.execution import seeded
from density_softmax.nn.finding import Site
from density_softmax.types import Calibration, Inputs

__all__ = ["Method", "MethodConfig", "load"]


def __getattr__(name: str) -> Any:
    """The method whose class has that name."""
    if not name.startswith("_"):
        import_modules(__name__, name)
        for config in MethodConfig.members.known().values():
            if config.method.__name__ == name:
                return config.method
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def __dir__() -> list[str]:
    return [*__all__, *(config.method.__name__ for config in MethodConfig.members.values())]


def kinds_of(group: Group) -> list[str]:
    """The kinds of all methods of a group, in the order of tables.

    Args:
        group: `paper` or `posthoc`.
    """
    found = {kind: config for kind, config in MethodConfig.members.items() if config.group == group}
    return sorted(found, key=lambda kind: found[kind].rank)


def load(path: str | Path, encoder: nn.Module) -> Method:
    """The method that `Method.save` wrote, in evaluation mode.

    Args:
        path: the file. One that has changed since it was written is refused.
        encoder: of the same architecture as the one that was saved; its weights are overwritten.
            Of an attached model, the network that it was attached to.
    """
    tensors, metadata = load_tensors(Path(path))
    _check_content(Path(path), tensors, metadata)
    _check_format(Path(path), metadata)
    try:
        config = from_dict(MethodConfig, json.loads(metadata["method"]))
        num_classes, example = int(metadata["num_classes"]), _example(metadata)
        values = json.loads(metadata.get("calibration", "null"))
        calibration = None if values is None else from_json(Calibration, values)
        policy = json.loads(metadata.get("policy", "null"))
        site = Site(**json.loads(metadata["site"])) if "site" in metadata else None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StorageError(f"{path}: not written by Method.save ({error!r})") from None
    if site is not None and not isinstance(encoder, Headless):
        encoder = Headless(encoder, site)
    with seeded(0, torch.device("cpu")):
        method = config.build(encoder, num_classes, example)
    if isinstance(encoder, Headless) and _is_shared(encoder.head_name, tensors):
        method.get_submodule("head").register_module("linear", encoder.head)
    sums = {name: tensors.pop(name) for name in list(tensors) if name.startswith(SUMS)}
    # Asked first: torch would overwrite all that fits before it refuses the rest.
    if different := differences(tensors, method.state_dict()):
        raise StorageError(f"{path}: does not fit this encoder: {different}")
    method.load_state_dict(tensors)
    method.calibration = calibration
    method.policy = None if policy is None else Policy.from_dict(policy, str(path))
    for name, values in sums.items():
        _, stage, key = name.split("/")
        method.sums.setdefault(stage, {})[key] = values
    return method.eval()


def _check_content(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> None:
    """Refuse a file that is not what was written."""
    checksum = metadata.pop(CHECKSUM, None)
    if checksum is None:
        raise StorageError(f"{path}: not written by Method.save, it has no checksum")
    if checksum != hash_content(tensors, metadata):
        raise StorageError(
            f"{path}: damaged, its content does not match its checksum; copy it again from where "
            "it was written, or save the model again"
        )


def _check_format(path: Path, metadata: Mapping[str, str]) -> None:
    """Refuse a file that another version wrote in a form which this one does not know."""
    if (found := metadata.get("format", "0")) != MODEL_FORMAT:
        raise StorageError(
            f"{path}: is a model file of format {found}, written by density-softmax "
            f"{metadata.get('version', 'of an unknown version')}; this version reads format "
            f"{MODEL_FORMAT}. Load it with that version, or fit and save the model again"
        )


def _is_shared(head: str, tensors: Mapping[str, Tensor]) -> bool:
    """Whether a saved method has the head of the model around which `attach` built it."""
    own, models = (under(p, tensors) for p in ("head.linear.", f"encoder.model.{head}."))
    return own.keys() == models.keys() and all(own[n].equal(models[n]) for n in own)


def _example(metadata: Mapping[str, str]) -> Tensor | Inputs | None:
    """A batch like the one that a saved method was built with."""
    if "example_inputs" in metadata:
        inputs = json.loads(metadata["example_inputs"]).items()
        return Inputs({n: torch.ones(1, *s, dtype=getattr(torch, d)) for n, (s, d) in inputs})
    if "example_shape" not in metadata:
        return None
    shape, dtype = json.loads(metadata["example_shape"]), getattr(torch, metadata["example_dtype"])
    return torch.zeros(1, *shape, dtype=dtype)
