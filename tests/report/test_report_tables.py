from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from comparison import finished, frame
from scipy import stats

from density_softmax.report.columns import Cell, is_better
from density_softmax.report.frame import frame_of
from density_softmax.report.tables import Table, build_tables
from density_softmax.types import Row


def rows(
    method: str, values: Sequence[float], metric: str = "nll", split: str = "iid"
) -> list[Row]:
    """A value for each seed."""
    return [
        Row("toy", method, "default", seed, split, metric, value)
        for seed, value in enumerate(values)
    ]


def table(found: Sequence[Row], role: str = "iid") -> Table:
    (chosen,) = (table for table in build_tables(frame(found)) if table.role == role)
    return chosen


def column(found: Sequence[Row], role: str = "iid") -> list[Cell | None]:
    """The only column of a table."""
    return [cell for line in table(found, role).lines for cell in line.cells]


def test_a_cell_is_mean_and_sample_deviation_over_seeds() -> None:
    values = [0.3, 0.5, 0.1, 0.7]
    (cell,) = column(rows("deterministic", values))
    assert cell is not None
    assert cell.mean == pytest.approx(np.mean(values))
    assert cell.std == pytest.approx(np.std(values, ddof=1))
    assert table(rows("deterministic", values)).lines[0].num_seeds == 4


def test_a_single_seed_has_no_deviation() -> None:
    assert column(rows("deterministic", [0.3])) == [Cell(0.3, None)]


# Differences of mean 0.1: with little noise certain, with much of it chance.
CLEAR = ([0.20, 0.25, 0.30], [0.30, 0.36, 0.39])
NOISY = ([0.20, 0.25, 0.30], [0.10, 0.60, 0.35])


def test_examples_are_what_they_claim_to_be() -> None:
    assert stats.ttest_rel(*CLEAR).pvalue < 0.05 < stats.ttest_rel(*NOISY).pvalue


@pytest.mark.parametrize(("example", "expected"), [(CLEAR, True), (NOISY, False)])
def test_bold_only_where_the_paired_test_says_so(
    example: tuple[list[float], list[float]], expected: bool
) -> None:
    best, second = example
    cells = column(rows("deterministic", second) + rows("density_softmax", best))
    assert [cell is not None and cell.best for cell in cells] == [False, expected]


def test_erm_is_bold_where_it_wins() -> None:
    cells = column(rows("deterministic", CLEAR[0]) + rows("density_softmax", CLEAR[1]))
    assert [cell is not None and cell.best for cell in cells] == [True, False]


def test_two_seeds_are_never_bold() -> None:
    cells = column(rows("deterministic", [0.5, 0.6]) + rows("density_softmax", [0.1, 0.2]))
    assert not any(cell is not None and cell.best for cell in cells)


def test_higher_is_bold_for_accuracy_and_nothing_for_confidence() -> None:
    low, high = CLEAR
    for metric, expected in (("accuracy", True), ("confidence", False)):
        found = rows("deterministic", low, metric) + rows("density_softmax", high, metric)
        assert [cell is not None and cell.best for cell in column(found)] == [False, expected]


def test_only_the_best_of_three_can_be_bold_and_is_tested_against_the_second() -> None:
    found = rows("deterministic", CLEAR[1]) + rows("density_softmax", CLEAR[0])
    near = rows("sngp", [value + 0.001 * n for n, value in enumerate(CLEAR[0])])
    assert any(cell is not None and cell.best for cell in column(found))
    assert not any(cell is not None and cell.best for cell in column(found + near))


def test_the_same_gap_for_every_seed_is_certain_and_equal_values_are_not() -> None:
    fixed = [100.0] * 3
    assert is_better(fixed, [101.0] * 3, "lower")
    assert not is_better(fixed, [99.0] * 3, "lower")
    assert not is_better(fixed, fixed, "lower")
    assert not is_better(fixed, [100.0 + 1e-12] * 3, "lower")


@pytest.mark.parametrize(("first_seed", "expected"), [(0, True), (2, False)])
def test_only_seeds_of_both_are_paired(first_seed: int, expected: bool) -> None:
    best, second = rows("density_softmax", CLEAR[0]), rows("deterministic", CLEAR[1])
    moved = [row._replace(seed=row.seed + first_seed) for row in second]
    assert [cell is not None and cell.best for cell in column(moved + best)] == [False, expected]


def test_a_mean_with_a_number_that_is_none_is_none_either() -> None:
    found = rows("deterministic", [np.nan, 0.1, 0.2]) + rows("density_softmax", [0.1, 0.2, 0.3])
    broken, finite = column(found)
    assert broken is not None
    assert np.isnan(broken.mean)
    assert broken.std is None
    assert finite is not None
    assert not finite.best


def test_infinite_figures_are_shown_and_win_nothing() -> None:
    found = rows("deterministic", [np.inf] * 3) + rows("density_softmax", [0.1, 0.2, 0.3])
    infinite, finite = column(found)
    assert infinite == Cell(np.inf, None)
    assert finite is not None
    assert not finite.best


def test_each_role_has_its_table() -> None:
    found = [
        *rows("deterministic", [1.0], "nll", "iid"),
        *rows("deterministic", [1.0], "auroc:entropy", "svhn"),
        *rows("deterministic", [0.5], "confidence", "svhn"),
        *rows("deterministic", [1.0], "nll", "cifar10-c/fog/3"),
        *rows("deterministic", [1.0], "cnll", "cifar10-c"),
        *rows("deterministic", [1.0], "nll", "cifar10.1"),
        *rows("deterministic", [1.0], "confidence", "cifar10.1"),
        *rows("deterministic", [7.0], "params", "cost"),
        *rows("deterministic", [7.0], "train_seconds:train", "cost"),
    ]
    titles = {table.title: table.role for table in build_tables(frame(found))}
    assert titles == {
        "toy: results": "results",
        "toy: in-domain test set": "iid",
        "toy: mean over the shifts of cifar10-c": "shift",
        "toy: shifted set cifar10.1": "shift",
        "toy: detection of svhn as out-of-distribution (OOD)": "ood",
        "toy: NLL on each shift of cifar10-c": "each shift",
        "toy: cost of prediction and of training": "cost",
        "toy: cost of training by stage": "training",
    }
    assert len({table.name for table in build_tables(frame(found))}) == len(titles)


def test_detection_names_its_score_and_its_positive_class() -> None:
    found = rows("deterministic", [0.9], "auroc:epistemic", "svhn")
    detection = table(found, "ood")
    assert detection.columns[0].title == "AUROC ↑"
    assert detection.columns[0].note == "by epistemic"
    assert "OOD is the positive class" in detection.remark
    assert table(found, "results").columns[0].note == "svhn, by epistemic"


def test_low_confidence_is_better_on_ood_data_only() -> None:
    found = rows("deterministic", [0.9], "auroc:entropy", "svhn")
    found += rows("deterministic", [0.9], "confidence", "svhn")
    found += rows("deterministic", [0.9], "confidence", "iid")
    assert table(found, "ood").columns[-1].better == "lower"
    assert table(found, "iid").columns[-1].better is None


def test_other_data_make_another_table(tmp_path: Path, make: Callable[..., Path]) -> None:
    make("density_softmax", drawn=False)
    make("density_softmax", ["data.shape=two_ovals", "method.scale=max"], drawn=False)
    found = build_tables(frame_of(finished(tmp_path)))
    tables = [table for table in found if table.role == "iid"]
    assert [table.title.partition(":")[0] for table in tables] == ["toy", "toy (shape=two_ovals)"]
    names = ["Density-Softmax", "Density-Softmax (scale=max)"]
    assert [table.lines[0].name for table in tables] == names


def shifted(method: str, kinds: Sequence[str], values: Sequence[float]) -> list[Row]:
    """Rows of one shift of each kind, the last kind worse by 1, and the mean over all."""
    worse = [0.0] * (len(kinds) - 1) + [1.0]
    found = []
    for kind, more in zip(kinds, worse, strict=True):
        found += rows(method, [value + more for value in values], split=f"set-c/{kind}/1")
    means = [value + 1 / len(kinds) for value in values]
    return found + rows(method, means, "cnll", "set-c")


def test_means_over_shifts_are_compared_over_the_same_shifts() -> None:
    kinds = ("fog", "frost", "snow")
    found = shifted("deterministic", kinds, CLEAR[0]) + shifted("sngp", kinds[:2], CLEAR[1])
    erm, sngp = table(found, "shift").lines
    assert erm.cells[0] is not None
    assert sngp.cells[0] is not None
    assert erm.cells[0].mean == pytest.approx(np.mean(CLEAR[0]))  # without the snow that it has
    assert sngp.cells[0].mean == pytest.approx(np.mean(CLEAR[1]) + 0.5)
    assert (erm.cells[0].best, sngp.cells[0].best) == (True, False)


def test_a_remark_says_what_means_over_shifts_leave_out() -> None:
    whole = shifted("deterministic", ("fog", "frost"), [0.1])
    assert "Means" not in table(whole, "results").remark
    found = whole + shifted("sngp", ("fog", "snow", "rain"), [0.1])
    for role in ("results", "shift"):
        assert (
            "Means over set-c cover the 1 shifts that all runs have, and leave out 3 that only"
            in (table(found, role).remark)
        )
    assert "Means" not in table(found, "each shift").remark


def test_runs_without_a_shift_in_common_have_no_means_to_compare() -> None:
    found = shifted("deterministic", ("fog",), [0.1]) + shifted("sngp", ("snow",), [0.1])
    assert "cover the 0 shifts" in table(found + rows("sngp", [0.1]), "results").remark
    assert all(each.role != "shift" for each in build_tables(frame(found)))


def test_a_method_without_figures_keeps_its_line() -> None:
    found = rows("deterministic", [0.9], "ece") + rows("sngp", [0.9], "auroc:entropy", "svhn")
    lines = table(found, "ood").lines
    assert [line.name for line in lines] == ["ERM", "SNGP"]
    assert lines[0].cells == (None,)
    assert lines[0].num_seeds == 0


@pytest.mark.parametrize(
    ("values", "decimals"),
    [
        ((0.91, 0.2), 3),
        ((2.28, 0.01), 3),
        ((0.0123,), 4),
        ((4e-4,), 6),
        ((4e-5,), 3),
        ((203778.0,), 0),
    ],
)
def test_decimals_show_three_or_so_digits(values: tuple[float, ...], decimals: int) -> None:
    methods = ("deterministic", "sngp")
    found = [row for m, v in zip(methods, values, strict=False) for row in rows(m, [v])]
    assert table(found).columns[0].decimals == decimals
