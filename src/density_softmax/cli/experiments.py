"""The commands that run and list experiments: demo, benchmark, latency, list."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from rich import box
from rich.console import Console
from rich.table import Table

from density_softmax import benchmark
from density_softmax.data import CATALOG, Toy
from density_softmax.errors import UserError
from density_softmax.grid.board import Finished, run_grid
from density_softmax.grid.jobs import Engine, LocalEngine, RayEngine
from density_softmax.grid.latency import measure_latencies
from density_softmax.grid.plan import choose_methods, plan
from density_softmax.methods import MethodConfig
from density_softmax.metrics import is_noisy
from density_softmax.recipes import RECIPES, find_suite, prepare, recipe_of
from density_softmax.recipes.ablations import ABLATIONS
from density_softmax.report import results_text, write_report
from density_softmax.report.columns import BUSY
from density_softmax.runs.evaluation import METRICS
from density_softmax.runs.run import Run, shared_root

# Ours, the paper's own scale, and the classifier that both are compared to.
CONTENDERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("deterministic", ()),
    ("density_softmax", ()),
    ("density_softmax", ("method.scale=max",)),
)


def run_demo(out: Path, num_seeds: int, console: Console) -> None:
    """Train all contenders on two moons and report on them.

    Args:
        out: where runs and report go.
        num_seeds: seeds 0, 1, ..., N − 1.
        console: where progress is shown.
    """
    runs = []
    for seed in range(num_seeds):
        for method, changes in CONTENDERS:
            path = out / "runs" / "-".join([method, *changes, f"seed{seed}"])
            console.rule(f"{' '.join([method, *changes])}, seed {seed}")
            run = Run(prepare("toy", method, changes), seed, path, root=shared_root(out))
            benchmark.run(run, resume=True)
            runs.append(path)
    page = write_report(runs, out / "report")
    console.rule("results")
    console.print(results_text(out / "report"), soft_wrap=True)
    console.print(f"report page: {page}", soft_wrap=True)


def run_benchmark(
    recipe: str,
    methods: str | None,
    num_seeds: int,
    engine: Literal["local", "ray"],
    ablation: str | None,
    changes: tuple[str, ...],
    jobs: int | None,
    out: Path | None,
    console: Console,
) -> bool:
    """Run the grid and print its results; returns whether every cell is finished.

    Args:
        recipe: its name, or a table.
        methods: names or groups with commas between; None is all, or the ablated one.
        num_seeds: seeds 0, 1, ..., N − 1.
        engine: this machine, or a Ray cluster.
        ablation: variants to compare.
        changes: `path=value` texts.
        jobs: cells at a time on this machine.
        out: the folder of the grid.
        console: where progress is shown.
    """
    recipe, changes = recipe_of(recipe, changes)
    if methods is None:
        methods = "density_softmax" if ablation else "all"
    names = choose_methods(recipe, methods)
    folder = (out or Path("runs") / recipe).absolute()
    cells = plan(recipe, names, num_seeds, folder, changes=changes, ablation=ablation)
    finished = run_grid(cells, folder, _engine(engine, jobs), console)
    _print(finished, folder, console)
    return not finished.failed


def run_latency(runs: Sequence[Path], console: Console) -> None:
    """Measure the latency of runs in turn, and print what was written into their rows.

    Args:
        runs: directories of finished runs.
        console: where the ratios are shown.
    """
    table = Table("method", "variant", "batch", box=box.SIMPLE_HEAD)
    for column in ("latency, ERM = 1", "between quartiles"):
        table.add_column(column, justify="right")
    values = {
        (row.method, row.variant, row.metric): row.value
        for row in measure_latencies([Run.at(path) for path in runs])
    }
    ratios = {key: value for key, value in values.items() if key[2].startswith("latency_ratio:")}
    busy = False
    for (method, variant, metric), ratio in ratios.items():
        size = metric.partition(":")[2]
        spread = values[method, variant, f"latency_spread:{size}"]
        sign = "~" if is_noisy(ratio, spread) else ""
        table.add_row(method, variant, size, f"{sign}{ratio:.3g}", f"{spread:.3g}")
        busy = busy or bool(sign)
    console.print(table)
    if busy:
        console.print(BUSY, soft_wrap=True)


def _engine(name: Literal["local", "ray"], jobs: int | None) -> Engine:
    if name == "local":
        return LocalEngine(jobs or 1)
    if jobs is not None:
        raise UserError(f"--jobs {jobs} is for --engine local; a cluster decides by itself")
    return RayEngine()


def _print(finished: Finished, folder: Path, console: Console) -> None:
    if finished.page is not None:
        text = results_text(folder / "report")
        console.print(text, soft_wrap=True)
        console.print(f"report page: {finished.page}", soft_wrap=True)
    for entry in finished.failed:
        line = f"failed: {entry.name}: {entry.error} (log: {entry.job.log})"
        console.print(line, style="red", soft_wrap=True)
    failed, ran = len(finished.failed), sum(entry.ran for entry in finished.entries)
    counts = f"{ran - failed} run, {failed} failed, {len(finished.entries) - ran} finished before"
    console.print(f"{counts}: {folder / 'cells.csv'}", soft_wrap=True)
    if failed:
        console.print("the same command runs what failed again, and nothing else")


def listing(what: str) -> Table:
    """A table of names with one line about each.

    Args:
        what: methods, recipes, ablations, datasets or metrics.
    """
    tables: dict[str, Callable[[], Mapping[str, str]]] = {
        "methods": lambda: {kind: _owner(member) for kind, member in MethodConfig.members.items()},
        "recipes": lambda: {name: _first_line(find_suite(name)) for name in RECIPES},
        "ablations": lambda: {name: _first_line(made) for name, made in ABLATIONS.items()},
        "datasets": _datasets,
        "metrics": lambda: METRICS,
    }
    table = Table("name", "what it is", title=what)
    for name, line in tables[what]().items():
        table.add_row(name, line)
    return table


def _datasets() -> dict[str, str]:
    sets = {name: f"{entry.images}; {entry.home}" for name, entry in CATALOG.items()}
    own = "your own: a CSV or .npz file, or an image folder, by its path"
    return {"two_moons, two_ovals": _first_line(Toy), **sets, "PATH": own}


def _owner(config: type) -> str:
    """The first line about the method that a config is nested in."""
    module = inspect.getmodule(config)
    return _first_line(getattr(module, config.__qualname__.partition(".")[0]))


def _first_line(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0]
