"""What a density reads and how fast its factor falls, compared without a test image.

    python benchmarks/held_out_shifts.py RUN [RUN ...] [--layers stem,group1 ...] [--out DIR]

To the network of each RUN (of a method with one encoder and one head, on images in memory) the
closed form of Density-Softmax is attached, with each set of --layers, each of --quantiles and
each of --budgets. Shown are the NLL and ECE of the run's held-out images, on which the scale is
fitted, and the means over four corruptions of them in five severities: those that CIFAR-10-C
calls extra and that no benchmark here reports on. The first lines of a run have one temperature and
no density: the best one, and the highest within each budget, which is what a density has to beat.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import track

from density_softmax.data import ArraySource
from density_softmax.data.corruptions import EXTRA_CORRUPTIONS, SEVERITIES, corrupt
from density_softmax.data.image_data import ImageData
from density_softmax.engine import EngineConfig, fit
from density_softmax.engine.passes import collect
from density_softmax.engine.runtime import start
from density_softmax.methods.base import Method
from density_softmax.methods.density_softmax import DensitySoftmax
from density_softmax.nn.softmax.head import Head
from density_softmax.nn.softmax.scale import QuantileScale, TemperatureScale
from density_softmax.recipes.attach import closed_form
from density_softmax.runs.evaluation import label_metrics
from density_softmax.runs.rows import write_rows
from density_softmax.runs.run import Run
from density_softmax.types import Row, Source

METRICS = ("nll", "ece")
Found = dict[str, float]


def main() -> None:
    """Compare all settings on one network after another."""
    args = parse()
    torch.set_num_threads(args.threads)
    rows = []
    print("| run | layers, quantile, budget | NLL | ECE | cNLL | cECE |\n|---|---|---|---|---|---|")
    for path in args.runs:
        run = Run.at(path)
        recipe, seed, method = run.recipe, run.seed, run.load()
        if not isinstance(recipe.data, ImageData) or not isinstance(head_of(method), Head):
            raise SystemExit(
                f"{path}: {method.config.kind} on {recipe.name}; give a run on images, of a method "
                "with one linear head such as deterministic or density_softmax"
            )
        only_learned = replace(recipe, data=replace(recipe.data, shifts=(), ood=()))
        data = only_learned.load_data(seed)
        if data.heldout is None:
            raise SystemExit(f"{path}: held nothing out; give a run with data.heldout above 0")
        sources = sets(data.train, data.heldout, args.images)
        for setting, found in compare(method, sources, args):
            values = " | ".join(f"{value:.4f}" for value in found.values())
            print(f"| {path} | {setting} | {values} |", flush=True)
            label = (recipe.name, method.config.kind, setting, seed, "heldout")
            rows += [Row(*label, metric, value) for metric, value in found.items()]
    if args.out is not None:
        write_rows(args.out / "rows.csv", rows)


def sets(train: Source, heldout: Source, num_images: int) -> dict[str, ArraySource]:
    """Training and held-out images, and some of the latter under every corruption."""
    assert isinstance(train, ArraySource)
    assert isinstance(heldout, ArraySource)
    found = {"train": train, "heldout": heldout}
    images = np.ascontiguousarray(heldout.x[:num_images].permute(0, 2, 3, 1).numpy())
    for kind, severity in track([*product(EXTRA_CORRUPTIONS, SEVERITIES)], description="corrupt"):
        x = np.ascontiguousarray(corrupt(images, kind, severity).transpose(0, 3, 1, 2))
        y = heldout.y[:num_images]
        found[f"{kind}/{severity}"] = ArraySource(torch.from_numpy(x), y, heldout.preparation)
    return found


def compare(
    trained: Method, sources: dict[str, ArraySource], args: argparse.Namespace
) -> Iterator[tuple[str, Found]]:
    """What each setting gives, with its name."""
    blind = Attached(trained, closed_form(()), sources)
    for budget in (0.0, *args.budgets):
        control = replace(closed_form(()), scale=TemperatureScale.Config(budget))
        yield f"one temperature, {budget}", blind.found(control)
    for layers in args.layers:
        attached = Attached(trained, closed_form(layers), sources)
        for quantile, budget in product(args.quantiles, args.budgets):
            scale = QuantileScale.Config(quantile=quantile, budget=budget)
            config = replace(closed_form(layers), scale=scale)
            yield f"{' + '.join(layers)}, {quantile}, {budget}", attached.found(config)


class Attached:
    """A trained network with a reader of layers, and the features of all sets."""

    def __init__(
        self, trained: Method, config: DensitySoftmax.Config, sources: dict[str, ArraySource]
    ) -> None:
        self.trained, self.sources = trained, sources
        self.example = next(sources["train"].read([[0]], torch.device("cpu"))).x
        fabric, method = start(EngineConfig()), self._around(config)
        self.features = {}
        for name in track(sources, description="features"):
            rows = collect(
                fabric,
                sources[name],
                lambda batch: {"z": method.features(batch.x), "y": batch.y},
                batch_size=100,
            )
            self.features[name] = ArraySource(rows["z"], rows["y"])

    def found(self, config: DensitySoftmax.Config) -> Found:
        """Metrics of one setting: held-out, and the means over their corruptions."""
        method, known = self._around(config), self.features
        given = {name: known[name] for name in ("train", "heldout")}
        fit(method, self.sources["train"], self.sources["heldout"], features=given, progress=False)
        with torch.inference_mode():
            each = {
                name: label_metrics(method.predict_features(source.x), source.y)
                for name, source in known.items()
                if name != "train"
            }
        clean, *shifted = each.values()
        means = {f"c{m}": float(np.mean([found[m] for found in shifted])) for m in METRICS}
        return {m: clean[m] for m in METRICS} | means

    def _around(self, config: DensitySoftmax.Config) -> DensitySoftmax:
        trained = self.trained
        method = DensitySoftmax(trained.encoder, trained.num_classes, config, self.example)
        method.head.linear = head_of(trained).linear
        return method.eval()


def head_of(method: Method) -> Any:
    """What a method calls its head; some have none, others none like ours."""
    return getattr(method, "head", None)


def parse() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    parser.add_argument("--layers", type=_names, nargs="+", default=[("stem", "group1")])
    parser.add_argument("--quantiles", type=float, nargs="+", default=[0.1, 0.5, 0.9])
    parser.add_argument("--budgets", type=float, nargs="+", default=[0.002, 0.005])
    parser.add_argument("--images", type=int, default=2000, help="that are corrupted")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="folder for rows.csv")
    return parser.parse_args()


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


if __name__ == "__main__":
    main()
