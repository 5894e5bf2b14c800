"""Small trained models and their exports, made once for all tests of deployment."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from density_softmax.methods.density_softmax import DensitySoftmax
from density_softmax.nn.backbones.headless import Headless
from density_softmax.nn.backbones.resffn import ResFFN
from density_softmax.nn.backbones.wide_resnet import WideResNet
from density_softmax.nn.densities import FlowDensity, GaussianDensity
from density_softmax.posthoc import around

IMAGE_SHAPE = (3, 8, 8)
COLOURS = {"kind": "images", "mean": (0.5, 0.4, 0.3), "std": (0.2, 0.25, 0.3)}
TABLE = {
    "kind": "table",
    "columns": ("length", "width"),
    "mean": (10.0, -1.0),
    "std": (2.0, 0.5),
}


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def vector_model() -> DensitySoftmax:
    """A flow behind a residual network on vectors, with a scale that bites."""
    torch.manual_seed(0)
    density = FlowDensity.Config(hidden=(4,))
    method = DensitySoftmax(ResFFN(2, depth=1, width=6), 3, DensitySoftmax.Config(density=density))
    method.scale.decay.fill_(0.5)
    with torch.no_grad():
        evidence = method.logits_and_evidence(method.features(draw(64, 2)))[1]
        method.scale.threshold.copy_(evidence.log_prob.median())
        method.scale.farthest.copy_(evidence.log_prob.min())
    return method.mark_fitted().eval()


def image_model() -> DensitySoftmax:
    """A wide ResNet with a head of its own, to which the density was attached afterwards.

    Its batch norms have statistics to fold, and the density reads a layer through a hook.
    """
    torch.manual_seed(0)
    backbone = WideResNet.Config(depth=10, width=1).build(IMAGE_SHAPE)
    settle_statistics(backbone, draw(32, *IMAGE_SHAPE))
    model = nn.Sequential(backbone, nn.Linear(64, 4)).eval()
    config = DensitySoftmax.Config(
        representation=None,
        density=GaussianDensity.Config(),
        layers=("0.group1",),
        energy=True,
        head=None,
    )
    method = around(Headless(model, "1"), config, draw(1, *IMAGE_SHAPE))
    method.scale.decay.fill_(0.1)
    return method.mark_fitted().eval()


def settle_statistics(network: nn.Module, x: Tensor) -> None:
    """Give batch norms the statistics and factors that training would."""
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.momentum = 0.5
                for parameter in module.parameters():
                    parameter.uniform_(0.5, 1.5)
        network.train()(x)
    network.eval()
