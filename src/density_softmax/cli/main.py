"""density-softmax: train, evaluate and report classifiers that know what they do not know."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from density_softmax import __version__
from density_softmax.cli.data import app as data_app
from density_softmax.cli.terminal import REMEDIES, Terminal, file_error, plain
from density_softmax.errors import UserError

app = typer.Typer(
    name="density-softmax",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(data_app, name="data")
console = Terminal()

LARGEST_SEED = 2**63 - 1  # of torch
RECIPE = "See `density-softmax list recipes`; or a table, FILE.csv."
INTERRUPTED = 130  # how Typer exits from a KeyboardInterrupt

# torch and scikit-learn take seconds to import: each command imports what it needs, --help nothing.


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"density-softmax {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Classifiers that know what they do not know, at the cost of one forward pass."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where runs, figures and the report go.")] = Path(
        "runs/demo"
    ),
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds to average over.")] = 3,
) -> None:
    """Two moons: train ERM and Density-Softmax, draw their uncertainty, write a report.

    Finished runs are kept: calling it again continues where it was.
    """
    from density_softmax.cli.experiments import run_demo

    run_demo(out, seeds, console)


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help=RECIPE)],
    method: Annotated[
        str, typer.Option(help="See `density-softmax list methods`.")
    ] = "density_softmax",
    seed: Annotated[
        int, typer.Option(min=0, max=LARGEST_SEED, help="Decides data, weights and batches.")
    ] = 0,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Change an entry of the recipe."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run directory.")] = None,
    member: Annotated[
        int | None, typer.Option(min=0, help="Train only this member of an ensemble.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a killed run.")] = False,
    root: Annotated[
        Path | None,
        typer.Option(
            help="The folder whose runs share finished stages.", show_default="`runs` above --out"
        ),
    ] = None,
    share: Annotated[
        bool, typer.Option("--share/--no-share", help="Take over stages of other runs.")
    ] = True,
    evaluated: Annotated[
        bool, typer.Option("--evaluate/--no-evaluate", help="Evaluate what was trained.")
    ] = True,
) -> None:
    """Train a method with a recipe, evaluate it, and keep everything in a run directory.

    A run that was killed continues with `--resume` and ends with the same weights.

    A stage that another run under the same root has finished, with the same data, encoder, seed
    and settings, is not trained again but taken over with its cost, bit for bit: variants of
    density_softmax share encoder and head, temperature_scaling shares those of deterministic.
    `--no-share` trains everything.

    The members of an ensemble are runs of their own, in `members/` of its directory. They can
    be trained one by one, on any machine, with `--member 0`, `--member 1`, ...; without, those
    that are missing are trained one after another, and the ensemble is put together.

    For example

    - `density-softmax train toy`

    - `density-softmax train toy --method deterministic --seed 1`

    - `density-softmax train toy --set method.scale=max --set data.shape=two_ovals`

    - `density-softmax train toy --method deep_ensemble --member 2`

    - `density-softmax train wine.csv --set data.label=cultivar`
    """
    from density_softmax import benchmark
    from density_softmax.engine import is_first_process
    from density_softmax.recipes import prepare, recipe_of
    from density_softmax.report import run_summary
    from density_softmax.runs.run import Run

    name, wanted = recipe_of(recipe, changes or ())
    run = Run(prepare(name, method, wanted), seed, out, root=root)
    run = run if member is None else run.member(member)
    if is_first_process() and run.data.about:
        console.print(run.data.about, soft_wrap=True, markup=False, highlight=False)
    rows = benchmark.run(run, resume=resume, evaluated=evaluated, share=share)
    if not is_first_process():
        return
    if evaluated:
        console.print(run_summary(rows))
    console.print(f"run directory: {run.path}", soft_wrap=True)


@app.command()
def benchmark(
    recipe: Annotated[str, typer.Argument(help=RECIPE)],
    methods: Annotated[
        str | None,
        typer.Option(
            help="Names with commas between; `all` are the paper's methods, `posthoc` their "
            "rivals on a network that ERM trained. An ablation is of density_softmax.",
            show_default="all",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many: 0, 1, ..., N − 1.")] = 1,
    engine: Annotated[
        Literal["local", "ray"], typer.Option(help="This machine, or a Ray cluster.")
    ] = "local",
    ablation: Annotated[
        str | None,
        typer.Option(help="Variants to compare; see `density-softmax list ablations`."),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="PATH=VALUE",
            help="Change an entry in all cells; METHOD.NAME=VALUE is for one method.",
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Cells at a time on this machine.", show_default="1"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where runs and report go.", show_default="runs/RECIPE")
    ] = None,
) -> None:
    """Train and evaluate a grid of methods, seeds and variants, and report on it.

    Finished cells are kept: killed at any time, the same command continues where it was. A cell
    that fails stops no other; its error is in `cells.csv` and its output in `logs/`, and the
    exit code is then 1. When all are through, the latency of all methods is measured in turn.

    Cells that share a stage, such as variants of density_softmax with the same encoder and head,
    train it once: the others wait for it and take it over, with its cost.

    With `--engine ray` the cells go to the cluster of $RAY_ADDRESS, whose machines share the
    directory; without that variable, to the cores of this machine. Cells that run side by side
    slow each other down, and their training times show it.

    For example

    - `density-softmax benchmark toy --methods all --seeds 3`

    - `density-softmax benchmark toy --methods deterministic,density_softmax --seeds 10`

    - `density-softmax benchmark digits --ablation lambda --seeds 3 --jobs 2`

    - `density-softmax benchmark cifar10_small --set data.root=DIR --engine ray`

    - `density-softmax benchmark toy --set density_softmax.scale=max --set data.shape=two_ovals`
    """
    from density_softmax.cli.experiments import run_benchmark

    wanted = tuple(changes or ())
    if not run_benchmark(recipe, methods, seeds, engine, ablation, wanted, jobs, out, console):
        raise typer.Exit(1)


@app.command()
def latency(
    runs: Annotated[
        list[Path], typer.Argument(help="Finished runs, one of each method, with the same data.")
    ],
) -> None:
    """Measure the latency of runs in turn, in one process, and write it into their rows.

    Relative to the run of `deterministic` if it is among them, else to a network of its kind.
    """
    from density_softmax.cli.experiments import run_latency

    run_latency(runs, console)


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="A finished run directory.")],
    shift: Annotated[list[str] | None, typer.Option(help="A shifted set; repeatable.")] = None,
    ood: Annotated[list[str] | None, typer.Option(help="An OOD set; repeatable.")] = None,
    lipschitz: Annotated[
        bool, typer.Option("--lipschitz", help="Also bound the encoder's Lipschitz constant.")
    ] = False,
) -> None:
    """Evaluate a finished run again, on the sets of its recipe or on those named.

    What was found on other sets stays, and means over corruptions are of all that have been seen.
    Latency stays as it was measured; `density-softmax latency` measures it again.

    For example `density-softmax evaluate runs/digits/sngp/seed0 --ood letters.npz`
    """
    from density_softmax import benchmark
    from density_softmax.engine import is_first_process
    from density_softmax.report import run_summary
    from density_softmax.runs.run import Run

    shifts, sets = tuple(shift or ()), tuple(ood or ())
    rows = benchmark.evaluate(Run.at(run), shifts=shifts, ood=sets, lipschitz=lipschitz)
    if is_first_process():
        console.print(run_summary(rows))


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run directories, or folders of them.")],
    out: Annotated[Path, typer.Option(help="Where tables, figures and page go.")] = Path("report"),
) -> None:
    """Turn run directories into tables (text, CSV, LaTeX), figures and one HTML page.

    Everything that the runs have data for is drawn (SVG, PDF and PNG): uncertainty surfaces,
    reliability diagrams, box plots and means by severity, entropies and log densities,
    risk-coverage curves, spreads over seeds, costs, feature maps and training curves. A method is
    best, and bold, only where a paired t-test over its seeds says so.

    For example `density-softmax report runs/digits --out report`
    """
    from density_softmax.report import results_text, write_report

    page = write_report(runs, out, progress=True)
    console.print(results_text(out), soft_wrap=True)
    console.print(f"report page: {page}", soft_wrap=True)


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="A finished run directory.")],
    file: Annotated[Path, typer.Argument(help="What to write: FILE.onnx or FILE.pt2.")],
    int8: Annotated[
        bool, typer.Option("--int8", help="Encoder in 8 bits; shows what that changes.")
    ] = False,
) -> None:
    """Export a run as one file: encoder, density, scale and head, thresholds and class names.

    The file is written only if it answers like the model, at batch sizes 1 and 7. Prefer .onnx: a
    .pt2 file can execute code when torch loads it.

    For example `density-softmax export runs/toy/density_softmax/seed0 model.onnx`
    """
    from density_softmax.cli.serving import run_export

    run_export(run, file, int8, console)


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(help="FILE.onnx, or a run directory.")],
    path: Annotated[
        Path, typer.Argument(metavar="INPUT", help="An image folder, an .npz or a .csv file.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="A .csv, .jsonl or .parquet file; else CSV to stdout.")
    ] = None,
    page: Annotated[
        Path | None, typer.Option(help="An .html page of the most and least typical inputs.")
    ] = None,
    false_alarms: Annotated[
        float | None,
        typer.Option(help="Share of known inputs called unknown; default: the policy's, or 0.05."),
    ] = None,
    policy: Annotated[
        Path | None, typer.Option(help="A policy's .json file, in place of the model's own.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Inputs in memory at once.")] = 64,
    threads: Annotated[int, typer.Option(min=0, help="CPU threads; 0 takes all.")] = 0,
    engine: Annotated[
        Literal["local", "ray"], typer.Option(help="This machine, or a Ray cluster.")
    ] = "local",
) -> None:
    """Label every input, with confidence, uncertainty and whether it is in or out of the domain.

    What cannot be read becomes a line with the flag `bad`. An .onnx file is served without torch.

    For example

    - `density-softmax predict model.onnx photos/ --out labels.csv`

    - `density-softmax predict model.onnx rows.csv --false-alarms 0.01`
    """
    from density_softmax.cli.serving import run_predict

    run_predict(model, path, out, page, policy, false_alarms, batch_size, threads, engine)


@app.command()
def monitor(
    model: Annotated[
        Path, typer.Argument(help="The model's policy: the .json file of `Policy.save`.")
    ],
    stream: Annotated[
        Path, typer.Argument(help="What `predict` wrote next: .csv or .jsonl; - reads stdin.")
    ],
    state: Annotated[Path, typer.Option(help="What is known so far; created, or replaced.")],
    false_alarms: Annotated[
        float, typer.Option(help="Probability of an alarm, ever, while nothing has changed.")
    ] = 0.01,
    out: Annotated[
        Path | None, typer.Option(help="A folder for a page and a figure over time.")
    ] = None,
    reset: Annotated[
        bool, typer.Option("--reset", help="Begin again: an alarm was seen to.")
    ] = False,
) -> None:
    """Has the world changed? Read a stream of predictions; the exit code is 3 after an alarm.

    Call it with each new file of predictions: the evidence in the state file goes on. The
    probability that it ever raises an alarm while nothing has changed is at most --false-alarms,
    however long the stream is and however often it is looked at.

    For example `density-softmax monitor policy.json labels.csv --state monitor.json --out watch`
    """
    from density_softmax.cli.monitoring import run_monitor

    if run_monitor(model, stream, state, false_alarms, out, reset, console):
        raise typer.Exit(3)


@app.command("list")
def list_(
    what: Annotated[
        Literal["methods", "recipes", "ablations", "datasets", "metrics"], typer.Argument()
    ],
) -> None:
    """Show the methods, recipes, ablations, data sets or metrics there are."""
    from density_softmax.cli.experiments import listing

    console.print(listing(what))


def main() -> None:
    """Run the command line; what a user can cure is one line and exit code 2."""
    try:
        app()
    except UserError as error:
        _fail(str(error))
    except OSError as error:
        if error.errno not in REMEDIES:
            raise
        _fail(file_error(error))
    except SystemExit as end:
        if end.code == INTERRUPTED:
            print(
                "interrupted: a run continues with --resume, a benchmark with the same command",
                file=sys.stderr,
            )
        raise


def _fail(message: str) -> None:
    """Print one line and leave with exit code 2."""
    print(f"density-softmax: {' '.join(plain(message).split())}", file=sys.stderr)
    sys.exit(2)
