"""What `attach` finds by itself in small models of many kinds, and what it does to NLL and ECE.

Prints the table of docs/attach.md. The models and their synthetic data are those of the tests.
"""

import sys
import time
import warnings
from pathlib import Path

import torch

import density_softmax as ds
from density_softmax.errors import CalibrationWarning

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from trained_models import KINDS, trained  # type: ignore[import-not-found]


def line(kind: str) -> str:
    """The row of a kind of model."""
    build, shape, *_ = KINDS[kind]
    model, train, calibration, _ = trained(build, shape)
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        method = ds.attach(model, train=train, calibration=calibration, progress=False)
    found, seconds = method.calibration, time.perf_counter() - began
    assert found is not None
    before, after = found.before, found.after
    layers = ", ".join(f"`{name}`" for name in found.layers) or "none"
    read = "W z + b" if method.encoder.num_logits == 0 else "its logits"
    return (
        f"| {kind} | `{found.head}` | {read} | {layers} | {before.nll:.3f} → {after.nll:.3f} "
        f"| {before.ece:.3f} → {after.ece:.3f} | {seconds:.1f} |"
    )


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    line("MLP")  # imports what is imported on demand
    print("| model | head | read | layers | NLL | ECE | seconds |")
    print("|---|---|---|---|---|---|---|")
    for kind in KINDS:
        print(line(kind), flush=True)


if __name__ == "__main__":
    main()
