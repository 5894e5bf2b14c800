from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from density_softmax.config import override
from density_softmax.data.toy import grid
from density_softmax.engine.checkpoints import Epoch
from density_softmax.recipes import get_recipe
from density_softmax.report import figures as figures_of_report
from density_softmax.report import write_report
from density_softmax.report.figures import Drawing, Picture
from density_softmax.runs.evaluation import detection_metrics, label_metrics, mean_over_shifts
from density_softmax.runs.run import Run
from density_softmax.types import Prediction, Row

MakeRun = Callable[..., Path]
CORRUPTED = {"fog": (1, 2, 3), "glass_blur": (1, 2, 3)}


def claim(
    root: Path, name: str, method: str, changes: Sequence[str], seed: int
) -> tuple[Run, Callable[..., Row]]:
    """A new run directory, and how its rows begin."""
    path = root / f"run{len(list(root.glob('run*')))}"
    run = Run(override(get_recipe(name, method), *changes), seed, path)
    run.claim(resume=False)
    return run, partial(Row, name, method, run.variant_text, seed)


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
    changes: Sequence[str] = (),
    seed: int = 0,
    finished: bool = True,
    drawn: bool = True,
) -> Path:
    """A run directory as a real run leaves it, with or without what figures are drawn from."""
    run, row = claim(root, "toy", method, changes, seed)
    if drawn:
        prediction, epochs = surface(seed), range(1, 6)
        run.save_prediction("grid", prediction, torch.full((len(prediction.probs),), -1))
        run.save_epochs([Epoch("train", n, {"loss": 1 / n, "heldout_nll": 2 / n}) for n in epochs])
    if finished:
        run.save_rows([row(*key, value) for key, value in figures(method, seed).items()])
    return run.path


def prediction(num_samples: int, error: float, seed: int) -> tuple[Prediction, torch.Tensor]:
    """Four classes; the higher the error, the less labels and predictions have in common."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (num_samples,), generator=generator)
    logits = torch.randn(num_samples, 4, generator=generator)
    logits[torch.arange(num_samples), labels] += 2 / error
    probs = logits.softmax(1)
    epistemic = error * 10 + torch.randn(num_samples, generator=generator)
    return Prediction(probs, torch.zeros(num_samples), epistemic), labels


def make_image_run(
    root: Path,
    method: str = "deterministic",
    changes: Sequence[str] = (),
    seed: int = 0,
    error: float = 1.0,
    name: str = "digits",
) -> Path:
    """A run on images with a corrupted, a shifted and an OOD set, its rows computed from them."""
    run, row = claim(root, name, method, changes, seed)
    splits = {"iid": 1.0, "set.1": 1.5}
    splits |= {f"set-c/{k}/{n}": 1 + n / 2 for k, levels in CORRUPTED.items() for n in levels}
    found, inside = {}, None
    for number, (split, factor) in enumerate({**splits, "other": 4.0, "train": 0.8}.items()):
        predicted, labels = prediction(90, error * factor, 100 * seed + number)
        run.save_prediction(split, predicted, labels)
        inside = predicted if inside is None else inside
        if split in splits:
            found[split] = label_metrics(predicted, labels)
        elif split == "other":
            found[split] = detection_metrics(inside, predicted)
    found["cost"] = {"params": 5e6, "latency_ratio:1": 1 + seed / 9, "latency_ratio:32": 2.0}
    found["cost"] |= {"train_seconds:train": 10.0, "train_seconds:head": 2.0 + seed}
    found |= mean_over_shifts(found)
    rows = [(split, m, value) for split, values in found.items() for m, value in values.items()]
    run.save_rows([row(*each) for each in rows])
    if method == "density_softmax":
        run.save_features("iid", torch.randn(40, 6) + predicted.probs[:40, :1], labels[:40])
    return run.path


@pytest.fixture
def make_images(tmp_path: Path) -> MakeRun:
    """Makes run directories on images under `tmp_path / "runs"`."""
    return partial(make_image_run, tmp_path / "runs")


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Figures are made but not written, which would take seconds; the list has all of them."""
    made: list[Figure] = []

    def keep(drawing: Drawing, folder: Path) -> Picture:
        made.append(drawing.figure)
        width = drawing.figure.get_size_inches()[0]
        return Picture(folder / drawing.stem, drawing.title, drawing.caption, b"", width)

    monkeypatch.setattr(figures_of_report, "save_figure", keep)
    return made


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
    make_run(runs, "density_softmax", ['method.layers=["<b>&amp;"]'], drawn=False)
    make_run(runs, "sngp", finished=False)
    return write_report([runs], out)
