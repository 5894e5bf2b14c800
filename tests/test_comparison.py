"""A comparison is what attaching every method by itself would show, from one pass over the data."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import density_softmax as ds
from density_softmax import metrics
from density_softmax.engine import EngineConfig
from density_softmax.errors import CalibrationWarning, UserError
from density_softmax.methods.base import MethodConfig
from density_softmax.nn.densities import mixtures
from density_softmax.nn.finding import NUM_PROBED
from density_softmax.posthoc import posthoc_kinds
from density_softmax.runs.rows import read_rows

ENGINE = EngineConfig(accelerator="cpu", threads=1, predict_batch_size=64)
SIZES = {"train": 300, "calibration": 200, "test": 150}
ORACLE = "oracle: T of each set"


def points(num_samples: int, seed: int, noise: float = 0.0):
    """Three classes around corners, some of them mislabelled."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (num_samples,), generator=generator)
    centers = torch.tensor([[2.0, 0.0], [-1.0, 2.0], [-1.0, -2.0]])
    x = centers[y] + (1 + noise) * torch.randn(num_samples, 2, generator=generator)
    wrong = torch.rand(num_samples, generator=generator) < 0.1
    return x, torch.where(wrong, torch.randint(3, (num_samples,), generator=generator), y)


class Network(nn.Module):
    """A perceptron that counts what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 16), nn.Linear(16, 12)
        self.fc, self.num_seen = nn.Linear(12, 3), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.num_seen += len(x)
        return self.fc(self.second(self.first(x).relu()).relu())


@pytest.fixture(scope="module")
def network() -> Network:
    torch.manual_seed(0)
    model, (x, y) = Network(), points(SIZES["train"], 0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(300):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model.eval()


SETS = {name: points(size, seed) for seed, (name, size) in enumerate(SIZES.items())}
SHIFTS = {"noise": points(150, 5, noise=1.0), "more noise": points(120, 6, noise=2.0)}
OOD = {"far": torch.full((80, 2), 8.0) + torch.randn(80, 2), "near": (points(90, 7)[0] / 3, None)}
OOD["near"] = (OOD["near"][0], torch.full((90,), -1))


def compared(model: nn.Module, **options):
    options = {"shifts": SHIFTS, "ood": OOD, "layers": ("first",), **options}
    sets = {name: options.pop(name, SETS[name]) for name in SETS}
    return ds.compare(
        model, head="fc", **sets, num_resamples=50, engine=ENGINE, progress=False, **options
    )


@pytest.fixture(scope="module")
def report(network):
    return compared(network)


def of(report, kind: str, split: str, metric: str, variant: str = "default") -> float:
    return report.values[kind, variant, split, metric]


@pytest.mark.parametrize("kind", ["density_softmax", "knn", "vector_scaling", "laplace", "vim"])
def test_numbers_are_those_of_the_method_attached_by_itself(kind, network, report):
    layers = ("first",) if kind == "density_softmax" else ()
    sets = {"train": SETS["train"], "calibration": SETS["calibration"]}
    method = ds.attach(
        network, head="fc", **sets, layers=layers, method=kind, engine=ENGINE, progress=False
    )
    (x, y), far = SETS["test"], method.predict(OOD["far"])
    alone = method.predict(x)
    auroc = metrics.auroc(alone.epistemic, far.epistemic)
    assert of(report, kind, "far", "auroc:epistemic") == pytest.approx(auroc, abs=1e-3)
    if "probs" in MethodConfig.members[kind].defines:
        assert of(report, kind, "iid", "nll") == pytest.approx(
            metrics.nll(alone.probs, y), abs=1e-4
        )
        noisy = [metrics.nll(method.predict(x).probs, y) for x, y in SHIFTS.values()]
        assert of(report, kind, "shifts", "cnll") == pytest.approx(np.mean(noisy), abs=1e-4)


def test_the_network_runs_once_over_every_set(network):
    network.num_seen = 0
    compared(network)
    sizes = [*SIZES.values(), *(len(y) for _, y in SHIFTS.values()), 80, 90]
    # One sample for each method to measure widths with, and a few to find the head.
    assert network.num_seen - sum(sizes) <= 1 + NUM_PROBED + len(posthoc_kinds())


def test_every_post_hoc_method_is_compared_once(report):
    kinds = [line.kind for line in report.contenders if line.variant != ORACLE]
    assert sorted(kinds) == sorted(posthoc_kinds())
    assert report.default == "Density-Softmax"


def test_the_oracle_is_the_end_of_the_way_that_temperature_scaling_begins(report):
    assert of(report, "temperature_scaling", "shifts", "oracle_share") == 0
    assert of(report, "temperature_scaling", "shifts", "oracle_share", ORACLE) == 1
    for kind in ("deterministic", "temperature_scaling"):
        end = of(report, "temperature_scaling", "shifts", "cnll", ORACLE)
        assert end <= of(report, kind, "shifts", "cnll")


def test_a_method_without_probabilities_of_its_own_has_no_likelihood(report):
    for line in report.contenders:
        own = "probs" in MethodConfig.members[line.kind].defines
        assert (report.value(line, ("shifts", "cnll")) is not None) is own
        assert (report.value(line, ("iid", "nll")) is not None) is (own and line.variant != ORACLE)


def test_what_is_stored_beyond_the_network_is_counted(report):
    assert of(report, "energy", "cost", "stored_bytes") == 4  # the temperature, 1
    assert of(report, "knn", "cost", "stored_bytes") == 4 + 4 * 12 * SIZES["train"]


def test_a_method_differs_from_itself_by_nothing(network):
    default = ds.DensitySoftmax.Config
    twin = replace(posthoc_default(), energy=not posthoc_default().energy)
    assert isinstance(twin, default)
    found = compared(network, methods=["density_softmax", posthoc_default(), twin], ood={})
    lines = [line for line in found.contenders if line.kind == "density_softmax"]
    assert len(lines) == 2
    assert "energy" in lines[1].label
    low, high = found.interval(lines[1], ("iid", "nll"))
    values = [found.value(line, ("iid", "nll")) for line in lines]
    assert low <= values[1] - values[0] <= high


def posthoc_default():
    from density_softmax.posthoc import posthoc_config

    return posthoc_config("density_softmax", ("first",))


def test_an_interval_is_that_of_a_paired_bootstrap(network, report):
    """A loop over resamples in numpy gives bounds as wide, around the same difference."""
    x, y = SETS["test"]
    losses = []
    for kind in ("temperature_scaling", "density_softmax"):
        layers = ("first",) if kind == "density_softmax" else ()
        sets = {"train": SETS["train"], "calibration": SETS["calibration"]}
        method = ds.attach(
            network, head="fc", **sets, layers=layers, method=kind, engine=ENGINE, progress=False
        )
        losses.append(-np.log(method.predict(x).probs.numpy()[np.arange(len(y)), y]))
    rng, difference = np.random.default_rng(0), losses[0] - losses[1]
    means = [difference[rng.integers(len(y), size=len(y))].mean() for _ in range(2000)]
    line = next(c for c in report.contenders if c.kind == "temperature_scaling")
    found = np.subtract(*reversed(report.interval(line, ("iid", "nll"))))
    expected = np.subtract(*np.quantile(means, [0.975, 0.025]))
    assert found == pytest.approx(expected, rel=0.4)
    value = report.value(line, ("iid", "difference:nll"))
    assert value == pytest.approx(difference.mean(), abs=1e-4)


def test_the_page_holds_every_method_and_the_rows_come_back(report, tmp_path):
    page = report.save(tmp_path / "compared")
    text = page.read_text(encoding="utf-8")
    assert all(line.label.replace("'", "&#39;") in text for line in report.contenders)
    assert "data:image/webp" in text
    assert read_rows(tmp_path / "compared" / "rows.csv") == list(report.rows)
    assert (tmp_path / "compared" / "figures" / "comparison.svg").is_file()
    assert report.page(tmp_path / "alone.html").read_text(encoding="utf-8") == text


def test_the_table_says_what_is_inherited_and_what_is_alike(report):
    lines = {
        line.label: cells for line, cells in zip(report.contenders, report.cells(), strict=True)
    }
    assert lines["Energy"][0] == "–"
    assert "§" in " ".join(lines["kNN"])
    assert "Share of the way" in str(report)
    frame = report.to_pandas()
    assert list(frame.index) == [line.label for line in report.contenders]
    assert math.isnan(frame.loc["Energy", "iid nll"])
    assert frame.loc["Density-Softmax", "iid nll"] == of(report, "density_softmax", "iid", "nll")


def test_shifts_of_one_set_are_averaged_under_its_name(network):
    shifts = {"blobs-c/noise/1": SHIFTS["noise"], "blobs-c/noise/2": SHIFTS["more noise"]}
    found = compared(network, methods=["energy"], shifts=shifts, ood={}, layers=())
    assert of(found, "temperature_scaling", "blobs-c", "cnll") > 0
    assert found.default == "ERM + temperature scaling"


def test_latency_is_measured_on_demand(network):
    found = compared(network, methods=["energy"], shifts={}, ood={}, latency=True)
    assert of(found, "energy", "cost", "latency_ratio:32") > 0
    assert of(found, "deterministic", "cost", "latency_ratio:32") == 1
    assert "latency" in found.conditions


def test_a_method_that_cannot_be_built_is_left_out_and_named(network, monkeypatch):
    monkeypatch.setattr(mixtures, "LARGEST", 10)
    found = compared(network, methods=["gaussian_discriminant", "energy"], shifts={}, ood={})
    assert "gaussian_discriminant" not in {line.kind for line in found.contenders}
    assert any("Gaussian discriminant is left out: 3 covariances" in note for note in found.notes)


def test_test_samples_that_were_trained_on_are_reported(network):
    with pytest.warns(CalibrationWarning, match="100% of the test samples are training samples"):
        found = compared(network, test=SETS["train"], methods=["energy"], shifts={}, ood={})
    assert any("training samples" in note for note in found.notes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"methods": ["kn"]}, "unknown post-hoc method 'kn'; did you mean 'knn'"),
        ({"methods": [ds.SNGP.Config()]}, "unknown post-hoc method 'sngp'"),
        ({"shifts": {"iid": SETS["test"]}}, "'iid': this name is taken"),
        ({"ood": {"noise": OOD["far"]}}, "'noise': this name is taken"),
        ({"layers": "first"}, "is one name: pass a list"),
        ({"methods": [posthoc_default()], "layers": ()}, "pass them as layers="),
    ],
)
def test_what_cannot_be_compared_is_refused(options, message, network):
    with pytest.raises(UserError, match=message):
        compared(network, **options)
