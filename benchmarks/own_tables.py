"""The recipe `table` beside `DensitySoftmaxClassifier`: both on the same rows, several seeds.

Each seed shuffles the rows of a set of scikit-learn, and so has test rows of its own. The recipe
trains on a .csv file of them, as `density-softmax train FILE.csv` does; the classifier on the rows
that the recipe trains on and holds out.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

import numpy as np
import torch
from rich import box
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine

from density_softmax import DensitySoftmaxClassifier, benchmark
from density_softmax.recipes import prepare, recipe_of
from density_softmax.runs import Run
from density_softmax.types import Batch, Data

SETS = {
    "wine": load_wine,
    "iris": load_iris,
    "breast cancer": load_breast_cancer,
    "digits": load_digits,
}


class Result(NamedTuple):
    """Of test rows: the accuracy, and the median and the highest epistemic uncertainty."""

    accuracy: float
    median: float
    highest: float


def main() -> None:
    """Print a line per set and way of training."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    options = parser.parse_args()
    table = Table("set", "trained by", "accuracy, %", "epistemic: median", "highest")
    table.box = box.MARKDOWN
    for name in options.sets:
        pairs = [compare(name, seed) for seed in range(options.seeds)]
        for who, results in zip(("recipe", "classifier"), zip(*pairs, strict=True), strict=True):
            accuracy = 100 * mean(result.accuracy for result in results)
            middle = median(result.median for result in results)
            highest = median(result.highest for result in results)
            table.add_row(name, who, f"{accuracy:.1f}", f"{middle:.0f}", f"{highest:.0f}")
    Console().print(table)


def compare(name: str, seed: int) -> tuple[Result, Result]:
    """Train the recipe and the classifier with a seed.

    Args:
        name: of the set.
        seed: of the order of rows, and of both trainings.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.csv"
        frame = SETS[name](as_frame=True).frame
        frame.sample(frac=1, random_state=seed).to_csv(file, index=False)
        recipe, changes = recipe_of(str(file))
        run = Run(prepare(recipe, "density_softmax", changes), seed, Path(folder) / "run")
        benchmark.run(run, progress=False)
        ours, y = run.prediction("iid")
        (x, labels), (x_test, y_test) = in_domain(run.data)
    classifier = DensitySoftmaxClassifier(random_state=seed).fit(x, labels)
    return (
        result(float((ours.probs.argmax(1) == y).double().mean()), ours.epistemic),
        result(float(classifier.score(x_test, y_test)), classifier.uncertainty(x_test)[1]),
    )


def in_domain(data: Data) -> tuple[Batch, Batch]:
    """The rows to train on, those held out among them, and the test rows.

    Args:
        data: of a run.
    """
    assert data.heldout is not None
    sources = data.train, data.heldout, data.splits[0].source
    train, heldout, test = (
        next(iter(source.read([range(len(source))], torch.device("cpu")))) for source in sources
    )
    both = Batch(torch.cat([train.x, heldout.x]), torch.cat([train.y, heldout.y]))
    return both, test


def result(accuracy: float, epistemic: Any) -> Result:
    """What the table shows of test rows.

    Args:
        accuracy: between 0 and 1.
        epistemic: uncertainty, (rows,).
    """
    values = np.asarray(epistemic, np.float64)
    return Result(accuracy, float(np.median(values)), float(values.max()))


if __name__ == "__main__":
    main()
