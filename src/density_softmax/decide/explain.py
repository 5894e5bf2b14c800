"""Why an input is strange: numbers that add up to its epistemic uncertainty, and a picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from density_softmax.errors import UserError

Floats = NDArray[np.float64]
Score = Callable[[NDArray[Any]], NDArray[Any]]

# Orders in which columns are exchanged: half of them drawn, the others the same backwards.
NUM_ORDERS = 8
# Along each side of an image, how many patches of the occlusion map stand beside each other.
NUM_PATCHES = 8
# Rows that a score is asked for at once.
ROWS = 256
# Bars of a picture, and inputs and parts that a text shows.
NUM_BARS, NUM_ROWS, NUM_PARTS = 12, 5, 3
# When the experts of Density-Softmax add much, by their names or the beginnings of these.
MEANINGS = {
    "layers": "early layers look unusual: noise, blur, another camera",
    "last": "the last features are far from all training data",
    "classes/nearest": "it belongs to no class",
    "classes/relative": "it resembles the classes in general, but no single one",
    "energy": "no class has a large logit",
}


class Part(NamedTuple):
    """What a part of the uncertainty is due to.

    Attributes:
        expert: the name of the expert, such as `layers` or `energy`.
        layer: what it reads, such as `layer1`; `features` are the inputs of the head.
        channel: which channel, with the statistic of it that is read, such as `mean 3`; empty
            where an expert is one part.
    """

    expert: str
    layer: str
    channel: str

    def __str__(self) -> str:
        return " ".join(filter(None, (self.layer, self.channel)))


@dataclass(frozen=True)
class Explanation:
    """What makes the inputs of a batch strange.

    Attributes:
        epistemic: the uncertainties that are explained, (batch,).
        parts: of each, what every channel of every expert adds, (batch, parts).
        names: of these parts.
        columns: for tables, what every column adds to `base`, (batch, columns); else None.
        column_names: of these columns.
        base: for tables, the uncertainty of the input that columns are compared with; else None.
        occlusion: for images, how much of the uncertainty goes away if a place is covered,
            (batch, height, width); else None.
        images: what the occlusion map is of, (batch, channels, height, width); else None.
    """

    epistemic: Floats
    parts: Floats
    names: tuple[Part, ...]
    columns: Floats | None = None
    column_names: tuple[str, ...] = ()
    base: float | None = None
    occlusion: Floats | None = None
    images: Floats | None = None

    def __len__(self) -> int:
        return len(self.epistemic)

    @property
    def experts(self) -> dict[str, Floats]:
        """What each expert adds, (batch,), by its name."""
        return self._summed(lambda part: part.expert)

    @property
    def layers(self) -> dict[str, Floats]:
        """What each layer adds over all experts, (batch,), by its name."""
        return self._summed(lambda part: part.layer)

    def _summed(self, key: Callable[[Part], str]) -> dict[str, Floats]:
        keys = [key(part) for part in self.names]
        return {
            each: self.parts[:, [own == each for own in keys]].sum(1)
            for each in dict.fromkeys(keys)
        }

    def strongest(self, row: int = 0, number: int = NUM_BARS) -> list[tuple[str, float]]:
        """The largest parts of an input with their names: columns of a table, else channels.

        Args:
            row: which input of the batch.
            number: how many parts at most.
        """
        if self.columns is not None:
            names, values = self.column_names, self.columns[row]
        else:
            names = tuple(f"{part.expert}: {part}" for part in self.names)
            values = self.parts[row]
        order = np.argsort(-np.abs(values), kind="stable")[:number]
        return [(names[index], float(values[index])) for index in order]

    def with_columns(
        self, score: Score, x: Floats, names: Sequence[str] | None, reference: Any
    ) -> Explanation:
        """The same, which also tells the columns of a table.

        Args:
            score: the epistemic uncertainty of rows.
            x: the rows that are explained, (batch, columns).
            names: of the columns; numbers if None.
            reference: a typical row, (columns,).
        """
        row = np.asarray(reference, np.float64)
        if row.shape != x.shape[1:]:
            raise UserError(f"reference of shape {row.shape}: pass a row of {x.shape[1]} numbers")
        named = tuple(map(str, range(len(row)) if names is None else names))
        if len(named) != len(row):
            raise UserError(f"{len(named)} names for {len(row)} columns: name each of them")
        effects, base = column_effects(score, x, row), float(score(row[None])[0])
        return replace(self, columns=effects, column_names=named, base=base)

    def to_pandas(self) -> Any:
        """A data frame with a row per input and part: row, expert, layer, channel, value."""
        import pandas

        rows = [
            (row, *part, value)
            for row, values in enumerate(self.parts)
            for part, value in zip(self.names, values, strict=True)
        ]
        return pandas.DataFrame(rows, columns=["row", *Part._fields, "value"])

    def __repr__(self) -> str:
        """A line for each of the first inputs: experts, and the strongest parts."""
        lines = [f"Explanation of {len(self)} input{'s' * (len(self) != 1)}"]
        for row in range(min(len(self), NUM_ROWS)):
            experts = " + ".join(f"{n} {v[row]:.3g}" for n, v in self.experts.items())
            parts = ", ".join(f"{n} {v:+.3g}" for n, v in self.strongest(row, NUM_PARTS))
            lines.append(f"  {row}: {self.epistemic[row]:.4g} = {experts}; most: {parts}")
        return "\n".join([*lines, *["  ..."] * (len(self) > NUM_ROWS)])

    def draw(self, file: str | Path, row: int = 0) -> None:
        """Draw bars of the experts and of the strongest parts, and of an image its occlusion map.

        Args:
            file: what to write, such as explanation.png or explanation.svg.
            row: which input of the batch.
        """
        from matplotlib.figure import Figure

        if not -len(self) <= row < len(self):
            raise UserError(f"row {row}: there are {len(self)} inputs")
        widths = [1, 1] if self.occlusion is None else [1, 1, 0.8, 1]
        figure = Figure(figsize=(5 * sum(widths), 4), layout="constrained")
        panels = figure.subplots(1, len(widths), width_ratios=widths).tolist()
        experts = [(name, float(values[row])) for name, values in self.experts.items()]
        _bars(panels[0], experts, f"epistemic uncertainty {self.epistemic[row]:.4g}")
        what = "channels" if self.columns is None else f"columns, beyond {self.base:.3g}"
        _bars(panels[1], self.strongest(row), f"strongest {what}")
        if self.occlusion is not None and self.images is not None:
            panels[2].imshow(picture(self.images[row]), interpolation="nearest")
            limit = max(float(np.abs(self.occlusion[row]).max()), 1e-12)
            shown = panels[3].imshow(self.occlusion[row], cmap="RdBu_r", vmin=-limit, vmax=limit)
            figure.colorbar(shown, ax=panels[3], label="uncertainty that goes away if covered")
            for panel in panels[2:]:
                panel.set_axis_off()
        figure.savefig(file)


def joined(parts: Sequence[Explanation]) -> Explanation:
    """The explanations of one batch after another as one.

    Args:
        parts: at least one, of the same model.
    """
    if len(parts) == 1:
        return parts[0]
    arrays = ("epistemic", "parts", "columns", "occlusion", "images")
    found = {name: [getattr(part, name) for part in parts] for name in arrays}
    if len({each.shape[1:] for each in found["images"] if each is not None}) > 1:
        raise UserError("images of different sizes: explain those of one size at a time")
    whole: dict[str, Any] = {n: np.concatenate(v) for n, v in found.items() if v[0] is not None}
    return replace(parts[0], **whole)


def meaning_of(expert: str) -> str:
    """When an expert adds much to the uncertainty, in words; empty if it is not known.

    Args:
        expert: its name, such as `last` or `layers/layer1`.
    """
    return next((text for name, text in MEANINGS.items() if expert.startswith(name)), "")


def _bars(panel: Any, values: Sequence[tuple[str, float]], title: str) -> None:
    names, numbers = zip(*reversed(values), strict=True)
    places = np.arange(len(names))
    panel.barh(places, numbers, color=["#c44e52" if n > 0 else "#4c72b0" for n in numbers])
    panel.set_yticks(places, names)
    panel.axvline(0, color="0.5", linewidth=0.8)
    panel.set_title(title, fontsize="medium")


def picture(image: NDArray[Any]) -> Floats:
    """An image as a network reads it, stretched to the range of a screen, (height, width, 3).

    Args:
        image: (channels, height, width).
    """
    shown = np.asarray(image, np.float64)
    shown = shown[:3] if len(shown) >= 3 else np.repeat(shown[:1], 3, axis=0)
    low, high = shown.min(), shown.max()
    return np.moveaxis((shown - low) / max(high - low, 1e-12), 0, -1)


def column_effects(score: Score, x: NDArray[Any], reference: NDArray[Any], seed: int = 0) -> Floats:
    """What each column of a row adds to the score of a reference row, (batch, columns).

    They are Shapley values, estimated by sampling (Castro et al. 2009): columns of the reference
    are exchanged for those of the row one after another, and a column gets the change of the score
    at its turn, averaged over orders. In every order these changes add up to
    score(row) − score(reference), so the averages do too. In a row that is not finite, what is
    not finite gets all of it.

    Args:
        score: from rows to numbers, (rows, columns) to (rows,).
        x: (batch, columns).
        reference: a typical row, (columns,).
        seed: decides the orders.
    """
    width = x.shape[1]
    drawn = [np.random.default_rng([seed, n]).permutation(width) for n in range(NUM_ORDERS // 2)]
    orders = [*drawn, *(order[::-1] for order in drawn)]
    effects = np.where(np.isfinite(x), 0.0, np.inf)
    for row in np.flatnonzero(np.isfinite(x).all(1)):
        values = x[row]
        for order in orders:
            steps = np.repeat(reference[None], width + 1, axis=0)
            for turn, column in enumerate(order):
                steps[turn + 1 :, column] = values[column]
            effects[row, order] += np.diff(_scored(score, steps)) / len(orders)
    return effects


def occlusion_maps(score: Score, images: NDArray[Any]) -> Floats:
    """How much lower the score of an image is with a place covered, (batch, height, width).

    A square patch of the image's mean colour is moved over it in steps of half its side; a pixel
    gets the mean over the patches that cover it.

    Args:
        score: from images to numbers, (batch, channels, height, width) to (batch,).
        images: (batch, channels, height, width).
    """
    height, width = images.shape[2:]
    size = max(1, min(height, width) // NUM_PATCHES)
    step = max(1, size // 2)
    corners = [(r, c) for r in _places(height, size, step) for c in _places(width, size, step)]
    found = np.zeros((len(images), height, width))
    for number, image in enumerate(images):
        covered = np.repeat(image[None], len(corners) + 1, axis=0)
        counts = np.zeros((height, width))
        for index, (r, c) in enumerate(corners):
            covered[index, :, r : r + size, c : c + size] = image.mean((1, 2))[:, None, None]
            counts[r : r + size, c : c + size] += 1
        scores = _scored(score, covered)
        for (r, c), value in zip(corners, scores[-1] - scores[:-1], strict=True):
            found[number, r : r + size, c : c + size] += value
        found[number] /= counts
    return found


def _places(length: int, size: int, step: int) -> list[int]:
    """Where patches begin, the last of them at the edge."""
    return sorted({*range(0, length - size + 1, step), length - size})


def _scored(score: Score, x: NDArray[Any]) -> Floats:
    parts = [score(x[start : start + ROWS]) for start in range(0, len(x), ROWS)]
    return np.concatenate(parts).astype(np.float64)
