"""What is imported: as little as the work at hand needs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import density_softmax

HEAVY = {
    "sklearn",
    "scipy",
    "onnx",
    "onnxruntime",
    "pandas",
    "matplotlib",
    "lightning_fabric",
    "torch._dynamo",
}
COMMAND = (
    "import sys; from density_softmax.cli import main; sys.argv[0] = 'density-softmax'; main()"
)
# The interpreter ends by SystemExit: what it has imported is told on the way out.
TELL = "import atexit, sys; atexit.register(lambda: print('imported:', *sys.modules)); "


def run(code: str, *arguments: str) -> tuple[int, str, set[str]]:
    """The exit code of a new interpreter, what it printed, and the modules it imported."""
    command = [sys.executable, "-c", TELL + code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    said, _, modules = done.stdout.rpartition("imported: ")
    return done.returncode, said + done.stderr, set(modules.split())


@pytest.mark.parametrize(
    ("argument", "code", "answer"),
    [
        ("--help", 0, "train"),
        ("--version", 0, f"density-softmax {density_softmax.__version__}"),
        ("trian", 2, "Did you mean 'train'?"),
    ],
)
def test_the_command_line_answers_without_torch_and_numpy(argument, code, answer):
    returncode, said, modules = run(COMMAND, argument)
    assert returncode == code
    assert answer in said
    assert not modules & {"torch", "numpy", *HEAVY}


@pytest.mark.parametrize("name", ["attach", "DensitySoftmax", "fit"])
def test_a_model_needs_torch_and_no_other_heavy_package(name):
    code, said, modules = run(f"import density_softmax as ds; ds.{name}")
    assert code == 0, said
    assert "torch" in modules
    assert not modules & HEAVY


@pytest.mark.parametrize(("room", "others"), [("serve", {"decide", "cluster"}), ("decide", set())])
def test_serving_and_deciding_use_no_room_that_imports_torch(room, others):
    folder = Path(density_softmax.__file__).parent / room
    used = set()
    for file in folder.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                used.add(node.module)
    ours = {name for name in used if name.startswith("density_softmax")}
    files = {
        f"density_softmax.files{part}" for part in ("", ".arrays", ".cards", ".images", ".tables")
    }
    allowed = {"density_softmax.errors", "density_softmax", *files}
    assert {name.split(".")[1] for name in ours - allowed} <= {room, *others}


@pytest.mark.parametrize("name", ["Predictor", "Policy", "Decision", "Monitor"])
def test_predictors_policies_and_monitors_need_numpy_alone(name):
    code, said, modules = run(f"import density_softmax as ds; ds.{name}")
    assert code == 0, said
    assert not modules & {"torch", "PIL", *HEAVY}
