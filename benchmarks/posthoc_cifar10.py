"""Uncertainty attached to trained CIFAR-10 ResNets: every rule, on corruptions and OOD sets.

    python benchmarks/posthoc_cifar10.py --data DIR [--weights FILE ...] [--out DIR]

DIR holds `cifar-10-batches-bin/`, `svhn/test_32x32.mat` and `cifar100_prefix.npz`; each FILE is a
safetensors file of a CIFAR ResNet with its classifier `linear`, by default those in DIR. A part
of the test images chosen by the seed calibrates; the others, their 15 corruptions in five
severities, SVHN and CIFAR-100 are what is reported. Features are computed once per set and serve
all rules. Written are rows.csv, table.md and a figure, calibration.png.

With --choose no test figure is looked at: reported are the calibrating images themselves, clean and
under the four corruptions that CIFAR-10-C calls extra. That is how the default was chosen.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from rich.progress import track
from safetensors.torch import load_file
from torch import Tensor, nn

import density_softmax as ds
from cifar_resnet_accuracy import MEAN, STD, depth_of, load_classifier
from density_softmax import metrics
from density_softmax.data import ArraySource, hold_out
from density_softmax.data.corruptions import (
    CORRUPTIONS,
    EXTRA_CORRUPTIONS,
    SEVERITIES,
    corrupt,
)
from density_softmax.data.image_data import ImageData
from density_softmax.engine import EngineConfig, fit
from density_softmax.engine.passes import collect
from density_softmax.engine.runtime import start
from density_softmax.methods.base import Method
from density_softmax.methods.density_softmax import DensitySoftmax
from density_softmax.methods.deterministic import Deterministic
from density_softmax.nn.backbones.headless import Headless
from density_softmax.nn.densities import FlowDensity, GaussianMixtureDensity
from density_softmax.nn.softmax.scale import (
    ConstantScale,
    MaxScale,
    QuantileScale,
    RangeScale,
    TemperatureScale,
)
from density_softmax.posthoc import around
from density_softmax.recipes.attach import closed_form
from density_softmax.report.style import paper_style
from density_softmax.runs.evaluation import detection_metrics, label_metrics, mean_over_shifts
from density_softmax.runs.rows import write_rows
from density_softmax.training import Adam, Descent
from density_softmax.types import Row, Source
from posthoc_figures import SCORES, draw, tables

LAYERS = ("0.layer1", "0.layer2")
NUM_CALIBRATION = 0.3
BATCH_SIZE = 100  # of 500 images the features leave the cache, and a quarter more time passes
EXAMPLE = torch.zeros(1, 3, 32, 32)
CONTROLS = ("temperature_scaling", "temperature, same budget", "constant_factor")
Found = dict[str, dict[str, float]]


def rules() -> dict[str, DensitySoftmax.Config]:
    """What is compared. The density that ERM and its controls carry is not used."""
    base = closed_form(LAYERS)
    last = dataclasses.replace(base, layers=(), energy=False)
    shallow = dataclasses.replace(base, last=False, energy=False)
    assert isinstance(base.scale, QuantileScale.Config)
    exponential = dataclasses.replace(base.scale, tail="exponential")
    power = dataclasses.replace(base.scale, tail="power")
    flow = FlowDensity.Config(descent=Descent(epochs=20, optimizer=Adam(lr=1e-3)))
    mixture = GaussianMixtureDensity.Config()
    change = dataclasses.replace
    return {
        "erm": change(last, scale=ConstantScale.Config(1.0)),
        "temperature_scaling": change(last, scale=TemperatureScale.Config()),
        # What the default may give up in-domain, given up for a higher temperature.
        "temperature, same budget": change(last, scale=TemperatureScale.Config(base.scale.budget)),
        # exp(−.5): the middle of the range of the paper's code, without its density.
        "constant_factor": change(last, scale=ConstantScale.Config(0.6065)),
        "max, last, realnvp": change(last, scale=MaxScale.Config(), density=flow),
        "range, last, realnvp": change(last, scale=RangeScale.Config(), density=flow),
        "quantile, last, realnvp": change(last, density=flow),
        "quantile, last, gaussian": last,
        "quantile, last, mixture": change(last, density=mixture),
        "max, layers, gaussian": change(shallow, scale=MaxScale.Config()),
        "range, layers, gaussian": change(shallow, scale=RangeScale.Config()),
        "quantile, layers, realnvp": change(shallow, density=flow),
        "quantile, layers, mixture": change(shallow, density=mixture),
        "quantile, layers, gaussian": shallow,
        "quantile, layers + energy, gaussian": change(base, last=False),
        "quantile, both + energy, realnvp": change(base, density=flow),
        "quantile, both + energy, mixture": change(base, density=mixture),
        "range, both + energy, gaussian": change(base, scale=RangeScale.Config()),
        "quantile, exponential tail": change(base, scale=exponential),
        "quantile, power tail": change(base, scale=power),
        "default": base,
    }


class Images:
    """The sets of the benchmark, normalised as the networks expect."""

    def __init__(self, root: Path, seed: int, num_images: int | None, choose: bool = False) -> None:
        sets = () if choose else ("svhn", str(root / "cifar100_prefix.npz"))
        data = ImageData(
            train="cifar10",
            ood=sets,
            heldout=0.02,
            augment=False,
            mean=MEAN,
            std=STD,
            root=str(root),
        ).load(seed)
        whole = data.splits[0].source
        assert isinstance(whole, ArraySource)
        self.preparation = whole.preparation
        tested, calibrating = hold_out(len(whole), NUM_CALIBRATION, seed)
        self.rows = (calibrating if choose else tested)[:num_images]
        self.corruptions = EXTRA_CORRUPTIONS if choose else CORRUPTIONS
        self.bytes = whole.x[self.rows]
        self.labels = whole.y[self.rows]
        self.train = data.train
        self.calibration = ArraySource(whole.x[calibrating], whole.y[calibrating], self.preparation)
        self.ood = {split.name: split.source for split in data.splits[1:]}

    def test_sets(self) -> Iterator[tuple[str, ArraySource]]:
        """The clean images, then each corruption of them."""
        yield "iid", ArraySource(self.bytes, self.labels, self.preparation)
        images = np.ascontiguousarray(self.bytes.permute(0, 2, 3, 1).numpy())
        for kind in self.corruptions:
            for severity in SEVERITIES:
                changed = corrupt(images, kind, severity, indices=self.rows.numpy())
                x = torch.from_numpy(np.ascontiguousarray(changed.transpose(0, 3, 1, 2)))
                source = ArraySource(x, self.labels, self.preparation)
                yield f"cifar10-c/{kind}/{severity}", source


class Network:
    """One trained network, its features of every set, and the rules fitted on them."""

    def __init__(self, file: Path, images: Images, engine: EngineConfig) -> None:
        self.state = load_file(file)
        self.name = f"resnet{depth_of(self.state)}"
        self.images, self.engine = images, engine
        model = self.copy()
        self.fabric = start(engine)
        began = time.perf_counter()
        self.default = ds.attach(
            model,
            head="1",
            train=images.train,
            calibration=images.calibration,
            layers=LAYERS,
            engine=engine,
        )
        self.attach_seconds = time.perf_counter() - began

        self.fit_seconds: dict[str, float] = {}

    def features(self, source: Source) -> ArraySource:
        """Last features and, behind them, those of the layers."""
        rows = collect(
            self.fabric,
            source,
            lambda batch: {"z": self.default.features(batch.x), "y": batch.y},
            batch_size=BATCH_SIZE,
        )
        return ArraySource(rows["z"], rows["y"])

    def fitted(self, known: dict[str, ArraySource]) -> dict[str, DensitySoftmax]:
        """Every rule, from the same features."""
        methods = {}
        for name, config in track(rules().items(), description=f"{self.name}: rules"):
            # A copy each: timed in turn, none finds its weights in the cache of another.
            method = around(Headless(self.copy(), "1"), config, EXAMPLE)
            assert isinstance(method, DensitySoftmax)
            width = None if config.layers else method.num_features
            features = {k: ArraySource(v.x[:, :width], v.y) for k, v in known.items()}
            sources = self.images.train, self.images.calibration
            began = time.perf_counter()
            fit(method, *sources, features=features, engine=self.engine, progress=False)
            self.fit_seconds[name] = time.perf_counter() - began
            methods[name] = method
        return methods

    def evaluate(self, repeats: int) -> dict[str, Found]:
        """Metrics of every rule on every set, and its cost."""
        sets = {"train": self.images.train, "heldout": self.images.calibration}
        began = time.perf_counter()
        known = {name: self.features(source) for name, source in sets.items()}
        pass_seconds = time.perf_counter() - began
        methods = self.fitted(known)
        found = self.quality(methods)
        latencies = self.latencies(methods, repeats)
        for name, ratio in latencies.items():
            found[name]["cost"] = {"latency_ratio:1": ratio}
            if name not in ("erm", *CONTROLS):
                seconds = pass_seconds + self.fit_seconds[name]
                found[name]["cost"]["attach_seconds"] = seconds
        found["default"]["cost"]["attach_seconds"] = self.attach_seconds
        found["default"]["cost"] |= self.exported_latency(repeats)
        return {name: splits | mean_over_shifts(splits) for name, splits in found.items()}

    def quality(self, methods: dict[str, DensitySoftmax]) -> dict[str, Found]:
        """Metrics of every rule on every set."""
        found: dict[str, Found] = {name: {} for name in methods}
        inside: dict[str, ds.Prediction] = {}
        total = 1 + len(self.images.corruptions) * len(SEVERITIES)
        tests = track(self.images.test_sets(), description=f"{self.name}: test sets", total=total)
        for split, source in tests:
            features = self.features(source)
            for name, method in methods.items():
                prediction = predict(method, features.x)
                inside.setdefault(name, prediction)
                found[name][split] = label_metrics(prediction, features.y)
        for split, foreign in self.images.ood.items():
            features = self.features(foreign)
            for name, method in methods.items():
                detected = detection_metrics(inside[name], predict(method, features.x))
                # What the controls carry is not theirs.
                own = ("confidence", "entropy") if name in ("erm", *CONTROLS) else SCORES
                kept = {key: value for key, value in detected.items() if key.endswith(own)}
                found[name][split] = kept
        return found

    def latencies(self, methods: dict[str, DensitySoftmax], repeats: int) -> dict[str, float]:
        """Eager latency at batch 1 relative to the model alone."""
        plain, x = self.copy(), torch.randn_like(EXAMPLE)
        # The controls are the model and a division: their own methods carry an unused density.
        calls: dict[str, Callable[[], object]] = {
            name: partial(m, x) for name, m in methods.items()
        }
        calls |= {name: lambda: (plain(x) / 2.0).softmax(-1) for name in CONTROLS}
        calls["erm"] = lambda: plain(x).softmax(-1)
        with torch.inference_mode():
            measured = metrics.interleaved_latency(calls, repeats=repeats, warmup=20)
        return metrics.latency_ratio(measured, "erm")

    def exported_latency(self, repeats: int) -> dict[str, float]:
        """The default as an ONNX graph at batch 1, relative to the model exported and as it is."""
        plain, x = self.copy(), torch.randn_like(EXAMPLE)
        encoder = Headless(self.copy(), "1")
        alone = Deterministic(encoder, self.default.num_classes, example=EXAMPLE)
        alone.head.linear = encoder.head
        alone.mark_fitted()
        with tempfile.TemporaryDirectory() as folder:
            graphs = {
                "exported": exported(alone, Path(folder) / "erm.onnx"),
                "default": exported(self.default, Path(folder) / "default.onnx"),
            }
        calls: dict[str, Callable[[], object]] = {
            name: partial(graph.run, None, {graph.get_inputs()[0].name: x.numpy()})
            for name, graph in graphs.items()
        }
        calls["eager"] = lambda: plain(x).softmax(-1)
        with torch.inference_mode():
            measured = metrics.interleaved_latency(calls, repeats=repeats, warmup=20)
        return {
            f"exported_latency:{name}": metrics.latency_ratio(measured, name)["default"]
            for name in ("exported", "eager")
        }

    def copy(self) -> nn.Module:
        """The network, with weights of its own."""
        return load_classifier(self.state)


def exported(method: Method, path: Path) -> onnxruntime.InferenceSession:
    """A session of the method's graph, with as many threads as torch has."""
    ds.export(method, path, example=EXAMPLE)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


@torch.no_grad()
def predict(method: DensitySoftmax, features: Tensor) -> ds.Prediction:
    """The prediction from features of which the method may read only the first columns."""
    width = max(columns.stop for columns in method.typicality.columns)
    return method.predict_features(features[:, : max(method.num_features, width)])


def as_rows(network: str, seed: int, found: dict[str, Found]) -> list[Row]:
    """Every figure as a row; the recipe is the network."""
    return [
        Row(
            f"posthoc_cifar10/{network}",
            name if name in ("erm", *CONTROLS) else "density_softmax",
            name,
            seed,
            split,
            metric,
            value,
        )
        for name, splits in found.items()
        for split, values in splits.items()
        for metric, value in values.items()
    ]


def main() -> None:
    """Evaluate every network and write rows, tables and a figure."""
    args = parse()
    torch.set_num_threads(args.threads)
    engine = EngineConfig(accelerator="cpu", predict_batch_size=BATCH_SIZE)
    images = Images(args.data, args.seed, args.images, args.choose)
    rows: list[Row] = []
    for file in args.weights:
        network = Network(file, images, engine)
        found = network.evaluate(args.repeats)
        rows += as_rows(network.name, args.seed, found)
        print(tables(rows, network.name))
        write_rows(args.out / "rows.csv", rows)
    names = dict.fromkeys(row.recipe.partition("/")[2] for row in rows)
    text = "\n".join(tables(rows, name) for name in names)
    (args.out / "table.md").write_text(text, encoding="utf-8")
    with paper_style():
        draw(rows, list(names)).savefig(args.out / "calibration.png", dpi=200)


def parse() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--weights", type=Path, nargs="+", metavar="FILE", default=[])
    parser.add_argument("--out", type=Path, default=Path("runs/posthoc_cifar10"))
    parser.add_argument("--images", type=int, help="how many to report on; all if not given")
    parser.add_argument("--choose", action="store_true", help="report no test image")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=300, help="rounds of the latency")
    args = parser.parse_args()
    args.weights = args.weights or sorted(args.data.glob("*.safetensors"))
    if not args.weights:
        parser.error(f"{args.data} holds no .safetensors file: name the networks with --weights")
    return args


if __name__ == "__main__":
    main()
