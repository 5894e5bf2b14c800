import numpy as np
import pytest
import torch
from torch import Tensor

from density_softmax.config import from_dict, override, to_dict
from density_softmax.data.sources import ArraySource, DataConfig
from density_softmax.data.toy import Toy
from density_softmax.types import Data, Source

SHAPES = ["two_moons", "two_ovals"]


def arrays(source: Source) -> tuple[Tensor, Tensor]:
    assert isinstance(source, ArraySource)
    return source.x, source.y


def split(data: Data, name: str) -> tuple[Tensor, Tensor]:
    (found,) = [split for split in data.splits if split.name == name]
    return arrays(found.source)


@pytest.fixture(scope="module", params=SHAPES)
def data(request: pytest.FixtureRequest) -> Data:
    return Toy(request.param).load(seed=0)


def test_thousand_points_are_trained_on_or_held_out(data: Data) -> None:
    assert (len(data.train), len(data.heldout)) == (800, 200)
    labels = torch.cat([arrays(data.train)[1], arrays(data.heldout)[1]])
    assert labels.bincount().tolist() == [500, 500]


def test_task_is_two_classes_of_points_in_the_plane(data: Data) -> None:
    assert data.task.num_classes == 2
    assert data.task.input_shape == (2,)


def test_roles_of_the_splits(data: Data) -> None:
    roles = {split.name: split.role for split in data.splits}
    assert roles == {"iid": "iid", "cluster": "ood", "grid": "surface"}


def test_test_set_is_fresh_and_of_the_same_size(data: Data) -> None:
    seen = torch.cat([arrays(data.train)[0], arrays(data.heldout)[0]])
    x, y = split(data, "iid")
    assert y.bincount().tolist() == [500, 500]
    assert not {tuple(point) for point in x.tolist()} & {tuple(point) for point in seen.tolist()}


def assert_cluster(x: Tensor, mean: tuple[float, float], variance: tuple[float, float]) -> None:
    """Within five standard errors of the mean, and of the variance."""
    points = x.double().numpy()
    num, variances = len(points), np.array(variance)
    assert (abs(points.mean(0) - mean) < 5 * np.sqrt(variances / num)).all()
    assert (abs(points.var(0) - variances) < 5 * variances * np.sqrt(2 / num)).all()
    assert abs(np.corrcoef(points.T)[0, 1]) < 5 / np.sqrt(num)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("shape", "mean", "variance"),
    [("two_moons", (1.0, -1.5), (0.1, 0.001)), ("two_ovals", (0.0, -1.25), (0.5, 0.001))],
)
def test_out_of_domain_cluster_has_the_published_moments(
    shape: str, mean: tuple[float, float], variance: tuple[float, float], seed: int
) -> None:
    x, y = split(Toy(shape).load(seed), "cluster")
    assert len(x) == 500
    assert (y == -1).all()
    assert_cluster(x, mean, variance)


@pytest.mark.parametrize("label", [0, 1])
def test_ovals_have_the_published_moments(label: int) -> None:
    x, y = split(Toy("two_ovals").load(seed=0), "iid")
    assert_cluster(x[y == label], ((-1.5, 1.5)[label], 0.0), (0.01, 0.005))


def test_moons_are_noisy_half_circles_pulled_apart() -> None:
    x, y = split(Toy("two_moons").load(seed=0), "iid")
    upper = x[y == 0] - torch.tensor([-0.1, 0.2])
    lower = x[y == 1] - torch.tensor([0.1, -0.2])
    for moon, center, side in ((upper, (0.0, 0.0), 1), (lower, (1.0, 0.5), -1)):
        offset = moon - torch.tensor(center)
        assert offset.norm(dim=1).mean().item() == pytest.approx(1, abs=0.03)
        assert offset.norm(dim=1).std().item() == pytest.approx(0.1, rel=0.15)
        assert (side * offset[:, 1]).min() > -0.5


def test_grid_covers_the_rectangle_with_100_points_a_side(data: Data) -> None:
    x, y = split(data, "grid")
    assert x.shape == (10_000, 2)
    assert (y == -1).all()
    assert x.min(0).values.tolist() == [-3, -2]
    assert x.max(0).values.tolist() == [3, 2]
    rows = x.view(100, 100, 2)
    torch.testing.assert_close(rows[0, :, 0], torch.linspace(-3, 3, 100))
    torch.testing.assert_close(rows[:, 0, 1], torch.linspace(-2, 2, 100))


@pytest.mark.parametrize("shape", SHAPES)
def test_same_seed_gives_the_same_data_and_another_other(shape: str) -> None:
    first, again, other = (Toy(shape).load(seed) for seed in (3, 3, 4))
    assert torch.equal(arrays(first.train)[0], arrays(again.train)[0])
    assert torch.equal(arrays(first.heldout)[0], arrays(again.heldout)[0])
    for name in ("iid", "cluster"):
        assert torch.equal(split(first, name)[0], split(again, name)[0])
        assert not torch.equal(split(first, name)[0], split(other, name)[0])
    assert not torch.equal(arrays(first.train)[0], arrays(other.train)[0])


@pytest.mark.parametrize("num_points", [100, 101])
def test_number_of_points_is_as_asked(num_points: int) -> None:
    for shape in SHAPES:
        data = Toy(shape, num_points).load(0)
        assert len(data.train) + len(data.heldout) == num_points


def test_config_survives_its_dictionary() -> None:
    config = override(override(Toy(), "shape=two_ovals"), "heldout=0.5")
    assert config == Toy("two_ovals", heldout=0.5)
    assert from_dict(DataConfig, to_dict(config)) == config
