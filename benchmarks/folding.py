"""What fusing the Gaussian experts of an exported model is worth: operations and latency.

    python benchmarks/folding.py [--networks resnet20,...] [--out DIR]

Density-Softmax as `attach` makes it, around untrained encoders, is exported to ONNX with and
without the fusion, next to ERM. The operations are those that onnxruntime runs after its own
optimisations. Whole graphs, relative to ERM's, and graphs of what follows the encoder, in
microseconds more than ERM's, are timed in turns in one process.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import torch
from rich.progress import track
from torch import Tensor

from density_softmax.deploy.graph import Graph, fuse_gaussians, to_onnx, trace
from density_softmax.methods.base import Method
from density_softmax.methods.density_softmax import DensitySoftmax
from density_softmax.methods.deterministic import Deterministic
from density_softmax.metrics import Latency, interleaved_latency, latency_ratio
from density_softmax.nn.backbones.base import BackboneConfig
from density_softmax.nn.backbones.resffn import ResFFN
from density_softmax.nn.backbones.resnet import CifarResNet
from density_softmax.nn.backbones.wide_resnet import WideResNet
from density_softmax.recipes.attach import closed_form
from density_softmax.runs.rows import write_rows
from density_softmax.types import Row
from timing import as_if_fitted, repeat

IMAGE = (3, 32, 32)
NETWORKS: dict[str, tuple[BackboneConfig, tuple[int, ...], tuple[str, ...]]] = {
    "resnet20": (CifarResNet.Config(depth=20), IMAGE, ("layer1", "layer2")),
    "resnet20_last": (CifarResNet.Config(depth=20), IMAGE, ()),
    "wide_resnet": (WideResNet.Config(depth=10, width=2), IMAGE, ("group1", "group2")),
    "resffn": (ResFFN.Config(), (2,), ()),
}
BATCH_SIZES = (1, 32)
TURN = 0.005  # seconds that a call is repeated for when it is its turn
ERM, FUSED, PLAIN = "ERM", "fused", "not fused"


@dataclass(frozen=True)
class Form:
    """An exported model: sessions of the whole and of what stands behind its encoder."""

    whole: Any
    behind: Any
    features: Tensor
    operations: int


def main() -> None:
    """Measure one network after another and print a table of each."""
    args = parse()
    torch.set_num_threads(args.threads)
    rows = list[Row]()
    for name in args.networks.split(","):
        found = measure(name, args)
        rows += found
        print(f"\n{name}, {args.threads} threads, median of {args.rounds}, interleaved")
        print(table(found))
        if args.out is not None:
            write_rows(args.out / "rows.csv", rows)


@torch.no_grad()
def measure(name: str, args: argparse.Namespace) -> list[Row]:
    """The numbers of one network as rows; the variant is the form of the export."""
    x = draw(max(BATCH_SIZES), *NETWORKS[name][1])
    forms = {
        form: export(method, form != PLAIN, x, args.threads)
        for form, method in track(methods(name, x[:2]).items(), description=name)
    }
    values = {(form, "operations"): float(made.operations) for form, made in forms.items()}
    for size in BATCH_SIZES:
        wholes = {form: call(made.whole, x[:size]) for form, made in forms.items()}
        behind = {form: call(made.behind, made.features[:size]) for form, made in forms.items()}
        found = seconds(wholes, args.rounds)
        values |= {
            (form, f"latency_ratio:{size}"): r for form, r in latency_ratio(found, ERM).items()
        }
        found = seconds(behind, args.rounds)
        for form in forms:
            more = 1e6 * (found[form].median - found[ERM].median)
            values[form, f"microseconds_behind:{size}"] = more
    key = (f"folding/{name}", "density_softmax")
    return [Row(*key, form, 0, "cost", metric, value) for (form, metric), value in values.items()]


def draw(*shape: int) -> Tensor:
    """The same random inputs every time."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def methods(name: str, example: Tensor) -> dict[str, Method]:
    """The method of each form, in evaluation mode."""
    backbone, shape, layers = NETWORKS[name]
    torch.manual_seed(0)
    encoder = backbone.build(shape)
    erm = Deterministic(copy.deepcopy(encoder), 10, example=example)
    ours = DensitySoftmax(encoder, 10, closed_form(layers), example)
    found = {ERM: erm, FUSED: ours, PLAIN: ours}
    return {form: as_if_fitted(method).eval() for form, method in found.items()}


def export(method: Method, fused: bool, x: Tensor, threads: int) -> Form:
    """Both graphs of a method."""
    features = method.features(x)
    graph = Graph(copy.deepcopy(method)).eval()
    if fused:
        fuse_gaussians(graph)
    whole, operations = session(to_onnx(trace(graph, x[:2])), threads)
    graph.method.features = lambda x: x  # type: ignore[method-assign]
    behind, _ = session(to_onnx(trace(graph, features[:2])), threads)
    return Form(whole, behind, features, operations)


def session(proto: Any, threads: int) -> tuple[Any, int]:
    """A graph in onnxruntime, and how many operations it has there."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = str(Path(folder) / "optimized.onnx")
        made = onnxruntime.InferenceSession(proto.SerializeToString(), options)
        return made, len(onnx.load(options.optimized_model_filepath).graph.node)


def call(session: Any, x: Tensor) -> Callable[[], object]:
    """A batch through a session."""
    return partial(session.run, None, {"x": x.numpy()})


def seconds(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, Latency]:
    """Latencies of single calls, timed in turns of several calls."""
    once = interleaved_latency(calls, repeats=3, warmup=3)[ERM].median
    times = max(1, round(TURN / once))
    turns = {name: partial(repeat, one, times) for name, one in calls.items()}
    found = interleaved_latency(turns, rounds)
    return {name: Latency(tuple(t / times for t in found[name].rounds)) for name in turns}


def table(rows: Sequence[Row]) -> str:
    """A line per form, in Markdown."""
    metrics = list(dict.fromkeys(row.metric for row in rows))
    lines = ["| | " + " | ".join(metrics) + " |", "|---" * (len(metrics) + 1) + "|"]
    for form in dict.fromkeys(row.variant for row in rows):
        cells = [f"{row.value:.4g}" for row in rows if row.variant == form]
        lines.append(f"| {form} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def parse() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--networks", default=",".join(NETWORKS), help=", ".join(NETWORKS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--out", type=Path, help="folder for rows.csv")
    return parser.parse_args()


if __name__ == "__main__":
    main()
