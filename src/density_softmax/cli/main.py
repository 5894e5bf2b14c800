"""density-softmax: train, evaluate and report classifiers that know what they do not know."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from density_softmax import __version__
from density_softmax.cli.data import app as data_app
from density_softmax.cli.models import export, monitor, predict
from density_softmax.cli.service import serve
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
RECIPE = "A recipe (see `density-softmax list recipes`), or a table FILE.csv."
WAIT = "Wait for a stage that another run trains, or exit with code 75."
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
    out: Annotated[Path, typer.Option(help="Folder for runs, figures and report.")] = Path(
        "runs/demo"
    ),
    seeds: Annotated[
        int, typer.Option(min=1, help="Number of seeds; from 3 on, differences are tested.")
    ] = 3,
) -> None:
    """Train ERM and Density-Softmax on two moons, and write figures and a report.

    Finished runs are kept, so the same command continues after an interruption.
    """
    from density_softmax.cli.experiments import run_demo

    run_demo(out, seeds, console)


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help=RECIPE)],
    method: Annotated[
        str, typer.Option(help="A method; see `density-softmax list methods`.")
    ] = "density_softmax",
    seed: Annotated[
        int, typer.Option(min=0, max=LARGEST_SEED, help="Seed of data, weights and batches.")
    ] = 0,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Change a setting of the recipe."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run directory.")] = None,
    member: Annotated[
        int | None, typer.Option(min=0, help="Train only this member of an ensemble.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    root: Annotated[
        Path | None,
        typer.Option(
            help="Runs below this folder share finished stages.", show_default="`runs` above --out"
        ),
    ] = None,
    share: Annotated[
        bool, typer.Option("--share/--no-share", help="Reuse finished stages of other runs.")
    ] = True,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help=WAIT)] = True,
    evaluated: Annotated[
        bool, typer.Option("--evaluate/--no-evaluate", help="Evaluate after training.")
    ] = True,
) -> None:
    """Train a method on a recipe, evaluate it, and keep everything in a run directory.

    An interrupted run continues with `--resume` and ends with the same weights.

    Stages are shared: if another run under the same root has finished a stage with the same data,
    encoder, seed and settings, its weights and cost are copied instead of training again.
    Variants of density_softmax share encoder and head; temperature_scaling shares the network of
    deterministic. `--no-share` trains everything.

    Members of an ensemble are runs in `members/` of its directory. `--member 0`, `--member 1`, ...
    train them one by one, on any machine. Without `--member`, the missing ones are trained in turn
    and the ensemble is assembled.

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
    rows = benchmark.run(run, resume=resume, evaluated=evaluated, share=share, wait=wait)
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
            help="Comma-separated; `all`: the paper's methods, `posthoc`: methods on a network "
            "that ERM trained. With --ablation: density_softmax.",
            show_default="all",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds: 0, 1, ..., N − 1.")] = 1,
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
            help="Change a setting in all cells; METHOD.NAME=VALUE for one method.",
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Cells to run at once on this machine.", show_default="1"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for runs and report.", show_default="runs/RECIPE")
    ] = None,
) -> None:
    """Train and evaluate a grid of methods, seeds and variants, and write a report.

    Finished cells are kept, so the same command continues after an interruption. A cell that fails
    does not stop the others; its error is in `cells.csv`, its output in `logs/`, and the exit code
    is 1. At the end, the latency of all methods is measured in turn.

    Cells that share a stage, such as variants of density_softmax with the same encoder and head,
    train it once; the others wait for it and copy it, with its cost.

    With `--engine ray`, cells run on the cluster at $RAY_ADDRESS, whose machines share the
    directory; without that variable, on the cores of this machine. Cells that run at the same time
    slow each other down, which their training times include.

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
        list[Path], typer.Argument(help="Finished runs on the same data, one of each method.")
    ],
) -> None:
    """Measure the latency of runs in turn, in one process, and write it to their rows.

    Latency is relative to the run of `deterministic` if there is one, else to a network like it.
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
    """Evaluate a finished run again, on the data sets of its recipe or on those named.

    Results on other sets are kept, and means over corruptions include all that were evaluated.
    Latency is not measured again; `density-softmax latency` does that.

    Example: `density-softmax evaluate runs/digits/sngp/seed0 --ood letters.npz`
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
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("report"),
    against: Annotated[
        str | None,
        typer.Option(help="Also show differences from this method, with intervals."),
    ] = None,
) -> None:
    """Turn run directories into tables (text, CSV, LaTeX), figures and one HTML page.

    Figures (SVG, PDF and PNG) are drawn for whatever the runs have data for: uncertainty surfaces,
    reliability diagrams, box plots and means by severity, entropies and log densities,
    risk-coverage curves, spread over seeds, costs, feature maps and training curves. A number is
    bold only if a paired t-test over seeds says that it is the best. --against adds a table of
    differences from one method, which are bold if a paired bootstrap over the images of the test
    sets says that they are not 0.

    Example: `density-softmax report runs/digits --out report --against density_softmax`
    """
    from density_softmax.report import results_text, write_report

    page = write_report(runs, out, against=against, progress=True)
    console.print(results_text(out), soft_wrap=True)
    console.print(f"report page: {page}", soft_wrap=True)


for command in (export, predict, serve, monitor):
    app.command()(command)


@app.command("list")
def list_(
    what: Annotated[
        Literal["methods", "recipes", "ablations", "datasets", "metrics"], typer.Argument()
    ],
) -> None:
    """List the methods, recipes, ablations, data sets or metrics."""
    from density_softmax.cli.experiments import listing

    console.print(listing(what))


def main() -> None:
    """Run the command line; what a user can cure is one line and the exit code of its error."""
    try:
        app()
    except UserError as error:
        _fail(str(error), error.exit_code)
    except OSError as error:
        if error.errno not in REMEDIES:
            raise
        _fail(file_error(error), UserError.exit_code)
    except SystemExit as end:
        if end.code == INTERRUPTED:
            print(
                "interrupted: a run continues with --resume, a benchmark with the same command",
                file=sys.stderr,
            )
        raise


def _fail(message: str, exit_code: int) -> None:
    """Print one line and leave."""
    print(f"density-softmax: {' '.join(plain(message).split())}", file=sys.stderr)
    sys.exit(exit_code)
