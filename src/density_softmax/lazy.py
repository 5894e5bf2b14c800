"""Packages that import their names when they are first used: torch takes seconds to load."""

from __future__ import annotations

import ast
import pkgutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def lazy_names(package: str, file: str) -> tuple[dict[str, str], Callable[[str], Any]]:
    """The names that a package imports for type checkers, and its `__getattr__`.

    Args:
        package: its name, `__name__`.
        file: its file, `__file__`, in which `if TYPE_CHECKING:` imports the names. They are listed
            there and nowhere else.

    Returns:
        The module of each name, and a function that imports a name from it.
    """
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [n for block in blocks for n in block.body if isinstance(n, ast.ImportFrom)]
    homes = {alias.name: str(node.module) for node in imports for alias in node.names}

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        return getattr(import_module(homes[name]), name)

    return homes, find


def import_modules(package: str, wanted: str = "") -> None:
    """Import the module of a package that has a name, or all of them if none has.

    Args:
        package: its dotted name.
        wanted: the name of a module, without regard to capitals and underscores.
    """
    folder = import_module(package)
    names = [module.name for module in pkgutil.iter_modules(folder.__path__)]
    alike = [name for name in names if _plain(name) == _plain(wanted)]
    for name in alike or names:
        import_module(f"{package}.{name}")


def _plain(name: str) -> str:
    return name.replace("_", "").lower()
