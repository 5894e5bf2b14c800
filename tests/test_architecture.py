"""The rules of docs/architecture.md that a machine can keep."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import density_softmax

SOURCE = Path(density_softmax.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))

# From the bottom up. A module may import from its own layer and from those below it.
LAYERS = (
    ("errors", "lazy"),
    ("files", "config", "cluster"),
    ("types", "serve", "decide"),
    ("service",),
    ("training",),
    ("nn", "data", "metrics"),
    ("methods",),
    ("engine",),
    ("recipes",),
    ("runs",),
    ("report",),
    ("benchmark", "posthoc", "updating", "comparison", "estimators", "deploy"),
    ("grid",),
    ("cli", "__main__"),
)
LEVEL = {name: level for level, layer in enumerate(LAYERS) for name in layer}
# Within a layer these do not know each other.
APART = [{"nn", "data"}, {"nn", "metrics"}, {"data", "metrics"}]


def part_of(file: Path) -> str:
    return file.relative_to(SOURCE).with_suffix("").parts[0]


def imported_parts(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            module = node.module.split(".")
            if module[0] == "density_softmax":
                names = [module[1]] if module[1:] else [alias.name for alias in node.names]
                found.update(name for name in names if name != "__version__")
    return found


def functions(file: Path):
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef):
            yield f"{file.relative_to(SOURCE)}:{node.lineno} {node.name}", code_lines(node)


def code_lines(function: ast.FunctionDef) -> int:
    """Lines of a function without its docstring, which may be as long as it needs to be."""
    lines = function.end_lineno - function.lineno + 1
    if ast.get_docstring(function):
        lines -= function.body[0].end_lineno - function.body[0].lineno + 1
    return lines


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_imports_point_downwards(file):
    part = part_of(file)
    if part == "__init__":
        return
    for other in imported_parts(file) - {part}:
        assert LEVEL[other] <= LEVEL[part], f"{part} imports {other}, which is above it"
        assert {part, other} not in APART, f"{part} imports {other}, they are to stay apart"


def test_every_part_has_a_layer():
    assert {part_of(file) for file in FILES} - {"__init__"} == set(LEVEL)


def test_a_method_never_imports_another():
    bases = {f"density_softmax.methods.{name}" for name in ("base", "posthoc")}
    for file in (SOURCE / "methods").glob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        others = {m for m in modules if m and m.startswith("density_softmax.methods.")}
        assert file.name == "__init__.py" or others <= bases, file


def test_serving_imports_nothing_that_trains():
    code = "import sys; sys.meta_path.insert(0, type('No', (), {'find_spec': staticmethod(\n"
    code += "    lambda name, *_: 1 / 0 if name == 'torch' else None)}))\n"
    code += "from density_softmax.serve import card, inputs, outputs, predictor, stream\n"
    code += "from density_softmax.service import app, client, process\n"
    code += "from density_softmax.decide import monitor, policy"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_functions_are_short():
    lengths = dict(found for file in FILES for found in functions(file))
    too_long = {key: n for key, n in lengths.items() if n > 50}
    assert not too_long
    short = sum(n <= 20 for n in lengths.values()) / len(lengths)
    assert short >= 0.9, f"only {short:.0%} of all functions have at most 20 lines"


def test_files_are_short():
    sizes = {file: len(file.read_text(encoding="utf-8").splitlines()) for file in FILES}
    assert not {file: size for file, size in sizes.items() if size > 400}
    assert not {file: n for file, n in sizes.items() if part_of(file) == "methods" and n > 200}


def test_public_functions_list_their_arguments():
    listed = {}
    for file in FILES:
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
                continue
            command = any("command" in ast.unparse(each) for each in node.decorator_list)
            if node.args.args + node.args.kwonlyargs and not command:
                name = f"{file.relative_to(SOURCE)}:{node.name}"
                listed[name] = "Args:" in (ast.get_docstring(node) or "")
    silent = [name for name, lists in listed.items() if not lists]
    assert len(silent) <= 0.2 * len(listed), silent


def test_the_walk_stays_short():
    assert len((SOURCE / "benchmark.py").read_text(encoding="utf-8").splitlines()) <= 150


def test_no_module_is_named_after_nothing():
    names = {file.stem for file in FILES} | {folder.name for folder in SOURCE.rglob("*/")}
    assert not names & {"utils", "helpers", "common", "core", "manager", "misc"}


def test_importing_the_package_does_not_import_torch():
    code = "import density_softmax, sys; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_a_module_from_the_package_does_not_import_the_methods():
    code = "import sys; from density_softmax import serve; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_public_name_can_be_imported():
    for name in density_softmax.__all__:
        assert getattr(density_softmax, name) is not None
