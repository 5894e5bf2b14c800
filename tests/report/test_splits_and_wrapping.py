from comparison import frame
from hypothesis import given
from hypothesis import strategies as st

from density_softmax.report.frame import find_splits, roles_of
from density_softmax.report.names import divide, split_name, with_reference
from density_softmax.types import Row


def rows(*keys: tuple[str, str]) -> list[Row]:
    return [Row("r", "sngp", "default", 0, split, metric, 0.0) for split, metric in keys]


def corrupted(*splits: str) -> list[Row]:
    return rows(*((f"set-c/{split}", "nll") for split in splits))


def test_splits_are_known_by_what_is_measured_on_them() -> None:
    results = rows(
        ("iid", "nll"), ("set.1", "nll"), ("far", "confidence"), ("far", "auroc:entropy")
    )
    results += corrupted("fog/2", "fog/1", "frost/1")
    found = find_splits(frame(results + rows(("set-c", "cnll"), ("cost", "params"))))
    assert found.shifted == ("set.1",)
    assert found.ood == ("far",)
    levels = {1: ["set-c/fog/1", "set-c/frost/1"], 2: ["set-c/fog/2"]}
    assert found.corrupted == {"set-c": levels}
    assert list(found.corrupted["set-c"]) == [1, 2]


def test_roles_of_splits() -> None:
    keys = [(split, "nll") for split in ("iid", "cost", "far", "a/b/1", "a")]
    for order in (1, -1):
        roles = roles_of([*keys, ("far", "auroc:entropy"), ("iid", "auroc:entropy")][::order])
        assert roles == {
            "iid": "iid",
            "cost": "cost",
            "far": "ood",
            "a/b/1": "each shift",
            "a": "shift",
        }


def test_the_papers_corruption_is_shown_where_there_is_one() -> None:
    there = find_splits(frame(corrupted("fog/3", "glass_blur/2", "glass_blur/3")))
    assert there.shown_shifts() == ["set-c/glass_blur/3"]
    others = corrupted("fog/1", "fog/2", "fog/3", "rain/2")
    elsewhere = find_splits(frame(rows(("real", "nll")) + others))
    assert elsewhere.shown_shifts() == ["real", "set-c/fog/2"]


def test_splits_have_names_to_read() -> None:
    assert split_name("cifar10-c/glass_blur/3") == "cifar10-c, glass blur 3"
    assert split_name("svhn") == "svhn"
    assert split_name("iid") == "in-domain"
    assert split_name("two\nlines") == "two lines"


@given(st.lists(st.integers(), max_size=40), st.integers(1, 9))
def test_groups_hold_everything_once_and_are_about_equal(items: list[int], most: int) -> None:
    groups = divide(items, most)
    assert [item for group in groups for item in group] == items
    sizes = [len(group) for group in groups]
    assert max(sizes) <= most
    assert max(sizes) - min(sizes) <= 1


def test_every_group_begins_with_what_all_are_compared_to() -> None:
    groups = with_reference([f"m{n}" for n in range(17)])
    assert [group[0] for group in groups] == ["m0"] * 3
    assert sorted(m for group in groups for m in group[1:]) == sorted(f"m{n}" for n in range(1, 17))
    assert max(map(len, groups)) <= 8
    assert with_reference(["only"]) == [["only"]]
