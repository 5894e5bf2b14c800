"""The toy recipe's settings of every method, cut down to a moment of training."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from density_softmax.data import ArraySource
from density_softmax.engine import EngineConfig
from density_softmax.methods.base import Method, MethodConfig
from density_softmax.nn.backbones.resffn import ResFFN
from density_softmax.recipes import get_recipe
from density_softmax.training import Descent

ENGINE = EngineConfig(accelerator="cpu", threads=1, predict_batch_size=16)
KINDS = tuple(MethodConfig.members)


def shortened(config: Any) -> Any:
    """The same settings with one epoch of small batches in place of every descent."""
    if isinstance(config, Descent):
        return dataclasses.replace(config, epochs=1, batch_size=16)
    if not dataclasses.is_dataclass(config):
        return config
    parts = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return dataclasses.replace(config, **{name: shortened(part) for name, part in parts.items()})


def short_method(kind: str, **changes: Any) -> Method:
    """A small untrained method of that kind."""
    config = dataclasses.replace(shortened(get_recipe("toy", kind).method), **changes)
    torch.manual_seed(0)
    return config.build(ResFFN(2, depth=2, width=8), 2, torch.zeros(1, 2))


def points(num_samples: int, seed: int) -> ArraySource:
    """Two classes on either side of a line."""
    x = torch.randn(num_samples, 2, generator=torch.Generator().manual_seed(seed))
    return ArraySource(x, (x[:, 0] > 0).long())
