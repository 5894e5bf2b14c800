"""The most and the least typical of many inputs, kept while these are predicted."""

from __future__ import annotations

import base64
import heapq
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from density_softmax.serve.answer import Answer
from density_softmax.serve.card import Card
from density_softmax.serve.inputs import Chunk
from density_softmax.serve.outputs import Record

# How many inputs of each kind are kept.
NUM_SHOWN = 24
# The longest side of a thumbnail, and the quality of its JPEG.
THUMBNAIL, QUALITY = 160, 85


@dataclass(frozen=True)
class Entry:
    """An input of the gallery.

    Attributes:
        record: what was written of it.
        x: as the network reads it.
        contributions: what each expert adds to its uncertainty; empty without experts.
    """

    record: Record
    x: NDArray[np.float32]
    contributions: tuple[float, ...]


@final
class Gallery:
    """Collects the inputs to show; memory is bounded by their number.

    Args:
        card: of the model.
        num_shown: how many of the most and of the least typical inputs are kept.
    """

    def __init__(self, card: Card, num_shown: int = NUM_SHOWN) -> None:
        self.card, self.num_shown = card, num_shown
        self.num_inputs = self.num_bad = 0
        # Heaps of (uncertainty or its negative, number, entry): the first is the next to go.
        self._strange: list[tuple[float, int, Entry]] = []
        self._typical: list[tuple[float, int, Entry]] = []

    def add(self, chunk: Chunk, answer: Answer, records: Sequence[Record]) -> None:
        """Look at a batch.

        Args:
            chunk: its inputs.
            answer: the model's.
            records: what is written of them.
        """
        parts = answer.contributions
        for row, record in enumerate(records):
            self.num_inputs += 1
            if record.flag == "bad":
                self.num_bad += 1
                continue
            own = () if parts is None else tuple(map(float, parts[row]))
            entry = Entry(record, chunk.x[row].copy(), own)
            self._keep(self._strange, record.epistemic, entry)
            self._keep(self._typical, -record.epistemic, entry)

    def _keep(self, heap: list[tuple[float, int, Entry]], value: float, entry: Entry) -> None:
        item = (value, -self.num_inputs, entry)  # of equals, the first stays
        if len(heap) < self.num_shown:
            heapq.heappush(heap, item)
        elif item > heap[0]:
            heapq.heapreplace(heap, item)

    @property
    def least_typical(self) -> list[Entry]:
        """The strangest first."""
        return [entry for *_, entry in sorted(self._strange, reverse=True)]

    @property
    def most_typical(self) -> list[Entry]:
        """The most typical first."""
        return [entry for *_, entry in sorted(self._typical, reverse=True)]

    def columns(self) -> tuple[str, ...]:
        """The names of a table's columns, numbers if they have none; none of other inputs."""
        if len(self.card.input_shape) != 1:
            return ()
        named = self.card.normalisation.columns if self.card.normalisation else ()
        return named or tuple(map(str, range(self.card.input_shape[0])))

    def values(self, entry: Entry) -> list[float]:
        """The numbers of a row before they were standardised.

        Args:
            entry: a row of a table.
        """
        return original(entry.x, self.card).tolist()

    def thumbnail(self, entry: Entry) -> str:
        """An image as the network saw it, as the address of a JPEG; empty for other inputs.

        Args:
            entry: an image, (channels, height, width).
        """
        return thumbnail(entry.x, self.card)


def original(x: NDArray[Any], card: Card) -> NDArray[np.float64]:
    """An input before it was normalised.

    Args:
        x: as the network reads it, (*input shape).
        card: of the model.
    """
    raw, how = np.asarray(x, np.float64), card.normalisation
    if how is None:
        return raw
    shape = (-1, 1, 1) if how.kind == "images" else (-1,)
    mean, std = (np.reshape(values, shape) for values in (how.mean, how.std))
    return raw * std + mean


def thumbnail(x: NDArray[Any], card: Card) -> str:
    """A small JPEG of an image, as an address; empty for other inputs.

    Args:
        x: as the network reads it, (channels, height, width).
        card: of the model.
    """
    if x.ndim != 3 or x.shape[0] not in (1, 3):
        return ""
    from PIL import Image

    pixels = np.moveaxis(_bytes(x, card), 0, -1)
    image = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    scale = THUMBNAIL / max(image.size)
    size = [max(1, round(side * scale)) for side in image.size]
    how = Image.Resampling.NEAREST if scale > 1 else Image.Resampling.BILINEAR
    content = io.BytesIO()
    image.resize((size[0], size[1]), how).save(content, "JPEG", quality=QUALITY)
    return f"data:image/jpeg;base64,{base64.b64encode(content.getvalue()).decode()}"


def _bytes(x: NDArray[Any], card: Card) -> NDArray[np.uint8]:
    """Pixels, of images that say how they were normalised; else stretched to their range."""
    shown = np.nan_to_num(original(x, card), posinf=1.0, neginf=0.0)
    if card.normalisation is None or card.normalisation.kind != "images":
        shown = (shown - shown.min()) / max(float(shown.max() - shown.min()), 1e-12)
    return np.rint(255 * shown.clip(0, 1)).astype(np.uint8)


def shares(contributions: Sequence[float]) -> list[float]:
    """How wide the bars of experts are, in percent; what lowers the uncertainty has none.

    Args:
        contributions: of the experts.
    """
    if not all(map(math.isfinite, contributions)):
        return [0.0 for _ in contributions]
    positive = [max(value, 0.0) for value in contributions]
    whole = sum(positive) or 1.0
    return [100 * value / whole for value in positive]
