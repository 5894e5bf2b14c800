"""What an attached model costs: a prediction beside the network alone, and attaching beside a pass.

    python benchmarks/attached.py latency [--networks resnet20,...] [--seconds S] [--out DIR]
    python benchmarks/attached.py passes [--images N] [--rounds R] [--tasks attach,...] [--out DIR]

`latency` times `model.predict` at batch 1, as `attach` makes the model by default, in turn with the
network that it is attached to, and both again as exported to ONNX (`timing.py` says how).
Weights are untrained, which changes nothing.

`passes` times whole passes of a ResNet-20 over random images: `attach` beside the network's own
forward passes over the same training and calibration images; and attaching, fitting, predicting,
evaluating, comparing and streaming through an exported file, each in the batches that it chooses by
itself beside those of before, 512 inputs, or 64 in a stream.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import density_softmax as ds
from density_softmax.data import ArraySource
from density_softmax.engine import EngineConfig, predict, start
from density_softmax.engine.passes import chosen_batch_size
from density_softmax.errors import CalibrationWarning
from density_softmax.methods.base import Method
from density_softmax.methods.density_softmax import DensitySoftmax
from density_softmax.methods.deterministic import Deterministic
from density_softmax.metrics import interleaved_latency, latency_ratio, latency_spread
from density_softmax.nn.backbones.base import BackboneConfig
from density_softmax.nn.backbones.headless import Headless
from density_softmax.nn.backbones.resnet import CifarResNet, ResNet
from density_softmax.nn.backbones.wide_resnet import WideResNet
from density_softmax.recipes.attach import closed_form
from density_softmax.runs.rows import write_rows
from density_softmax.serve.stream import predict_stream
from density_softmax.types import Row
from timing import EAGER, ONNX, Calls, as_if_fitted, export_all, exported_calls, take_turns

SMALL, LARGE = (3, 32, 32), (3, 224, 224)
NETWORKS: dict[str, tuple[BackboneConfig, tuple[int, ...], int, tuple[str, ...]]] = {
    "resnet20": (CifarResNet.Config(depth=20), SMALL, 10, ("0.layer1", "0.layer2")),
    "resnet20_last": (CifarResNet.Config(depth=20), SMALL, 10, ()),
    "wide_resnet": (WideResNet.Config(), SMALL, 10, ("0.group1", "0.group2")),
    "resnet50": (ResNet.Config(), LARGE, 1000, ("0.layer1", "0.layer2")),
}
NETWORK, OURS = "network", "density_softmax"
BEFORE, CHOSEN = "before", "chosen"
TASKS = ("attach", "fit", "predict", "evaluate", "compare", "stream")
SHARE = 0.2  # of the training images, so many calibrate


def main() -> None:
    """Measure, print a table and write rows."""
    args = parse()
    torch.set_num_threads(args.threads)
    rows = latencies(args) if args.what == "latency" else passes(args)
    for row in rows:
        print(f"| {row.recipe} | {row.variant} | {row.metric} | {row.value:.4g} |")
    if args.out is not None:
        write_rows(args.out / "rows.csv", rows)


def classifier(name: str) -> nn.Module:
    """An untrained network with a linear head."""
    backbone, shape, num_classes, _ = NETWORKS[name]
    torch.manual_seed(0)
    encoder = backbone.build(shape)
    return nn.Sequential(encoder, nn.Linear(encoder.num_features, num_classes)).eval()


def draw(*shape: int) -> Tensor:
    """The same random inputs every time."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def latencies(args: argparse.Namespace) -> list[Row]:
    """Predictions at batch 1, in turn."""
    rows = list[Row]()
    for name in args.networks.split(","):
        _, shape, num_classes, layers = NETWORKS[name]
        network, x = classifier(name), draw(2, *shape)
        encoder = Headless(network, "1")
        ours = DensitySoftmax(encoder, num_classes, closed_form(layers), x)
        plain = Deterministic(copy.deepcopy(encoder), num_classes, example=x)
        methods: dict[str, Method] = {NETWORK: plain, OURS: ours}
        methods = {kind: as_if_fitted(method).eval() for kind, method in methods.items()}
        served = exported_calls(export_all(methods, x, args.threads, name), x[:1])
        eager: Calls = {
            f"{EAGER}/{NETWORK}": partial(network, x[:1]),
            f"{EAGER}/{OURS}": partial(ours.predict, x[:1]),
        }
        found = take_turns([eager, served], args.seconds, name)
        for form in (EAGER, ONNX):
            own, base = f"{form}/{OURS}", f"{form}/{NETWORK}"
            values = {
                "latency_ms:1": 1e3 * found[own].median,
                "latency_ratio:1": latency_ratio(found, base)[own],
                "latency_spread:1": latency_spread(found, base)[own],
            }
            label = (f"attached/{name}", OURS, f"runtime={form}", 0, "cost")
            rows += [Row(*label, metric, value) for metric, value in values.items()]
    return rows


def passes(args: argparse.Namespace) -> list[Row]:
    """Whole passes of a ResNet-20 over random images."""
    network, x = classifier("resnet20"), draw(args.images, *SMALL)
    y = torch.arange(len(x)) % 10  # what the labels are makes no difference to the time
    warnings.simplefilter("ignore", CalibrationWarning)
    number = round(SHARE * len(x))
    work = Work(network, (x[number:], y[number:]), (x[:number], y[:number]))
    calls: dict[str, Callable[[], object]] = {"bare": work.bare}
    tasks = args.tasks.split(",")
    for name in tasks:
        for size in (BEFORE, CHOSEN):
            calls[f"{name}/{size}"] = partial(getattr(work, name), size)
    found = interleaved_latency(calls, args.rounds, warmup=1)
    label = ("attached/resnet20", OURS)
    metrics = [
        Row(*label, name, 0, "cost", "pass_seconds", latency.median)
        for name, latency in found.items()
    ]
    pairs = [(f"{kind}/{CHOSEN}", f"{kind}/{BEFORE}") for kind in tasks]
    for name, base in [(f"attach/{CHOSEN}", "bare")] * ("attach" in tasks) + pairs:
        metrics.append(
            Row(
                *label,
                f"{name} / {base}",
                0,
                "cost",
                "pass_ratio",
                latency_ratio(found, base)[name],
            )
        )
    return metrics


class Work:
    """What is done with a network and its data, in the batches of before or in chosen ones."""

    def __init__(
        self, network: nn.Module, train: tuple[Tensor, Tensor], held: tuple[Tensor, Tensor]
    ) -> None:
        self.network, self.train, self.held = network, train, held
        self.model = self.attach(CHOSEN)
        self.folder = tempfile.TemporaryDirectory()
        folder = Path(self.folder.name)
        ds.export(self.model, folder / "model.onnx", example=train[0][:2])
        self.served = ds.Predictor(folder / "model.onnx", torch.get_num_threads())
        np.savez(folder / "inputs.npz", x=train[0].numpy())

    @torch.no_grad()
    def bare(self) -> None:
        """The network's own passes over training and calibration images."""
        example = self.train[0][:2]
        for x, _ in (self.train, self.held):
            for part in x.split(self.model.batch_size_for(example)):
                self.network(part)

    def attach(self, size: str) -> Method:
        """`ds.attach` with the layers that it reads by default."""
        layers = NETWORKS["resnet20"][3]
        options: dict[str, Any] = {"layers": layers, "engine": engine(size), "progress": False}
        return ds.attach(self.network, train=self.train, calibration=self.held, **options)

    def fit(self, size: str) -> None:
        """`ds.fit` of the same method, which does not judge the data."""
        ds.fit(
            copy.deepcopy(self.model), self.train, self.held, engine=engine(size), progress=False
        )

    def predict(self, size: str) -> None:
        """`model.predict` of all training images at once."""
        self.model.predict(self.train[0], batch_size=512 if size == BEFORE else None)

    def evaluate(self, size: str) -> None:
        """What `evaluate` does with a set."""
        config, source = engine(size), ArraySource(*self.train)
        fabric = start(config)
        number = chosen_batch_size(config, self.model, source, fabric.device)
        predict(fabric, self.model, source, number)

    def compare(self, size: str) -> None:
        """`ds.compare` with the two simplest rivals."""
        sets: dict[str, Any] = {"train": self.train, "calibration": self.held, "test": self.held}
        options: dict[str, Any] = {"methods": ["energy"], "engine": engine(size), "progress": False}
        ds.compare(self.network, **sets, num_resamples=2, latency=False, **options)

    def stream(self, size: str) -> None:
        """`density-softmax predict` with the exported model and an .npz file."""
        folder = Path(self.folder.name)
        number = 64 if size == BEFORE else None
        predict_stream(self.served, folder / "inputs.npz", folder / "out.csv", batch_size=number)


def engine(size: str) -> EngineConfig:
    """The CPU, with the batches of before or those that are chosen."""
    return EngineConfig(accelerator="cpu", predict_batch_size=512 if size == BEFORE else None)


def parse() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("latency", "passes"))
    parser.add_argument("--networks", default=",".join(NETWORKS), help=", ".join(NETWORKS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=30.0, help="per network")
    parser.add_argument("--images", type=int, default=6000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tasks", default=",".join(TASKS), help=", ".join(TASKS))
    parser.add_argument("--out", type=Path, help="folder for rows.csv")
    return parser.parse_args()


if __name__ == "__main__":
    main()
