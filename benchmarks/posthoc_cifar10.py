"""Every post-hoc method on trained CIFAR-10 ResNets: corruptions, OOD sets, and what it costs.

    python benchmarks/posthoc_cifar10.py --data DIR [--weights FILE ...] [--out DIR]

DIR holds `cifar-10-batches-bin/`, `cifar-100-binary/` and `svhn/test_32x32.mat`; each FILE is a
safetensors file of a CIFAR ResNet with its classifier `linear`, by default those in DIR. A part
of the test images chosen by the seed calibrates; the others, their 15 corruptions in five
severities, SVHN and the test images of CIFAR-100 are what is reported. `ds.compare` fits and scores
all methods; the lines with settings are other forms of Density-Softmax. For each network a folder
holds the page, the rows and the table of the comparison; OUT/rows.csv has all rows.

With --choose no test figure is looked at. Half of the calibrating images calibrates; the other half
is reported, clean and under the four corruptions that CIFAR-10-C calls extra, and the OOD set is
training images of CIFAR-100. That is how the default was chosen.

--cost also prints the time of `compare` over that of the bare network on the same images;
--no-neighbours leaves out methods that store training data.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from safetensors.torch import load_file
from torch import nn

import density_softmax as ds
from cifar_resnet_accuracy import MEAN, STD, depth_of, load_classifier
from density_softmax import metrics
from density_softmax.data import ArraySource, find_images, hold_out
from density_softmax.data import Images as ImageArrays
from density_softmax.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, SEVERITIES, corrupt
from density_softmax.data.image_data import ImageData
from density_softmax.data.sources import SubsetSource
from density_softmax.engine import EngineConfig, start
from density_softmax.engine.passes import collect
from density_softmax.methods.base import Method, MethodConfig
from density_softmax.methods.density_softmax import DensitySoftmax
from density_softmax.nn.densities import FlowDensity
from density_softmax.nn.softmax.scale import QuantileScale, RangeScale, TemperatureScale
from density_softmax.posthoc import posthoc_kinds
from density_softmax.recipes.attach import closed_form
from density_softmax.runs.rows import write_rows
from density_softmax.training import Adam, Descent
from density_softmax.types import Row, Source

LAYERS = ("0.layer1", "0.layer2")
NUM_CALIBRATION = 0.3
BATCH_SIZE = 100  # of 500 images the features leave the cache, and a quarter more time passes
NUM_OOD = 10_000
EXAMPLE = torch.zeros(1, 3, 32, 32)


def variants() -> list[DensitySoftmax.Config]:
    """Other forms of Density-Softmax than the default."""
    last, layers = closed_form(()), closed_form(LAYERS)
    assert isinstance(last.scale, QuantileScale.Config)
    flow = FlowDensity.Config(descent=Descent(epochs=20, optimizer=Adam(lr=1e-3)))
    return [
        last,
        # The experts that do not know the classes, and the energy.
        replace(layers, classes=False),
        # What the default may give up in-domain, given up for a higher temperature.
        replace(last, scale=TemperatureScale.Config(last.scale.budget)),
        # The rule of the paper's code.
        replace(last, classes=False, energy=False, density=flow, scale=RangeScale.Config()),
    ]


class Images:
    """The sets of the benchmark, normalised as the networks expect."""

    def __init__(self, root: Path, seed: int, num_images: int | None, choose: bool = False) -> None:
        data = ImageData(
            train="cifar10",
            ood=() if choose else ("svhn", "cifar100"),
            heldout=0.02,
            augment=False,
            mean=MEAN,
            std=STD,
            root=str(root),
        ).load(seed)
        whole = data.splits[0].source
        assert isinstance(whole, ArraySource)
        self.preparation, self.train = whole.preparation, data.train
        tested, calibrating = hold_out(len(whole), NUM_CALIBRATION, seed)
        if choose:
            calibrating, tested = calibrating[::2], calibrating[1::2]
        self.rows = tested[:num_images]
        self.corruptions = EXTRA_CORRUPTIONS if choose else CORRUPTIONS
        self.bytes, self.labels = whole.x[self.rows], whole.y[self.rows]
        self.calibration = ArraySource(whole.x[calibrating], whole.y[calibrating], self.preparation)
        self.test = ArraySource(self.bytes, self.labels, self.preparation)
        number = min(NUM_OOD, num_images or NUM_OOD)
        self.ood = {split.name: first(split.source, number) for split in data.splits[1:]}
        if choose:
            near = find_images("cifar100", root).images.read("train")
            assert isinstance(near, ImageArrays)
            x, y = near.x[:number], near.y[:number]
            self.ood["cifar100-train"] = ArraySource(x, y, self.preparation)

    def shifts(self, severities: Sequence[int] = SEVERITIES) -> dict[str, Source]:
        """Every corruption of the test images, by the names of their splits."""
        images = np.ascontiguousarray(self.bytes.permute(0, 2, 3, 1).numpy())
        found: dict[str, Source] = {}
        for kind in self.corruptions:
            for severity in severities:
                changed = corrupt(images, kind, severity, indices=self.rows.numpy())
                x = torch.from_numpy(np.ascontiguousarray(changed.transpose(0, 3, 1, 2)))
                source = ArraySource(x, self.labels, self.preparation)
                found[f"cifar10-c/{kind}/{severity}"] = source
        return found


def first(source: Source, number: int) -> Source:
    """The first samples of a set."""
    return source if number >= len(source) else SubsetSource(source, list(range(number)))


def compare(
    model: nn.Module, images: Images, shifts: dict[str, Source], args: argparse.Namespace
) -> ds.Comparison:
    """All methods on one network, with the cost of comparing them."""
    engine = EngineConfig(accelerator="cpu", predict_batch_size=BATCH_SIZE)
    train = images.train if args.train is None else first(images.train, args.train)
    sets = [train, images.calibration, images.test, *shifts.values(), *images.ood.values()]
    bare = bare_seconds(model, sets, engine) if args.cost else math.nan
    began = time.perf_counter()
    report = ds.compare(
        model,
        head="1",
        train=train,
        calibration=images.calibration,
        test=images.test,
        shifts=shifts,
        ood=images.ood,
        methods=[*kinds(args.no_neighbours), *variants()],
        layers=LAYERS,
        latency=args.latency,
        seed=args.seed,
        engine=engine,
    )
    seconds = time.perf_counter() - began
    print(report)
    if args.cost:
        print(f"compare {seconds:.1f} s, bare network {bare:.1f} s: ratio {seconds / bare:.2f}")
    return report


def kinds(without_neighbours: bool) -> list[str]:
    """The kinds of methods to compare."""
    stored = [kind for kind in posthoc_kinds() if MethodConfig.members[kind].stores_data]
    return [kind for kind in posthoc_kinds() if not (without_neighbours and kind in stored)]


def bare_seconds(model: nn.Module, sources: list[Source], engine: EngineConfig) -> float:
    """What the network alone takes for all images."""
    fabric, model = start(engine), model.eval()
    began = time.perf_counter()
    for source in sources:
        collect(fabric, source, lambda batch: {"logits": model(batch.x)}, BATCH_SIZE)
    return time.perf_counter() - began


def exported_latency(model: nn.Module, images: Images, repeats: int) -> dict[str, float]:
    """The default as an ONNX graph at batch 1, relative to the exported network."""
    attach = partial(
        ds.attach,
        model,
        head="1",
        train=first(images.train, 2000),
        calibration=images.calibration,
        progress=False,
    )
    plain, default = attach(method="max_softmax"), attach(layers=LAYERS)
    x = torch.randn_like(EXAMPLE).numpy()
    with tempfile.TemporaryDirectory() as folder:
        graphs = {
            "plain": exported(plain, Path(folder) / "plain.onnx"),
            "default": exported(default, Path(folder) / "default.onnx"),
        }
    calls: dict[str, Callable[[], object]] = {
        name: partial(graph.run, None, {graph.get_inputs()[0].name: x})
        for name, graph in graphs.items()
    }
    measured = metrics.interleaved_latency(calls, repeats=repeats, warmup=20)
    return {"exported_latency:1": metrics.latency_ratio(measured, "plain")["default"]}


def exported(method: Method, path: Path) -> onnxruntime.InferenceSession:
    """A session of the method's graph, with as many threads as torch has."""
    ds.export(method, path, example=EXAMPLE)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def main() -> None:
    """Evaluate every network and write rows and tables."""
    args = parse()
    torch.set_num_threads(args.threads)
    images = Images(args.data, args.seed, args.images, args.choose)
    shifts = images.shifts(args.severities)
    rows: list[Row] = []
    for file in args.weights:
        state = load_file(file)
        name, model = f"resnet{depth_of(state)}", load_classifier(state)
        report = compare(model, images, shifts, args)
        report.save(args.out / name)
        rows += [row._replace(recipe=f"posthoc_cifar10/{name}") for row in report.rows]
        if args.latency:
            costs = exported_latency(model, images, args.repeats)
            label = (f"posthoc_cifar10/{name}", "density_softmax", "default", args.seed, "cost")
            rows += [Row(*label, metric, value) for metric, value in costs.items()]
            print(costs)
        write_rows(args.out / "rows.csv", rows)


def parse() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--weights", type=Path, nargs="+", metavar="FILE", default=[])
    parser.add_argument("--out", type=Path, default=Path("runs/posthoc_cifar10"))
    parser.add_argument("--images", type=int, help="how many to report on; all if not given")
    parser.add_argument("--train", type=int, help="how many to train on; all if not given")
    parser.add_argument("--severities", type=int, nargs="+", default=list(SEVERITIES))
    parser.add_argument("--choose", action="store_true", help="report no test image")
    parser.add_argument("--cost", action="store_true", help="time the bare network, too")
    parser.add_argument("--no-neighbours", action="store_true")
    parser.add_argument("--latency", action="store_true", help="measure it; on a quiet machine")
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
