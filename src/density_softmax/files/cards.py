"""Dataclasses of numbers, arrays and each other as JSON files, told apart by their format."""

from __future__ import annotations

import json
import math
from abc import ABC
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ClassVar, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from density_softmax.errors import UserError
from density_softmax.files import write_text

C = TypeVar("C", bound="Card")


class Card(ABC):
    """A dataclass that is kept as JSON.

    Attributes:
        format: tells the file from others; another one is refused.
        remedy: what to do about a file that is refused.
    """

    format: ClassVar[str]
    remedy: ClassVar[str]

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        found: dict[str, Any] = as_json(self)
        return {"format": self.format, **found}

    @classmethod
    def from_dict(cls: type[C], values: Mapping[str, Any], where: str = "") -> C:
        """What `to_dict` made.

        Args:
            values: by name.
            where: the file, for error messages.
        """
        try:
            if values["format"] != cls.format:
                raise ValueError(f"its format is '{values['format']}'")
            found: C = from_json(cls, {k: v for k, v in values.items() if k != "format"})
            return found
        except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
            raise UserError(
                f"{where}{': ' * bool(where)}no {cls.format} ({error!r}); {cls.remedy}"
            ) from None

    def save(self, path: str | Path) -> None:
        """Write a JSON file, atomically: a kill leaves the old one or the new one."""
        write_text(Path(path), json.dumps(self.to_dict(), allow_nan=False))

    @classmethod
    def load(cls: type[C], path: str | Path) -> C:
        """What `save` wrote."""
        try:
            values = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise UserError(
                f"{path}: cannot be read as a {cls.format} ({error}); {cls.remedy}"
            ) from None
        return cls.from_dict(values, str(path))


def as_json(value: Any) -> Any:
    """A value as JSON has it; an infinite number, which it has not, is text.

    Args:
        value: a dataclass, a named tuple, an array, a mapping, a list, a number or a text.
    """
    if isinstance(value, np.ndarray):
        return as_json(value.tolist())
    if is_dataclass(value):
        return {each.name: as_json(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): as_json(each) for name, each in value.items()}
    if isinstance(value, tuple | list):
        named = getattr(value, "_asdict", None)
        return [as_json(each) for each in value] if named is None else as_json(named())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def from_json(kind: Any, value: Any) -> Any:
    """What `as_json` made.

    Args:
        kind: what it was: a class, or a type such as tuple[str, ...].
        value: JSON values.

    Raises:
        KeyError, TypeError, ValueError: if it is not of that kind.
    """
    origin, args = get_origin(kind), get_args(kind)
    # From numpy 2.5 on, which needs Python 3.12, NDArray is an alias of its own kind.
    if origin is np.ndarray or origin is get_origin(NDArray[Any]):
        return np.array(value, args[0] if len(args) == 1 else get_args(args[1])[0])
    if origin in (Union, UnionType):
        return None if value is None else from_json(_fitting(args, value), value)
    if origin in (list, tuple):
        return origin(from_json(args[0], each) for each in value)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {name: from_json(args[1], each) for name, each in value.items()}
    if is_dataclass(kind) or hasattr(kind, "_fields"):
        hints = get_type_hints(kind)
        return _made(kind, {name: from_json(hints[name], each) for name, each in value.items()})
    if kind is float:
        return float(value)
    if kind is not Any and isinstance(kind, type) and not isinstance(value, kind):
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value


def _made(kind: type[Any], values: dict[str, Any]) -> Any:
    """An object of its fields, also if its own constructor takes others."""
    if not is_dataclass(kind) or kind.__dataclass_params__.init:  # type: ignore[attr-defined]
        return kind(**values)
    if missing := {each.name for each in fields(kind)} - set(values):
        raise KeyError(min(missing))
    found: Any = object.__new__(kind)
    vars(found).update(values)
    return found


def _fitting(kinds: tuple[Any, ...], value: Any) -> Any:
    """That of several kinds whose fields are those of the value."""
    found = [kind for kind in kinds if kind is not NoneType]
    named = [k for k in found if is_dataclass(k) and {f.name for f in fields(k)} == set(value)]
    return (named or found)[0]
