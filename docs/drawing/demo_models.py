"""Trains and exports the two small models of the demo page.

    python docs/drawing/demo_models.py [--out FOLDER]

writes to docs/demo, for each of them: NAME.onnx with Density-Softmax attached, NAME_plain.onnx with
the softmax of the same network, and NAME.json with inputs that the page shows. It takes half a
minute.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import density_softmax as ds

FOLDER = Path(__file__).parent.parent / "demo"
NUM_SHOWN = 200  # points of the moons that the page draws
SEED = 0
# The networks read coordinates, and brightness from 0 to 1, as they are.
NORMALISATION: dict[str, dict[str, Any]] = {
    "two_moons": {"kind": "table", "columns": ("x", "y"), "mean": (0, 0), "std": (1, 1)},
    "digits": {"kind": "images", "mean": (0,), "std": (1,)},
}


class Samples(NamedTuple):
    """Inputs and labels."""

    x: Tensor
    y: Tensor


def main() -> None:
    """Train, attach, export."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=FOLDER, help="the folder to write to")
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for name, (train, heldout, test), network, shown in (moons(), digits()):
        torch.manual_seed(SEED)
        net = trained(network, train)
        accuracy = (net(test.x).argmax(1) == test.y).float().mean()
        print(f"{name}: accuracy {accuracy:.3f}")
        for method, suffix in (("density_softmax", ""), ("max_softmax", "_plain")):
            model = ds.attach(net, train=train, calibration=heldout, method=method, progress=False)
            path = out / f"{name}{suffix}.onnx"
            ds.export(
                model, path, example=train.x[:1], heldout=heldout, normalisation=NORMALISATION[name]
            )
            print(path, path.stat().st_size)
        (out / f"{name}.json").write_text(json.dumps(shown), encoding="utf-8")


def moons() -> tuple[str, list[Samples], nn.Module, dict[str, Any]]:
    """Two moons, and a network with two hidden layers."""
    from sklearn.datasets import make_moons

    x, y = map(torch.as_tensor, make_moons(3000, noise=0.1, random_state=SEED))
    parts = [Samples(*part) for part in zip(x.float().split(1000), y.split(1000), strict=True)]
    network = nn.Sequential(
        *(nn.Linear(2, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 2))
    )
    points = [[round(value, 3) for value in point] for point in parts[2].x[:NUM_SHOWN].tolist()]
    return (
        "two_moons",
        parts,
        network,
        {"points": points, "labels": parts[2].y[:NUM_SHOWN].tolist()},
    )


def digits() -> tuple[str, list[Samples], nn.Module, dict[str, Any]]:
    """The digits of scikit-learn, 8×8 values from 0 to 16, and a convolutional network."""
    from sklearn.datasets import load_digits

    found = load_digits()
    x = torch.tensor(found.images, dtype=torch.float32)[:, None] / 16
    y = torch.tensor(found.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(SEED))
    parts = [Samples(x[rows], y[rows]) for rows in order.split([1097, 400, 300])]
    network = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10)),
    )
    test = parts[2]
    first = [int((test.y == label).nonzero()[0]) for label in range(10)]
    shown = {"digits": [(16 * test.x[row]).int().flatten().tolist() for row in first]}
    return "digits", parts, network, shown


def trained(network: nn.Module, data: Samples) -> nn.Module:
    """A plain classifier, as one has it."""
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    for _ in range(60):
        for rows in torch.randperm(len(data.x)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(data.x[rows]), data.y[rows]).backward()
            optimizer.step()
    return network.eval()


if __name__ == "__main__":
    main()
