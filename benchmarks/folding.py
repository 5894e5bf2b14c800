"""What each fold of an export brings: latency before and after it.

    python benchmarks/folding.py [--backbone wide_resnet|cifar_resnet|resffn] [--out DIR]

Density-Softmax with an untrained encoder whose layers are bounded by spectral normalisation, so
that the folds have something to do: the flow of the paper behind `wide_resnet` and `resffn`, the
Gaussians of `attach` on layers of `cifar_resnet`. The folds are made one after another; the network
before the first and after each that found something are timed in turns in one process, eagerly and
as ONNX graphs.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from rich.progress import track
from torch import Tensor, nn

from density_softmax.deploy.artifacts import OnnxArtifact
from density_softmax.deploy.folding import FOLDS
from density_softmax.deploy.graph import Graph, trace
from density_softmax.methods.density_softmax import DensitySoftmax
from density_softmax.metrics import Latency, interleaved_latency, latency_ratio
from density_softmax.nn.backbones.base import BackboneConfig
from density_softmax.nn.backbones.resffn import ResFFN
from density_softmax.nn.backbones.resnet import CifarResNet
from density_softmax.nn.backbones.wide_resnet import WideResNet
from density_softmax.nn.lipschitz.spectral import constrain
from density_softmax.recipes.attach import closed_form
from density_softmax.runs.rows import write_rows
from density_softmax.serve.predictor import onnx_session
from density_softmax.types import Row

IMAGE = (3, 32, 32)
BACKBONES: dict[str, tuple[BackboneConfig, tuple[int, ...], DensitySoftmax.Config]] = {
    "wide_resnet": (WideResNet.Config(depth=10, width=2), IMAGE, DensitySoftmax.Config()),
    "cifar_resnet": (CifarResNet.Config(depth=20), IMAGE, closed_form(("layer1", "layer2"))),
    "resffn": (ResFFN.Config(), (2,), DensitySoftmax.Config()),
}
BATCH_SIZES = (1, 32)
Calls = dict[str, Callable[[], object]]


def main() -> None:
    """Time all states of the network and print a table."""
    args = parse()
    torch.set_num_threads(args.threads)
    encoder, shape, config = BACKBONES[args.backbone]
    states = folded_states(bounded_model(encoder, shape, config), torch.randn(2, *shape))
    sessions = served(states, torch.randn(2, *shape), args.threads)
    ratios: dict[tuple[str, int], dict[str, float]] = {}
    medians: dict[tuple[str, int], dict[str, float]] = {}
    for size in BATCH_SIZES:
        x = torch.randn(size, *shape)
        eager: Calls = {name: partial(network, x) for name, network in states.items()}
        onnx: Calls = {name: partial(run, None, {"x": x.numpy()}) for name, run in sessions.items()}
        for runtime, calls in (("eager", eager), ("onnx", onnx)):
            found = measure(calls, args.repeats)
            medians[runtime, size] = {name: 1e3 * lat.median for name, lat in found.items()}
            ratios[runtime, size] = latency_ratio(found, "nothing")
    print(f"{args.backbone}, {args.threads} threads, median of {args.repeats}, interleaved")
    print(table(ratios, medians))
    if args.out is not None:
        write_rows(args.out / "rows.csv", as_rows(args.backbone, ratios, medians))


def bounded_model(
    backbone: BackboneConfig, shape: tuple[int, ...], config: DensitySoftmax.Config
) -> DensitySoftmax:
    """Density-Softmax around a spectrally normalised encoder."""
    torch.manual_seed(0)
    example = torch.randn(2, *shape)
    encoder = backbone.build(shape)
    constrain(encoder, 0.95, example)
    return DensitySoftmax(encoder, 10, config, example).eval()


def folded_states(model: DensitySoftmax, example: Tensor) -> dict[str, nn.Module]:
    """The network before the first fold and after each."""
    graph = Graph(model).eval()
    states: dict[str, nn.Module] = {"nothing": copy.deepcopy(graph)}
    for name, fold in FOLDS.items():
        number = len(fold(graph, example))
        print(f"{name}: {number} folded")
        if number:
            states[f"+ {name}"] = copy.deepcopy(graph)
    return states


def served(
    states: dict[str, nn.Module], example: Tensor, threads: int
) -> dict[str, Callable[..., object]]:
    """Every state in onnxruntime. The exporter folds some things by itself, in all of them."""
    runs = {}
    for name, network in track(states.items(), description="ONNX"):
        proto = OnnxArtifact.of(trace(network, example)).proto
        runs[name] = onnx_session(proto.SerializeToString(), threads).run
    return runs


def measure(calls: Calls, repeats: int) -> dict[str, Latency]:
    """Every call in turns."""
    with torch.inference_mode():
        return interleaved_latency(calls, repeats=repeats, warmup=5)


def table(
    ratios: dict[tuple[str, int], dict[str, float]],
    medians: dict[tuple[str, int], dict[str, float]],
) -> str:
    """Milliseconds and the share of the time before any fold, in Markdown."""
    columns = [f"{runtime}, batch {size}" for runtime, size in ratios]
    lines = ["| folded | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for name in next(iter(ratios.values())):
        cells = [f"{medians[key][name]:.3g} ms ({ratios[key][name]:.2f})" for key in ratios]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def as_rows(
    backbone: str,
    ratios: dict[tuple[str, int], dict[str, float]],
    medians: dict[tuple[str, int], dict[str, float]],
) -> list[Row]:
    """Every figure as a row; the variant is what was folded."""
    rows = []
    for figures, metric in ((ratios, "latency_ratio"), (medians, "latency_ms")):
        for (runtime, size), values in figures.items():
            for name, value in values.items():
                key = (f"folding/{backbone}", "density_softmax", f"{runtime}, {name}", 0, "cost")
                rows.append(Row(*key, f"{metric}:{size}", value))
    return rows


def parse() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backbone", choices=BACKBONES, default="wide_resnet")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=100, help="rounds of the latency")
    parser.add_argument("--out", type=Path, help="folder for rows.csv")
    return parser.parse_args()


if __name__ == "__main__":
    main()
