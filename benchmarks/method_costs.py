"""What each method costs: parameters beside the paper's, and latency relative to ERM.

    python benchmarks/method_costs.py [--out DIR]

Parameters are counted on the networks of the paper's recipes: WRN-28-10 with 10 and with 100
classes, ResNet-50 with 1,000. A second count adds buffers that a checkpoint has to keep anyway:
statistics of batch norm, precisions, covariances. Latency is that of an untrained method on a
small WRN in eager mode, all methods interleaved in one process.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import torch
from rich.progress import track

from density_softmax import metrics
from density_softmax.methods import Method, MethodConfig
from density_softmax.recipes import get_recipe
from density_softmax.report.names import method_name
from density_softmax.report.paper import paper_value
from density_softmax.rows import write_rows
from density_softmax.types import Row

SHAPES = {"cifar10": (3, 32, 32), "cifar100": (3, 32, 32), "imagenet": (3, 224, 224)}
CLASSES = {"cifar10": 10, "cifar100": 100, "imagenet": 1000, "cifar10_small": 10}
BATCHES = (1, 32)


def build(recipe: str, kind: str) -> Method:
    """An untrained method of a recipe."""
    chosen, shape = get_recipe(recipe, kind), SHAPES.get(recipe, (3, 32, 32))
    torch.manual_seed(0)
    encoder = chosen.encoder.build(shape)
    return chosen.method.build(encoder, CLASSES[recipe], torch.zeros(1, *shape)).eval()


def count(recipe: str, kind: str) -> dict[str, float]:
    """Parameters, and with them all floating-point buffers."""
    method = build(recipe, kind)
    buffers = sum(b.numel() for b in method.buffers() if b.is_floating_point())
    parameters = metrics.num_parameters(method)
    return {"params": float(parameters), "stored": float(parameters + buffers)}


def latencies(kinds: list[str], repeats: int) -> dict[str, dict[str, float]]:
    """Median ratios to ERM on the network of `cifar10_small`, a dictionary per method."""
    methods = {kind: build("cifar10_small", kind) for kind in kinds}
    found: dict[str, dict[str, float]] = {kind: {} for kind in kinds}
    for size in BATCHES:
        x = torch.randn(size, 3, 32, 32)
        calls = {kind: partial(method, x) for kind, method in methods.items()}
        with torch.inference_mode():
            times = metrics.interleaved_latency(calls, repeats=repeats)
        for kind, ratio in metrics.latency_ratio(times, "deterministic").items():
            found[kind][f"latency_ratio:{size}"] = ratio
    return found


def as_table(rows: list[Row]) -> str:
    """A line per method in Markdown; millions of parameters, ours / with buffers / the paper's."""
    values = {(row.method, row.recipe, row.metric): row.value for row in rows}
    heads = [*(f"{name} (M)" for name in SHAPES), *(f"latency, batch {b}" for b in BATCHES)]
    lines = ["| method | " + " | ".join([*heads, "paper"]) + " |", "|---" * 7 + "|"]
    for kind in dict.fromkeys(row.method for row in rows):
        cells = []
        for recipe in SHAPES:
            ours, stored = (values[kind, recipe, m] / 1e6 for m in ("params", "stored"))
            paper = paper_value(recipe, kind, "params")
            cells.append(
                f"{ours:.2f} / {stored:.2f} / " + ("–" if paper is None else f"{paper / 1e6:.2f}")
            )
        cells += [f"{values[kind, 'cifar10_small', f'latency_ratio:{b}']:.2f}" for b in BATCHES]
        paper = paper_value("cifar10", kind, "latency_ratio:1")
        cells.append("–" if paper is None else f"{paper:.3g}")
        lines.append(f"| {method_name(kind)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Count, time, print and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/method_costs"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=30, help="rounds of the latency")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    kinds = list(MethodConfig.members)
    rows = []
    for recipe in SHAPES:
        for kind in track(kinds, description=f"parameters, {recipe}"):
            for metric, value in count(recipe, kind).items():
                rows.append(Row(recipe, kind, "default", 0, "cost", metric, value))
    for kind, found in latencies(kinds, args.repeats).items():
        for metric, value in found.items():
            rows.append(Row("cifar10_small", kind, "default", 0, "cost", metric, value))
    write_rows(args.out / "rows.csv", rows)
    table = as_table(rows)
    (args.out / "table.md").write_text(table + "\n", encoding="utf-8")
    print(table)


if __name__ == "__main__":
    main()
