"""Every figure there is: what the runs have no data for is left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from density_softmax.engine.progress import Bars
from density_softmax.report.boxes import write_boxes
from density_softmax.report.costs import write_costs
from density_softmax.report.coverage import write_coverage
from density_softmax.report.curves import write_curves
from density_softmax.report.entropies import write_entropies
from density_softmax.report.feature_maps import write_feature_maps
from density_softmax.report.likelihoods import write_likelihoods
from density_softmax.report.reliability import write_reliability
from density_softmax.report.runs import Run
from density_softmax.report.seeds import write_seeds
from density_softmax.report.severities import write_severities
from density_softmax.report.style import Picture, paper_style
from density_softmax.report.surfaces import write_surfaces

__all__ = ["FIGURES", "write_figures"]

Writer = Callable[[Sequence[Run], Path], list[Picture]]

# Sections of the page, and who draws what they show.
FIGURES: dict[str, tuple[Writer, ...]] = {
    "Surfaces": (write_surfaces,),
    "Calibration": (write_reliability,),
    "Shift": (write_boxes, write_severities),
    "Uncertainty": (write_entropies, write_likelihoods),
    "Selective prediction": (write_coverage,),
    "Seeds": (write_seeds,),
    "Cost": (write_costs,),
    "Feature maps": (write_feature_maps,),
    "Training curves": (write_curves,),
}


def write_figures(
    runs: Sequence[Run], folder: Path, *, progress: bool = False
) -> dict[str, list[Picture]]:
    """Draw everything, in one style; sections without a picture are left out."""
    found: dict[str, list[Picture]] = {}
    with Bars(progress) as bars, paper_style():
        bar = bars.add("figures", sum(map(len, FIGURES.values())))
        for section, writers in FIGURES.items():
            bar.note(section.lower())
            for write in writers:
                found.setdefault(section, []).extend(write(runs, folder))
                bar.advance()
        bar.note("")
    return {section: pictures for section, pictures in found.items() if pictures}
