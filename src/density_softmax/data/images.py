"""Labelled images in memory, how batches of them are prepared, and the contract of image sets."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, final

import torch
import torch.nn.functional as F
from torch import Tensor

from density_softmax.data.sources import ArraySource, Preparation
from density_softmax.errors import DataError
from density_softmax.types import Source

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "ImagePreparation",
    "ImageSet",
    "Images",
    "Samples",
    "Statistics",
    "check_labels",
    "numerals",
]

Shape = tuple[int, int, int]
Statistics = tuple[tuple[float, ...], tuple[float, ...]]


@final
class ImagePreparation(Preparation):
    """Random horizontal flip, random crop of the zero-padded image, then (x/255 − mean)/std.

    Args:
        mean: per channel, of pixel values between 0 and 1.
        std: per channel.
        augment: whether training batches are cropped and flipped at all.
        padding: pixels added on every side before an image in memory is cropped; files are cut
            by their own random resized crop instead.
        flip: whether half of the images are mirrored.
    """

    def __init__(
        self,
        mean: Sequence[float],
        std: Sequence[float],
        *,
        augment: bool = True,
        padding: int = 2,
        flip: bool = True,
    ) -> None:
        self.mean, self.std = tuple(mean), tuple(std)
        self.augment, self.padding, self.flip = augment, padding, flip
        mean_, std_ = (torch.tensor(value).reshape(-1, 1, 1) for value in (self.mean, self.std))
        self._scale, self._shift = 1 / (255 * std_), mean_ / std_

    def draw(self, num_samples: int, generator: torch.Generator) -> Tensor:
        """Top, left and mirrored (0 or 1) for every sample, (samples, 3)."""
        corner = torch.randint(2 * self.padding + 1, (num_samples, 2), generator=generator)
        mirrored = torch.randint(2, (num_samples, 1), generator=generator)
        return torch.cat([corner, mirrored if self.flip else torch.zeros_like(mirrored)], dim=1)

    def __call__(self, x: Tensor, draws: Tensor | None) -> Tensor:
        """Floats (batch, channels, height, width) from bytes of that shape."""
        if draws is not None and self.augment:
            x = crop_and_flip(x, draws, self.padding)
        return x.float().mul_(self._scale.to(x.device)).sub_(self._shift.to(x.device))


def crop_and_flip(x: Tensor, draws: Tensor, padding: int) -> Tensor:
    """Each image mirrored, padded and cropped as its row (top, left, mirrored) of `draws` says."""
    batch, channels, height, width = x.shape
    top, left, mirrored = draws.unbind(dim=1)
    chosen = torch.arange(batch, device=x.device) + batch * mirrored
    padded = F.pad(torch.cat([x, x.flip(3)]).index_select(0, chosen), (padding,) * 4)
    # In the flattened batch a crop of one channel is one window: it starts `top` rows and `left`
    # pixels into its plane, and its rows are a padded row apart. Copying windows is far cheaper
    # than gathering pixels.
    row, plane = padded.shape[3], padded.shape[2] * padded.shape[3]
    windows = padded.flatten().unfold(0, (height - 1) * row + width, 1)
    planes = plane * torch.arange(batch * channels, device=x.device).reshape(batch, channels)
    starts = planes + (top * row + left)[:, None]
    crops = windows.index_select(0, starts.flatten()).unfold(1, width, row)
    return crops.unflatten(0, (batch, channels))


class Samples(ABC):
    """Labelled images, in memory or on disk. Without class names the labels mean nothing."""

    y: Tensor
    class_names: tuple[str, ...]

    def __len__(self) -> int:
        """The number of images."""
        return len(self.y)

    @property
    @abstractmethod
    def shape(self) -> Shape:
        """Channels, height and width of every image."""

    @abstractmethod
    def sized(self, size: int | None, channels: int) -> Self:
        """The same images, decoded to this size and depth where they are files."""

    @abstractmethod
    def take(self, rows: Tensor) -> Self:
        """The images at these places."""

    @abstractmethod
    def statistics(self) -> Statistics:
        """Mean and standard deviation of every channel, of pixel values between 0 and 1."""

    @abstractmethod
    def source(self, prepare: ImagePreparation, workers: int) -> Source:
        """What serves these images in batches."""

    def relabelled(self, class_names: tuple[str, ...]) -> Self:
        """The same images with labels that count in `class_names`; raises KeyError with the name.

        Classes are matched by name; classes that are called by plain numbers, by that number.
        """
        if not self.class_names or self.class_names == class_names:
            return self
        places = {name: place for place, name in enumerate(class_names)}
        if not set(self.class_names) <= set(places) and _are_numbers(self.class_names):
            places |= {str(place): place for place in range(len(class_names))}
        used = torch.tensor([places.get(name, -1) for name in self.class_names])
        y = used[self.y]
        if y.numel() and y.min() < 0:
            raise KeyError(self.class_names[int(self.y[y.argmin()])])
        return self._with_labels(y, class_names)

    def unlabelled(self) -> Self:
        """The same images with all labels −1."""
        return self._with_labels(torch.full_like(self.y, -1), ())

    def _with_labels(self, y: Tensor, class_names: tuple[str, ...]) -> Self:
        return dataclasses.replace(self, y=y, class_names=class_names)  # type: ignore[type-var]


@final
@dataclass(frozen=True, eq=False)
class Images(Samples):
    """Images in memory, or memory-mapped.

    Attributes:
        x: bytes, (images, channels, height, width).
        y: labels, (images,).
        class_names: what the labels count in.
    """

    x: Tensor
    y: Tensor
    class_names: tuple[str, ...]

    @property
    def shape(self) -> Shape:
        """Channels, height and width of every image."""
        _, channels, height, width = self.x.shape
        return channels, height, width

    def sized(self, size: int | None, channels: int) -> Images:
        """Themselves: images in memory keep their size."""
        return self

    def take(self, rows: Tensor) -> Images:
        """The images at these places."""
        return Images(self.x[rows], self.y[rows], self.class_names)

    def statistics(self) -> Statistics:
        """Mean and standard deviation of every channel, exact, from the counts of the 256 bytes."""
        values = torch.arange(256, dtype=torch.float64) / 255
        means, stds = [], []
        for channel in self.x.unbind(dim=1):
            counts = torch.bincount(channel.flatten(), minlength=256)
            share = counts.double() / channel.numel()
            mean = (share * values).sum()
            means.append(float(mean))
            # A channel without variation is left unscaled.
            stds.append(float((share * (values - mean) ** 2).sum().sqrt()) or 1.0)
        return tuple(means), tuple(stds)

    def source(self, prepare: ImagePreparation, workers: int) -> Source:
        """Batches cut from memory and prepared on the device."""
        return ArraySource(self.x, self.y, prepare)


class ImageSet(ABC):
    """A set of images in named parts: `train` and `test`, or `fog/3`, or simply `all`."""

    @property
    @abstractmethod
    def parts(self) -> tuple[str, ...]:
        """The names of all parts."""

    @abstractmethod
    def read(self, part: str) -> Samples:
        """The images of one part, checked; errors name the bad file."""

    @property
    def default_parts(self) -> tuple[str, ...]:
        """The parts meant by the bare name of the set, when it is evaluated on."""
        return ("test",) if "test" in self.parts else self.parts


def check_labels(y: Tensor, num_classes: int, path: Path) -> Tensor:
    """`y` as int64, if every label is a class."""
    outside = (y < 0) | (y >= num_classes)
    if outside.any():
        place = int(outside.nonzero()[0])
        raise DataError(
            f"{path}: label {int(y[place])} of image {place} is not between 0 and "
            f"{num_classes - 1}; replace the file"
        )
    return y.long()


def numerals(num_classes: int) -> tuple[str, ...]:
    """Names for classes that have none."""
    return tuple(map(str, range(num_classes)))


def _are_numbers(names: Sequence[str]) -> bool:
    return all(name.isdecimal() for name in names)
