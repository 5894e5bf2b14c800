"""An epoch of CIFAR-10, cropped, flipped and normalised: whole batches against single images.

python benchmarks/loading_speed.py [--data ROOT]

The other sides are DataLoaders with two worker processes whose data sets work on one image at a
time: on a PIL image, as torchvision's CIFAR10 and its transforms do, or on a tensor, which is as
lean as it gets. All serve the same images. They take turns in one process, medians are compared.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from density_softmax.data import ArraySource, ImagePreparation, find_images
from density_softmax.runs.rows import write_rows
from density_softmax.types import Row

MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.247, 0.2435, 0.2616)
PADDING = 2
CPU = torch.device("cpu")


class SingleImages(Dataset[tuple[Tensor, Tensor]]):
    """One image at a time: pad, crop, flip, normalise."""

    def __init__(self, x: Tensor, y: Tensor, augment: Callable[[Tensor, int, int], Tensor]) -> None:
        self.x, self.y, self.augment = x, y, augment
        self.mean, self.std = (torch.tensor(value).reshape(3, 1, 1) for value in (MEAN, STD))

    def __len__(self) -> int:
        """The number of images."""
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """One image, augmented, and its label."""
        top, left = torch.randint(2 * PADDING + 1, (2,)).tolist()
        image = self.augment(self.x[index], top, left)
        return image.float().div_(255).sub_(self.mean).div_(self.std), self.y[index]


def with_tensors(image: Tensor, top: int, left: int) -> Tensor:
    """Crop and flip of a tensor."""
    _, height, width = image.shape
    image = F.pad(image, (PADDING,) * 4)[:, top : top + height, left : left + width]
    return image.flip(-1) if torch.rand(()) < 0.5 else image


def with_pil(image: Tensor, top: int, left: int) -> Tensor:
    """Crop and flip of a PIL image."""
    _, height, width = image.shape
    picture = ImageOps.expand(Image.fromarray(image.permute(1, 2, 0).numpy()), PADDING)
    picture = picture.crop((left, top, left + width, top + height))
    if torch.rand(()) < 0.5:
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1)


def whole_batches(x: Tensor, y: Tensor, batch_size: int) -> int:
    """One epoch of our source; returns the number of images served."""
    source = ArraySource(x, y, ImagePreparation(MEAN, STD, padding=PADDING))
    order = torch.tensor(source.order(0)).split(batch_size)
    return sum(len(batch.x) for batch in source.read(order, CPU, seed=0))


def single_images(
    augment: Callable[[Tensor, int, int], Tensor], x: Tensor, y: Tensor, batch_size: int
) -> int:
    """One epoch of a DataLoader with two workers; returns the number of images served."""
    loader = DataLoader(SingleImages(x, y, augment), batch_size, shuffle=True, num_workers=2)
    return sum(len(images) for images, _ in loader)


OURS = "whole batches"
WAYS: dict[str, Callable[[Tensor, Tensor, int], int]] = {
    OURS: whole_batches,
    "single PIL images": partial(single_images, with_pil),
    "single tensors": partial(single_images, with_tensors),
}


def images(data: Path | None, number: int) -> tuple[Tensor, Tensor]:
    """The training images of CIFAR-10, or random ones of the same size."""
    if data is not None:
        train = find_images("cifar10/train", data).images.read("train")
        x, y = train.x[:number], train.y[:number]  # type: ignore[attr-defined]
        return x, y
    x = torch.randint(256, (number, 3, 32, 32), dtype=torch.uint8)
    return x, torch.randint(10, (number,))


def main() -> None:
    """Time both ways in turn and print the ratio."""
    args = parse()
    torch.set_num_threads(args.threads)
    x, y = images(args.data, args.images)
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for repeat in range(args.repeats):
        for way in WAYS if repeat % 2 == 0 else reversed(WAYS):
            start = time.perf_counter()
            assert WAYS[way](x, y, args.batch_size) == len(x)
            seconds[way].append(time.perf_counter() - start)
    report(seconds, args)


def report(seconds: dict[str, list[float]], args: argparse.Namespace) -> None:
    """Print medians and their ratio, and write rows where asked to."""
    medians = {way: statistics.median(values) for way, values in seconds.items()}
    print(
        f"{args.images} images, batch {args.batch_size}, {args.threads} threads of ours against "
        f"2 workers, median of {args.repeats}:"
    )
    for way, value in medians.items():
        print(f"  {way:<18} {value:6.2f} s   {value / medians[OURS]:5.1f} x")
    if args.out is not None:
        rows = [
            Row("cifar10", "loading", f"unit={way}", 0, "cost", "train_seconds:epoch", value)
            for way, value in medians.items()
        ]
        write_rows(args.out / "rows.csv", rows)


def parse() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="data root with CIFAR-10; else random images")
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1, help="of our side")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, help="folder for rows.csv")
    return parser.parse_args()


if __name__ == "__main__":
    main()
