import pytest

from density_softmax.report.names import (
    METHODS,
    break_lines,
    file_stem,
    fit_labels,
    line_name,
    line_order,
    metric_name,
    setting_name,
    split_variant,
    variant_of_data,
    variant_of_line,
)


def test_known_methods_have_their_usual_names_and_others_title_case() -> None:
    assert line_name("deterministic", "default") == "ERM"
    assert line_name("density_softmax", "scale=max") == "Density-Softmax (scale=max)"
    assert line_name("brand_new", "default") == "Brand New"


def test_erm_comes_first_and_unknown_methods_last() -> None:
    lines = [("brand_new", "default"), *((method, "default") for method in reversed(METHODS))]
    ordered = sorted(lines, key=lambda line: line_order(*line))
    assert ordered[0] == ("deterministic", "default")
    assert ordered[-1] == ("brand_new", "default")


def test_a_variant_follows_its_default() -> None:
    lines = [("sngp", "a=1"), ("sngp", "default"), ("duq", "default")]
    assert sorted(lines, key=lambda line: line_order(*line)) == [lines[1], lines[0], lines[2]]


@pytest.mark.parametrize(
    ("variant", "assignments"),
    [
        ("default", []),
        ("scale=max", ["scale=max"]),
        ("data.shape=two_ovals, scale=max", ["data.shape=two_ovals", "scale=max"]),
        ('layers=["a", "b"], sizes=[1, 2]', ['layers=["a", "b"]', "sizes=[1, 2]"]),
    ],
)
def test_variants_divide_at_paths_and_not_inside_values(
    variant: str, assignments: list[str]
) -> None:
    assert split_variant(variant) == assignments


def test_a_variant_is_its_data_part_and_the_rest() -> None:
    assert variant_of_data("data.shape=two_ovals, scale=max") == "data.shape=two_ovals"
    assert variant_of_line("data.shape=two_ovals, scale=max") == "scale=max"
    assert variant_of_line("data.shape=two_ovals") == "default"
    assert variant_of_data("default") == ""


def test_data_of_another_kind_are_the_data_part_of_a_variant() -> None:
    table = 'data={"kind": "table", "train": "rows.csv", "ood": ["a.csv"]}'
    assert variant_of_data(f"{table}, data_seed=1, scale=max") == table
    assert variant_of_line(f"{table}, data_seed=1, scale=max") == "data_seed=1, scale=max"
    assert variant_of_data("data=images, data.train=svhn") == "data=images, data.train=svhn"


def test_a_setting_is_named_after_its_recipe_and_what_changes_its_data() -> None:
    assert setting_name("toy", "") == "toy"
    assert setting_name("toy", "data.train=mydata.csv") == "toy (train=mydata.csv)"
    assert setting_name("toy", "data=images, data.train=svhn") == "toy (data=images, train=svhn)"
    table = 'data={"kind": "table", "train": "rows.csv", "ood": ["a.csv"]}'
    assert setting_name("toy", table) == "toy (data=table, train: rows.csv, ood: [a.csv])"


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


def test_labels_that_fit_stay_and_long_ones_are_cut():
    assert fit_labels(["ERM", "Natural Posterior Network"], 10) == ["ERM", "Natural P…"]


def test_long_variants_begin_with_what_tells_them_apart():
    common = "density=realnvp, layers=[], head={'epochs': 1, 'lr': 0.1}"
    variants = [f"{common}, scale=max", f"{common}, scale=range, scale.low=-1.5"]
    labels = ["Density-Softmax", *(f"Density-Softmax ({variant})" for variant in variants)]
    assert fit_labels(labels, 46) == [
        "Density-Softmax",
        "Density-Softmax (scale=max, density=realnvp, …",
        "Density-Softmax (scale=range, scale.low=-1.5,…",
    ]


def test_variants_that_are_cut_anyway_stay_within_the_letters():
    labels = [f"Density-Softmax (a={'x' * 50}{end})" for end in "pq"]
    assert all(len(label) == 40 for label in fit_labels(labels, 40))
