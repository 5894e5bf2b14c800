"""The page's script in a real browser, where there is one."""

from pathlib import Path

from comparison import frame

from chromium import NEEDS_CHROMIUM, Chromium
from density_softmax.report.page import render_page
from density_softmax.report.selection import Runs
from density_softmax.report.tables import build_tables
from density_softmax.types import Row

# Clicks every head twice and returns what the column then held.
CLICKS = """(() => {
const seen = [];
for (const table of document.querySelectorAll("table.sortable")) {
  for (const button of table.querySelectorAll("thead button")) {
    for (const click of [1, 2]) {
      button.click();
      const head = button.parentElement, rows = Array.from(table.tBodies[0].rows);
      const texts = rows.map((row) => row.cells[head.cellIndex].textContent);
      seen.push([head.getAttribute("aria-sort"), texts]);
    }
  }
}
return seen;
})()"""


@NEEDS_CHROMIUM
def test_a_click_sorts_and_a_second_one_sorts_the_other_way(tmp_path: Path) -> None:
    values = {"sngp": 10.25, "deterministic": 9.5, "duq": -1.0}
    rows = [Row("toy", method, "default", 0, "iid", "nll", v) for method, v in values.items()]
    rows += [Row("toy", "ddu", "default", 0, "iid", "ece", 0.5)]
    tables = [table for table in build_tables(frame(rows)) if table.role == "iid"]
    file = tmp_path / "page.html"
    file.write_text(render_page(Runs((), ()), tables, {}), encoding="utf-8")
    with Chromium() as page:
        page.open(file.as_uri())
        seen = page.run(CLICKS)
    names, _, nll, ece = (seen[n : n + 2] for n in (0, 2, 4, 6))
    assert names == [
        ["ascending", ["DDU", "DUQ", "ERM", "SNGP"]],
        ["descending", ["SNGP", "ERM", "DUQ", "DDU"]],
    ]
    assert nll == [  # as numbers, not as words; what is missing stays last
        ["ascending", ["-1.00", "9.50", "10.25", "–"]],
        ["descending", ["10.25", "9.50", "-1.00", "–"]],
    ]
    assert [texts for _, texts in ece] == [["0.500", "–", "–", "–"]] * 2
