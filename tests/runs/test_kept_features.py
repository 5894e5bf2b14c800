from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from lightning_fabric import Fabric
from torch import nn

from density_softmax.data.sources import ArraySource
from density_softmax.methods import DensitySoftmax, Deterministic, Method
from density_softmax.recipes import get_recipe
from density_softmax.runs.evaluation import keep_features, subsample
from density_softmax.runs.run import Run
from density_softmax.types import Split


def source(num_samples: int) -> ArraySource:
    x = torch.arange(2.0 * num_samples).reshape(num_samples, 2)
    return ArraySource(x, torch.arange(num_samples) % 2)


def inputs(split: ArraySource, indices: range) -> torch.Tensor:
    return next(split.read([list(indices)], torch.device("cpu"))).x


def test_a_small_source_is_kept_whole() -> None:
    whole = source(7)
    assert subsample(whole, 7) is whole


@pytest.mark.parametrize(("num_samples", "wanted"), [(10, 5), (1000, 7), (11, 10)])
def test_a_thinned_source_is_spread_evenly(num_samples: int, wanted: int) -> None:
    thinned = subsample(source(num_samples), wanted)
    assert len(thinned) == wanted
    places = inputs(thinned, range(wanted))[:, 0] / 2  # type: ignore[arg-type]
    steps = places.diff()
    assert places[0] == 0
    assert 0 < steps.min() <= steps.max() <= steps.min() + 1


@pytest.fixture
def keep(tmp_path: Path) -> Callable[[type[Method], str, str], Run]:
    def run(kind: type[Method], name: str, role: str) -> Run:
        method = kind(nn.Linear(2, 3), 2, example=torch.zeros(1, 2))  # type: ignore[call-arg]
        stored = Run(get_recipe("toy"), path=tmp_path)
        split = Split(name, role, source(1500))  # type: ignore[arg-type]
        with torch.no_grad():
            keep_features(Fabric(accelerator="cpu"), stored, method.eval(), split)
        return stored

    return run


def test_features_are_those_of_the_encoder(
    keep: Callable[[type[Method], str, str], Run],
) -> None:
    torch.manual_seed(0)
    z, y = keep(DensitySoftmax, "iid", "iid").features("iid")
    assert z.shape == (1000, 3)
    assert y.tolist() == [n * 1500 // 1000 % 2 for n in range(1000)]
    torch.manual_seed(0)
    encoder = nn.Linear(2, 3)
    torch.testing.assert_close(z[1], encoder(torch.tensor([2.0, 3.0])))


@pytest.mark.parametrize(
    ("kind", "name", "role", "kept"),
    [
        (DensitySoftmax, "set-c/defocus_blur/5", "shift", True),
        (DensitySoftmax, "set-c/defocus_blur/4", "shift", False),
        (DensitySoftmax, "svhn", "ood", False),
        (Deterministic, "iid", "iid", False),
    ],
)
def test_only_what_is_mapped_is_kept(
    keep: Callable[[type[Method], str, str], Run],
    kind: type[Method],
    name: str,
    role: str,
    kept: bool,
) -> None:
    directory = keep(kind, name, role)
    assert (directory.path / "features" / f"{name}.safetensors").is_file() == kept
