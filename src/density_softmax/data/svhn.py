"""Street View House Numbers, cropped digits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import scipy.io
import torch
from numpy.typing import NDArray

from density_softmax.data.files import DataError, require
from density_softmax.data.images import Images, ImageSet, check_labels, numerals

__all__ = ["Svhn"]

NUM_IMAGES = {"train": 73_257, "test": 26_032}
REMEDY = "run `density-softmax data fetch svhn`"


@final
@dataclass(frozen=True)
class Svhn(ImageSet):
    """Netzer et al. 2011, format 2: `svhn/train_32x32.mat` and `svhn/test_32x32.mat`."""

    root: Path

    @property
    def parts(self) -> tuple[str, ...]:
        """The official split, without the extra images."""
        return ("train", "test")

    def read(self, part: str) -> Images:
        """73,257 training or 26,032 test images; the digit 0, stored as 10, is class 0."""
        path = self.root / "svhn" / f"{part}_32x32.mat"
        x, y = _load_mat(path)
        if x.shape != (32, 32, 3, NUM_IMAGES[part]) or x.dtype != np.uint8 or y.size != x.shape[3]:
            raise DataError(
                f"{path}: {x.dtype} of shape {x.shape} with {y.size} labels, where there should "
                f"be bytes of shape (32, 32, 3, {NUM_IMAGES[part]}); {REMEDY}"
            )
        digits = torch.from_numpy(y.reshape(-1).astype(np.int64))
        labels = check_labels(digits, 11, path) % 10
        images = torch.from_numpy(np.ascontiguousarray(x.transpose(3, 2, 0, 1)))
        return Images(images, labels, numerals(10))


def _load_mat(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    require(path, REMEDY)
    try:
        arrays = scipy.io.loadmat(path, variable_names=["X", "y"])
        return arrays["X"], arrays["y"]
    # A damaged file makes scipy raise whatever its parser stumbles over.
    except Exception as error:
        raise DataError(
            f"{path}: truncated or not an SVHN .mat file ({type(error).__name__}: {error}); "
            f"{REMEDY}"
        ) from None
