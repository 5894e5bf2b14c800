"""What caching features saves against running the encoder in every density and head epoch.

Trains the density and head stages of Density-Softmax both ways, interleaved in one process, on
random images: the time does not depend on what they show.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

from density_softmax.data import ArraySource
from density_softmax.engine import EngineConfig, fit
from density_softmax.methods import DensitySoftmax
from density_softmax.nn.densities import FlowDensity
from density_softmax.nn.wide_resnet import WideResNet
from density_softmax.optimization import Descent
from density_softmax.rows import write_rows
from density_softmax.stages import Estimate, Stage, Train
from density_softmax.types import Batch, Row

T = TypeVar("T")
CLASSES = 10


def main() -> None:
    """Time both ways and print the ratio."""
    args = parse()
    torch.set_num_threads(args.threads)
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(args.images, 3, 32, 32, generator=generator)
    labels = torch.arange(args.images) % CLASSES
    data = ArraySource(images, labels)
    heldout = ArraySource(images[: args.images // 10], labels[: args.images // 10])
    seconds: dict[str, list[float]] = {"cached": [], "recomputed": []}
    for repeat in range(args.repeats):
        for way in seconds if repeat % 2 == 0 else reversed(seconds):
            seconds[way].append(time_stages(way, data, heldout, args))
    report(seconds, args)


def time_stages(
    way: str, data: ArraySource, heldout: ArraySource, args: argparse.Namespace
) -> float:
    """Seconds of everything after the representation, features included."""
    method = build(args)
    stages = method.stages()[1:]
    if way == "recomputed":
        stages = tuple(on_inputs(method, stage) for stage in stages)
    object.__setattr__(method, "stages", lambda: stages)
    began = time.perf_counter()
    fit(method, data, heldout, engine=EngineConfig(accelerator="cpu"), progress=False)
    return time.perf_counter() - began


def build(args: argparse.Namespace) -> DensitySoftmax:
    """Density-Softmax around a small WideResNet."""
    torch.manual_seed(0)
    encoder = WideResNet.Config(depth=10, width=args.width, stem_stride=2).build((3, 32, 32))
    density = FlowDensity.Config(descent=Descent(epochs=args.density_epochs))
    head = Descent(epochs=args.head_epochs)
    return DensitySoftmax(encoder, CLASSES, DensitySoftmax.Config(density=density, head=head))


def on_inputs(method: DensitySoftmax, stage: Stage) -> Stage:
    """The same stage, reading inputs and running the encoder for every batch."""

    def after_encoder(function: Callable[[Batch], T]) -> Callable[[Batch], T]:
        def composed(batch: Batch) -> T:
            method.encoder.eval()
            with torch.no_grad():
                z = method.features(batch.x)
            return function(Batch(z, batch.y))

        return composed

    if isinstance(stage, Estimate):
        return dataclasses.replace(stage, on="inputs", statistics=after_encoder(stage.statistics))
    assert isinstance(stage, Train)
    return dataclasses.replace(stage, on="inputs", loss=after_encoder(stage.loss), monitor=None)


def report(seconds: dict[str, list[float]], args: argparse.Namespace) -> None:
    """Print medians and their ratio, and write rows where asked to."""
    medians = {way: statistics.median(values) for way, values in seconds.items()}
    ratios = [r / c for r, c in zip(seconds["recomputed"], seconds["cached"], strict=True)]
    print(
        f"WRN-10-{args.width}, {args.images} images, {args.density_epochs} density and "
        f"{args.head_epochs} head epochs, batch 128, {args.threads} threads, "
        f"median of {args.repeats}:"
    )
    print(f"  encoder in every epoch  {medians['recomputed']:7.2f} s")
    print(f"  features cached         {medians['cached']:7.2f} s")
    print(f"  saving                  {statistics.median(ratios):7.1f} x")
    if args.out is not None:
        name = ("random_images", "density_softmax")
        metric = "train_seconds:density+scale+head"
        rows = [Row(*name, f"features={way}", 0, "cost", metric, t) for way, t in medians.items()]
        write_rows(args.out / "rows.csv", rows)


def parse() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--width", type=int, default=2, help="of the WideResNet")
    parser.add_argument("--density-epochs", type=int, default=50, help="the paper's CIFAR setting")
    parser.add_argument("--head-epochs", type=int, default=10, help="the paper's CIFAR setting")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="folder for rows.csv")
    return parser.parse_args()


if __name__ == "__main__":
    main()
