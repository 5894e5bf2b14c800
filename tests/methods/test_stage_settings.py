"""What a stage says it depends on and changes is true, and equal only where the stage is."""

import dataclasses

import pytest
import torch
from safetensors.torch import load_file
from short_training import ENGINE, KINDS, points, short_method

from density_softmax.engine import fit
from density_softmax.methods import kinds_of
from density_softmax.methods.base import Method, MethodConfig
from density_softmax.methods.density_softmax import DensitySoftmax
from density_softmax.methods.deterministic import (
    ConstantTemperature,
    Deterministic,
    TemperatureScaling,
)
from density_softmax.nn.backbones.resffn import ResFFN
from density_softmax.nn.densities import GaussianDensity
from density_softmax.nn.lipschitz.penalty import FrobeniusPenalty
from density_softmax.nn.softmax.scale import MaxScale
from density_softmax.training import Descent, Train
from density_softmax.types import Batch

DESCENT = Descent(epochs=3)
PENALTY = FrobeniusPenalty.Config(weight=0.5)


def built(config: MethodConfig) -> Method:
    return config.build(ResFFN(2, depth=2, width=6), 3, torch.zeros(1, 2))


def words(config: MethodConfig) -> list[tuple[str, object, tuple[str, ...]]]:
    return [(stage.name, stage.settings, stage.modules) for stage in built(config).stages()]


@pytest.mark.parametrize("kind", KINDS)
def test_a_stage_changes_only_the_parts_it_names(kind, tmp_path):
    method = short_method(kind)
    before = {name: value.clone() for name, value in method.state_dict().items()}
    fit(method, points(40, 0), points(20, 1), engine=ENGINE, directory=tmp_path, progress=False)
    for stage in method.stages():
        after = load_file(tmp_path / "stages" / f"{stage.name}.done.safetensors")
        changed = {name for name in after if not after[name].equal(before[name])}
        if stage.modules:
            assert {name.partition(".")[0] for name in changed} <= set(stage.modules), stage.name
        before = after


def test_temperature_scaling_begins_with_the_training_of_erm():
    erm, scaled = (c.Config(descent=DESCENT) for c in (Deterministic, TemperatureScaling))
    assert words(erm) == words(scaled)[:1]
    other = dataclasses.replace(erm, descent=Descent(epochs=4))
    assert words(erm) != words(other)


def test_the_control_of_density_softmax_begins_with_its_representation():
    ours = DensitySoftmax.Config(penalty=PENALTY, representation=DESCENT)
    control = ConstantTemperature.Config(penalty=PENALTY, descent=DESCENT)
    assert words(ours)[0] == words(control)[0]
    for change in ({"penalty": FrobeniusPenalty.Config(weight=0.1)}, {"temperature": 2.0}):
        assert words(dataclasses.replace(control, **change))[0] != words(ours)[0]


def test_scale_and_head_make_no_difference_to_the_densities():
    ours = DensitySoftmax.Config(layers=("blocks.0",), energy=True)
    other = dataclasses.replace(ours, scale=MaxScale.Config(), head=None)
    count = [name for name, *_ in words(ours)].index("scale")
    assert words(ours)[:count] == words(other)[:count]
    for change in (
        {"density": GaussianDensity.Config()},
        {"layers": ()},
        {"last": False},
        {"energy": False},
    ):
        assert words(dataclasses.replace(ours, **change))[1] != words(ours)[1]


def test_trainings_with_equal_settings_have_the_same_loss():
    """Of all methods with their defaults: ERM shares its training with all post-hoc methods."""
    batch, losses = Batch(points(20, 0).x, points(20, 0).y), {}
    for config in MethodConfig.members.values():
        torch.manual_seed(0)
        for stage in built(config()).stages():
            if isinstance(stage, Train) and stage.settings is not None and stage.on == "inputs":
                torch.manual_seed(1)
                losses.setdefault(str(stage.settings), []).append(stage.loss(batch).item())
    assert sorted(map(len, losses.values())) == [2, 2 + len(kinds_of("posthoc"))]
    assert all(len(set(values)) == 1 for values in losses.values())
    assert len({values[0] for values in losses.values()}) == len(losses)
