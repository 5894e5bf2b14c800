"""Builds the wheel and uses it from an empty folder with every Python that there is.

    python tests/try_wheel.py [--out dist] [--pythons python3.10 python3.11 ...]

In each a new environment gets the wheel and what serving needs, without torch. There the command
line and `Predictor` answer for a model that this environment exported.
"""

from __future__ import annotations

import argparse
import csv
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHONS = ("python3.10", "python3.11", "python3.12", "python3.13")
SERVING = ("numpy", "onnxruntime", "pillow", "typer", "rich")
# Run in the new environment, in a folder with the model and its rows alone.
USE = """
import sys
import density_softmax as ds
predictor = ds.Predictor("model.onnx")
assert "torch" not in sys.modules
print(predictor)
"""


def main() -> None:
    """Build, and try with each Python."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--pythons", nargs="+", default=PYTHONS)
    args = parser.parse_args()
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir"]
    run([*pip, args.out, ROOT])
    wheel = max(args.out.glob("*.whl"), key=lambda file: file.stat().st_mtime)
    print(wheel)
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder))
        for python in args.pythons:
            try_wheel(wheel, python, Path(folder))


def make_model(folder: Path) -> None:
    """A classifier of a small table with Density-Softmax, exported, and rows for it."""
    import torch
    from sklearn.datasets import load_digits

    import density_softmax as ds

    x, y = map(torch.tensor, load_digits(return_X_y=True))
    x = x.float() / 16
    net = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(50):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x[:1000]), y[:1000]).backward()
        optimizer.step()
    train, heldout = (x[:1000], y[:1000]), (x[1000:], y[1000:])
    model = ds.attach(net, train=train, calibration=heldout, progress=False)
    ds.export(model, folder / "model.onnx", example=x[:1], heldout=heldout)
    with (folder / "rows.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(x[:5].tolist())


def try_wheel(wheel: Path, python: str, model: Path) -> None:
    """Install into a new environment and use it from an empty folder."""
    if shutil.which(python) is None or subprocess.call([python, "--version"]):
        print(f"{python}: not here")
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run([python, "-m", "venv", folder / "venv"])
        inside = folder / "venv" / "bin"
        pip = [inside / "python", "-m", "pip", "install", "--quiet"]
        run([*pip, "--no-deps", wheel])
        run([*pip, *SERVING])
        (folder / "empty").mkdir()
        for file in ("model.onnx", "rows.csv"):
            shutil.copy(model / file, folder / "empty" / file)
        command = inside / "density-softmax"
        run([command, "--version"], folder / "empty")
        run([command, "--help"], folder / "empty", quiet=True)
        run([command, "predict", "model.onnx", "rows.csv"], folder / "empty")
        run([inside / "python", "-c", USE], folder / "empty")
        print(f"{python}: works")


def run(words: list[str | Path], folder: Path | None = None, *, quiet: bool = False) -> None:
    """Run a command; one that fails ends everything."""
    stream = subprocess.DEVNULL if quiet else None
    subprocess.run([str(word) for word in words], cwd=folder, check=True, stdout=stream)


if __name__ == "__main__":
    main()
