"""Image classification: any set of images to train on, any others as shifted or OOD sets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, final

from density_softmax.config import ConfigError, local
from density_softmax.data.catalog import find_images
from density_softmax.data.images import ImagePreparation, LabelledImages
from density_softmax.data.readers import data_root
from density_softmax.data.sources import DataConfig, checked_splits, hold_out, hold_out_any
from density_softmax.errors import DataError
from density_softmax.types import Data, Split, Task

Role = Literal["shift", "ood"]


@final
@dataclass(frozen=True)
class ImageData(DataConfig, kind="images"):
    """Images by the names of their sets.

    A set is a name (`cifar10`, `svhn`), some of its subsets (`cifar10-c/fog/3`, `cifar10-c/fog`,
    `cifar10/train`), or the path of an .npz file or an image folder.

    Attributes:
        train: the set to learn from; its test images become the split `iid`. If a single subset
            is named, the rest of the set is not used.
        shifts: sets of the same classes under other conditions.
        ood: sets of anything else; their labels are not used.
        heldout: share of the training images kept for calibration, chosen by the seed. With 0 all
            images train, for methods without a stage that reads held-out data.
        test_fraction: share that becomes `iid` where the set has no test images, or a single
            subset is named; the same images for every seed.
        mean: per channel, of pixel values between 0 and 1; null computes it from the training
            images (of a folder, from 512 of them).
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
    root: str | None = local(None)
    workers: int = local(2)

    def load(self, seed: int) -> Data:
        """Load training and held-out images, and the test, shifted and OOD sets."""
        available, test = self._in_domain()
        task = Task(available.class_names, available.shape)
        kept, heldout = hold_out_any(len(available), self.heldout, seed, self.train)
        train = available.take(kept)
        prepare = self._preparation(train)
        return Data(
            task=task,
            train=train.source(prepare, self.workers),
            heldout=None
            if heldout is None
            else available.take(heldout).source(prepare, self.workers),
            splits=checked_splits(
                Split("iid", "iid", test.source(prepare, self.workers)),
                *self._splits(self.shifts, "shift", task, prepare),
                *self._splits(self.ood, "ood", task, prepare),
            ),
            normalisation={"kind": "images", "mean": prepare.mean, "std": prepare.std},
        )

    def _in_domain(self) -> tuple[LabelledImages, LabelledImages]:
        """Return the training and the test images of the training set."""
        selection = find_images(self.train, data_root(self.root))
        if selection.whole and {"train", "test"} <= set(selection.images.subsets):
            train, test = (
                selection.images.read(subset).resized(self.image_size, 3)
                for subset in ("train", "test")
            )
        else:
            images = selection.read_one("train on").resized(self.image_size, 3)
            kept, tested = hold_out(len(images), self.test_fraction, 0, self.train)
            train, test = images.take(kept), images.take(tested)
        if len(train.class_names) < 2:
            raise DataError(
                f"{self.train}: {len(train.class_names)} labelled classes; training needs two"
            )
        if test.shape != train.shape:
            raise DataError(
                f"{self.train}: its images have several sizes, {train.shape} and {test.shape}; "
                "set image_size to bring image files to one size"
            )
        return train, _checked(test, "shift", self.train, Task(train.class_names, train.shape))

    def _splits(
        self, texts: Sequence[str], role: Role, task: Task, prepare: ImagePreparation
    ) -> Iterator[Split]:
        """Yield every subset of the sets that the config lists."""
        for text in texts:
            selection = find_images(text, data_root(self.root))
            for subset in selection.subsets:
                name = selection.split_name(subset)
                images = selection.images.read(subset)
                images = images.resized(self.image_size, task.input_shape[0])
                images = _checked(images, role, name, task)
                yield Split(name, role, images.source(prepare, self.workers))

    def _preparation(self, train: LabelledImages) -> ImagePreparation:
        mean, std = self.mean, self.std
        if mean is None or std is None:
            computed = train.statistics()
            mean, std = mean or computed[0], std or computed[1]
        for name, value in (("mean", mean), ("std", std)):
            if len(value) != train.shape[0]:
                raise ConfigError(
                    f"{name}={value}: expected {train.shape[0]} entries, one per channel"
                )
        if min(std) <= 0:
            raise ConfigError(f"std={std}: expected positive numbers")
        return ImagePreparation(
            mean, std, augment=self.augment, padding=self.padding, flip=self.flip
        )


def _checked(images: LabelledImages, role: Role, name: str, task: Task) -> LabelledImages:
    """Return images of the task's shape, with labels of the task or, for OOD, with none."""
    if images.shape != task.input_shape:
        raise DataError(
            f"{name}: images of shape {images.shape}, but the training images have "
            f"{task.input_shape}; image_size resizes image folders, other sets must match"
        )
    if role == "ood":
        return images.unlabelled()
    if not images.class_names:
        raise DataError(f"{name}: no labels; list it under ood")
    try:
        return images.relabelled(task.class_names)
    except KeyError as error:
        raise DataError(
            f"{name}: class {error} is not one of the training set; list it under ood"
        ) from None
