import pytest

from density_softmax.methods import MethodConfig
from density_softmax.report.names import (
    Label,
    break_lines,
    control_of,
    distinct_stem,
    file_stem,
    fit_labels,
    heading,
    method_name,
    method_order,
    metric_name,
    readable,
    set_name,
    setting_name,
    split_name,
)


def test_methods_have_their_usual_names() -> None:
    assert method_name("deterministic") == "ERM"
    names = [method_name(kind) for kind in MethodConfig.members]
    assert len(set(names)) == len(names)


def test_erm_comes_first_and_density_softmax_last() -> None:
    ordered = sorted(MethodConfig.members, key=method_order)
    assert ordered[0] == "deterministic"
    assert ordered[-1] == "density_softmax"


def test_a_label_is_a_name_with_its_changes() -> None:
    assert Label("ERM") == "ERM"
    assert Label("Density-Softmax", ["scale=max", "a=1"]) == "Density-Softmax (scale=max, a=1)"


def test_a_setting_is_named_after_its_recipe_and_what_changes_its_data() -> None:
    assert setting_name("toy", {}) == "toy"
    assert setting_name("toy", {"data.train": "mydata.csv"}) == "toy (train=mydata.csv)"
    changes = {"data": "images", "data.train": "svhn", "data.flip": True}
    assert setting_name("toy", changes) == "toy (data=images, train=svhn, flip=true)"
    table = {"kind": "table", "train": "rows.csv", "ood": ["a.csv"], "heldout": 0.1}
    expected = "toy (data=table, train: rows.csv, ood: [a.csv], heldout: 0.1)"
    assert setting_name("toy", {"data": table}) == expected


def test_names_stay_on_one_line() -> None:
    assert readable("two\nlines\x1b[31m λ = 1") == "two lines [31m λ = 1"


def test_means_over_shifts_are_named_and_judged_like_what_they_are_means_of() -> None:
    assert metric_name("cnll") == ("cNLL", "lower")
    assert metric_name("caccuracy") == ("cAccuracy", "higher")
    assert metric_name("confidence") == ("Confidence", None)
    assert metric_name("auroc:epistemic") == ("AUROC", "higher")
    assert metric_name("novelty") == ("novelty", None)


@pytest.mark.parametrize("num_letters", [5, 12, 30])
def test_broken_lines_keep_every_letter(num_letters: int) -> None:
    label = "Density-Softmax (density=gaussian_mixture, scale.budget=0.01)"
    assert "".join(break_lines(label, num_letters)).replace(" ", "") == label.replace(" ", "")


def test_lines_break_where_words_do() -> None:
    assert break_lines("Natural Posterior Network", 18) == ["Natural Posterior", "Network"]
    assert break_lines("(density=gaussian_mixture)", 18) == ["(density=gaussian_", "mixture)"]
    assert break_lines("(penalty.weight=1.25)", 18) == ["(penalty.weight=", "1.25)"]


def test_file_stems_stay_in_their_folder() -> None:
    assert file_stem("toy (shape=two_ovals)", "iid") == "toy-shape-two_ovals-iid"
    assert "/" not in file_stem("../../etc", "passwd")
    assert not file_stem("../../etc", "passwd").startswith(".")


def test_file_stems_are_short_and_still_differ() -> None:
    stems = {file_stem("toy", "x" * 400, end) for end in ("iid", "shift")}
    assert len(stems) == 2
    assert max(map(len, stems)) < 200


def test_file_stems_are_short_in_bytes() -> None:
    assert len(file_stem("ä" * 200, "猫" * 100).encode()) < 200


def test_names_that_file_systems_take_for_the_same_get_files_of_their_own() -> None:
    taken: set[str] = set()
    words = ("a b", "a-b", "A_b", "a$b", "A b", "a/b", "e\u0301", "\u00e9", "a-b-2")
    stems = [distinct_stem(file_stem(word), taken) for word in words]
    assert len({stem.casefold() for stem in stems}) == len(words)
    assert stems[0] == "a-b"


@pytest.mark.parametrize("name", ["", " ", "\n", "\u202e"])
def test_a_set_without_a_readable_name_is_called_so(name: str) -> None:
    assert set_name(name) == split_name(name) == "(no name)"


def test_signs_that_turn_the_direction_of_a_text_are_not_shown() -> None:
    assert readable("a\u202eb\u200fc\udcffd") == "a b c d"


def test_a_control_is_declared_by_its_method() -> None:
    assert control_of("density_softmax") == "constant_temperature"
    assert control_of("deterministic") == ""


def test_labels_that_fit_stay_and_long_ones_are_cut():
    assert fit_labels(["ERM", "Natural Posterior Network"], 10) == ["ERM", "Natural P…"]


def test_long_variants_begin_with_what_tells_them_apart():
    common = ["density=realnvp", "layers=[]", "head={'epochs': 1, 'lr': 0.1}"]
    variants = [[*common, "scale=max"], [*common, "scale=range", "scale.low=-1.5"]]
    labels = [Label("Density-Softmax", changes) for changes in ([], *variants)]
    assert fit_labels(labels, 46) == [
        "Density-Softmax",
        "Density-Softmax (scale=max, density=realnvp, …",
        "Density-Softmax (scale=range, scale.low=-1.5,…",
    ]


def test_variants_that_are_cut_anyway_stay_within_the_letters():
    labels = [Label("Density-Softmax", [f"a={'x' * 50}{end}"]) for end in "pq"]
    assert all(len(label) == 40 for label in fit_labels(labels, 40))


def test_long_names_that_begin_alike_are_told_apart_by_their_ends() -> None:
    names = [f"{'x' * 60}-c, fog 3", "x" * 60, "short"]
    shown = fit_labels(names, 20)
    assert len(set(shown)) == 3
    assert shown[0].endswith("-c, fog 3")
    assert all(len(each) <= 20 for each in shown)


@pytest.mark.parametrize(
    ("title", "expected"),
    [
        ("digits: results", "Digits: results"),
        ("cost of prediction", "Cost of prediction"),
        ("cifar100_small: results", "cifar100_small: results"),
        ("cifar10 (precision=bf16-mixed)", "cifar10 (precision=bf16-mixed)"),
        ("", ""),
    ],
)
def test_a_heading_begins_with_a_capital_letter_unless_it_begins_with_an_identifier(
    title: str, expected: str
) -> None:
    assert heading(title) == expected
