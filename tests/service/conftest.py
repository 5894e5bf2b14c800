from collections.abc import Iterator
from pathlib import Path

import pytest
from handmade import write_model
from services import client_of, service
from starlette.testclient import TestClient


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with flowers.onnx, a table, and colours.onnx, images."""
    folder = tmp_path_factory.mktemp("exported")
    write_model(folder / "flowers.onnx")
    write_model(folder / "colours.onnx", images=True)
    return folder


@pytest.fixture(scope="session")
def table_file(exported: Path) -> Path:
    return exported / "flowers.onnx"


@pytest.fixture(scope="session")
def image_file(exported: Path) -> Path:
    return exported / "colours.onnx"


@pytest.fixture(scope="module")
def client(table_file: Path, image_file: Path) -> Iterator[TestClient]:
    with client_of(table_file, image_file, reload=0) as found:
        yield found


@pytest.fixture(scope="session")
def running(table_file: Path, image_file: Path) -> Iterator[str]:
    """The address of a service with both models, for tests that need a real one."""
    with service(table_file, image_file, "--max-seconds", 3, "--threads", 1) as (url, _):
        yield url
