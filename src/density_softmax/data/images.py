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

    def sample_augmentations(self, num_samples: int, generator: torch.Generator) -> Tensor:
        """Sample top, left and mirrored (0 or 1) for every image, (images, 3)."""
        corner = torch.randint(2 * self.padding + 1, (num_samples, 2), generator=generator)
        mirrored = torch.randint(2, (num_samples, 1), generator=generator)
        return torch.cat([corner, mirrored if self.flip else torch.zeros_like(mirrored)], dim=1)

    def __call__(self, x: Tensor, augmentations: Tensor | None) -> Tensor:
        """Turn bytes (batch, channels, height, width) into normalised floats of that shape."""
        if augmentations is not None and self.augment:
            x = _crop_and_flip(x, augmentations, self.padding)
        return x.float().mul_(self._scale.to(x.device)).sub_(self._shift.to(x.device))


def _crop_and_flip(x: Tensor, augmentations: Tensor, padding: int) -> Tensor:
    """Mirror, pad and crop each image by its row (top, left, mirrored) of `augmentations`."""
    batch, channels, height, width = x.shape
    top, left, mirrored = augmentations.unbind(dim=1)
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


class LabelledImages(ABC):
    """Images with labels, in memory or on disk. Without class names the labels mean nothing."""

    y: Tensor
    class_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.y)

    @property
    @abstractmethod
    def shape(self) -> Shape:
        """Channels, height and width of every image."""

    @abstractmethod
    def resized(self, size: int | None, channels: int) -> Self:
        """Return the same images; files are decoded to this height, width and depth."""

    @abstractmethod
    def take(self, indices: Tensor) -> Self:
        """Return the images with these indices."""

    @abstractmethod
    def statistics(self) -> Statistics:
        """Return mean and standard deviation of every channel, pixels being between 0 and 1."""

    @abstractmethod
    def source(self, prepare: ImagePreparation, workers: int) -> Source:
        """Return a source that reads these images in batches."""

    def relabelled(self, class_names: tuple[str, ...]) -> Self:
        """Return the same images with labels that are indices into `class_names`.

        Classes are matched by name, classes named by plain numbers by that number. A class that
        is not among `class_names` raises a KeyError with its name.
        """
        if not self.class_names or self.class_names == class_names:
            return self
        index = {name: label for label, name in enumerate(class_names)}
        are_numbers = all(name.isdecimal() for name in self.class_names)
        if are_numbers and not set(self.class_names) <= set(index):
            index |= {str(label): label for label in range(len(class_names))}
        y = torch.tensor([index.get(name, -1) for name in self.class_names])[self.y]
        if y.numel() and y.min() < 0:
            raise KeyError(self.class_names[int(self.y[y.argmin()])])
        return self._with_labels(y, class_names)

    def unlabelled(self) -> Self:
        """Return the same images with all labels −1."""
        return self._with_labels(torch.full_like(self.y, -1), ())

    def _with_labels(self, y: Tensor, class_names: tuple[str, ...]) -> Self:
        return dataclasses.replace(self, y=y, class_names=class_names)  # type: ignore[type-var]


@final
@dataclass(frozen=True, eq=False)
class Images(LabelledImages):
    """Images in memory, or memory-mapped.

    Attributes:
        x: bytes, (images, channels, height, width).
        y: labels, (images,).
        class_names: the name of each label.
    """

    x: Tensor
    y: Tensor
    class_names: tuple[str, ...]

    @property
    def shape(self) -> Shape:
        """Channels, height and width of every image."""
        _, channels, height, width = self.x.shape
        return channels, height, width

    def resized(self, size: int | None, channels: int) -> Images:
        """Return the images unchanged: in memory they keep their size."""
        return self

    def take(self, indices: Tensor) -> Images:
        """Return the images with these indices."""
        return Images(self.x[indices], self.y[indices], self.class_names)

    def statistics(self) -> Statistics:
        """Return exact mean and standard deviation of every channel, from a histogram of bytes."""
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
        """Return a source that slices batches from memory and prepares them on the device."""
        return ArraySource(self.x, self.y, prepare)


class ImageSet(ABC):
    """A set of images in named subsets: `train` and `test`, or `fog/3`, or simply `all`."""

    @property
    def subsets(self) -> tuple[str, ...]:
        """The names of all subsets."""
        return ("train", "test")

    @abstractmethod
    def read(self, subset: str) -> LabelledImages:
        """Return the images of one subset, checked; errors name the bad file."""

    @property
    def default_subsets(self) -> tuple[str, ...]:
        """The subsets that the bare name of the set means in an evaluation."""
        return ("test",) if "test" in self.subsets else self.subsets


def check_labels(y: Tensor, num_classes: int, path: Path) -> Tensor:
    """Return `y` as int64, after checking that every label is a class.

    Args:
        y: integer labels, (images,).
        num_classes: labels must be below it.
        path: the file that an error names.
    """
    outside = (y < 0) | (y >= num_classes)
    if outside.any():
        index = int(outside.nonzero()[0])
        raise DataError(
            f"{path}: label {int(y[index])} of image {index} is not between 0 and "
            f"{num_classes - 1}; replace the file"
        )
    return y.long()


def numerals(num_classes: int) -> tuple[str, ...]:
    """Return names for classes that have none: their numbers.

    Args:
        num_classes: how many names.
    """
    return tuple(map(str, range(num_classes)))
