"""What a report says first: who leads, by how much it can be believed, and with which picture."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from comparison import frame

from density_softmax.report.figures import Picture
from density_softmax.report.page import lead_picture, series_of
from density_softmax.report.tables import build_tables
from density_softmax.report.verdict import Verdict, verdict_of
from density_softmax.types import Row

ERM, OURS = "deterministic", "density_softmax"


def rows(method: str, metric: str, values: Sequence[float], split: str = "iid") -> list[Row]:
    return [Row("toy", method, "default", n, split, metric, v) for n, v in enumerate(values)]


def verdict(*groups: list[Row]) -> Verdict:
    found = build_tables(frame([row for group in groups for row in group]))
    (results,) = (table for table in found if table.role == "results")
    return verdict_of(results)


def test_a_loss_is_said_as_plainly_as_a_win() -> None:
    lower, higher = [0.20, 0.25, 0.30], [0.30, 0.36, 0.39]
    won = verdict(rows(ERM, "nll", higher), rows(OURS, "nll", lower))
    lost = verdict(rows(ERM, "nll", lower), rows(OURS, "nll", higher))
    significant = "1 of these leads is significant."
    assert won.sentence == f"Density-Softmax leads in 1 of 1 measure. {significant}"
    assert lost.sentence == f"ERM leads in 1 of 1 measure. {significant}"
    assert [each.ours for each in lost.groups["In-domain"]] == ["0.350"]


def test_numbers_that_look_the_same_share_the_lead() -> None:
    found = verdict(rows(ERM, "ece", [0.01001]), rows(OURS, "ece", [0.01]))
    assert found.groups["In-domain"][0].leaders == ("ERM", "Density-Softmax")
    assert found.sentence == "No method leads alone in any of 1 measure."


@pytest.mark.parametrize("num_seeds", [1, 2])
def test_too_few_seeds_are_said(num_seeds: int) -> None:
    values = [0.1, 0.2][:num_seeds]
    found = verdict(rows(ERM, "nll", [2.0] * num_seeds), rows(OURS, "nll", values))
    assert found.sentence.endswith("With fewer than three seeds, no lead is tested.")


def test_latency_is_shown_but_does_not_count() -> None:
    cost = [rows(m, "latency_ratio:1", [r], "cost") for m, r in ((ERM, 1.0), (OURS, 1.2))]
    found = verdict(rows(ERM, "nll", [0.2]), rows(OURS, "nll", [0.1]), *cost)
    assert found.groups["Cost"][0].leaders == ("ERM",)
    assert found.sentence.startswith("Density-Softmax leads in 1 of 1 measure.")


def test_a_latency_from_a_busy_machine_has_no_leader() -> None:
    cost = [rows(m, "latency_ratio:1", [r], "cost") for m, r in ((ERM, 1.0), (OURS, 0.9))]
    cost += [rows(OURS, "latency_spread:1", [0.6], "cost")]
    assert "Cost" not in verdict(*cost, rows(ERM, "nll", [0.2])).groups


def test_one_method_alone_is_not_judged() -> None:
    assert "nothing to compare" in verdict(rows(OURS, "nll", [0.1])).sentence


def picture(name: str, kind: str) -> Picture:
    return Picture(Path(name), name, "", b"", 4.0, kind)


def test_a_page_opens_with_what_says_most() -> None:
    pictures = [picture(f"digits-c-{name}", "shifts") for name in ("boxes", "severity")]
    assert lead_picture({"Shift": pictures}) is pictures[1]
    assert lead_picture({}) is None


def test_no_more_than_two_figures_of_a_kind_stand_in_a_row() -> None:
    pictures = [picture(str(n), "surfaces") for n in range(5)]
    (shown, more), (others, none) = series_of([*pictures, picture("x", "curves")])
    assert (shown, more) == (pictures[:2], pictures[2:])
    assert (len(others), none) == (1, [])
