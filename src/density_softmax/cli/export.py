"""`density-softmax export`: a run becomes one file to deploy."""

from __future__ import annotations

from pathlib import Path

from rich import box
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from density_softmax.deploy.export import Exported, export_run
from density_softmax.deploy.quantization import Change

__all__ = ["run_export"]


def run_export(run: Path, file: Path, int8: bool, console: Console) -> None:
    """Export a run and show what was checked."""
    exported = export_run(run, file, int8=int8)
    console.print(summary(exported))
    if exported.change is not None:
        console.print(price(exported.change))
    console.print(f"exported: {file} ({decimal(file.stat().st_size)})", soft_wrap=True)


def summary(exported: Exported) -> Table:
    """How exact the export is, and the thresholds."""
    table = Table(box=box.SIMPLE, show_header=False)
    for size, difference in exported.parity.items():
        table.add_row(f"largest difference of a probability, batch {size}", f"{difference:.1e}")
    for share, value in exported.card.thresholds.items():
        table.add_row(f"epistemic threshold for {share:.0%} false alarms", f"{value:.4g}")
    return table


def price(change: Change) -> Table:
    """What 8 bits changed on the held-out data."""
    table = Table("held-out data", "float32", "int8", title="encoder in 8 bits", box=box.SIMPLE)
    table.add_row("accuracy", *(f"{value:.4f}" for value in change.accuracy))
    table.add_row("ECE", *(f"{value:.4f}" for value in change.ece))
    table.add_row("same label", "", f"{change.same_label:.4f}")
    moved = f"{change.log_density_shift:+.3g} ± {change.log_density_spread:.3g}"
    table.add_row(
        "log density, its deviation and change", f"{change.log_density_deviation:.3g}", moved
    )
    return table
