import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from handmade import write_model
from starlette.testclient import TestClient

from density_softmax.serve.app import create_app
from density_softmax.serve.settings import Settings

# The command line in a process that cannot import torch.
COMMAND = """
import sys
sys.meta_path.insert(0, type('No', (), {'find_spec': staticmethod(
    lambda name, *_: 1 / 0 if name == 'torch' else None)}))
from density_softmax.cli import main
sys.argv[0] = 'density-softmax'
if __name__ == '__main__':
    main()
"""


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


def client_of(*files: Path, **settings: object) -> AbstractContextManager[TestClient]:
    app = create_app(files, Settings(threads=1, **settings))
    return TestClient(app, raise_server_exceptions=False)


@pytest.fixture(scope="module")
def client(table_file: Path, image_file: Path) -> Iterator[TestClient]:
    with client_of(table_file, image_file, reload=0) as found:
        yield found


@contextmanager
def service(*arguments: object) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A service that was started from the command line, and its address."""
    command = [sys.executable, "-c", COMMAND, "serve", *map(str, arguments), "--port", "0"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/"
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert " at http://" in line, process.communicate()[1]
        yield line.split(" at ")[1].strip(), process
    finally:
        process.terminate()
        try:
            process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


@pytest.fixture(scope="session")
def running(table_file: Path, image_file: Path) -> Iterator[str]:
    """The address of a service with both models, for tests that need a real one."""
    with service(table_file, image_file, "--max-seconds", 2, "--threads", 1) as (url, _):
        yield url


NEEDS_CURL = pytest.mark.skipif(shutil.which("curl") is None, reason="no curl is installed")
