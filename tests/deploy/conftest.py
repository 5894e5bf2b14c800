from pathlib import Path

import pytest
import torch
from exported_models import COLOURS, IMAGE_SHAPE, TABLE, draw, image_model, vector_model

import density_softmax as ds
from density_softmax.deploy.export import Exported


@pytest.fixture(autouse=True)
def without_training(weights_set_by_hand: None) -> None:
    """What is exported here need not have learned anything."""


# Every ONNX export takes seconds: two of them serve all tests.


@pytest.fixture(scope="session")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return ds.export(
        vector_model(),
        tmp_path_factory.mktemp("vectors") / "model.onnx",
        example=draw(1, 2),
        heldout=(draw(400, 2, seed=1).numpy(), torch.zeros(400).numpy()),
        class_names=["left", "right", "top"],
        normalisation=TABLE,
    )


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return ds.export(
        image_model(),
        tmp_path_factory.mktemp("images") / "model.onnx",
        example=draw(2, *IMAGE_SHAPE),
        normalisation=COLOURS,
    )


@pytest.fixture(scope="session")
def vector_file(vectors: Exported) -> Path:
    return vectors.path


@pytest.fixture(scope="session")
def image_file(images: Exported) -> Path:
    return images.path
