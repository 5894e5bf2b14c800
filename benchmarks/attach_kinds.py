"""What `attach` finds by itself in models of many kinds, and what it does to them, on real data.

Prints the table of docs/attach.md. The models are those of the tests. They learn to tell the
handwritten digits 0, 1 and 2 of scikit-learn (300 to train on, 120 to calibrate on, 117 to test
on); the digits 3 to 9 are out of distribution. Each kind of model reads them in its own form:
images of 16 by 16 pixels; 16 tokens, of which each tells the place and the level of a patch; the
64 pixels one after another as a signal; five principal components as a row of a table.
"""

import sys
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from torch import Tensor, nn

import density_softmax as ds
from density_softmax.errors import CalibrationWarning
from density_softmax.metrics import auroc

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from trained_models import IMAGE, KINDS, SIGNAL, TOKENS  # type: ignore[import-not-found]

NUM_KNOWN, NUM_TRAIN, NUM_CALIBRATION, NUM_STEPS = 3, 300, 120, 200
Data = tuple[Tensor, Tensor]


def digits(shape: tuple[int, ...]) -> tuple[Data, Data, Data, Tensor]:
    """Training, calibration and test data of the known digits, and the others."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    images, labels = torch.tensor(images[order] / 16).float().view(-1, 8, 8), labels[order]
    known = torch.from_numpy(labels < NUM_KNOWN)
    x = formed(images, shape, known)
    xs = x[known].split(
        [NUM_TRAIN, NUM_CALIBRATION, int(known.sum()) - NUM_TRAIN - NUM_CALIBRATION]
    )
    ys = torch.from_numpy(labels)[known].split([len(part) for part in xs])
    train, calibration, test = zip(xs, ys, strict=True)
    return train, calibration, test, x[~known]


def formed(images: Tensor, shape: tuple[int, ...], known: Tensor) -> Tensor:
    """Images of 8 by 8 pixels as a kind of model reads them."""
    if shape == IMAGE:
        large = nn.functional.interpolate(images[:, None], shape[1:], mode="bilinear")
        return 2 * large.repeat(1, 3, 1, 1) - 1
    if shape == SIGNAL:
        return images.flatten(1)[:, None]
    if shape == TOKENS:
        patches = nn.functional.avg_pool2d(images[:, None], 2).flatten(1)
        return (patches * 2.99).long() + 3 * torch.arange(16)
    fitted = PCA(shape[0], random_state=0).fit(images[known][:NUM_TRAIN].flatten(1))
    return torch.from_numpy(fitted.transform(images.flatten(1))).float()


def train(model: nn.Module, x: Tensor, y: Tensor) -> None:
    """Adam, for some seconds."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(NUM_STEPS):
        rows = torch.arange(60 * step, 60 * step + 60) % len(y)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()


def line(kind: str) -> str:
    """The row of a kind of model."""
    build, shape, *_ = KINDS[kind]
    known, calibration, (x, _), others = digits(shape)
    torch.manual_seed(0)
    model = build()
    train(model, *known)
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        method = ds.attach(model, train=known, calibration=calibration, progress=False)
    found, seconds = method.calibration, time.perf_counter() - began
    assert found is not None
    before, after = found.before, found.after
    with torch.no_grad():
        plain = [-model(each).softmax(-1).amax(-1) for each in (x, others)]
    ours = [method.predict(each).epistemic for each in (x, others)]
    layers = ", ".join(f"`{name}`" for name in found.layers) or "none"
    read = "W z + b" if method.encoder.num_logits == 0 else "its logits"
    return (
        f"| {kind} | `{found.head}` | {read} | {layers} | {before.nll:.3f} → {after.nll:.3f} "
        f"| {before.ece:.3f} → {after.ece:.3f} | {auroc(*plain):.3f} → {auroc(*ours):.3f} "
        f"| {seconds:.1f} |"
    )


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    line("MLP")  # imports what is imported on demand
    print("| model | head | read | layers | NLL | ECE | AUROC | seconds |")
    print("|---|---|---|---|---|---|---|---|")
    for kind in KINDS:
        print(line(kind), flush=True)


if __name__ == "__main__":
    main()
