"""A new method is one class and one entry in a recipe; everything else finds it."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import density_softmax as ds
from density_softmax import benchmark
from density_softmax.config import from_dict, to_dict
from density_softmax.methods.base import Method, MethodConfig
from density_softmax.recipes import Recipe, get_recipe, prepare, toy
from density_softmax.report import write_report
from density_softmax.runs import Run

SHORT = ("data.num_points=80", "encoder.depth=2", "encoder.width=8", "method.descent.epochs=2")


@pytest.fixture
def new_method(monkeypatch: pytest.MonkeyPatch) -> type[Method]:
    """The one of the documentation; the registries forget it after the test."""
    len(MethodConfig.members)  # imports all of them, which happens only once
    monkeypatch.setattr(MethodConfig, "members", copy.deepcopy(MethodConfig.members))

    page = (Path(__file__).parents[2] / "docs" / "methods.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"__name__": __name__}
    exec(code, names)
    found: type[Method] = names["DistantSoftmax"]
    monkeypatch.setitem(toy.METHODS, "distant_softmax", found.Config)
    return found


def test_it_is_known_by_its_kind_and_its_name(new_method: type[Method]) -> None:
    recipe = get_recipe("toy", "distant_softmax")
    assert from_dict(Recipe, to_dict(recipe)) == recipe
    assert isinstance(recipe.method.build(torch.nn.Linear(2, 4), 3), new_method)
    assert ds.DistantSoftmax is new_method
    assert recipe.method.rank > max(
        config.rank for kind, config in MethodConfig.members.items() if kind != recipe.method.kind
    )


def test_it_is_trained_reported_and_exported(new_method: type[Method], tmp_path) -> None:
    run = Run(prepare("toy", "distant_softmax", SHORT), path=tmp_path / "run")
    rows = benchmark.run(run, progress=False)
    assert {"nll", "auroc:epistemic", "train_seconds:train"} <= {row.metric for row in rows}

    page = write_report([run.path], tmp_path / "report")
    assert "Distant Softmax" in page.read_text(encoding="utf-8")

    method = Run.at(run.path).load()
    x = next(run.data.train.read([range(5)], torch.device("cpu"))).x
    ds.export(method, tmp_path / "model.onnx", example=x)
    probs = ds.Predictor(tmp_path / "model.onnx").predict(x.numpy()).probs
    torch.testing.assert_close(torch.as_tensor(probs), method.predict(x).probs)
