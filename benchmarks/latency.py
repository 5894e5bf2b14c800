"""How long a prediction takes, relative to ERM: eager, and exported to onnxruntime.

    python benchmarks/latency.py [--backbones resffn,...] [--methods all|a,b] [--out DIR]
    python benchmarks/latency.py --overhead [--backbones ...] [--density gaussian] [--out DIR]

The first form compares all methods at batch 1, beside the paper's ratios. The second looks at
Density-Softmax against ERM alone, at batches 1, 8 and 64: as they are, both with everything folded
that an export folds, and both exported. The recipes of these networks have the paper's flow;
--density puts another in its place.

Weights are untrained, which changes nothing; methods are in evaluation mode under inference_mode.
All calls of a network take turns in one process, in as many rounds as --seconds allow and at least
five. A ratio is the median of the ratios within rounds, with their interquartile range in
parentheses. A turn lasts five milliseconds or one call, and is timed right after a turn of the same
call that does not count, so that none pays for the caches that another has left; calls of a second
and more have no need of that.

Half a percent of a whole pass is less than its noise, so --overhead also times what comes after
the encoder, the tail. 1 + (our tail − ERM's) / (ERM's whole pass), all of them medians, is shown
twice: with tails timed within whole passes, where the encoder has just emptied the caches, and with
tails on stored features, where they are warm. In parentheses are the interquartile ranges of both
tails together, over the same whole pass. Reading layers for a density is not in the tail: none of
the paper's recipes does.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from rich.progress import Progress, track
from torch import Tensor

import density_softmax as ds
from density_softmax.benchmark import prepare
from density_softmax.deploy.folding import fold_all
from density_softmax.deploy.predictor import onnx_session
from density_softmax.engine.runtime import name_device
from density_softmax.errors import UserError
from density_softmax.methods import Method
from density_softmax.metrics import Latency, interleaved_latency, latency_ratio, latency_spread
from density_softmax.nn.densities import DensityConfig
from density_softmax.recipes import get_recipe
from density_softmax.report.names import method_name
from density_softmax.report.paper import paper_value
from density_softmax.rows import write_rows
from density_softmax.storage import write_text
from density_softmax.types import Row
from untrained import ERM, OURS, TASKS, chosen_methods, untrained

# Networks by name, with the recipes that they and the settings of the methods are from.
BACKBONES = {
    "resffn": "toy",
    "wide_resnet": "cifar10",
    "resnet50": "imagenet",
    "small_wide_resnet": "cifar10_small",
}
DEFAULT_BACKBONES = "resffn,wide_resnet,resnet50"
EAGER, FOLDED, ONNX = "eager", "folded", "exported"
FEWEST, MOST = 5, 1000  # rounds
LONG = 1.0  # seconds of a call that does not notice the caches
TURN = 0.005  # seconds that a call is repeated for when it is its turn
SETTLE = 0.02  # seconds that idle threads of torch spin for, and that a sleeper wakes up in

Calls = dict[str, Callable[[], object]]


def main() -> None:
    """Measure one network after another, and write what is known after each."""
    args = parse()
    torch.set_num_threads(args.threads)
    rows, texts = list[Row](), []
    for backbone in args.backbones:
        found = overhead(backbone, args) if args.overhead else compare(backbone, args)
        rows += found
        texts += [heading(backbone, args), (overhead_table if args.overhead else table)(found)]
        print("\n".join(texts[-2:]))
        write_rows(args.out / "rows.csv", rows)
        write_text(args.out / "table.md", "\n".join(texts))


def compare(backbone: str, args: argparse.Namespace) -> list[Row]:
    """Every method eager and, where it can be, exported."""
    recipe, rows = BACKBONES[backbone], list[Row]()
    kinds = track(args.methods, description=f"{backbone}: build")
    methods = {kind: as_if_fitted(untrained(get_recipe(recipe, kind))) for kind in kinds}
    x = inputs(recipe, args)
    served = serve(methods, x[:2], args.threads, backbone)
    for size in args.batches:
        eager: Calls = {f"{EAGER}/{kind}": partial(m, x[:size]) for kind, m in methods.items()}
        title = f"{backbone}, batch {size}"
        found = take_turns([eager, exported_calls(served, x[:size])], args.seconds, title)
        rows += as_rows(recipe, size, found)
    return rows


def overhead(backbone: str, args: argparse.Namespace) -> list[Row]:
    """Density-Softmax against ERM, whole passes and tails."""
    recipe, rows = BACKBONES[backbone], list[Row]()
    changes = [f"method.density={args.density}"] if args.density else []
    recipes = {ERM: get_recipe(recipe, ERM), OURS: prepare(recipe, OURS, changes)}
    methods = {kind: as_if_fitted(untrained(chosen)) for kind, chosen in recipes.items()}
    x = inputs(recipe, args)
    served = serve(methods, x[:2], args.threads, backbone)
    forms = {f"{EAGER}/{kind}": method for kind, method in methods.items()}
    forms |= {f"{FOLDED}/{kind}": folded(method, x[:2]) for kind, method in methods.items()}
    for size in args.batches:
        batch, title = x[:size], f"{backbone}, batch {size}"
        passes = {name: Pass(method, batch) for name, method in forms.items()}
        tails: Calls = {f"tail {name}": stored_tail(m, batch) for name, m in forms.items()}
        eager: Calls = {**passes, **tails}
        found = take_turns([eager, exported_calls(served, batch)], args.seconds, title)
        rows += as_rows(recipe, size, {n: t for n, t in found.items() if n not in tails})
        rows += tail_rows(recipe, size, found, passes)
        for timed in passes.values():
            timed.hook.remove()
    return rows


def as_if_fitted(method: Method) -> Method:
    """Scalars off their first values: a temperature of 1 or a decay of 0 vanishes from a graph."""
    for buffer in method.buffers():
        if buffer.ndim == 0 and buffer.is_floating_point():
            buffer.add_(0.1)
    return method


def inputs(recipe: str, args: argparse.Namespace) -> Tensor:
    """Random inputs, enough for the largest batch."""
    generator = torch.Generator().manual_seed(0)
    shape = TASKS[recipe].input_shape
    return torch.randn(max(2, *args.batches), *shape, generator=generator)


def serve(
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


def folded(method: Method, example: Tensor) -> Method:
    """A copy that computes in torch what an export would."""
    method = copy.deepcopy(method)
    fold_all(method, example)
    return method


class Pass:
    """A forward pass that takes its time and that of its tail, from where the encoder is done."""

    def __init__(self, method: Method, x: Tensor) -> None:
        self.method, self.x = method, x
        self.encoded, self.wholes, self.tails = 0.0, list[float](), list[float]()
        self.hook = method.encoder.register_forward_hook(self._note)

    def __call__(self) -> None:
        """One pass."""
        began = time.perf_counter()
        self.method(self.x)
        done = time.perf_counter()
        self.wholes.append(done - began)
        self.tails.append(done - self.encoded)

    def _note(self, *_: object) -> None:
        self.encoded = time.perf_counter()


def stored_tail(method: Method, x: Tensor) -> Callable[[], object]:
    """What a forward pass does behind its encoder, whose features are there."""
    with torch.inference_mode():
        z = method.features(x)
    tail = copy.copy(method)
    tail.features = lambda x: z  # type: ignore[method-assign]
    return partial(tail, x)


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


def tail_rows(
    recipe: str, size: int, found: Mapping[str, Latency], passes: Mapping[str, Pass]
) -> list[Row]:
    """What our tail adds to a whole pass of ERM, with cold and with warm caches."""
    rows = []
    for form in (EAGER, FOLDED):
        ours, erm = (passes[f"{form}/{kind}"] for kind in (OURS, ERM))
        warm = [found[f"tail {form}/{kind}"] for kind in (OURS, ERM)]
        cold = [Latency(tuple(times)) for times in (ours.tails, erm.tails, erm.wholes)]
        # Single calls beside single calls, turns beside turns: a busy machine treats them unlike.
        measured = {"cold": cold, "warm": [*warm, found[f"{form}/{ERM}"]]}
        for caches, (tail, erm_tail, whole) in measured.items():
            values = {
                "ratio": 1 + (tail.median - erm_tail.median) / whole.median,
                "spread": (tail.high - tail.low + erm_tail.high - erm_tail.low) / whole.median,
                "us": 1e6 * tail.median,
                "us_of_erm": 1e6 * erm_tail.median,
            }
            label = (recipe, OURS, f"runtime={form}", 0, "cost")
            for metric, value in values.items():
                rows.append(Row(*label, f"{caches}_tail_{metric}:{size}", value))
    return rows


def heading(backbone: str, args: argparse.Namespace) -> str:
    """What was measured, on what."""
    place = f"threads: {args.threads}, {name_device(torch.device('cpu'))}"
    density = f", density {args.density}" if args.density else ""
    return f"\n### {backbone} (recipe {BACKBONES[backbone]}{density}), {place}\n"


class Figures:
    """The values of rows by method, form and metric."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.recipe = rows[0].recipe
        self.kinds = list(dict.fromkeys(row.method for row in rows))
        self.sizes = list(dict.fromkeys(int(row.metric.partition(":")[2]) for row in rows))
        self.values = {(row.method, row.variant, row.metric): row.value for row in rows}

    def show(self, kind: str, form: str, metric: str, digits: str = ".3g") -> str:
        """One figure, or a dash."""
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


def table(rows: Sequence[Row]) -> str:
    """A line per method and batch size, in Markdown."""
    figures = Figures(rows)
    heads = "eager, ms | / ERM | exported, ms | / exported ERM | / eager ERM | paper, / ERM"
    lines = [f"| method | batch | rounds | {heads} |", "|---" * 9 + "|"]
    for kind in figures.kinds:
        for size in figures.sizes:
            cells = [
                method_name(kind),
                str(size),
                figures.show(kind, EAGER, f"rounds:{size}", ".0f"),
            ]
            for form in (EAGER, ONNX):
                cells.append(figures.show(kind, form, f"latency_ms:{size}"))
                cells.append(figures.ratio(kind, form, "latency", size))
            cells.append(figures.show(kind, ONNX, f"latency_ratio_to_eager:{size}"))
            cells.append(figures.paper(kind) if size == 1 else "–")
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def overhead_table(rows: Sequence[Row]) -> str:
    """A line per batch size and form, in Markdown."""
    figures = Figures(rows)
    heads = "ERM, ms | Density-Softmax, ms | whole pass | tail within passes | tail alone"
    lines = [f"| batch | both are | rounds | {heads} | / eager ERM |", "|---" * 9 + "|"]
    for size in figures.sizes:
        for form in (EAGER, FOLDED, ONNX):
            cells = [str(size), form, figures.show(OURS, form, f"rounds:{size}", ".0f")]
            cells += [figures.show(k, form, f"latency_ms:{size}", ".4g") for k in (ERM, OURS)]
            for part in ("latency", "cold_tail", "warm_tail"):
                cells.append(figures.ratio(OURS, form, part, size, ".4f"))
            cells.append(figures.show(OURS, form, f"latency_ratio_to_eager:{size}"))
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + f"\n\nThe paper's ratio at batch 1: {figures.paper(OURS)}\n"


def parse() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--overhead", action="store_true", help="Density-Softmax and ERM alone")
    parser.add_argument("--backbones", default=DEFAULT_BACKBONES, help=", ".join(BACKBONES))
    parser.add_argument(
        "--methods", type=chosen_methods, default="all", help="all, or a,b; without --overhead"
    )
    kinds = list(DensityConfig.members)
    parser.add_argument("--density", choices=kinds, help="with --overhead; the recipe's if none")
    parser.add_argument("--batches", help="sizes; 1, or 1,8,64 with --overhead, if not given")
    parser.add_argument("--seconds", type=float, default=300.0, help="per network and batch size")
    parser.add_argument("--threads", type=int, default=2, help="of torch and of onnxruntime")
    parser.add_argument("--out", type=Path, help="folder for rows.csv and table.md")
    args = parser.parse_args()
    args.backbones = args.backbones.split(",")
    unknown = [name for name in args.backbones if name not in BACKBONES]
    if unknown:
        parser.error(f"--backbones: no network '{unknown[0]}'; there are: {', '.join(BACKBONES)}")
    sizes = (args.batches or ("1,8,64" if args.overhead else "1")).split(",")
    if not all(size.isdigit() and int(size) > 0 for size in sizes):
        parser.error(f"--batches {args.batches}: give sizes of at least 1, such as 1,8,64")
    args.batches = [int(size) for size in sizes]
    args.out = args.out or Path("runs/latency_overhead" if args.overhead else "runs/latency")
    return args


if __name__ == "__main__":
    main()
