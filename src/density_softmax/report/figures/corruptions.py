"""Strips of corruption examples: one test image under each type of a shift, by severity."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from density_softmax.data.catalog import CATALOG, Selection, find_images
from density_softmax.data.image_data import ImageData
from density_softmax.data.images import ImagePreparation, LabelledImages
from density_softmax.data.readers import data_root
from density_softmax.errors import UserError
from density_softmax.report.figures import Drawing
from density_softmax.report.frame import Setting
from density_softmax.report.names import file_stem, set_name
from density_softmax.report.style import panel_figure

# Of one image, (height, width, channels) with values between 0 and 1.
Pixels = npt.NDArray[np.float32]
# By severity, 0 being the clean image.
Strip = Mapping[int, Pixels]

# Which image of the set is shown.
INDEX = 0
# White between two images, as a share of their width.
GAP = 0.06
CAPTION = (
    "One test image under each type of shift, by severity, after the original image where it is "
    "known."
)


def draw(setting: Setting) -> Iterator[Drawing]:
    """For each corrupted set whose images can be read here, a strip for each type.

    Args:
        setting: the runs to compare.
    """
    config = setting.runs[0].recipe.data
    if not isinstance(config, ImageData):
        return
    for data, levels in setting.splits.corrupted.items():
        try:
            strips = _read_strips(
                config, data, [split for each in levels.values() for split in each]
            )
        except (UserError, OSError):
            continue  # the images are elsewhere, or gone
        yield Drawing(
            _strip_figure(strips),
            file_stem(setting.name, data, "examples"),
            f"Examples of the shifts of {set_name(data)}: {setting.name}",
            CAPTION,
        )


def _read_strips(config: ImageData, data: str, splits: Sequence[str]) -> dict[str, Strip]:
    """By type, one image at the severities of these splits."""
    images, found = _find_set(config, data).images, dict[str, dict[int, Pixels]]()
    for split in splits:
        _, kind, severity = split.rsplit("/", 2)
        corrupted = images.read(f"{kind}/{severity}")
        strip = found.setdefault(kind, _clean(config, len(corrupted)))
        strip[int(severity)] = _pixels(config, corrupted)
    return {kind: dict(sorted(strip.items())) for kind, strip in found.items()}


def _find_set(config: ImageData, data: str) -> Selection:
    """The set of that name: one of the recipe's, or of the catalog."""
    texts = [*config.shifts, *([data] if data in CATALOG else [])]
    selections = (find_images(text, data_root(config.root)) for text in texts)
    found = next((each for each in selections if each.name == data), None)
    if found is None:
        raise UserError(f"{data}: no such set")
    return found


def _clean(config: ImageData, num_images: int) -> dict[int, Pixels]:
    """The image before it was corrupted, if the training set's own test images are as many."""
    images = find_images(config.train, data_root(config.root)).images
    if "test" not in images.subsets or len(test := images.read("test")) != num_images:
        return {}
    return {0: _pixels(config, test)}


def _pixels(config: ImageData, images: LabelledImages) -> Pixels:
    one = images.take(torch.tensor([INDEX])).resized(config.image_size, images.shape[0])
    channels = one.shape[0]
    prepare = ImagePreparation([0.0] * channels, [1.0] * channels, augment=False)
    (batch,) = one.source(prepare, 0).read([[0]], torch.device("cpu"))
    return batch.x[0].permute(1, 2, 0).numpy()


def _strip_figure(strips: Mapping[str, Strip]) -> Figure:
    """A panel for each type with its images side by side; all types have the same severities."""
    severities = sorted({severity for strip in strips.values() for severity in strip})
    height, width, _ = next(iter(next(iter(strips.values())).values())).shape
    ratio = height / (width * (len(severities) * (1 + GAP) - GAP))
    panels = panel_figure(
        [kind.replace("_", " ") for kind in strips],
        height=lambda inner: inner * ratio,
        most_columns=3,
        left=0.06,
        gap=0.1,
        row_gap=0.06,
        foot=0.2,
    )
    for axes, strip in zip(panels.axes, strips.values(), strict=True):
        _draw(axes, strip, severities)
        axes.tick_params(labelbottom=axes in panels.lowest, length=0)
    return panels.figure


def _draw(axes: Axes, strip: Strip, severities: Sequence[int]) -> None:
    for place, severity in enumerate(severities):
        if severity in strip:
            left = place * (1 + GAP)
            axes.imshow(
                strip[severity],
                extent=(left, left + 1, 0, 1),
                aspect="auto",
                interpolation="nearest",
                vmin=0,
                vmax=1,
                cmap="gray",  # of images with one channel
            )
    centres = [place * (1 + GAP) + 0.5 for place in range(len(severities))]
    axes.set_xticks(centres, ["test" if each == 0 else str(each) for each in severities])
    axes.set(xlim=(0, len(severities) * (1 + GAP) - GAP), ylim=(0, 1), yticks=[])
    axes.spines[:].set_visible(False)
