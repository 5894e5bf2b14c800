"""The members of an ensemble as runs of their own: they resume, travel, and are put together."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from density_softmax.benchmark import evaluate, run
from density_softmax.cli import main
from density_softmax.data.toy import Toy
from density_softmax.errors import UserError
from density_softmax.methods import DensitySoftmax
from density_softmax.recipes import Recipe, prepare
from density_softmax.report.selection import sort_runs
from density_softmax.runs.rows import read_rows
from density_softmax.runs.run import Run, find_runs
from interruption import Killed, steps

SEED = 3
SMALL = (
    "encoder.depth=1",
    "encoder.width=8",
    "data.num_points=80",
    "engine.checkpoint_seconds=0.0",
)
EPOCHS, STEPS = 3, 3  # a member's epochs, and the steps of each: 64 points in batches of 24
CHANGES = (
    *SMALL,
    "method.num_members=3",
    f"method.member.descent.epochs={EPOCHS}",
    "method.member.descent.batch_size=24",
)


def recipe(*changes: str) -> Recipe:
    return prepare("toy", "deep_ensemble", (*CHANGES, *changes))


def train(out: Path, chosen: Recipe | None = None, seed: int = SEED, resume: bool = False) -> Path:
    run(Run(chosen or recipe(), seed, out), resume=resume, progress=False)
    return out


def train_member(out: Path, number: int, *changes: str) -> Path:
    member = Run(recipe(*changes), SEED, out).member(number)
    return train(member.path, member.recipe, member.seed)


def weights(path: Path) -> dict[str, torch.Tensor]:
    return Run.at(path).load().state_dict()


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    assert first.keys() == second.keys()
    return all(torch.equal(first[name], second[name]) for name in first)


def command(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["density-softmax", *map(str, words)])
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ensemble that nothing disturbed."""
    return train(tmp_path_factory.mktemp("ensemble") / "run")


def test_every_member_is_a_run_of_its_own_and_all_of_them_are_the_ensemble(whole: Path) -> None:
    ensemble = Run.at(whole).load()
    assert sorted(place.name for place in (whole / "members").iterdir()) == ["0", "1", "2"]
    for number, member in enumerate(ensemble.ensemble()):
        place = whole / "members" / str(number)
        assert Run.at(place).kind == "deterministic"
        assert same(weights(place), member.state_dict())
        assert (place / "epochs.csv").is_file()
    assert not same(*(member.state_dict() for member in ensemble.ensemble()[:2]))
    assert not (whole / "stages").exists()


@pytest.mark.parametrize("number", [2])
def test_an_ordinary_command_trains_the_same_member(
    number: int, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = Run.at(whole).member(number)
    words = member.command()
    assert words[:5] == ["density-softmax", "train", "toy", "--method", "deterministic"]
    assert f"data_seed={SEED}" in words
    out = tmp_path / "elsewhere"
    assert command(monkeypatch, *words[1:], "--set", SMALL[-1], "--out", out) == 0
    assert Run.at(out).identity == member.identity
    assert same(weights(out), weights(member.path))


def test_members_and_ensemble_have_the_same_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds, load = [], Toy.load
    monkeypatch.setattr(Toy, "load", lambda self, seed: seeds.append(seed) or load(self, seed))
    train_member(tmp_path / "run", 1)
    train(tmp_path / "run")
    Run.at(tmp_path / "run" / "members" / "0").load()
    assert set(seeds) == {SEED}


@pytest.mark.parametrize("limit", [0, EPOCHS * STEPS, EPOCHS * STEPS + 5, 3 * EPOCHS * STEPS - 1])
def test_an_ensemble_killed_at_any_step_resumes_to_the_same_weights(
    limit: int, whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with steps(limit), pytest.raises(Killed):
        train(out)
    with pytest.raises(UserError, match=r"members/\d"):
        Run.at(out).load()
    train(out, resume=True)
    assert same(weights(out), weights(whole))
    assert (out / "epochs.csv").read_text() == (whole / "epochs.csv").read_text()


def test_finished_members_are_never_trained_again(whole: Path, tmp_path: Path) -> None:
    for number in (0, 2):
        train_member(tmp_path / "run", number)
    with steps() as taken:
        train(tmp_path / "run")  # not --resume: the ensemble itself begins here
    assert taken == [EPOCHS * STEPS]
    assert same(weights(tmp_path / "run"), weights(whole))
    with steps(0):
        train(tmp_path / "run", resume=True)


def test_a_member_trained_with_other_threads_on_another_machine_is_the_same(
    whole: Path, tmp_path: Path
) -> None:
    train_member(
        tmp_path / "run", 0, "engine.predict_batch_size=64", "engine.checkpoint_seconds=9.0"
    )
    train(tmp_path / "run")
    assert same(weights(tmp_path / "run"), weights(whole))


def test_a_member_of_another_ensemble_is_refused(tmp_path: Path) -> None:
    train_member(tmp_path / "run", 0, "method.member.descent.epochs=1")
    with pytest.raises(UserError, match=r"members/0: holds a run of another recipe"):
        train(tmp_path / "run")


def test_ensembles_with_other_seeds_have_other_members(whole: Path) -> None:
    ensembles = [Run(recipe(), seed, whole) for seed in range(4)]
    seeds = {member.seed for ensemble in ensembles for member in ensemble.members}
    assert len(seeds) == 12


def test_a_loaded_ensemble_predicts_what_was_recorded(whole: Path) -> None:
    ensemble = Run.at(whole)
    recorded, labels = ensemble.prediction("iid")
    source = ensemble.data.splits[0].source
    for ours, theirs in zip(ensemble.load().predict(source.x), recorded, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert torch.equal(source.y, labels)
    before = [row for row in read_rows(whole / "rows.csv") if "latency" not in row.metric]
    after = [row for row in evaluate(ensemble, progress=False) if "latency" not in row.metric]
    assert sorted(after) == sorted(before)


def test_rows_and_epochs_say_which_member_they_are_about(whole: Path) -> None:
    names = {f"member{i}-train" for i in range(3)}
    rows = read_rows(whole / "rows.csv")
    assert {f"train_seconds:{name}" for name in names} <= {row.metric for row in rows}
    lines = (whole / "epochs.csv").read_text().splitlines()[1:]
    assert {line.partition(",")[0] for line in lines} == names


def test_a_report_shows_the_ensemble_and_not_its_members(whole: Path) -> None:
    assert [run.path for run in sort_runs(find_runs([whole])).finished] == [whole]
    left = sort_runs(find_runs([whole / "members" / "1"])).left_out
    assert [each.name.partition(" ")[0] for each in left] == ["ERM"]


def test_members_may_be_of_a_method_whose_stages_read_features(tmp_path: Path) -> None:
    short = replace(recipe().method.member.descent, epochs=1)
    base = DensitySoftmax.Config(representation=short, head=None)
    member = replace(base, density=replace(base.density, descent=short))
    chosen = replace(recipe(), method=replace(recipe().method, member=member, num_members=2))
    ensemble = Run.at(train(tmp_path / "run", chosen)).load()
    assert all(part.scale.decay > 0 for part in ensemble.ensemble())


def test_the_data_seed_is_part_of_what_a_run_is() -> None:
    chosen = prepare("toy", "deterministic", ("data_seed=5",))
    assert Run(chosen).variant == {"data_seed": 5}
    data = [replace(chosen, data_seed=s).load_data(seed) for s, seed in ((5, 0), (None, 5))]
    assert torch.equal(data[0].train.x, data[1].train.x)
    assert torch.equal(data[0].heldout.x, data[1].heldout.x)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("deep_ensemble", "--member 4: deep_ensemble has 4 members, counted from 0"),
        ("deterministic", "--member 4: deterministic has no members; omit --member"),
    ],
)
def test_a_member_that_is_not_there_is_one_line_and_exit_code_2(
    method: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("train", "toy", "--method", method, "--member", 4, "--out", tmp_path / "run")
    assert command(monkeypatch, *words) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
