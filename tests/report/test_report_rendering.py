import csv
import io
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path

import pytest
from comparison import finished, frame

from density_softmax.report import as_csv, as_html, as_latex, as_text
from density_softmax.report.frame import frame_of
from density_softmax.report.paper import paper_penalties, paper_results
from density_softmax.report.tables import Table, build_penalty_tables, build_tables
from density_softmax.types import Row

ERM = [0.30, 0.36, 0.39]
OURS = [0.20, 0.25, 0.30]


def rows(method: str, values: Sequence[float], variant: str = "default") -> list[Row]:
    return [
        Row("toy", method, variant, seed, "iid", "nll", value) for seed, value in enumerate(values)
    ]


def table(*groups: list[Row]) -> Table:
    found = [row for group in groups for row in group]
    (chosen,) = (table for table in build_tables(frame(found)) if table.role == "iid")
    return chosen


class Cells(HTMLParser):
    """The text of each cell and what is strong in it."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.strong: list[str] = []
        self.words = ""
        self.tags: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag in ("td", "th"):
            self.texts.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.tags.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data
        if self.tags and {"td", "th"} & set(self.tags):
            self.texts[-1] += data
        if self.tags and self.tags[-1] == "strong":
            self.strong.append(data)


def test_one_table_says_the_same_in_four_renderings() -> None:
    compared = table(rows("deterministic", ERM), rows("density_softmax", OURS))
    assert "Density-Softmax       3   *0.250 ±0.050" in as_text(compared)
    assert r"Density-Softmax & 3 & $\mathbf{0.250} \pm 0.050$ \\" in as_latex(compared)
    assert Cells(as_html(compared)).texts[-1] == "0.250 ± 0.050"
    assert Cells(as_html(compared)).strong == ["0.250"]
    head, erm, ours = csv.reader(io.StringIO(as_csv(compared)))
    assert head == ["Method", "Seeds", "NLL ↓", "NLL ↓ std"]
    assert erm[:2] == ["ERM", "3"]
    assert float(erm[2]) == compared.lines[0].cells[0].mean  # type: ignore[union-attr]
    assert float(ours[3]) == compared.lines[1].cells[0].std  # type: ignore[union-attr]


def test_losses_are_shown_as_plainly_as_wins() -> None:
    lost = table(rows("deterministic", OURS), rows("density_softmax", ERM))
    assert r"ERM & 3 & $\mathbf{0.250} \pm 0.050$" in as_latex(lost)
    assert r"Density-Softmax & 3 & $0.350 \pm 0.046$" in as_latex(lost)


def test_one_seed_has_no_plus_minus() -> None:
    single = table(rows("deterministic", [0.5]))
    assert "±" not in Cells(as_html(single)).texts[-1]
    assert r"ERM & 1 & $0.500$ \\" in as_latex(single)
    assert as_csv(single).splitlines()[1] == "ERM,1,0.5,"


def test_latex_escapes_what_it_would_interpret() -> None:
    text = as_latex(table(rows("sngp", [0.5], variant="mean_field=5%&more#1$")))
    assert r"SNGP (mean\_field=5\%\&more\#1\$) & 1" in text
    assert r"NLL $\downarrow$" in text


def test_latex_needs_no_sign_beyond_ascii(tmp_path: Path, make_images: Callable[..., Path]) -> None:
    make_images("density_softmax", name="cifar10")
    make_images("density_softmax", ["method.penalty=none"])
    make_images("density_softmax")
    runs = finished(tmp_path)
    penalties = build_penalty_tables(runs, paper_penalties())
    assert [line.name[0] for table in penalties for line in table.lines] == ["λ", "λ"]
    for each in [*build_tables(frame_of(runs), paper_results()), *penalties]:
        lines = [line for line in as_latex(each).splitlines() if not line.startswith("%")]
        assert all(line.isascii() for line in lines), each.title


def test_html_escapes_what_it_would_interpret() -> None:
    text = as_html(table(rows("sngp", [0.5], variant="<script>=1&2")))
    assert "<script>" not in text
    assert "SNGP (<script>=1&2)" in Cells(text).texts


def test_text_finds_no_markup_in_names() -> None:
    assert "SNGP (x=[bold])" in as_text(table(rows("sngp", [0.5], variant="x=[bold]")))


@pytest.mark.parametrize("name", ["a$b$", "[bold]x", "<b>&", "two\nlines", "\\input{x}%"])
def test_a_set_may_have_any_name(name: str) -> None:
    found = [Row("toy", "sngp", "default", 0, name, "auroc:epistemic", 0.5)]
    (detection,) = (each for each in build_tables(frame(found)) if each.role == "ood")
    shown = name.replace("\n", " ")
    assert f"detection of {shown} as" in detection.title
    assert shown in as_text(detection)
    assert f"detection of {shown} as" in Cells(as_html(detection)).words
    code = [line for line in as_latex(detection).splitlines() if not line.startswith("%")]
    assert code[0].startswith(r"\begin{tabular}")
    assert len(code) == 8
    assert not any("\\input" in line for line in code)


def test_latex_writes_signs_that_not_every_latex_knows_as_numbers() -> None:
    text = as_latex(table(rows("sngp", [0.5], variant="x=猫é")))
    assert r"SNGP (x={[}U+732B]é)" in text


def test_shares_have_three_decimals_and_other_tiny_numbers_three_digits_at_most() -> None:
    tiny = [1e-6, 2e-6, 6e-6]
    found = [row._replace(metric=metric) for row in rows("sngp", tiny) for metric in ("ece", "nll")]
    assert Cells(as_html(table(found))).texts[-2:] == ["3.0e-06 ± 2.6e-06", "0.000 ± 0.000"]


def test_digits_end_where_the_spread_begins() -> None:
    spread = table(rows("deterministic", [0.001, 0.002, 0.087]))
    assert Cells(as_html(spread)).texts[-1] == "0.030 ± 0.049"


def test_no_minus_stands_before_zero() -> None:
    mixed = table(rows("deterministic", [-1e-9, 1e-9]), rows("sngp", [0.5, 0.7]))
    assert "-0.000" not in as_text(mixed)


def test_what_looks_the_same_is_not_bold() -> None:
    first, second = ([value + more for value in (0.9, 0.91, 0.92)] for more in (0.0, 1e-5))
    found = rows("deterministic", first) + rows("sngp", second)
    assert not Cells(as_html(table([row._replace(metric="accuracy") for row in found]))).strong


@pytest.mark.parametrize(("num_seeds", "expected"), [(1, "One seed"), (2, "nothing is bold")])
def test_a_caption_speaks_of_bold_only_where_there_is_a_test(num_seeds: int, expected: str) -> None:
    caption = table(rows("deterministic", ERM[:num_seeds])).caption
    assert expected in caption
    assert "t-test" not in caption


def test_a_caption_explains_the_variants_that_there_are() -> None:
    plain, ours = rows("deterministic", ERM), rows("density_softmax", OURS, "scale=max")
    assert "p / max p" in table(plain, ours).caption
    assert "parentheses" not in table(plain).caption


def test_latency_from_a_busy_machine_is_marked_and_never_best() -> None:
    def costs(method: str, ratio: float, spread: float) -> list[Row]:
        pairs = {"latency_ratio:1": ratio, "latency_spread:1": spread}
        return [
            Row("toy", method, "default", s, "cost", *p) for s in range(3) for p in pairs.items()
        ]

    def cost(*groups: list[Row]) -> Table:
        found = [row for group in groups for row in group]
        (chosen,) = (each for each in build_tables(frame(found)) if each.role == "cost")
        return chosen

    quiet = cost(costs("deterministic", 1.0, 0.0), costs("sngp", 2.0, 0.1))
    assert "~" not in as_text(quiet)
    assert "*1.000" in as_text(quiet)
    busy = cost(costs("deterministic", 1.0, 0.0), costs("sngp", 2.0, 0.6))
    assert "~2.000" in as_text(busy)
    assert r"${\sim}2.000 \pm 0.000$" in as_latex(busy)
    assert "~2.000" in as_html(busy)
    assert "too busy to measure" in busy.remark
    assert "*1.000" not in as_text(busy)


def test_narrow_text_loses_nothing() -> None:
    compared = table(rows("deterministic", ERM), rows("density_softmax", OURS, "scale=max"))
    wide, narrow = (as_text(compared, narrow=narrow) for narrow in (False, True))
    assert max(map(len, narrow.splitlines())) < max(map(len, wide.splitlines()))
    words = [sorted(text.replace("─", "").split()) for text in (wide, narrow)]
    assert words[0] == words[1]


def test_a_missing_figure_is_a_dash_and_sorts_as_missing() -> None:
    other = [Row("toy", "sngp", "default", 0, "iid", "ece", 0.1)]
    mixed = table(rows("deterministic", [0.5]), other)
    assert "–" in as_text(mixed)
    assert "--" in as_latex(mixed)
    assert "<td>–</td>" in as_html(mixed)
    assert as_csv(mixed).splitlines()[1] == "ERM,1,0.5,,,"


def test_a_tiny_mean_is_not_shown_as_zero() -> None:
    mixed = table(rows("deterministic", [4e-6]), rows("sngp", [0.5]))
    assert Cells(as_html(mixed)).texts[5] == "4.0e-06"


def test_thousands_are_grouped() -> None:
    found = [Row("toy", "sngp", "default", 0, "cost", "params", 203778.0)]
    (cost,) = (table for table in build_tables(frame(found)) if table.role == "cost")
    assert "203,778" in as_text(cost)
    assert "$203{,}778$" in as_latex(cost)
    assert "203778.0" in as_csv(cost)
