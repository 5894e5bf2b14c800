"""Services under test: in this process, or started from the command line."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from density_softmax.service.app import create_app
from density_softmax.service.settings import Settings

NEEDS_CURL = pytest.mark.skipif(shutil.which("curl") is None, reason="no curl is installed")
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


def client_of(*files: Path, **settings: object) -> AbstractContextManager[TestClient]:
    app = create_app(files, Settings(threads=1, **settings))
    return TestClient(app, raise_server_exceptions=False)


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
