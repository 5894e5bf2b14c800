"""Checks that an exported model answers like the model, before anything is written."""

from __future__ import annotations

import torch
from torch import Tensor

from density_softmax.deploy.graph import Artifact
from density_softmax.errors import UserError
from density_softmax.methods.base import Method
from density_softmax.serve.answer import Answer
from density_softmax.types import Prediction

BATCH_SIZES = (1, 7)
# How much a probability may differ.
TOLERANCE = 1e-5
# How much an uncertainty may differ, relatively: a log density is hundreds of nats, in float32.
RELATIVE_TOLERANCE = 1e-3
# How much rounding a float64 model's inputs to float32 may change a probability and, relatively,
# an epistemic uncertainty. A float32 step in a column of ordinary numbers changes far less.
ROUNDING, RELATIVE_ROUNDING = 1e-3, 1e-2


class ParityError(UserError):
    """An exported model answers differently from the model it was made of."""


def check_precision(method: Method, single: Method, example: Tensor) -> None:
    """Raise if a float64 model answers differently in float32.

    Args:
        method: the model in float64.
        single: the same in float32.
        example: (batch, ...).
    """
    exact = method.predict(example)
    for x in _neighbours(example):
        rounded = single.predict(x)
        change = _difference(exact.probs.cpu(), rounded.probs)
        expected = exact.epistemic.cpu().to(rounded.epistemic)
        near = expected.isclose(rounded.epistemic, RELATIVE_ROUNDING, RELATIVE_ROUNDING)
        if change > ROUNDING or not near.all():
            number = example.flatten()[(example - example.float()).abs().argmax()]
            raise ParityError(
                f"an exported model reads float32, in which {number:.12g} becomes "
                f"{number.float():.12g}, and that changes this model's answers: subtract a "
                "constant from such columns, or standardise them, before training; "
                "nothing was written"
            )


def _neighbours(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x in float32, and with its rounded numbers a step lower and higher.

    The example's own rounding errors may happen to be small.
    """
    nearest = x.float()
    steps = (nearest.nextafter(torch.tensor(sign * torch.inf)) for sign in (-1, 1))
    lower, higher = (nearest.where(nearest == x, step) for step in steps)
    return lower, nearest, higher


def check_parity(method: Method, artifact: Artifact, example: Tensor) -> dict[int, float]:
    """Raise if the exported model's answers differ from the model's.

    Args:
        method: the model.
        artifact: its export.
        example: (batch, ...).

    Returns:
        By batch size, the largest difference of a probability.
    """
    found = {}
    for size in BATCH_SIZES:
        x = _probes(example, size)
        expected, answer = method.predict(x), _answer(artifact, x)
        found[size] = _difference(expected.probs, answer.probs)
        if not found[size] <= TOLERANCE:
            raise ParityError(
                f"at batch size {size} the exported model's probabilities differ by "
                f"{found[size]:.1e} from the model's own, more than {TOLERANCE:.0e}: "
                "nothing was written"
            )
        _check_uncertainty(size, expected, answer)
    check_flags(artifact, example)
    return found


def check_flags(artifact: Artifact, example: Tensor) -> None:
    """Raise unless the exported model flags a row of NaN and no other.

    Args:
        artifact: an exported model.
        example: (batch, ...).
    """
    x = _probes(example, BATCH_SIZES[-1])
    if not x.is_floating_point():
        return
    x[1] = torch.nan
    finite = torch.as_tensor(_answer(artifact, x).epistemic).isfinite().tolist()
    if finite != [row != 1 for row in range(len(x))]:
        raise ParityError("the exported model does not flag a row of NaN: nothing was written")


def _probes(example: Tensor, num_rows: int) -> Tensor:
    """The rows of the example, then the same rows again with noise of the same spread."""
    rows = torch.arange(num_rows) % len(example)
    x = example[rows].clone()
    if x.is_floating_point() and num_rows > len(example):
        noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
        deviation = example.float().std(correction=0).clamp_min(1e-3)
        x[len(example) :] += deviation * noise[len(example) :]
    return x


def _answer(artifact: Artifact, x: Tensor) -> Answer:
    try:
        return artifact.run(x.numpy())
    except Exception as error:  # of any kind that its runtime has
        raise ParityError(
            f"the exported model does not run at batch size {len(x)}: {error}"
        ) from error


def _check_uncertainty(size: int, expected: Prediction, answer: Answer) -> None:
    for name in ("aleatoric", "epistemic", "contributions"):
        ours, theirs = getattr(expected, name), getattr(answer, name)
        if ours is None:
            continue
        theirs = torch.as_tensor(theirs)
        near = torch.isclose(ours, theirs, RELATIVE_TOLERANCE, RELATIVE_TOLERANCE)
        if not near.all():
            raise ParityError(
                f"at batch size {size} the exported model's {name} uncertainty is "
                f"{theirs[~near][0]:.6g} in place of {ours[~near][0]:.6g}: nothing was written"
            )


def _difference(expected: Tensor, answer: object) -> float:
    return float((expected - torch.as_tensor(answer)).abs().max())
