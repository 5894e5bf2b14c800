"""How much of the NLL under a shift is calibration, and how much the network's own errors?

    python benchmarks/calibrated_nll.py RUNS [RUNS ...] [--out DIR]

RUNS are run directories or folders that hold some, such as runs/cifar10_small. For each run: the
mean NLL over its shifted sets; the same if every set had the temperature that its own labels ask
for, which nobody has (Ashukha et al. 2020 compare methods so); and the difference, which is what
calibration left undone. The second figure is the network's: no factor that is the same for all
images of a set goes below it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.progress import track

from density_softmax.nn.softmax.head import fit_temperature, nll_of_samples
from density_softmax.report.selection import sort_runs
from density_softmax.runs.evaluation import label_metrics, mean_over_shifts
from density_softmax.runs.rows import write_rows
from density_softmax.runs.run import Run, find_runs
from density_softmax.types import Row

COLUMNS = {
    "caccuracy": "cAccuracy",
    "cnll": "cNLL",
    "ccalibrated_nll": "calibrated",
    "cundone_nll": "left undone",
}
# Probabilities are kept in single precision; one that has become 0 is to have a logarithm.
SMALLEST = 1e-38


def main() -> None:
    """A line per run."""
    args = parse()
    rows = []
    for run in track(sort_runs(find_runs(args.runs)).finished, description="runs"):
        key = run.recipe.name, run.kind, run.variant_text, run.seed
        for shift, found in decomposed(run).items():
            rows += [Row(*key, shift, metric, value) for metric, value in found.items()]
    print(table(rows))
    if args.out is not None:
        write_rows(args.out / "rows.csv", rows)


def decomposed(run: Run) -> dict[str, dict[str, float]]:
    """Of each shifted set: the means over its types and severities."""
    labelled = [row.split for row in run.rows() if row.metric == "nll"]
    means = mean_over_shifts({split: of_split(run, split) for split in labelled if "/" in split})
    return {shift: {name: found[name] for name in COLUMNS} for shift, found in means.items()}


def of_split(run: Run, split: str) -> dict[str, float]:
    """The metrics of one type and severity, and its NLL with the best temperature."""
    prediction, y = run.prediction(split)
    logits = prediction.probs.double().clamp_min(SMALLEST).log()
    calibrated = nll_of_samples(logits / fit_temperature(logits, y), y).mean().item()
    found = label_metrics(prediction, y)
    undone = found["nll"] - calibrated
    return {**found, "calibrated_nll": calibrated, "undone_nll": undone}


def table(rows: list[Row]) -> str:
    """In Markdown, a line per run and shifted set."""
    found: dict[tuple[object, ...], dict[str, float]] = {}
    for row in rows:
        found.setdefault(row[:5], {})[row.metric] = row.value
    head = ["method", "variant", "seed", "shift", *COLUMNS.values()]
    lines = [head, ["---"] * len(head)]
    for (_, *label), values in found.items():
        lines.append([str(part) for part in label] + [f"{v:.3f}" for v in values.values()])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def parse() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUNS")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write rows.csv")
    return parser.parse_args()


if __name__ == "__main__":
    main()
