"""How the source hangs together: size, paths, repetition and documentation, beside the goals.

    python benchmarks/house.py [--no-walk] [--list]

Everything is read off the tree, or, for the walk, off a short `density-softmax train toy` in this
process under sys.setprofile. With --list the files and functions behind the counts are named.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "density_softmax"
SOURCE = ROOT / "src" / PACKAGE
# Short, but all stages: what runs does not depend on how long.
TOY = (
    "encoder.depth=1",
    "data.num_points=80",
    "method.representation.epochs=1",
    "method.density.descent.epochs=1",
)
# The nouns of the walk: a file whose functions take or return one is on the path of the data.
NOUNS = ("Recipe", "Run", "Data", "Split", "Source", "Batch", "Prediction", "Row")
BLOCK = 6  # lines that make a repetition

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Walk(NamedTuple):
    """The files of which a function or a class body ran in `train toy`, and those with a noun.

    A noun was an argument or a result of one of their functions.
    """

    ran: set[Path]
    data: set[Path]


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    found = {}
    for file in sorted(SOURCE.rglob("*.py")):
        parts = file.relative_to(SOURCE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def tree(file: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(file.read_text(encoding="utf-8"))


def imported(file: Path, known: dict[str, Path]) -> Iterator[str]:
    """The modules of the package that a file imports, anywhere in it."""
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module in known:
            below = {f"{node.module}.{alias.name}" for alias in node.names} & known.keys()
            yield from below or {node.module}


def single_importers() -> list[str]:
    """The modules that exactly one other imports."""
    known = modules()
    importers: dict[str, set[str]] = defaultdict(set)
    for name, file in known.items():
        for other in imported(file, known):
            importers[other].add(name)
    return sorted(name for name in known if len(importers[name] - {name}) == 1)


def functions() -> Iterator[tuple[Path, Function, bool]]:
    """Every function with its file, and whether it stands at the top of it."""
    for file in modules().values():
        module = tree(file)
        for node in ast.walk(module):
            if isinstance(node, Function):
                yield file, node, node in module.body


def body_lines(function: Function) -> int:
    """Lines of a function below its signature and docstring."""
    first = function.body[0]
    start = first.end_lineno if ast.get_docstring(function) else first.lineno - 1
    return (function.end_lineno or 0) - (start or 0)


def documented() -> dict[str, bool]:
    """Of every public function at the top of a module: whether its docstring lists arguments.

    Commands are left out: their options carry a help text each.
    """
    found = {}
    for file, function, top in functions():
        arguments = function.args
        named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        command = any("command" in ast.unparse(each) for each in function.decorator_list)
        if top and named and not command and not function.name.startswith("_"):
            name = f"{file.relative_to(SOURCE)}:{function.name}"
            found[name] = "Args:" in (ast.get_docstring(function) or "")
    return found


def repeated(folder: Path) -> float:
    """The share of lines in blocks of six that stand more than once, imports and blanks aside."""
    files = {file: _code(file) for file in sorted(folder.glob("*.py"))}
    blocks: Counter[tuple[str, ...]] = Counter()
    for lines in files.values():
        blocks.update(tuple(lines[i : i + BLOCK]) for i in range(len(lines) - BLOCK + 1))
    twice = 0
    for lines in files.values():
        starts = [
            i for i in range(len(lines) - BLOCK + 1) if blocks[tuple(lines[i : i + BLOCK])] > 1
        ]
        twice += len({line for start in starts for line in range(start, start + BLOCK)})
    return twice / sum(map(len, files.values()))


def _code(file: Path) -> list[str]:
    lines = (line.strip() for line in file.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line and not line.startswith(("#", "import ", "from "))]


def walk() -> Walk:
    """Run `train toy` and note which files take part."""
    from density_softmax.cli.main import app

    found = Walk(set(), set())

    def note(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        known = event in ("call", "return") and PACKAGE in code.co_filename
        if not known or code.co_name == "<module>":  # that it is imported does not count
            return
        file = Path(code.co_filename)
        if SOURCE in file.parents and file not in found.data:
            found.ran.add(file)
            names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            values = [frame.f_locals.get(name) for name in names] if event == "call" else [argument]
            if any(map(_is_noun, values)):
                found.data.add(file)

    with tempfile.TemporaryDirectory() as out, contextlib.redirect_stdout(io.StringIO()):
        changes = [word for change in TOY for word in ("--set", change)]
        sys.setprofile(note)
        try:
            app(["train", "toy", *changes, "--out", f"{out}/run"], standalone_mode=False)
        finally:
            sys.setprofile(None)
    return found


def _is_noun(value: Any) -> bool:
    first = value[0] if type(value) in (list, tuple) and value else value
    classes = (cls for cls in type(first).__mro__ if cls.__module__.startswith(PACKAGE))
    return any(cls.__name__ in NOUNS for cls in classes)


def table(steps: Walk | None) -> Table:
    """What was counted, beside the goals."""
    files = list(modules().values())
    lines = {file: len(file.read_text(encoding="utf-8").splitlines()) for file in files}
    bodies = sorted(body_lines(function) for _, function, _ in functions())
    lists, walk_file = documented(), SOURCE / "benchmark.py"
    own = sum(file == walk_file for file, _, _ in functions())
    tenth, undocumented = bodies[len(bodies) * 9 // 10], 1 - sum(lists.values()) / len(lists)
    rows = [
        ("files / lines in src", f"{len(files)} / {sum(lines.values()):,}", "140 / 19,500"),
        ("benchmark.py: lines, functions", f"{lines[walk_file]}, {own}", "150"),
        ("modules with a single importer", str(len(single_importers())), "35"),
        ("repeated lines in methods/", f"{repeated(SOURCE / 'methods'):.0%}", "8%"),
        (
            "function body p90 / longest",
            f"{tenth} / {bodies[-1]}",
            "15 / 50",
        ),
        ("public functions that do not list arguments", f"{undocumented:.0%}", "20%"),
    ]
    if steps is not None:
        rows += [
            ("files of which code runs in `train toy`", str(len(steps.ran)), "60"),
            ("files on the path of the data", str(len(steps.data)), "25"),
        ]
    shown = Table("", "now", "goal, at most")
    for row in rows:
        shown.add_row(*row)
    return shown


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--no-walk", action="store_true", help="do not run `train toy`")
    parser.add_argument("--list", action="store_true", help="name what was counted")
    arguments = parser.parse_args()
    steps = None if arguments.no_walk else walk()
    console = Console()
    console.print(table(steps))
    if arguments.list:
        silent = [name for name, lists in documented().items() if not lists]
        lists = {"single importer": single_importers(), "no arguments listed": silent}
        if steps is not None:
            lists["runs in train toy"] = sorted(str(f.relative_to(SOURCE)) for f in steps.ran)
            lists["on the path of the data"] = sorted(
                str(f.relative_to(SOURCE)) for f in steps.data
            )
        for title, names in lists.items():
            console.print(f"\n{title}:", *names, sep="\n  ", highlight=False)


if __name__ == "__main__":
    main()
