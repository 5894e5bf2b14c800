"""The notebook runs as a newcomer runs it, and shows what it says it shows."""

import json
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell

from density_softmax.benchmark import run
from density_softmax.recipes import prepare
from density_softmax.runs.run import Run

FILE = Path(__file__).parent.parent / "examples" / "two_moons.ipynb"


@pytest.fixture
def notebook() -> NotebookNode:
    return nbformat.read(FILE, as_version=nbformat.NO_CONVERT)


def execute(notebook: NotebookNode, folder: Path, monkeypatch) -> dict[str, dict[str, float]]:
    """Run all cells in a kernel of their own; returns the table that is left at the end."""
    for place in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):  # not the settings of whoever tests
        monkeypatch.setenv(place, str(folder / place.lower()))
    notebook.cells.append(new_code_cell("import json; print(json.dumps(results))"))
    where = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=where).execute()
    return json.loads(notebook.cells.pop().outputs[0].text)


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_it_is_stored_without_anything_generated(notebook):
    nbformat.validate(notebook)
    for cell in code_cells(notebook):
        assert cell.outputs == []
        assert cell.execution_count is None
        assert not cell.metadata


# One test for all that takes an execution: workers do not share fixtures.
def test_erm_is_sure_of_the_cluster_and_the_others_are_not(notebook, tmp_path, monkeypatch):
    table = execute(notebook, tmp_path, monkeypatch)
    assert all(found["accuracy"] >= 0.99 for found in table.values())
    assert table["ERM"]["confidence"] >= 0.95
    assert table["SNGP"]["confidence"] <= 0.6
    assert table["Density-Softmax"]["confidence"] <= 0.55
    assert table["Density-Softmax"]["by entropy"] >= 0.99
    assert table["Density-Softmax"]["NLL"] < table["SNGP"]["NLL"]

    # Attached, the same classes come with less confidence on the cluster.
    assert table["ERM + attach"]["accuracy"] == table["ERM"]["accuracy"]
    assert table["ERM + attach"]["confidence"] < table["ERM"]["confidence"] - 0.1

    # The figures are those of the command line.
    rows = run(Run(prepare("toy", "deterministic"), 0, tmp_path / "run"), progress=False)
    erm = {(row.split, row.metric): row.value for row in rows}
    assert table["ERM"]["NLL"] == pytest.approx(erm["iid", "nll"], abs=1e-6)

    outputs = [output for cell in code_cells(notebook) for output in cell.outputs]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 3
    assert not [output.text for output in outputs if output.get("name") == "stderr"]
