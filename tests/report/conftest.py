from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from density_softmax.data.toy import grid
from density_softmax.engine.checkpoint import Epoch
from density_softmax.engine.run_directory import RunDirectory
from density_softmax.report import write_report
from density_softmax.types import Prediction, Row

MakeRun = Callable[..., Path]


def identity(method: str, variant: str, seed: int, shape: str) -> dict[str, Any]:
    recipe = {
        "name": "toy",
        "data": {"kind": "toy", "shape": shape, "num_points": 1000, "heldout": 0.2},
        "encoder": {"kind": "resffn", "depth": 12},
        "method": {"kind": method},
        "engine": {"precision": "32-true"},
    }
    return {"recipe": recipe, "variant": variant, "seed": seed}


def figures(method: str, seed: int) -> dict[tuple[str, str], float]:
    """Values that no two rows share."""
    rng = np.random.default_rng([seed, len(method)])
    keys = [("iid", name) for name in ("nll", "accuracy", "ece", "mece", "brier", "aurc")]
    keys += [("iid", "confidence"), ("cluster", "confidence")]
    scores = ("confidence", "entropy", "epistemic")
    keys += [("cluster", f"{name}:{s}") for name in ("auroc", "aupr", "fpr95") for s in scores]
    keys += [("cost", "params"), ("cost", "latency_ratio:1"), ("cost", "train_seconds:train")]
    return {key: float(value) for key, value in zip(keys, rng.random(len(keys)), strict=True)}


def surface(seed: int) -> Prediction:
    """A smooth probability on the grid."""
    logit = torch.as_tensor(4 * grid()[:, 1] + seed, dtype=torch.float32)
    probs = torch.stack([torch.sigmoid(-logit), torch.sigmoid(logit)], 1)
    return Prediction(probs, torch.zeros(len(logit)), torch.zeros(len(logit)))


def make_run(
    root: Path,
    method: str = "deterministic",
    variant: str = "default",
    seed: int = 0,
    shape: str = "two_moons",
    finished: bool = True,
    drawn: bool = True,
) -> Path:
    """A run directory as a real run leaves it, with or without what figures are drawn from."""
    run = RunDirectory(root / f"run{len(list(root.glob('run*')))}")
    run.claim(identity(method, variant, seed, shape), resume=False)
    if drawn:
        prediction, epochs = surface(seed), range(1, 6)
        run.save_prediction("grid", prediction, torch.full((len(prediction.probs),), -1))
        run.save_epochs([Epoch("train", n, {"loss": 1 / n, "heldout_nll": 2 / n}) for n in epochs])
    if finished:
        found = figures(method, seed).items()
        run.save_rows([Row("toy", method, variant, seed, *key, value) for key, value in found])
    return run.path


@pytest.fixture
def make(tmp_path: Path) -> MakeRun:
    """Makes run directories under `tmp_path / "runs"`."""
    return partial(make_run, tmp_path / "runs")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a report on two methods, a variant with an odd name, and an unfinished run."""
    runs, out = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("out")
    for seed in range(3):
        make_run(runs, "deterministic", seed=seed)
        make_run(runs, "density_softmax", seed=seed)
    make_run(runs, "density_softmax", variant="name=<b>&amp;", drawn=False)
    make_run(runs, "sngp", finished=False)
    return write_report([runs], out)
