"""What training costs: seconds per epoch and memory of every stage, relative to an epoch of ERM.

    python benchmarks/training_cost.py [--recipe cifar10_small] [--methods all|a,b] [--out DIR]

Every stage runs in the engine, as in a run, but for one pass over a few random samples, and is
extrapolated to the number that the recipe has: reading and augmenting real data is not included,
nor is looking at the held-out slice after an epoch. A stage takes turns with the stage of ERM, and
the ratio is the median of those of the rounds, with their interquartile range in parentheses;
seconds are that ratio times ERM's. Memory is the peak of a fresh process for each stage, above what
it held before the method was built. With `--precision bf16-mixed` the stages compute in that; ERM,
which takes turns with them, stays in float32.

A last table says what caching features saves: epochs of Density-Softmax with the density and the
head of the paper on cached features, against the same epochs through the encoder.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
from rich.progress import track

from density_softmax.config import override
from density_softmax.data import ArraySource
from density_softmax.engine import Checkpoints, EngineConfig, start
from density_softmax.engine.descent import Setting
from density_softmax.engine.fit import FeatureCache, run_stage
from density_softmax.engine.inspection import Inspection
from density_softmax.engine.progress import Bars
from density_softmax.engine.runtime import PeakMemory, name_device
from density_softmax.files import write_text
from density_softmax.methods.base import Method
from density_softmax.metrics import Latency, latency_ratio, latency_spread
from density_softmax.recipes import Recipe, get_recipe
from density_softmax.report.names import method_name
from density_softmax.runs.rows import write_rows
from density_softmax.training import Estimate, Stage, Steps, Train, Values
from density_softmax.types import Batch, Row
from untrained import ERM, OURS, TASKS, chosen_methods, untrained

T = TypeVar("T")
Sizes = dict[str, int]
Calls = dict[str, Callable[[], float]]

FULL = EngineConfig().precision

# Training and held-out samples of the recipes; those of the images are of their public sets.
SIZES: dict[str, Sizes] = {
    "toy": {"train": 800, "heldout": 200},
    "digits": {"train": 1_078, "heldout": 269},
    "cifar10_small": {"train": 45_000, "heldout": 5_000},
    "cifar100_small": {"train": 45_000, "heldout": 5_000},
    "cifar10": {"train": 45_000, "heldout": 5_000},
    "cifar100": {"train": 45_000, "heldout": 5_000},
    "imagenet": {"train": 1_255_544, "heldout": 25_623},
}
# Recipes of our own, with those of the paper whose density and head they borrow for the last table.
SETTINGS = {"digits": "cifar10", "cifar10_small": "cifar10", "cifar100_small": "cifar100"}
FEATURES = "features"
# A warm-up without end: weights stay where they are, so that random labels do no harm.
STILL = Steps(milestones=(), warmup_epochs=1e9)
FEW = 256  # samples for the estimates before a stage whose memory is measured
PAPER = """\
The paper (appendix "gradient-penalty and training cost") has no figures but a bar chart of hours on
an A100, of WRN-28-10 on CIFAR-10: training Density-Softmax takes longer and more memory than ERM,
because of its three steps and the Jacobian, and less time than Deep Ensembles, BatchEnsemble, MIMO
and Rank-1 BNN.
"""


class Trial:
    """A method of a recipe, whose stages are run on a few samples."""

    def __init__(self, recipe: Recipe, data: Mapping[str, ArraySource], threads: int) -> None:
        parts = recipe.method.ensemble()
        self.copies = max(1, len(parts))  # members of an ensemble are alike
        self.method = untrained(replace(recipe, method=parts[0]) if parts else recipe)
        self.engine = replace(recipe.engine, accelerator="cpu", threads=threads)
        self.fabric = start(self.engine)
        self.data, self.sizes = data, SIZES[recipe.name]
        self.features: dict[str, ArraySource] = {}

    def epoch(self, stage: Stage | None) -> float:
        """Seconds of an epoch or of the one pass of an `Estimate`; None computes the features."""
        if stage is None:
            return self._compute_features() * self._share(*self.data)
        if isinstance(stage, Train):
            return self._run(_one_epoch(stage)) * self._share(stage.split)
        finishing = Stopwatch(stage.finish)
        seconds = self._run(replace(stage, finish=finishing))
        share = 1.0 if stage.limit else self._share(stage.split)
        # What is made of sums does not depend on how many there were.
        grows = share if stage.reduce == "concat" else 1.0
        return (seconds - finishing.seconds) * share + finishing.seconds * grows

    def _run(self, stage: Stage) -> float:
        setting = Setting(
            self.fabric,
            self.method,
            seed=0,
            engine=self.engine,
            checkpoints=Checkpoints(None, {}),
            bars=Bars(show=False),
            inspection=Inspection(self.method.num_classes),
        )
        setting.inspection.pending = False
        cache = FeatureCache(self.fabric, self.method, self.engine, None, self.features)
        return run_stage(setting, 0, stage, self.data, cache)

    def _compute_features(self) -> float:
        began = time.perf_counter()
        cache = FeatureCache(self.fabric, self.method, self.engine, None, {})
        bars = Bars(show=False)
        self.features = {split: cache.source(split, x, bars) for split, x in self.data.items()}
        return time.perf_counter() - began

    def _share(self, *splits: str) -> float:
        """The samples of the recipe by those that are there."""
        return sum(self.sizes[s] for s in splits) / sum(len(self.data[s]) for s in splits)


class Stopwatch:
    """The end of an estimate, which knows how long it took."""

    def __init__(self, finish: Callable[[Values], object]) -> None:
        self.finish, self.seconds = finish, 0.0

    def __call__(self, total: Values) -> None:
        """Finish."""
        began = time.perf_counter()
        self.finish(total)
        self.seconds = time.perf_counter() - began


class Step(NamedTuple):
    """A part of a training story: a stage, or features computed for those that follow."""

    name: str
    stage: Stage | None
    epochs: int


def story(method: Method) -> Iterator[Step]:
    """The stages of a method, and the passes of the encoder that the engine adds to them."""
    cached, passes = False, 0
    for stage in method.stages():
        if stage.on == "features" and not cached:
            cached, passes = True, passes + 1
            yield Step(FEATURES if passes == 1 else f"{FEATURES} {passes}", None, 1)
        epochs = stage.descent.epochs if isinstance(stage, Train) else 1
        yield Step(stage.name, stage, epochs)
        cached = cached and not (isinstance(stage, Train) and stage.on == "inputs")


def _one_epoch(stage: Train) -> Train:
    descent = replace(stage.descent, epochs=1, patience=None, schedule=STILL)
    return replace(stage, descent=descent, monitor=None)


def samples(recipe: str, number: int) -> dict[str, ArraySource]:
    """So many random training samples, and held-out ones; no more than the recipe has."""
    task, generator = TASKS[recipe], torch.Generator().manual_seed(0)
    found = {}
    for split, size in SIZES[recipe].items():
        n = min(number, size)
        x = torch.randn(n, *task.input_shape, generator=generator)
        found[split] = ArraySource(x, torch.arange(n) % task.num_classes)
    return found


def in_turn(calls: Calls, rounds: int) -> dict[str, Latency]:
    """The seconds that each call returns, in rounds after one that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name in calls if number % 2 else reversed(calls):
            seconds[name].append(calls[name]())
    return {name: Latency(tuple(values[1:])) for name, values in seconds.items()}


def peak_memory(recipe: Recipe, number: int, num_samples: int, threads: int) -> float:
    """Megabytes of a step of the story of a method; to be called in a fresh process."""
    torch.set_num_threads(threads)
    data, cpu = samples(recipe.name, num_samples), torch.device("cpu")
    before = PeakMemory(cpu).megabytes()
    few = {split: tiled(source, FEW) for split, source in data.items()}
    trial = Trial(recipe, few, threads)
    *earlier, step = list(story(trial.method))[: number + 1]
    for stage in (other.stage for other in earlier):
        if not isinstance(stage, Train):  # features, and counts that a loss divides by
            trial.epoch(stage)
    trial.data = data
    trial.features = {s: tiled(z, len(data[s])) for s, z in trial.features.items()}
    peak = PeakMemory(cpu)
    trial.epoch(step.stage)
    return peak.megabytes() - before


def tiled(source: ArraySource, number: int) -> ArraySource:
    """So many samples, those of the source again and again."""
    rows = torch.arange(number) % len(source)
    return ArraySource(source.x[rows], source.y[rows])


def measure(kind: str, args: argparse.Namespace) -> list[Row]:
    """Every step of the story of a method beside an epoch of ERM in full precision."""
    data, full = samples(args.recipe, args.samples), get_recipe(args.recipe, ERM)
    recipe = override(get_recipe(args.recipe, kind), f"engine.precision={args.precision}")
    erm, trial = (Trial(each, data, args.threads) for each in (full, recipe))
    (plain,) = story(erm.method)
    name = ERM if recipe == full else f"{kind}, {args.precision}"
    rows = []
    for number, step in enumerate(story(trial.method)):
        calls: Calls = {ERM: partial(erm.epoch, plain.stage)}
        if name != ERM:
            calls[name] = partial(trial.epoch, step.stage)
        found = in_turn(calls, args.rounds)
        values = {
            "epochs": float(step.epochs * trial.copies),
            "erm_epoch_seconds": found[ERM].median,
            "epoch_ratio": latency_ratio(found, ERM)[name],
            "epoch_spread": latency_spread(found, ERM)[name],
            "peak_memory": in_fresh_process(
                peak_memory, recipe, number, args.samples, args.threads
            ),
        }
        label = (args.recipe, kind, args.variant, 0, "cost")
        rows += [Row(*label, f"{metric}:{step.name}", value) for metric, value in values.items()]
    return rows


def in_fresh_process(function: Callable[..., T], *arguments: object) -> T:
    """What the function returns in a process of its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def saving(args: argparse.Namespace) -> list[Row]:
    """Epochs of the stages that read features, from the cache and through the encoder."""
    settings = get_recipe(SETTINGS.get(args.recipe, args.recipe)).method
    recipe = replace(get_recipe(args.recipe), method=settings)
    trial = Trial(recipe, samples(args.recipe, args.samples), args.threads)
    rows = []
    for step in story(trial.method):
        if step.stage is None or step.stage.on == "features":
            calls: Calls = {"cached": partial(trial.epoch, step.stage)}
            if step.stage is not None:
                calls["recomputed"] = partial(trial.epoch, on_inputs(trial.method, step.stage))
            for way, latency in in_turn(calls, args.rounds).items():
                label = (args.recipe, OURS, f"features={way}", 0, "cost")
                rows.append(Row(*label, f"epochs:{step.name}", float(step.epochs)))
                rows.append(Row(*label, f"epoch_seconds:{step.name}", latency.median))
    return rows


def on_inputs(method: Method, stage: Stage) -> Stage:
    """The same stage, reading inputs and running the encoder for every batch."""

    def after_encoder(function: Callable[[Batch], T]) -> Callable[[Batch], T]:
        def composed(batch: Batch) -> T:
            with torch.no_grad():
                z = method.features(batch.x)
            return function(Batch(z, batch.y))

        return composed

    if isinstance(stage, Estimate):
        return replace(stage, on="inputs", statistics=after_encoder(stage.statistics))
    return replace(stage, on="inputs", loss=after_encoder(stage.loss))


class Costs:
    """The measured values of all methods, and what follows from them."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.values = {(row.method, row.metric): row.value for row in rows}
        self.kinds = list(dict.fromkeys(row.method for row in rows))
        self.seconds = Latency(
            tuple(row.value for row in rows if row.metric.startswith("erm_epoch_seconds"))
        ).median
        (self.erm,) = self.steps(ERM)

    def steps(self, kind: str) -> list[str]:
        """The names of the steps of a method."""
        metrics = (metric for method, metric in self.values if method == kind)
        return list(dict.fromkeys(metric.partition(":")[2] for metric in metrics))

    def of(self, kind: str, metric: str, step: str) -> float:
        """One value."""
        return self.values[kind, f"{metric}:{step}"]

    def memory_ratio(self, kind: str, step: str) -> float:
        """The peak of a step relative to ERM's."""
        return self.of(kind, "peak_memory", step) / self.of(ERM, "peak_memory", self.erm)

    def training_ratio(self, kind: str) -> float:
        """All epochs of a training, relative to all of ERM's."""
        total = sum(
            self.of(kind, "epochs", step) * self.of(kind, "epoch_ratio", step)
            for step in self.steps(kind)
        )
        return total / self.of(ERM, "epochs", self.erm)


def derived(costs: Costs, recipe: str, variant: str) -> list[Row]:
    """What the tables show beyond what was measured."""
    rows = []
    for kind in costs.kinds:
        label = (recipe, kind, variant, 0, "cost")
        for step in costs.steps(kind):
            seconds = costs.seconds * costs.of(kind, "epoch_ratio", step)
            rows.append(Row(*label, f"epoch_seconds:{step}", seconds))
            rows.append(Row(*label, f"memory_ratio:{step}", costs.memory_ratio(kind, step)))
        rows.append(Row(*label, "training_ratio", costs.training_ratio(kind)))
    return rows


def stage_table(costs: Costs) -> str:
    """A line per step of every method, in Markdown."""
    heads = "method | step | epochs | s per epoch | / ERM's epoch | peak MB | / ERM's"
    lines = [f"| {heads} |", "|---" * 7 + "|"]
    for kind in costs.kinds:
        for step in costs.steps(kind):
            epochs, ratio, spread, memory = (
                costs.of(kind, metric, step)
                for metric in ("epochs", "epoch_ratio", "epoch_spread", "peak_memory")
            )
            cells = [method_name(kind), step, f"{epochs:.0f}", f"{costs.seconds * ratio:.3g}"]
            cells += [f"{ratio:.3g} ({spread:.2g})", f"{memory:.0f}"]
            cells.append(f"{costs.memory_ratio(kind, step):.2f}")
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def method_table(costs: Costs) -> str:
    """A line per method, in Markdown."""
    lines = ["| method | whole training / ERM's | largest peak / ERM's |", "|---|---|---|"]
    for kind in costs.kinds:
        peak = max(costs.memory_ratio(kind, step) for step in costs.steps(kind))
        lines.append(f"| {method_name(kind)} | {costs.training_ratio(kind):.2f} | {peak:.2f} |")
    return "\n".join(lines) + "\n"


def saving_table(rows: Sequence[Row]) -> str:
    """A line per stage that reads features, and their sum over all epochs, in Markdown."""
    values = {(row.variant, row.metric): row.value for row in rows}
    heads = "step | epochs | cached, s per epoch | through the encoder, s per epoch | saving"
    lines, total = [f"| {heads} |", "|---" * 5 + "|"], {"cached": 0.0, "recomputed": 0.0}
    for step in dict.fromkeys(row.metric.partition(":")[2] for row in rows):
        epochs = values["features=cached", f"epochs:{step}"]
        cells = [step, f"{epochs:.0f}"]
        for way in total:
            seconds = values.get((f"features={way}", f"epoch_seconds:{step}"))
            total[way] += epochs * (seconds or 0.0)
            cells.append("–" if seconds is None else f"{seconds:.3g}")
        ratio = values.get(("features=recomputed", f"epoch_seconds:{step}"), 0.0)
        ratio /= values["features=cached", f"epoch_seconds:{step}"]
        lines.append("| " + " | ".join([*cells, f"{ratio:.3g}" if ratio else "–"]) + " |")
    ratio = total["recomputed"] / total["cached"]
    sums = " | ".join(f"{seconds:.3g}" for seconds in total.values())
    return "\n".join([*lines, f"| all epochs | | {sums} | {ratio:.3g} |"]) + "\n"


def main() -> None:
    """Measure, print and write."""
    args = parse()
    args.samples = min(args.samples, SIZES[args.recipe]["train"])
    rows = list[Row]()
    for kind in track(args.methods, description=args.recipe, refresh_per_second=1):
        rows += measure(kind, args)
    costs, saved = Costs(rows), saving(args)
    place = f"threads: {args.threads}, {name_device(torch.device('cpu'))}"
    text = "\n".join(
        [
            f"### {args.recipe}, {args.precision}, {place}, "
            f"{args.rounds} rounds of {args.samples} samples\n",
            stage_table(costs),
            method_table(costs),
            PAPER,
            "### Cached features of Density-Softmax, with the settings of the paper\n",
            saving_table(saved),
        ]
    )
    print(text)
    write_rows(args.out / "rows.csv", [*rows, *derived(costs, args.recipe, args.variant), *saved])
    write_text(args.out / "table.md", text)


def parse() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipe", choices=SIZES, default="cifar10_small")
    parser.add_argument("--methods", type=chosen_methods, default="all", help="all, or a,b")
    parser.add_argument(
        "--samples",
        type=int,
        default=1024,
        help="that a stage runs on; fewer than eight batches miss a penalty of every eighth",
    )
    parser.add_argument("--precision", default=FULL, help="of the methods, not of ERM beside")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/training_cost"))
    args = parser.parse_args()
    full = args.precision == FULL
    args.variant = "default" if full else f"engine.precision={args.precision}"
    return args


if __name__ == "__main__":
    main()
