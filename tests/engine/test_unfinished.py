"""A killed pass over the data continues where it was."""

import pytest
import torch
from torch import nn

import density_softmax as ds
from density_softmax.engine import EngineConfig
from interruption import Killed

OFTEN = EngineConfig(accelerator="cpu", predict_batch_size=10, checkpoint_seconds=0)


class Mortal(nn.Module):
    """A classifier that counts inputs in batches of ten, and is killed after some of them."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.hidden, self.head = nn.Linear(2, 6), nn.Linear(6, 3)
        self.count, self.limit = 0, 10**9

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) == 10:
            if self.count >= self.limit:
                raise Killed
            self.count += len(x)
        return self.head(self.hidden(x).relu())


def data_of(network: Mortal, number: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = 3 * torch.randn(number, 2, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        y = network.head(network.hidden(x).relu()).argmax(-1)
    return x, y


def attached(network: Mortal, directory=None) -> ds.DensitySoftmax:
    train, calibration = data_of(network, 200, 1), data_of(network, 100, 2)
    options = {"layers": ("hidden",), "engine": OFTEN, "progress": False}
    return ds.attach(network, train=train, calibration=calibration, directory=directory, **options)


@pytest.mark.filterwarnings("ignore::density_softmax.errors.CalibrationWarning")
@pytest.mark.parametrize("limit", [30, 200, 250])
def test_a_killed_attach_continues_and_gives_the_same(tmp_path, limit: int) -> None:
    whole = attached(Mortal())
    network = Mortal()
    network.limit = limit
    with pytest.raises(Killed):
        attached(network, tmp_path)
    network.count, network.limit = 0, 10**9
    continued = attached(network, tmp_path)
    assert network.count == 300 - limit
    for name, value in whole.state_dict().items():
        assert torch.equal(continued.state_dict()[name], value), name
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]


@pytest.mark.filterwarnings("ignore::density_softmax.errors.CalibrationWarning")
def test_rows_of_another_network_are_not_taken(tmp_path) -> None:
    network, other = Mortal(), Mortal(seed=1)
    network.limit = 100
    with pytest.raises(Killed):
        attached(network, tmp_path)
    found = attached(other, tmp_path)
    assert other.count == 300
    for name, value in attached(Mortal(seed=1)).state_dict().items():
        assert torch.equal(found.state_dict()[name], value), name


@pytest.mark.filterwarnings("ignore::density_softmax.errors.CalibrationWarning")
def test_rows_with_other_labels_are_not_taken(tmp_path) -> None:
    network = Mortal()
    network.limit = 100
    with pytest.raises(Killed):
        attached(network, tmp_path)
    network.count, network.limit = 0, 10**9
    x, y = data_of(network, 200, 1)
    calibration, corrected = data_of(network, 100, 2), torch.where(y == 0, 1, y)
    options = {"layers": ("hidden",), "engine": OFTEN, "progress": False, "directory": tmp_path}
    ds.attach(network, train=(x, corrected), calibration=calibration, **options)
    assert network.count == 300


@pytest.mark.filterwarnings("ignore::density_softmax.errors.CalibrationWarning")
def test_a_damaged_file_is_computed_again(tmp_path) -> None:
    network = Mortal()
    network.limit = 100
    with pytest.raises(Killed):
        attached(network, tmp_path)
    files = sorted(tmp_path.rglob("*.safetensors"))
    files[4].write_bytes(files[4].read_bytes()[:50])
    network.count, network.limit = 0, 10**9
    attached(network, tmp_path)
    assert network.count == 300 - 40


@pytest.mark.filterwarnings("ignore::density_softmax.errors.CalibrationWarning")
def test_files_of_others_stay(tmp_path) -> None:
    """A folder of data has sets of the same names, each with a folder for a class."""
    files = [tmp_path / "train" / "cat" / name for name in ("0.npy", "1.safetensors")]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"data")
    attached(Mortal(), tmp_path)
    assert [file for file in sorted(tmp_path.rglob("*")) if file.is_file()] == files
