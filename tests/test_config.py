from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from itertools import permutations
from random import Random
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from density_softmax.config import (
    ConfigError,
    Family,
    assignment,
    differences,
    from_dict,
    local,
    local_settings,
    override,
    parse_assignment,
    to_dict,
    without_local,
)
from density_softmax.data import Table
from density_softmax.methods.base import MethodConfig
from density_softmax.methods.density_softmax import DensitySoftmax
from density_softmax.methods.deterministic import Deterministic
from density_softmax.nn.softmax.scale import MaxScale, RangeScale
from density_softmax.recipes import get_recipe
from density_softmax.training import SGD, Adam, Descent, OneCycle, Steps


class Shape(Family):
    """A family."""


@dataclass(frozen=True)
class Circle(Shape, kind="circle"):
    radius: float = 1.0


@dataclass(frozen=True)
class Polygon(Shape, kind="polygon"):
    corners: tuple[int, ...] = (0, 1, 2)
    inner: Shape = field(default_factory=Circle)


@dataclass(frozen=True)
class Pen:
    width: float = 0.5
    color: Literal["black", "red"] = "black"


@dataclass(frozen=True)
class Drawing:
    title: str
    copies: int = 1
    signed: bool = False
    weight: float = 2.0
    size: tuple[int, int] = (3, 4)
    layers: tuple[str, ...] = ()
    depth: Literal[20, 50] = 20
    shape: Shape = field(default_factory=Circle)
    pen: Pen = Pen()
    spare: Pen | None = None
    limit: float | None = None


DRAWING = Drawing("a")

finite = st.floats(allow_nan=False, allow_infinity=False)
pens = st.builds(Pen, finite, st.sampled_from(["black", "red"]))
shapes = st.recursive(
    st.builds(Circle, finite),
    lambda inner: st.builds(Polygon, st.lists(st.integers(), max_size=3).map(tuple), inner),
    max_leaves=4,
)
drawings = st.builds(
    Drawing,
    title=st.text(),
    copies=st.integers(),
    signed=st.booleans(),
    weight=finite,
    size=st.tuples(st.integers(), st.integers()),
    layers=st.lists(st.text(), max_size=3).map(tuple),
    depth=st.sampled_from([20, 50]),
    shape=shapes,
    pen=pens,
    spare=st.none() | pens,
    limit=st.none() | finite,
)


@given(drawings)
def test_dictionary_survives_json_and_builds_the_same_config(drawing: Drawing) -> None:
    assert from_dict(Drawing, json.loads(json.dumps(to_dict(drawing)))) == drawing


@pytest.mark.parametrize(
    "config",
    [
        Deterministic.Config(),
        DensitySoftmax.Config(),
        DensitySoftmax.Config(scale=RangeScale.Config(-0.4, -0.3), head=None),
        DensitySoftmax.Config(
            scale=MaxScale.Config(),
            representation=Descent(
                200, 64, SGD(0.05, weight_decay=4e-4), Steps((1, 2)), clip_norm=1.0
            ),
            head=Descent(10, schedule=OneCycle()),
        ),
    ],
)
def test_dictionary_of_a_method_builds_the_same_method(config: MethodConfig) -> None:
    assert from_dict(MethodConfig, json.loads(json.dumps(to_dict(config)))) == config


def test_dictionary_names_the_kind_of_every_family_member() -> None:
    plain = to_dict(Drawing("a", shape=Polygon()))
    assert plain["shape"]["kind"] == "polygon"
    assert plain["shape"]["inner"]["kind"] == "circle"
    assert "kind" not in plain["pen"]


@pytest.mark.parametrize(
    ("assignment", "changed"),
    [
        ("copies=7", {"copies": 7}),
        ("signed=true", {"signed": True}),
        ("title=b = c", {"title": "b = c"}),
        ('title="7"', {"title": "7"}),
        ("weight=1e-4", {"weight": 1e-4}),
        ("size=[5, 6]", {"size": (5, 6)}),
        ('layers=["x", "y"]', {"layers": ("x", "y")}),
        ("layers=[]", {"layers": ()}),
        ("depth=50", {"depth": 50}),
        ("pen.color=red", {"pen": Pen(color="red")}),
        ("shape.radius=3.5", {"shape": Circle(3.5)}),
        ("shape=polygon", {"shape": Polygon()}),
        ('shape={"kind": "circle", "radius": 2}', {"shape": Circle(2.0)}),
        ('spare={"width": 2}', {"spare": Pen(2.0)}),
        ("limit=0.1", {"limit": 0.1}),
        ("limit=null", {"limit": None}),
    ],
)
def test_override_changes_what_it_names_and_nothing_else(
    assignment: str, changed: dict[str, Any]
) -> None:
    before = to_dict(DRAWING)
    after = override(DRAWING, assignment)
    assert {name: getattr(after, name) for name in changed} == changed
    untouched = before.keys() - changed.keys()
    assert {name: to_dict(after)[name] for name in untouched} == {
        name: before[name] for name in untouched
    }
    assert to_dict(DRAWING) == before


def test_override_reaches_through_families_of_families() -> None:
    drawing = override(override(DRAWING, "shape=polygon"), "shape.inner.radius=9")
    assert drawing.shape == Polygon(inner=Circle(9.0))


def test_a_kind_is_set_together_with_what_it_requires() -> None:
    changes = ["data=table", "data.train=rows.csv", "data.heldout=0.3"]
    for ordered in permutations(changes):
        assert override(get_recipe("toy"), *ordered).data == Table("rows.csv", heldout=0.3)
    with pytest.raises(ConfigError, match=re.escape("data: missing 'train'; set data.train=value")):
        override(get_recipe("toy"), "data=table")


@given(drawings, st.randoms())
def test_overrides_give_the_same_in_any_order(other: Drawing, random: Random) -> None:
    base = Drawing("base")
    assignments = [assignment(*change) for change in differences(base, other).items()]
    random.shuffle(assignments)
    assert override(base, *assignments) == other


def test_values_that_only_go_together_are_set_together() -> None:
    for ordered in permutations(["low=-0.2", "high=-0.1"]):
        assert override(RangeScale.Config(-0.4, -0.3), *ordered) == RangeScale.Config(-0.2, -0.1)


def test_of_two_values_for_a_path_the_last_counts() -> None:
    assert override(DRAWING, "copies=2", "copies=3").copies == 3
    assert override(DRAWING, "shape=polygon", "shape=circle").shape == Circle()


def test_nothing_has_no_entries_in_any_order() -> None:
    for ordered in permutations(["spare=null", "spare.width=1"]):
        with pytest.raises(ConfigError, match=r"spare.width: 'spare' is the value None and has"):
            override(DRAWING, *ordered)


def test_override_to_null_empties_an_optional_part() -> None:
    assert override(DensitySoftmax.Config(), "head=null").head is None


def test_override_with_an_integer_where_a_float_is_expected_gives_a_float() -> None:
    weight = override(DRAWING, "weight=3").weight
    assert type(weight) is float
    assert weight == 3.0


def test_override_of_one_part_of_a_family_member_keeps_the_others() -> None:
    config = override(DensitySoftmax.Config(), "representation.optimizer=sgd")
    config = override(config, "representation.optimizer.momentum=0.5")
    assert config.representation == Descent(100, optimizer=SGD(momentum=0.5))


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("copies=", "'copies=' has no value; for none at all write copies=null"),
        ("copies= ", "'copies= ' has no value"),
        ("color=red", "color: unknown name 'color'; did you mean pen.color?"),
        ("Radius=2", "Radius: unknown name 'Radius'; did you mean shape.radius?"),
        ("zzz.color=red", "zzz.color: unknown name 'zzz'; there are: copies, "),
        ("Copies=2", "Copies: unknown name 'Copies'; did you mean copies?"),
        ("copies", "'copies' is not of the form path=value"),
        ("=1", "'=1' is not of the form path=value"),
        ("copis=1", "copis: unknown name 'copis'; did you mean 'copies'? there are: copies, "),
        ("pen.colour=red", "pen.colour: unknown name 'colour'; did you mean 'color'? there are:"),
        ("zzz=1", "zzz: unknown name 'zzz'; there are: copies, depth, "),
        ("copies.x=1", "copies.x: 'copies' is the value 1 and has no parts"),
        ("spare.width=1", "spare.width: 'spare' is the value None and has no parts"),
        ("copies=many", "copies=many: expected int, got str"),
        ("copies=1.5", "copies=1.5: expected int, got float"),
        ("copies=1.0", "copies=1.0: expected int, got float"),
        ("copies=true", "copies=True: expected int, got bool"),
        ("copies=null", "copies=None: expected int, got NoneType"),
        ("signed=1", "signed=1: expected bool, got int"),
        ("weight=true", "weight=True: expected float, got bool"),
        ("weight=heavy", "weight=heavy: expected float, got str"),
        ("weight=NaN", "weight=nan: expected a finite number"),
        ("weight=1e999", "weight=inf: expected a finite number"),
        ("limit=-Infinity", "limit=-inf: expected a finite number"),
        ("title=3", "title=3: expected str, got int"),
        ("pen.color=green", "pen.color=green: choose one of black, red"),
        ("depth=50.0", "depth=50.0: choose one of 20, 50"),
        ("size=3", "size=3: expected a list, such as [1, 2]"),
        ("size=[1]", "size=[1]: expected 2 entries, got 1"),
        ("size=[1, 2.5]", "size=2.5: expected int, got float"),
        ("pen=thick", "pen='thick': set its parts one by one, as pen.NAME=value"),
        ("shape=cirle", "shape: unknown name 'cirle'; did you mean 'circle'? there are:"),
        ("shape=null", "shape=None: set its parts one by one, as shape.NAME=value"),
        ('shape={"kind": []}', "shape: unknown name '[]'; there are: circle, polygon"),
        ('shape={"radius": 1}', "shape: unknown name 'None'; there are: circle, polygon"),
        (
            'shape={"kind": "circle", "raduis": 1}',
            "shape.raduis: unknown name 'raduis'; did you mean 'radius'? there are: radius",
        ),
    ],
)
def test_impossible_override_names_path_and_remedy(assignment: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        override(DRAWING, assignment)


def test_missing_value_names_the_part_and_the_field() -> None:
    with pytest.raises(ConfigError, match=r"Drawing: .*missing.*'title'"):
        from_dict(Drawing, {})


def test_unknown_kind_at_the_top_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"kind: unknown name 'square'; .*circle, polygon"):
        from_dict(Shape, {"kind": "square"})


def test_equal_configs_have_no_differences() -> None:
    assert differences(DRAWING, Drawing("a")) == {}


OVERRIDES = {
    "title": "title=b",
    "copies": "copies=7",
    "signed": "signed=true",
    "size": "size=[5, 6]",
    "layers": 'layers=["x"]',
    "shape": "shape=polygon",
    "width": "pen.width=0.25",
    "color": "pen.color=red",
    "spare": 'spare={"width": 2.0, "color": "red"}',
    "limit": "limit=0.1",
}


@given(st.sets(st.sampled_from(sorted(OVERRIDES))))
def test_differences_are_exactly_the_overrides(chosen: set[str]) -> None:
    assignments = {OVERRIDES[name] for name in chosen}
    drawing = DRAWING
    for text in sorted(assignments):
        drawing = override(drawing, text)
    found = differences(DRAWING, drawing)
    assert {assignment(*change) for change in found.items()} == assignments


@given(drawings)
def test_overriding_with_the_differences_gives_the_other_config(other: Drawing) -> None:
    base = Drawing("base")
    changes = differences(base, other)
    assert override(base, changes) == other
    assert override(base, *(assignment(*change) for change in changes.items())) == other


@given(st.text() | st.integers() | st.lists(st.text()) | st.none() | st.booleans())
def test_any_value_is_read_back_from_its_text(value: object) -> None:
    assert parse_assignment(assignment("a.b", value)) == ("a.b", value)


def test_families_do_not_see_each_others_members() -> None:
    assert set(Shape.members) == {"circle", "polygon"}
    assert "circle" not in MethodConfig.members


def test_adam_and_sgd_of_equal_rate_are_different_configs() -> None:
    assert to_dict(Adam(lr=0.1)) != to_dict(SGD(lr=0.1))


def test_a_change_of_kind_is_followed_by_what_differs_from_its_defaults() -> None:
    adam = Descent(epochs=1, optimizer=Adam(lr=0.1))
    assert differences(adam, Descent(epochs=1, optimizer=SGD())) == {"optimizer": "sgd"}
    found = differences(adam, Descent(epochs=1, optimizer=SGD(lr=0.3)))
    assert found == {"optimizer": "sgd", "optimizer.lr": 0.3}


def test_a_config_in_place_of_nothing_is_said_by_what_differs_from_its_defaults() -> None:
    without = DensitySoftmax.Config(head=None)
    descent = Descent(epochs=3, optimizer=SGD(lr=0.3))
    with_head = DensitySoftmax.Config(head=descent)
    changes = differences(without, with_head)
    assert changes == {"head": {"epochs": 3, "optimizer": {"kind": "sgd", "lr": 0.3}}}
    assert override(without, changes) == with_head


def test_where_is_left_out_of_a_config_and_of_its_parts() -> None:
    @dataclass(frozen=True)
    class Printer:
        ink: str = "black"
        room: int | None = local(None)

    @dataclass(frozen=True)
    class Job:
        pages: int = 1
        folder: str = local(".")
        printer: Printer = Printer()

    moved = Job(2, "elsewhere", Printer("red", 7))
    assert without_local(moved) == Job(2, printer=Printer("red"))
    assert local_settings(Job) == {"folder"}


def test_a_member_that_cannot_be_made_of_its_kind_alone_is_written_in_full() -> None:
    @dataclass(frozen=True)
    class Star(Shape, kind="star"):
        points: int
        radius: float = 1.0

    base, other = Polygon(), Polygon(inner=Star(5))
    assert differences(base, other) == {"inner": {"kind": "star", "points": 5}}
    assert override(base, differences(base, other)) == other
