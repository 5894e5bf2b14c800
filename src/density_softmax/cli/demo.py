"""The five-minute demonstration on two moons."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from density_softmax.benchmark import prepare, run
from density_softmax.report import results_text, write_report

__all__ = ["run_demo"]

# Ours, the paper's own scale, and the classifier that both are compared to.
CONTENDERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("deterministic", ()),
    ("density_softmax", ()),
    ("density_softmax", ("method.scale=max",)),
)


def run_demo(out: Path, num_seeds: int, console: Console) -> None:
    """Train all contenders on two moons and report on them."""
    runs = []
    for seed in range(num_seeds):
        for method, changes in CONTENDERS:
            place = out / "runs" / "-".join([method, *changes, f"seed{seed}"])
            console.rule(f"{' '.join([method, *changes])}, seed {seed}")
            run(prepare("toy", method, changes), place, seed=seed, resume=True)
            runs.append(place)
    page = write_report(runs, out / "report")
    console.rule("results")
    console.print(results_text(out / "report"), soft_wrap=True, markup=False, highlight=False)
    console.print(f"report page: {page}", soft_wrap=True)
