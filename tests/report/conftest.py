from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from density_softmax.data.toy import grid
from density_softmax.engine.checkpoint import Epoch
from density_softmax.engine.run_directory import RunDirectory
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
) -> Path:
    """A run directory as a real run leaves it; an unfinished one has no rows."""
    run = RunDirectory(root / f"run{len(list(root.glob('run*')))}")
    run.claim(identity(method, variant, seed, shape), resume=False)
    if finished:
        prediction = surface(seed)
        run.save_prediction("grid", prediction, torch.full((len(prediction.probs),), -1))
        run.save_epochs(
            [Epoch("train", n, {"loss": 1 / n, "heldout_nll": 2 / n}) for n in range(1, 6)]
        )
        found = figures(method, seed)
        run.save_rows(
            [Row("toy", method, variant, seed, *key, value) for key, value in found.items()]
        )
    return run.path


@pytest.fixture
def make(tmp_path: Path) -> MakeRun:
    """Makes run directories under `tmp_path / "runs"`."""

    def under(**settings: Any) -> Path:
        return make_run(tmp_path / "runs", **settings)

    return under
