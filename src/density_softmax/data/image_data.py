"""Image classification: any set of images to train on, any others as shifted or OOD sets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, final

from density_softmax.config import ConfigError, place
from density_softmax.data.catalog import find_images
from density_softmax.data.images import ImagePreparation, Samples
from density_softmax.data.readers import DataError, data_root
from density_softmax.data.sources import DataConfig, named_apart, split_off
from density_softmax.types import Data, Split, Task

__all__ = ["ImageData"]

Role = Literal["shift", "ood"]


@final
@dataclass(frozen=True)
class ImageData(DataConfig, kind="images"):
    """Images by the names of their sets.

    A set is a name (`cifar10`, `svhn`), one or some of its parts (`cifar10-c/fog/3`,
    `cifar10-c/fog`, `cifar10/train`), or the path of an .npz file or an image folder.

    Attributes:
        train: the set to learn from; its own test part becomes the split `iid`, unless a part is
            named, which is then all there is of the set.
        shifts: sets of the same classes under other conditions.
        ood: sets of anything else; their labels are not used.
        heldout: share of the training part kept for calibration, chosen by the seed.
        test_fraction: share that becomes `iid` where the set has no test part, or one part of it
            is named; the same for every seed.
        mean: per channel, of pixel values between 0 and 1; null computes it from the images
            trained on (of a folder, from 512 of them).
        std: likewise.
        augment: whether training images are cropped and flipped at random.
        padding: pixels around images in memory before they are cropped; files have their own
            random resized crop.
        flip: whether half of the training images are mirrored.
        image_size: what image files are resized and cropped to; null keeps their own size.
            Images in memory are never resized.
        root: where the sets are; null takes $DENSITY_SOFTMAX_DATA or ~/.cache/density-softmax.
        workers: processes that decode image files.
    """

    train: str = "cifar10"
    shifts: tuple[str, ...] = ()
    ood: tuple[str, ...] = ()
    heldout: float = 0.1
    test_fraction: float = 0.2
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    augment: bool = True
    padding: int = 2
    flip: bool = True
    image_size: int | None = None
    root: str | None = place(None)
    workers: int = place(2)

    def load(self, seed: int) -> Data:
        """Training and held-out images, and the test, shifted and OOD sets."""
        train, test = self._in_domain()
        task = Task(train.class_names, train.shape)
        kept, heldout = split_off(len(train), self.heldout, seed, self.train)
        learned = train.take(kept)
        prepare = self._preparation(learned)
        return Data(
            task=task,
            train=learned.source(prepare, self.workers),
            heldout=train.take(heldout).source(prepare, self.workers),
            splits=named_apart(
                Split("iid", "iid", test.source(prepare, self.workers)),
                *self._splits(self.shifts, "shift", task, prepare),
                *self._splits(self.ood, "ood", task, prepare),
            ),
            normalisation={"kind": "images", "mean": prepare.mean, "std": prepare.std},
        )

    def _in_domain(self) -> tuple[Samples, Samples]:
        """The training part and the test part of the training set."""
        name, images, parts, whole = find_images(self.train, data_root(self.root))
        if whole and {"train", "test"} <= set(images.parts):
            train, test = (
                images.read(part).sized(self.image_size, 3) for part in ("train", "test")
            )
        elif len(parts) == 1:
            samples = images.read(parts[0]).sized(self.image_size, 3)
            kept, tested = split_off(len(samples), self.test_fraction, 0, self.train)
            train, test = samples.take(kept), samples.take(tested)
        else:
            raise DataError(
                f"{name} has {len(parts)} parts: train on one, such as {name}/{parts[0]}"
            )
        if len(train.class_names) < 2:
            raise DataError(
                f"{self.train}: {len(train.class_names)} labelled classes; training needs two"
            )
        return train, _checked(test, "shift", self.train, Task(train.class_names, train.shape))

    def _splits(
        self, texts: Sequence[str], role: Role, task: Task, prepare: ImagePreparation
    ) -> Iterator[Split]:
        """Every part of the sets that the entries of the config mean."""
        for text in texts:
            selection = find_images(text, data_root(self.root))
            for part in selection.parts:
                name = selection.split_name(part)
                samples = selection.images.read(part).sized(self.image_size, task.input_shape[0])
                samples = _checked(samples, role, name, task)
                yield Split(name, role, samples.source(prepare, self.workers))

    def _preparation(self, learned: Samples) -> ImagePreparation:
        mean, std = self.mean, self.std
        if mean is None or std is None:
            computed = learned.statistics()
            mean, std = mean or computed[0], std or computed[1]
        for name, value in (("mean", mean), ("std", std)):
            if len(value) != learned.shape[0]:
                raise ConfigError(
                    f"{name}={value}: expected {learned.shape[0]} entries, one per channel"
                )
        if min(std) <= 0:
            raise ConfigError(f"std={std}: expected positive numbers")
        return ImagePreparation(
            mean, std, augment=self.augment, padding=self.padding, flip=self.flip
        )


def _checked(samples: Samples, role: Role, name: str, task: Task) -> Samples:
    """`samples` with labels of the task, or none; they must have the shape that it has."""
    if samples.shape != task.input_shape:
        raise DataError(
            f"{name}: images of shape {samples.shape}, but the training images have "
            f"{task.input_shape}; image_size resizes image folders, other sets must match"
        )
    if role == "ood":
        return samples.unlabelled()
    if not samples.class_names:
        raise DataError(f"{name}: no labels; list it under ood")
    try:
        return samples.relabelled(task.class_names)
    except KeyError as error:
        raise DataError(
            f"{name}: class {error} is not one of the training set; list it under ood"
        ) from None
