"""All post-hoc methods on a trained CIFAR-10 ResNet, and what the comparison costs.

    python benchmarks/compare.py --data DIR [--weights FILE] [--corruptions fog,glass_blur]
        [--severities 1,3,5] [--train N] [--images N] [--no-neighbours] [--latency] [--out DIR]

DIR holds `cifar-10-batches-bin/`, `svhn/test_32x32.mat` and `cifar100_prefix.npz`; FILE is a
safetensors file of a CIFAR ResNet with its classifier `linear`, by default the first in DIR. A part
of the test images chosen by the seed calibrates; the others, their corruptions, SVHN and CIFAR-100
are what is reported. Written are the page, rows.csv, the table and the figure of the comparison.

The cost is the time of `compare` over that of the bare network on the same images. With
--no-neighbours methods that store training data are left out of both.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn

import density_softmax as ds
from cifar_resnet_accuracy import load_classifier
from density_softmax.data import ArraySource
from density_softmax.data.corruptions import CORRUPTIONS, corrupt
from density_softmax.data.sources import SubsetSource
from density_softmax.engine import EngineConfig, start
from density_softmax.engine.passes import collect
from density_softmax.methods.base import MethodConfig
from density_softmax.posthoc import posthoc_kinds
from density_softmax.types import Source
from posthoc_cifar10 import BATCH_SIZE, LAYERS, Images


def main() -> None:
    """Compare, print the table and the cost, and write the page."""
    args = parse()
    torch.set_num_threads(args.threads)
    engine = EngineConfig(accelerator="cpu", predict_batch_size=BATCH_SIZE)
    images = Images(args.data, args.seed, args.images)
    sets = {
        "train": first(images.train, args.train),
        "calibration": images.calibration,
        "test": ArraySource(images.bytes, images.labels, images.preparation),
    }
    shifts = corrupted(images, args.corruptions, args.severities)
    ood = {name: first(source, args.images) for name, source in images.ood.items()}
    model = load_classifier(load_file(args.weights or next(args.data.glob("*.safetensors"))))
    bare = bare_seconds(model, [*sets.values(), *shifts.values(), *ood.values()], engine)
    began = time.perf_counter()
    report = ds.compare(
        model,
        head="1",
        train=sets["train"],
        calibration=sets["calibration"],
        test=sets["test"],
        shifts=shifts,
        ood=ood,
        methods=chosen(args.methods, args.no_neighbours),
        layers=LAYERS,
        latency=args.latency,
        seed=args.seed,
        engine=engine,
    )
    seconds = time.perf_counter() - began
    print(report)
    print(f"compare {seconds:.1f} s, bare network {bare:.1f} s: ratio {seconds / bare:.2f}")
    if args.out is not None:
        print(report.save(args.out))


def first(source: Source, number: int | None) -> Source:
    """The first samples of a set, or all of them."""
    if number is None or number >= len(source):
        return source
    return SubsetSource(source, list(range(number)))


def corrupted(images: Images, kinds: list[str], severities: list[int]) -> dict[str, Source]:
    """Corruptions of the test images, by the names of their splits."""
    pixels = np.ascontiguousarray(images.bytes.permute(0, 2, 3, 1).numpy())
    found: dict[str, Source] = {}
    for kind in kinds:
        for severity in severities:
            changed = corrupt(pixels, kind, severity, indices=images.rows.numpy())
            x = torch.from_numpy(np.ascontiguousarray(changed.transpose(0, 3, 1, 2)))
            source = ArraySource(x, images.labels, images.preparation)
            found[f"cifar10-c/{kind}/{severity}"] = source
    return found


def bare_seconds(model: nn.Module, sources: list[Source], engine: EngineConfig) -> float:
    """What the network alone takes for all images."""
    fabric, model = start(engine), model.eval()
    began = time.perf_counter()
    for source in sources:
        collect(fabric, source, lambda batch: {"logits": model(batch.x)}, BATCH_SIZE)
    return time.perf_counter() - began


def chosen(methods: list[str] | None, without_neighbours: bool) -> list[str]:
    """The kinds of methods to compare."""
    kinds = methods or posthoc_kinds()
    stored = {kind for kind in kinds if MethodConfig.members[kind].stores_data}
    return [kind for kind in kinds if not (without_neighbours and kind in stored)]


def parse() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = lambda text: text.split(",")  # noqa: E731
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--corruptions", type=names, default=list(CORRUPTIONS))
    parser.add_argument("--severities", type=lambda text: list(map(int, text.split(","))))
    parser.add_argument("--methods", type=names, help="names with commas between; all by default")
    parser.add_argument("--no-neighbours", action="store_true")
    parser.add_argument("--latency", action="store_true")
    parser.add_argument("--train", type=int, help="training images; all by default")
    parser.add_argument("--images", type=int, help="test and OOD images; all by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.set_defaults(severities=[1, 3, 5])
    return parser.parse_args()


if __name__ == "__main__":
    main()
