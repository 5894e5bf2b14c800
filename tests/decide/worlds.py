"""Worlds whose truth is known, to sample calibration data and streams from."""

from typing import NamedTuple

import numpy as np


class Predicted(NamedTuple):
    probs: np.ndarray
    aleatoric: np.ndarray
    epistemic: np.ndarray


def softmax(logits):
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def gaussians(count, rng, *, classes=5, shift=0.0, sharpness=2.5):
    """Classes around corners of a simplex; a classifier that is right about them but sharp."""
    y = rng.integers(0, classes, count)
    x = rng.standard_normal((count, classes)) + 2.5 * np.eye(classes)[y] + shift
    probs = softmax(sharpness * x)
    entropy = -(probs * np.log(np.maximum(probs, 1e-300))).sum(1)
    return Predicted(probs, entropy, np.square(x - 0.5).sum(1)), y


def confidences(count, rng):
    """Confidences, and errors as frequent as they say: about 6 % in all."""
    sure = 1 - 0.7 * rng.beta(0.15, 1.5, count)
    return sure, rng.random(count) < 1 - sure


def overconfident_top(count, rng):
    """The most confident are wrong often: with the threshold, risk falls and rises again."""
    sure = rng.random(count)
    rate = np.select([sure > 0.95, sure > 0.3], [0.12, 0.01], 0.2)
    return sure, rng.random(count) < rate
