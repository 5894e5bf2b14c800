"""Networks of every kind, and the plain classifiers that methods become in their limits."""

from __future__ import annotations

import copy

import torch
from torch import nn

from density_softmax.data import ArraySource
from density_softmax.engine import EngineConfig
from density_softmax.methods.base import Method, MethodConfig
from density_softmax.methods.deterministic import Deterministic
from density_softmax.nn.backbones.resffn import ResFFN
from density_softmax.nn.backbones.resnet import CifarResNet, ResNet
from density_softmax.nn.backbones.wide_resnet import WideResNet
from density_softmax.training import Adam, Descent

NUM_CLASSES = 3
EVERY_EPOCH = EngineConfig(accelerator="cpu", checkpoint_seconds=0.0, predict_batch_size=16)
TWO_EPOCHS = Descent(epochs=2, batch_size=16, optimizer=Adam(lr=1e-2))

IMAGE = (3, 8, 8)
NETWORKS = {
    "ResFFN": lambda: (ResFFN(2, depth=2, width=6), (2,)),
    "WideResNet": lambda: (WideResNet.Config(depth=10, width=1).build(IMAGE), IMAGE),
    "CifarResNet": lambda: (CifarResNet.Config(depth=8).build(IMAGE), IMAGE),
    "ResNet": lambda: (ResNet.Config(depth=50).build((3, 32, 32)), (3, 32, 32)),
    "a single layer": lambda: (nn.Linear(2, 4), (2,)),
}

SMALL_NETWORKS = [kind for kind in NETWORKS if kind != "ResNet"]


def inputs(shape: tuple[int, ...] = (2,), num_samples: int = 6) -> torch.Tensor:
    return torch.randn(num_samples, *shape, generator=torch.Generator().manual_seed(1))


def labels(num_samples: int = 6) -> torch.Tensor:
    return torch.arange(num_samples) % NUM_CLASSES


def points(num_samples: int) -> ArraySource:
    x = inputs(num_samples=num_samples)
    return ArraySource(x, (x[:, 0] > 0).long())


def small(config: MethodConfig, seed: int = 0) -> Method:
    torch.manual_seed(seed)
    return config.build(ResFFN(2, depth=2, width=6), NUM_CLASSES).eval()


def pair(kind: str, config: MethodConfig) -> tuple[Deterministic, Method, torch.Tensor]:
    """ERM and a method around the same encoder, in evaluation mode, and a batch for them."""
    torch.manual_seed(0)
    encoder, shape = NETWORKS[kind]()
    for module in encoder.modules():
        if isinstance(module, nn.BatchNorm2d):
            for value in (module.weight, module.bias, module.running_mean, module.running_var):
                nn.init.uniform_(value, 0.5, 1.5)
    erm = Deterministic(copy.deepcopy(encoder), NUM_CLASSES)
    x = inputs(shape, num_samples=2 if kind == "ResNet" else 6)
    return erm.eval(), config.build(encoder, NUM_CLASSES).eval(), x
