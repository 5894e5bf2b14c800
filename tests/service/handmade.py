"""Small exported models that need no training and no torch, made within milliseconds.

The classes are the corners of a simplex: probs = softmax(5 f), where f are the first features of an
input; epistemic = |f|²/2, of which each feature is an expert.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from density_softmax.decide.policy import Policy
from density_softmax.serve.card import Card, Normalisation
from density_softmax.serve.predictor import Predictor

CLASSES = ("red", "green", "blue")
COLUMNS = ("length", "width", "height size")
TABLE = Normalisation("table", (1.0, 2.0, 3.0), (2.0, 1.0, 0.5), COLUMNS)
IMAGES = Normalisation("images", (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
PIXELS = 4  # along a side of an image


def write_model(
    path: Path, images: bool = False, policy: bool = True, sharpness: float = 5
) -> Path:
    """A model of tables, or of images whose mean colours are the features."""
    shape = (3, PIXELS, PIXELS) if images else (3,)
    card = Card("1", "density_softmax", CLASSES, shape, IMAGES if images else TABLE)
    card = _with(card, experts=("f0", "f1", "f2"))
    _save(path, card, sharpness)
    if policy:
        x, y = samples(Predictor(path), 600)
        promises = {"coverage": 0.9, "max_error": 0.3, "false_alarms": 0.02}
        _save(path, _with(card, policy=Policy.fit(Predictor(path), (x, y), **promises)), sharpness)
    return path


def _with(card: Card, **changes: Any) -> Card:
    return Card(**{**vars(card), **changes})


def samples(predictor: Predictor, number: int, seed: int = 0) -> tuple[NDArray[Any], NDArray[Any]]:
    """Prepared inputs like those that the model knows, and their labels."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, number)
    features = 0.4 * rng.normal(size=(number, 3)) + 0.7 * np.eye(3)[y]
    shape = predictor.card.input_shape
    x = np.broadcast_to(features.reshape(number, 3, *[1] * (len(shape) - 1)), (number, *shape))
    return np.ascontiguousarray(x, np.float32), y


def rows_of(x: NDArray[Any]) -> list[dict[str, float]]:
    """Prepared inputs of the table as a client has them."""
    raw = np.asarray(x, np.float64) * TABLE.std + TABLE.mean
    return [dict(zip(COLUMNS, row.tolist(), strict=True)) for row in raw]


def png(colour: tuple[int, int, int] = (200, 120, 40), size: int = PIXELS) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (size, size), colour).save(file, "PNG")
    return file.getvalue()


def _save(path: Path, card: Card, sharpness: float) -> None:
    features = "x"
    nodes = []
    if len(card.input_shape) == 3:
        nodes.append(helper.make_node("ReduceMean", ["x", "axes"], ["f"], keepdims=0))
        features = "f"
    nodes += [
        helper.make_node("Mul", [features, "sharpness"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["probs"], axis=1),
        helper.make_node("Mul", [features, features], ["squares"]),
        helper.make_node("Mul", ["squares", "half"], ["contributions"]),
        helper.make_node("ReduceSum", ["contributions", "one"], ["epistemic"], keepdims=0),
        helper.make_node("Log", ["probs"], ["logs"]),
        helper.make_node("Mul", ["probs", "logs"], ["parts"]),
        helper.make_node("ReduceSum", ["parts", "one"], ["negative"], keepdims=0),
        helper.make_node("Neg", ["negative"], ["aleatoric"]),
    ]
    constants = {
        "axes": np.array([2, 3]),
        "one": np.array([1]),
        "half": np.float32([0.5]),
        "sharpness": np.float32([sharpness]),
    }
    kept = [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()]
    shapes = {"probs": ["n", 3], "contributions": ["n", 3], "aleatoric": ["n"], "epistemic": ["n"]}
    values = {k: helper.make_tensor_value_info(k, TensorProto.FLOAT, s) for k, s in shapes.items()}
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", *card.input_shape])
    graph = helper.make_graph(nodes, "handmade", [x], list(values.values()), kept)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    helper.set_model_props(model, card.to_strings())
    part = path.with_suffix(".part")
    onnx.save(model, part)
    part.replace(path)
