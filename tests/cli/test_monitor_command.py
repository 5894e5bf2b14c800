"""`monitor` as a user meets it: streams that `predict` wrote, a state, an exit code of 3."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest

import density_softmax as ds
from density_softmax.cli import main
from density_softmax.serve.outputs import Record, open_output

EXPERTS = ("layers/stem", "energy")


def predicted(count, seed, shift=0.0):
    rng = np.random.default_rng(seed)
    sure = 1 - 0.4 * rng.beta(1, 4, count)
    epistemic = rng.standard_normal(count) + shift
    probs = np.stack([sure, 1 - sure], axis=1)
    return probs, epistemic


class Predicted:
    def __init__(self, probs, epistemic):
        self.probs, self.epistemic = probs, epistemic

    def made_of(self, contributions):
        """With what two experts contribute."""
        self.contributions, self.experts = contributions, EXPERTS
        return self


@pytest.fixture
def folder(tmp_path):
    """A policy, and streams as `predict` writes them."""
    p = Predicted(*predicted(500, 0))
    ds.Policy.fit(None, (p, np.arange(500) % 20 == 0)).save(tmp_path / "policy.json")
    for name, shift in (("same.csv", 0.0), ("other.csv", 3.0), ("same.jsonl", 0.0)):
        write_stream(tmp_path / name, *predicted(200, len(name), shift))
    return tmp_path


def write_stream(path, probs, epistemic, contributions=None):
    records = [
        Record(str(i), "cat", float(p.max()), 0.1, float(e), "in", "")
        for i, (p, e) in enumerate(zip(probs, epistemic, strict=True))
    ]
    if contributions is not None:
        parts = map(tuple, contributions.tolist())
        records = [r._replace(contributions=c) for r, c in zip(records, parts, strict=True)]
    with open_output(path, () if contributions is None else EXPERTS) as write:
        write(records)


@pytest.fixture
def monitor(folder, monkeypatch, capsys):
    def call(stream, *options):
        files = [folder / "policy.json", folder / stream, "--state", folder / "state.json"]
        monkeypatch.setattr(sys, "argv", ["density-softmax", "monitor", *map(str, files), *options])
        try:
            main()
        except SystemExit as stop:
            return stop.code or 0, capsys.readouterr()
        return 0, capsys.readouterr()

    return call


@pytest.mark.parametrize("stream", ["same.csv", "same.jsonl"])
def test_a_stream_without_a_change_raises_no_alarm(monitor, folder, stream):
    code, (out, _) = monitor(stream)
    assert code == 0
    assert "no alarm" in out
    assert ds.Monitor.load(folder / "state.json").inputs == 200


def test_an_alarm_is_exit_code_3_until_it_is_reset(monitor):
    assert monitor("same.csv")[0] == 0
    code, (out, _) = monitor("other.csv")
    assert code == 3
    assert "ALARM, at input 20" in out
    assert monitor("same.csv")[0] == 3
    assert monitor("same.csv", "--reset")[0] == 0


@pytest.mark.parametrize("stream", ["stem.csv", "stem.jsonl"])
def test_a_stream_tells_which_layer_moved(monitor, folder, stream):
    parts = np.random.default_rng(5).standard_normal((700, 2))
    p = Predicted(*predicted(500, 0)).made_of(parts[:500])
    ds.Policy.fit(None, (p, np.arange(500) % 20 == 0)).save(folder / "policy.json")
    write_stream(folder / stream, *predicted(200, 3, shift=0.5), parts[500:] + np.array([3, 0]))
    code, (out, _) = monitor(stream)
    assert code == 3
    assert "moved most layers/stem" in " ".join(out.split())
    moved = ds.Monitor.load(folder / "state.json").moved
    assert next(iter(moved)) == "layers/stem"
    assert moved["energy"] < 3


def test_evidence_goes_on_from_call_to_call(monitor, folder):
    monitor("same.csv")
    monitor("same.jsonl")
    found = ds.Monitor.load(folder / "state.json")
    whole = ds.Monitor(ds.Policy.load(folder / "policy.json"))
    for name in ("same.csv", "same.jsonl"):
        probs, epistemic = predicted(200, len(name))
        whole.update_scores(epistemic, probs.max(1))
    assert found.inputs == 400
    assert found.evidence == pytest.approx(whole.evidence)


def test_the_page_holds_the_figure(monitor, folder):
    monitor("other.csv", "--out", str(folder / "watch"))
    page = (folder / "watch" / "monitor.html").read_text()
    assert "The world has changed" in page
    assert "<svg" in page
    assert (folder / "watch" / "monitor.svg").exists()


def test_inputs_that_predict_could_not_read_are_counted(monitor, folder):
    probs, epistemic = predicted(20, 1)
    epistemic[3] = math.inf
    write_stream(folder / "bad.jsonl", probs, epistemic)
    write_stream(folder / "bad.csv", probs, epistemic)
    monitor("bad.jsonl")
    monitor("bad.csv")
    assert ds.Monitor.load(folder / "state.json").not_finite == 2


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        ("input,label\n1,2\n", "odd.csv", "no column epistemic or confidence"),
        ("confidence,epistemic\n1,x\n", "odd.csv", "epistemic 'x' is no number"),
        ('{"confidence": 1}\n', "odd.jsonl", "line 1"),
        ("", "odd.txt", "pass a .csv or .jsonl"),
    ],
)
def test_a_stream_that_is_none_leaves_the_state_as_it_was(monitor, folder, text, name, said):
    monitor("same.csv")
    before = (folder / "state.json").read_bytes()
    (folder / name).write_text(text)
    code, (_, error) = monitor(name)
    assert code == 2
    assert said in error
    assert (folder / "state.json").read_bytes() == before


def test_a_state_of_another_policy_is_refused(monitor, folder):
    monitor("same.csv")
    p = Predicted(*predicted(300, 9))
    ds.Policy.fit(None, (p, np.zeros(300))).save(folder / "policy.json")
    code, (_, error) = monitor("same.csv")
    assert code == 2
    assert "belongs to another policy" in error


def test_it_needs_no_torch(folder):
    code = "import sys; sys.meta_path.insert(0, type('No', (), {'find_spec': staticmethod(\n"
    code += "    lambda name, *_: 1 / 0 if name == 'torch' else None)}))\n"
    code += f"sys.argv = ['density-softmax', 'monitor', '{folder / 'policy.json'}', "
    code += f"'{folder / 'same.csv'}', '--state', '{folder / 'state.json'}', "
    code += f"'--out', '{folder / 'watch'}']\n"
    code += "from density_softmax.cli import main; main()"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert json.loads((folder / "state.json").read_text())["inputs"] == 200


def test_of_a_folder_only_what_is_new_is_read(monitor, folder):
    grows = folder / "grows"
    for number in range(3):
        write_stream(grows / f"{number}.csv", *predicted(50, number))
        assert monitor("grows")[0] == 0
        assert monitor("grows")[0] == 0
        assert ds.Monitor.load(folder / "state.json").inputs == 50 * (number + 1)
    write_stream(grows / "0.jsonl", *predicted(50, 3, shift=5.0))
    assert monitor("grows")[0] == 3
    assert monitor("grows", "--reset")[0] == 0
    assert ds.Monitor.load(folder / "state.json").inputs == 0  # what was read stays read


def test_a_file_that_is_broken_leaves_what_was_read_before_it(monitor, folder):
    grows = folder / "grows"
    write_stream(grows / "a.csv", *predicted(50, 1))
    (grows / "b.csv").write_text("input,label\n1,2\n")
    assert monitor("grows")[0] == 2
    assert ds.Monitor.load(folder / "state.json").inputs == 50
    write_stream(grows / "b.csv", *predicted(50, 2))
    assert monitor("grows")[0] == 0
    assert ds.Monitor.load(folder / "state.json").inputs == 100


def test_images_need_the_model_itself(monitor, folder):
    (folder / "photos").mkdir()
    (folder / "photos" / "a.png").touch()
    code, (_, error) = monitor("photos")
    assert code == 2
    assert "images need the model itself, FILE.onnx" in error
