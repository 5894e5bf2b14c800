"""Accuracy of a trained CIFAR ResNet on every corruption and severity made here.

    python benchmarks/corruption_accuracy.py --data DIR --weights FILE [--images 2000] [--out DIR]

A check of the corruptions: accuracy must fall with severity.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from rich.progress import track
from safetensors.torch import load_file

from cifar_resnet_accuracy import depth_of, load_classifier, normalized, num_errors
from density_softmax.data import Images, find_images
from density_softmax.data.corruptions import ALL_CORRUPTIONS, SEVERITIES, corrupt
from density_softmax.runs.rows import write_rows
from density_softmax.types import Batch, Row


def main() -> None:
    """Print a table of types and severities, and write rows where asked to."""
    args = parse()
    torch.set_num_threads(args.threads)
    state = load_file(args.weights)
    classifier = load_classifier(state)
    test = find_images("cifar10", args.data).images.read("test")
    assert isinstance(test, Images)
    images = np.ascontiguousarray(test.x[: args.images].permute(0, 2, 3, 1).numpy())
    labels = test.y[: args.images]
    accuracy: dict[tuple[str, int], float] = {}
    for kind in track(ALL_CORRUPTIONS, description="corruptions"):
        for severity in SEVERITIES:
            changed = corrupt(images, kind, severity).transpose(0, 3, 1, 2)
            x = normalized(torch.from_numpy(np.ascontiguousarray(changed)))
            accuracy[kind, severity] = 1 - num_errors(classifier, Batch(x, labels)) / len(labels)
    clean = 1 - num_errors(classifier, Batch(normalized(test.x[: args.images]), labels)) / len(
        labels
    )
    print(f"ResNet-{depth_of(state)}, {len(labels)} images, clean accuracy {clean:.1%}\n")
    print(table(accuracy))
    if args.out is not None:
        names = ("cifar10_resnet", "deterministic", f"depth={depth_of(state)}", 0)
        rows = [
            Row(*names, f"cifar10-c/{kind}/{severity}", "accuracy", value)
            for (kind, severity), value in accuracy.items()
        ]
        write_rows(args.out / "rows.csv", [Row(*names, "iid", "accuracy", clean), *rows])


def table(accuracy: dict[tuple[str, int], float]) -> str:
    """A line per type in Markdown, per cent, with the mean over types at the end."""
    lines = ["| type | 1 | 2 | 3 | 4 | 5 |", "|---|---|---|---|---|---|"]
    for kind in ALL_CORRUPTIONS:
        cells = (f"{100 * accuracy[kind, severity]:.1f}" for severity in SEVERITIES)
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    means = (np.mean([accuracy[kind, s] for kind in ALL_CORRUPTIONS]) for s in SEVERITIES)
    lines.append(f"| **mean** | {' | '.join(f'{100 * mean:.1f}' for mean in means)} |")
    return "\n".join(lines)


def parse() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--weights", type=Path, required=True, metavar="FILE")
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="folder for rows.csv")
    return parser.parse_args()


if __name__ == "__main__":
    main()
