"""Test error on CIFAR-10 of trained CIFAR ResNets: do their weights mean the same here?

    python benchmarks/cifar_resnet_accuracy.py --data DIR --weights FILE [FILE ...]

DIR holds `cifar-10-batches-bin/test_batch.bin`; each FILE is a safetensors file of a CIFAR ResNet
of any depth with its classifier `linear`. Expected: ResNet-20 8.27 %, ResNet-32 7.37 %.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from density_softmax.data import Images, find_images
from density_softmax.nn.backbones.resnet import CifarResNet
from density_softmax.types import Batch

# The networks were trained on inputs normalised with the ImageNet statistics.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


def read_test_set(data: Path) -> Batch:
    """The normalised test images, (10000, 3, 32, 32), and their labels."""
    test = find_images("cifar10", data).images.read("test")
    assert isinstance(test, Images)
    return Batch(normalized(test.x), test.y)


def normalized(x: Tensor) -> Tensor:
    """Bytes as the networks expect them."""
    mean, std = (torch.tensor(value).reshape(3, 1, 1) for value in (MEAN, STD))
    return (x / 255 - mean) / std


def depth_of(state: dict[str, Tensor]) -> int:
    """The depth 6n + 2 of the CIFAR ResNet that has these weights."""
    n = sum(re.fullmatch(r"layer1\.\d+\.conv1\.weight", name) is not None for name in state)
    return 6 * n + 2


def load_classifier(state: dict[str, Tensor]) -> nn.Module:
    """The backbone and the linear head that have these weights, ready to predict."""
    backbone = CifarResNet.Config(depth_of(state)).build((3, 32, 32))
    backbone.load_state_dict({k: v for k, v in state.items() if not k.startswith("linear.")})
    num_classes, num_features = state["linear.weight"].shape
    head = nn.Linear(num_features, num_classes)
    head.load_state_dict({key: state[f"linear.{key}"] for key in ("weight", "bias")})
    return nn.Sequential(backbone, head).eval()


@torch.inference_mode()
def num_errors(classifier: nn.Module, test: Batch, batch_size: int = 500) -> int:
    """How many images of the test set the classifier gets wrong."""
    batches = zip(torch.split(test.x, batch_size), torch.split(test.y, batch_size), strict=True)
    return sum(int((classifier(x).argmax(dim=1) != y).sum()) for x, y in batches)


def main() -> None:
    """Print one line per weights file."""
    parser = argparse.ArgumentParser(description="Test error on CIFAR-10 of trained CIFAR ResNets.")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--weights", type=Path, required=True, nargs="+", metavar="FILE")
    arguments = parser.parse_args()
    test = read_test_set(arguments.data)
    for file in arguments.weights:
        state = load_file(file)
        error = num_errors(load_classifier(state), test) / len(test.y)
        print(f"ResNet-{depth_of(state)}: test error {error:.2%} ({file.name})")


if __name__ == "__main__":
    main()
