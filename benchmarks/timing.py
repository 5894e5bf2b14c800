"""Networks and calls that take turns in one process: what latency.py and overhead.py share.

All calls of a network take turns, in as many rounds as --seconds allow and at least five. A ratio
is the median of the ratios within rounds, with their interquartile range in parentheses. A turn
lasts five milliseconds or one call, and is timed right after a turn of the same call that does not
count, so that none pays for the caches that another has left; calls of a second and more have no
need of that. Weights are untrained, which changes nothing; methods are in evaluation mode under
inference_mode.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from rich.progress import Progress, track
from torch import Tensor

import density_softmax as ds
from density_softmax.engine.runtime import name_device
from density_softmax.errors import UserError
from density_softmax.files import write_text
from density_softmax.methods.base import Method
from density_softmax.metrics import Latency, interleaved_latency, latency_ratio, latency_spread
from density_softmax.report.paper import paper_value
from density_softmax.runs.rows import write_rows
from density_softmax.serve.predictor import onnx_session
from density_softmax.types import Row
from untrained import ERM, TASKS

# Networks by name, with the recipes that they and the settings of the methods are from.
BACKBONES = {
    "resffn": "toy",
    "wide_resnet": "cifar10",
    "resnet50": "imagenet",
    "small_wide_resnet": "cifar10_small",
}
DEFAULT_BACKBONES = "resffn,wide_resnet,resnet50"
EAGER, ONNX = "eager", "exported"
FEWEST, MOST = 5, 1000  # rounds
LONG = 1.0  # seconds of a call that does not notice the caches
TURN = 0.005  # seconds that a call is repeated for when it is its turn
SETTLE = 0.02  # seconds that idle threads of torch spin for, and that a sleeper wakes up in

Calls = dict[str, Callable[[], object]]


def measure_all(
    measure: Callable[[str, argparse.Namespace], list[Row]],
    table: Callable[[Sequence[Row]], str],
    args: argparse.Namespace,
) -> None:
    """Measure one network after another, and write what is known after each."""
    torch.set_num_threads(args.threads)
    rows, texts = list[Row](), []
    for backbone in args.backbones:
        found = measure(backbone, args)
        rows += found
        texts += [heading(backbone, args), table(found)]
        print("\n".join(texts[-2:]))
        write_rows(args.out / "rows.csv", rows)
        write_text(args.out / "table.md", "\n".join(texts))


def as_if_fitted(method: Method) -> Method:
    """Scalars off their first values: a temperature of 1 or a decay of 0 vanishes from a graph."""
    for buffer in method.buffers():
        if buffer.ndim == 0 and buffer.is_floating_point():
            buffer.add_(0.1)
    return method.mark_fitted()


def inputs(recipe: str, args: argparse.Namespace) -> Tensor:
    """Random inputs, enough for the largest batch."""
    generator = torch.Generator().manual_seed(0)
    shape = TASKS[recipe].input_shape
    return torch.randn(max(2, *args.batches), *shape, generator=generator)


def export_all(
    methods: Mapping[str, Method], example: Tensor, threads: int, title: str
) -> dict[str, Callable[..., object]]:
    """Everything that can be exported, in onnxruntime."""
    runs = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind, method in track(methods.items(), description=f"{title}: export"):
            if method.draws_samples:
                continue
            try:
                file = ds.export(method, Path(folder) / f"{kind}.onnx", example=example).path
            except UserError as error:
                print(f"{kind}: {error}")
                continue
            runs[kind] = onnx_session(file, threads, spinning=False).run
    return runs


def exported_calls(served: Mapping[str, Callable[..., object]], x: Tensor) -> Calls:
    """A batch through each of the exported methods."""
    feed = {"x": x.numpy()}
    return {f"{ONNX}/{kind}": partial(run, None, feed) for kind, run in served.items()}


def take_turns(blocks: Sequence[Calls], seconds: float, title: str) -> dict[str, Latency]:
    """The calls of all blocks in turn. Blocks have threads of their own, and time to settle."""
    counted = {name: call for block in blocks for name, call in block.items()}
    with torch.inference_mode(), Progress(auto_refresh=False) as progress:
        bar = progress.add_task(title)
        progress.refresh()
        once = {n: t.median for n, t in interleaved_latency(counted, repeats=1, warmup=1).items()}
        times = {name: max(1, round(TURN / once[name])) for name in counted}
        turns: Calls = {}
        for number, block in enumerate(blocks):
            turns[f"settle {number}"] = settle
            for name, call in block.items():
                if once[name] < LONG:
                    turns[f"{name}, not counted"] = partial(repeat, call, times[name])
                turns[name] = partial(repeat, call, times[name])
        rounds = affordable_rounds((once[n] * times[n] for n in counted), len(blocks), seconds)
        progress.update(bar, total=rounds)
        # Drawn in between: a bar that refreshes itself would take time from those being timed.
        turns["draw"] = partial(progress.update, bar, advance=1, refresh=True)
        found = interleaved_latency(turns, rounds, warmup=0)
    return {n: Latency(tuple(t / times[n] for t in found[n].rounds)) for n in counted}


def repeat(call: Callable[[], object], times: int) -> None:
    """A turn of a call."""
    for _ in range(times):
        call()


def affordable_rounds(turns: Iterable[float], num_blocks: int, seconds: float) -> int:
    """How many rounds of turns that take so long fit into a time; a few in any case."""
    round_seconds = 2 * SETTLE * num_blocks + sum(t if t >= LONG else 2 * t for t in turns)
    return min(MOST, max(FEWEST, int(seconds / round_seconds)))


def settle() -> None:
    """Let the threads of others come to rest, then bring a processor that slept back to speed."""
    time.sleep(SETTLE)
    awake = time.perf_counter() + SETTLE
    while time.perf_counter() < awake:
        pass


def as_rows(recipe: str, size: int, found: Mapping[str, Latency]) -> list[Row]:
    """Milliseconds, and ratios to ERM in the same form and to ERM in eager mode."""
    rows = []
    to_eager = latency_ratio(found, f"{EAGER}/{ERM}")
    for name, latency in found.items():
        form, kind = name.split("/")
        own = f"{form}/{ERM}"
        values = {
            "latency_ms": 1e3 * latency.median,
            "latency_ratio": latency_ratio(found, own)[name],
            "latency_spread": latency_spread(found, own)[name],
            "latency_ratio_to_eager": to_eager[name],
            "rounds": float(len(latency.rounds)),
        }
        label = (recipe, kind, f"runtime={form}", 0, "cost")
        rows += [Row(*label, f"{metric}:{size}", value) for metric, value in values.items()]
    return rows


def heading(backbone: str, args: argparse.Namespace) -> str:
    """What was measured, on what."""
    place = f"threads: {args.threads}, {name_device(torch.device('cpu'))}"
    return f"\n### {backbone} (recipe {BACKBONES[backbone]}), {place}\n"


class Numbers:
    """The values of rows by method, form and metric."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.recipe = rows[0].recipe
        self.kinds = list(dict.fromkeys(row.method for row in rows))
        self.sizes = list(dict.fromkeys(int(row.metric.partition(":")[2]) for row in rows))
        self.values = {(row.method, row.variant, row.metric): row.value for row in rows}

    def show(self, kind: str, form: str, metric: str, digits: str = ".3g") -> str:
        """One number, or a dash."""
        value = self.values.get((kind, f"runtime={form}", metric))
        return "–" if value is None else f"{value:{'.0f' if value >= 100 else digits}}"

    def ratio(self, kind: str, form: str, part: str, size: int, digits: str = ".3g") -> str:
        """A ratio with its spread."""
        metrics = (f"{part}_ratio:{size}", f"{part}_spread:{size}")
        value, spread = (self.show(kind, form, metric, digits) for metric in metrics)
        return value if value == "–" else f"{value} ({spread})"

    def paper(self, kind: str) -> str:
        """The paper's ratio, or a dash."""
        value = paper_value(self.recipe, kind, "latency_ratio:1")
        return "–" if value is None else f"{value:.4f}"


def add_options(parser: argparse.ArgumentParser, batches: str, out: str) -> None:
    """What both commands ask."""
    parser.add_argument(
        "--backbones", type=_backbones, default=DEFAULT_BACKBONES, help=", ".join(BACKBONES)
    )
    parser.add_argument("--batches", type=_sizes, default=batches, help="sizes")
    parser.add_argument("--seconds", type=float, default=300.0, help="per network and batch size")
    parser.add_argument("--threads", type=int, default=2, help="of torch and of onnxruntime")
    parser.add_argument("--out", type=Path, default=Path(out), help="for rows.csv and table.md")


def _backbones(text: str) -> list[str]:
    unknown = [name for name in text.split(",") if name not in BACKBONES]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"no network '{unknown[0]}'; there are: {', '.join(BACKBONES)}"
        )
    return text.split(",")


def _sizes(text: str) -> list[int]:
    if not all(size.isdigit() and int(size) > 0 for size in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text}: give sizes of at least 1, such as 1,8,64")
    return [int(size) for size in text.split(",")]
