"""Every channel gets its part of what the experts contribute, and the parts add up."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import density_softmax as ds
from density_softmax.errors import UserError
from density_softmax.methods.density_softmax import DensitySoftmax
from density_softmax.methods.mc_dropout import MCDropout
from density_softmax.nn.densities import (
    ClassAwareDensity,
    FlowDensity,
    GaussianDensity,
    GaussianMixtureDensity,
    TiedMixtureDensity,
)
from density_softmax.recipes.attach import closed_form
from density_softmax.training import Descent, Estimate
from density_softmax.types import Batch

CLASSES, WIDTH = 3, 5


def samples(number: int = 400) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(number) % CLASSES
    mixing = torch.randn(WIDTH, WIDTH, generator=generator)
    noise = torch.randn(number, WIDTH, generator=generator) @ mixing
    return noise + 20 * torch.eye(CLASSES, WIDTH)[y], y


def fitted(density):
    for stage in density.double().stages():
        assert isinstance(stage, Estimate)
        stage.finish(stage.statistics(Batch(*samples())))
    return density


@pytest.mark.parametrize(
    "density",
    [
        GaussianDensity(WIDTH),
        ClassAwareDensity(WIDTH, CLASSES),
        GaussianMixtureDensity(WIDTH, CLASSES),
        TiedMixtureDensity(WIDTH, CLASSES),
    ],
    ids=lambda density: type(density).__name__,
)
def test_channels_add_up_to_the_negative_log_density_but_a_constant(density):
    # Far from the border between two classes a mixture is the Gaussian of one.
    y = samples()[1] == 0
    z = samples()[0][y].double()
    experts = fitted(density).experts(z)
    for amounts, expert in zip(density.amounts(z), experts.T, strict=True):
        assert amounts.shape == z.shape
        rest = amounts.sum(-1) + expert
        torch.testing.assert_close(rest, rest[:1].expand_as(rest), rtol=1e-6, atol=1e-6)


def test_channels_that_do_not_correlate_get_their_own_squares():
    density, scale = GaussianDensity(3).double(), torch.tensor([1.0, 10.0, 0.1]).double()
    density.whitening.copy_(torch.diag(1 / scale)[[2, 0, 1]])  # in any order of rows
    z = torch.tensor([[1.0, 20.0, 0.3]]).double()
    torch.testing.assert_close(density.amounts(z)[0], torch.tensor([[0.5, 2.0, 4.5]]).double())


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, CLASSES))


def config(density, **fields) -> DensitySoftmax.Config:
    return DensitySoftmax.Config(density=density, representation=None, head=None, **fields)


METHODS = {
    "default": "density_softmax",
    "without classes": config(GaussianDensity.Config(), energy=True),
    "one expert": config(GaussianMixtureDensity.Config()),
    "flow": config(FlowDensity.Config(hidden=(4,), descent=Descent(epochs=1)), energy=True),
    "without experts": "knn",
}


@pytest.mark.filterwarnings("ignore::density_softmax.errors.CalibrationWarning")
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_parts_and_columns_add_up_to_the_epistemic_uncertainty(method):
    x, y = samples()
    net = network()
    with torch.no_grad():
        y = net(x).argmax(-1)
    model = ds.attach(
        net, train=(x[:300], y[:300]), calibration=(x[300:], y[300:]), method=method, progress=False
    )
    strange = x[300:306].clone()
    strange[0, 2] += 300
    strange[1, 0] = torch.nan
    found, epistemic = model.explain(strange), model.predict(strange).epistemic.double()
    torch.testing.assert_close(
        torch.from_numpy(found.parts.sum(1)), epistemic, rtol=1e-5, atol=1e-5
    )
    columns = torch.from_numpy(found.columns.sum(1)) + found.base
    finite = epistemic.isfinite()
    assert finite.tolist() == [True, False, True, True, True, True]
    torch.testing.assert_close(columns[finite], epistemic[finite], rtol=1e-6, atol=1e-5)
    if method == "density_softmax":
        assert found.columns[0].argmax() == 2
        assert tuple(found.experts) == model.experts


def test_parts_add_up_for_a_method_that_draws_samples():
    network = nn.Sequential(nn.Linear(2, 64), nn.Dropout(0.5))
    method = MCDropout.Config(num_samples=3).build(network, CLASSES, torch.zeros(1, 2))
    method.mark_fitted()
    found = method.explain(torch.randn(600, 2))
    assert (found.parts.sum(1) == found.epistemic).all()


class Branches(nn.Module):
    """Two layers, each of which reads some of the columns."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(2, 4), nn.Linear(3, 4)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.cat([self.left(x[:, :2]), self.right(x[:, 2:])], 1).tanh())


@pytest.mark.filterwarnings("ignore::density_softmax.errors.CalibrationWarning")
def test_predictions_divided_by_layer_name_the_layer_that_moved(tmp_path):
    torch.manual_seed(0)
    x, y = torch.randn(900, WIDTH), torch.arange(900) % CLASSES
    network = Branches()
    data = {"train": (x[:300], y[:300]), "calibration": (x[300:600], y[300:600])}
    options = {"layers": ("left", "right"), "progress": False}
    changed = x[850:] + 3 * torch.eye(WIDTH)[4]
    whole = ds.attach(network, **data, **options).predict(changed)
    model = ds.attach(network, **data, **options, by_layer=True)
    divided, explained = model.predict(changed), model.explain(changed[:3])
    assert divided.experts[:3] == ("layers/left", "layers/right", "last")
    sums = divided.contributions[:, :2].sum(1)
    torch.testing.assert_close(sums, whole.contributions[:, 0], rtol=1e-4, atol=1e-5)
    for layer in ("left", "right"):
        column = divided.contributions[:3, divided.experts.index(f"layers/{layer}")].double()
        expected = torch.from_numpy(explained.layers[layer])
        torch.testing.assert_close(column, expected, rtol=1e-3, atol=1e-5)

    monitor = ds.Monitor(ds.Policy.fit(model, (x[600:800], y[600:800])))
    monitor.update(divided)
    moved = [name for name in monitor.moved if name.startswith("layers/")]
    assert moved == ["layers/right", "layers/left"]
    assert monitor.moved["layers/right"] > monitor.moved["layers/left"] + 10

    ds.export(model, tmp_path / "model.onnx", example=x[:1])
    served = ds.Predictor(tmp_path / "model.onnx").predict(changed.numpy())
    assert served.experts == divided.experts
    torch.testing.assert_close(torch.from_numpy(served.contributions), divided.contributions)


def test_only_layers_can_be_told_apart():
    x, y = torch.randn(90, WIDTH), torch.arange(90) % CLASSES
    without_classes = replace(closed_form(("left",)), classes=False)
    for options in ({"layers": ()}, {"method": without_classes}, {"method": "energy"}):
        with pytest.raises(UserError, match="by_layer"):
            ds.attach(Branches(), train=(x, y), calibration=(x, y), by_layer=True, **options)
