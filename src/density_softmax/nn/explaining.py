"""Why a model finds inputs strange: parts of its uncertainty, columns of rows, places in images."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from density_softmax.decide.explain import Explanation, joined, occlusion_maps
from density_softmax.errors import UserError
from density_softmax.nn.batches import in_finite_rows

if TYPE_CHECKING:
    from density_softmax.nn.classifier import Classifier


@torch.no_grad()
def explained_inputs(
    model: Classifier,
    batches: Iterable[Any],
    columns: Sequence[str] | None,
    reference: Any,
    occlusion: bool,
) -> Explanation:
    """What makes inputs strange, one batch after another, as `Classifier.explain` tells it.

    Args:
        model: a fitted one.
        batches: of inputs, as `predict` takes them.
        columns: the names of the columns of a table; None for those of a data frame, or numbers.
        reference: a typical row, (columns,); None for that of the calibration data.
        occlusion: whether to make the maps of images.
    """
    found = [_explained(model, x, columns, reference, occlusion) for x in batches]
    if not found:
        raise UserError("the DataLoader gives no batch: there is nothing to explain")
    return joined(found)


def _explained(
    model: Classifier, x: Any, columns: Sequence[str] | None, reference: Any, occlusion: bool
) -> Explanation:
    names = getattr(x, "columns", None) if columns is None else columns
    x = model.as_batch(x)
    # The same draws in both passes, of a method that draws samples.
    epistemic = model.predict(x, seed=0, batch_size=max(1, len(x))).epistemic
    finite = epistemic.isfinite()
    with model.served(0, x.device):
        parts, whose = model.parts(in_finite_rows(finite, x))
    parts = parts.where(finite[:, None], math.inf)
    found = Explanation(_array(epistemic), _array(parts), whose)
    if not isinstance(x, Tensor) or not x.is_floating_point():
        return found

    def score(x: NDArray[Any]) -> NDArray[Any]:
        return model.predict(x, seed=0).epistemic.cpu().numpy()

    if x.ndim == 4 and occlusion:
        return replace(found, occlusion=occlusion_maps(score, _array(x)), images=_array(x))
    if reference is None and model.calibration is not None:
        reference = model.calibration.reference or None
    if x.ndim != 2 or reference is None:
        return found
    return found.with_columns(score, _array(x), names, reference)


def _array(values: Tensor) -> NDArray[np.float64]:
    return values.detach().double().cpu().numpy()
