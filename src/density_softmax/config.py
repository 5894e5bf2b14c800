"""Frozen dataclasses as configuration: to and from plain dictionaries, and `path=value` overrides.

The config of a part is a dataclass inside the part. Where several parts can stand in one place
(encoders, densities, methods), their configs form a family: each member names its `kind`.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, TypeVar

from density_softmax.errors import UserError, choices
from density_softmax.lazy import import_modules

C = TypeVar("C")
F = TypeVar("F", bound="Family")

# Of the paths that a message suggests, so many are named.
NUM_SUGGESTED = 5


class ConfigError(UserError):
    """A configuration that cannot be built; the message names the path and the remedy."""


def at_least(settings: object, **bounds: float) -> None:
    """Refuse a field that is below its bound.

    Args:
        settings: a config.
        bounds: by field, the smallest value allowed; None is never too small.
    """
    for name, bound in bounds.items():
        value = getattr(settings, name)
        if value is not None and value < bound:
            raise ConfigError(f"{name}={value}: choose {bound} or more")


def shares(settings: object, *names: str) -> None:
    """Refuse a field that is no share below 1.

    Args:
        settings: a config.
        names: of fields that must be 0 or more and less than 1; None is accepted.
    """
    for name in names:
        value = getattr(settings, name)
        if value is not None and not 0 <= value < 1:
            raise ConfigError(f"{name}={value}: choose 0 or more and less than 1")


def local(default: Any) -> Any:
    """A field that says where to compute or to read, not what: it names no variant of a result.

    Args:
        default: its default.
    """
    return dataclasses.field(default=default, metadata={"local": True})


def local_settings(config: Any) -> frozenset[str]:
    """The names of the fields that say where to compute or read.

    Args:
        config: a config or its class.
    """
    return frozenset(f.name for f in dataclasses.fields(config) if "local" in f.metadata)


def without_local(config: C) -> C:
    """A copy in which the fields that say where to compute or read have their defaults.

    Args:
        config: any config.
    """
    new: dict[str, Any] = {}
    for field in dataclasses.fields(config):  # type: ignore[arg-type]
        value = getattr(config, field.name)
        if field.name in local_settings(config):
            new[field.name] = field.default
        elif dataclasses.is_dataclass(value):
            new[field.name] = without_local(value)
    return dataclasses.replace(config, **new)  # type: ignore[type-var]


class Members(Mapping[str, "type[F]"]):
    """The members of a family by kind; those in modules of a package are imported when needed.

    Args:
        package: whose modules define members; one is often named after the kind of its member.
    """

    def __init__(self, package: str = "") -> None:
        self._package, self._known = package, dict[str, "type[F]"]()

    def known(self) -> dict[str, type[F]]:
        """The members whose modules have been imported."""
        return dict(self._known)

    def add(self, kind: str, member: type[F]) -> None:
        """Register a member, or replace the one of that kind."""
        self._known[kind] = member

    def __getitem__(self, kind: str) -> type[F]:
        """The member of that kind."""
        if kind not in self._known and self._package:
            import_modules(self._package, kind)
        return self._known[kind] if kind in self._known else self._all()[kind]

    def __iter__(self) -> Iterator[str]:
        """All kinds, in the order of their modules."""
        return iter(self._all())

    def __len__(self) -> int:
        """The number of members."""
        return len(self._all())

    def _all(self) -> dict[str, type[F]]:
        if self._package:
            import_modules(self._package)
        members = sorted(self._known.items(), key=lambda item: item[1].__module__)
        return dict(members)


class Family:
    """Base of a family of configs. `class Adam(Optimizer, kind="adam")` joins one."""

    kind: ClassVar[str]
    members: ClassVar[Members[Family]]

    def __init_subclass__(cls, kind: str | None = None, package: str = "", **kwargs: Any) -> None:
        """Register a member by its kind; without one, found a new family."""
        super().__init_subclass__(**kwargs)
        if kind is None:
            cls.members = Members[Family](package)
        else:
            cls.kind = kind
            cls.members.add(kind, cls)


def to_dict(config: Any) -> dict[str, Any]:
    """A config as nested dictionaries of JSON values; members of a family carry their `kind`.

    Args:
        config: any config.
    """
    result: dict[str, Any] = {"kind": config.kind} if isinstance(config, Family) else {}
    for field in dataclasses.fields(config):
        result[field.name] = plain(getattr(config, field.name))
    return result


def plain(value: Any) -> Any:
    """An entry of a config as a JSON value.

    Args:
        value: a config, a tuple of entries, or a number, text, bool or None.
    """
    if dataclasses.is_dataclass(value):
        return to_dict(value)
    return [plain(item) for item in value] if isinstance(value, tuple) else value


def from_dict(cls: type[C], values: Mapping[str, Any], path: str = "") -> C:
    """The inverse of `to_dict`.

    Args:
        cls: the class of the config, or its family.
        values: as `to_dict` returns them. Unknown and ill-typed entries raise with their path.
        path: where it stands in a larger config.
    """
    values = dict(values)
    target: Any = cls
    if issubclass(cls, Family):
        target = _member(cls, values.pop("kind", None), path)
    hints = typing.get_type_hints(target)
    fields = dataclasses.fields(target)
    names = [field.name for field in fields]
    for name in values:
        if name not in names:
            raise ConfigError(_unknown(_join(path, name), name, names))
    for field in fields:
        if field.name not in values and not _has_default(field):
            whole, entry = path or target.__name__, _join(path, field.name)
            raise ConfigError(f"{whole}: missing '{field.name}'; set {entry}=value as well")
    built = {name: _build(hints[name], value, _join(path, name)) for name, value in values.items()}
    return typing.cast(C, target(**built))


def override(config: C, *changes: str | Mapping[str, Any]) -> C:
    """A copy of a config with some of its entries changed.

    The order makes no difference, except that the last value of a path counts: an entry that is
    set whole is built together with the entries below it, some of which its kind may require.

    Args:
        config: a frozen dataclass.
        changes: `path=value` texts as a user writes them, e.g. `method.scale=max`, or mappings
            from paths to JSON values, as `differences` returns them.
    """
    wanted: dict[tuple[str, ...], Any] = {}
    for change in changes:
        values = dict([parse_assignment(change)]) if isinstance(change, str) else change
        wanted |= {tuple(path.split(".")): value for path, value in values.items()}
    for keys in sorted(wanted, key=len, reverse=True):
        if keys[:-1] in wanted:
            wanted[keys[:-1]] = _with_entry(wanted[keys[:-1]], keys, wanted.pop(keys))
    return typing.cast(C, _changed(config, wanted, ""))


def parse_assignment(text: str) -> tuple[str, Any]:
    """The path and the value of a `path=value` text.

    Args:
        text: the value is read as JSON where it is JSON (numbers, lists, true, null), and is the
            text itself otherwise. An empty text is written `path=""`.
    """
    path, equals, value = text.partition("=")
    if not equals or not path:
        raise ConfigError(f"'{text}' is not of the form path=value")
    if not value.strip():
        raise ConfigError(f"'{text}' has no value; for none at all write {path}=null")
    return path, _parse(value)


def assignment(path: str, value: Any) -> str:
    """The text from which `parse_assignment` reads this path and value.

    Args:
        path: such as `method.scale`.
        value: a JSON value.
    """
    as_it_is = isinstance(value, str) and value.strip() and _parse(value) == value
    return f"{path}={value if as_it_is else json.dumps(value)}"


def _with_entry(whole: Any, keys: tuple[str, ...], value: Any) -> dict[str, Any]:
    """What a config is set to, a kind or a dictionary, with one entry set besides."""
    whole = {"kind": whole} if isinstance(whole, str) else whole
    if not isinstance(whole, Mapping):
        raise ConfigError(f"{'.'.join(keys)}: '{keys[-2]}' is the value {whole!r} and has no parts")
    return {**whole, keys[-1]: value}


def _changed(config: Any, changes: Mapping[tuple[str, ...], Any], path: str) -> Any:
    """A config with all its changes at once: one alone may not go with what another changes."""
    hints = typing.get_type_hints(type(config))
    names = [field.name for field in dataclasses.fields(config)]
    new = {}
    for name in dict.fromkeys(keys[0] for keys in changes):
        here = _join(path, name)
        if name not in names:
            raise ConfigError(_unknown_path(config, path, min(k for k in changes if k[0] == name)))
        inner = {keys[1:]: value for keys, value in changes.items() if keys[0] == name}
        part = getattr(config, name)
        if () in inner:
            part = _build(hints[name], inner.pop(()), here)
        if inner and not dataclasses.is_dataclass(part):
            raise ConfigError(
                f"{'.'.join((here, *min(inner)))}: '{name}' is the value {part!r} and has no parts"
            )
        new[name] = _changed(part, inner, here) if inner else part
    return dataclasses.replace(config, **new)


def differences(base: Any, other: Any, path: str = "") -> dict[str, Any]:
    """The changes that turn one config into another: JSON values by path, as `override` reads.

    Args:
        base: the config to start from.
        other: the config to arrive at, of the same class.
        path: where the two stand in a larger config.
    """
    found: dict[str, Any] = {}
    for field in dataclasses.fields(other):
        here = _join(path, field.name)
        old, new = getattr(base, field.name), getattr(other, field.name)
        if dataclasses.is_dataclass(new) and type(new) is type(old):
            found |= differences(old, new, here)
        elif isinstance(new, Family) and new != old and _has_defaults(new):
            found |= {here: new.kind, **differences(type(new)(), new, here)}
        elif new != old:
            found[here] = _without_defaults(new)
    return found


def _has_defaults(config: Any) -> bool:
    """Whether it can be made of its kind alone."""
    return all(map(_has_default, dataclasses.fields(config)))


def _has_default(field: dataclasses.Field[Any]) -> bool:
    return {field.default, field.default_factory} != {dataclasses.MISSING}


def _without_defaults(value: Any) -> Any:
    """A value as JSON; configs without the entries that have their default."""
    if not dataclasses.is_dataclass(value):
        return plain(value)
    result: dict[str, Any] = {"kind": value.kind} if isinstance(value, Family) else {}
    for field in dataclasses.fields(value):
        factory = field.default_factory
        default = field.default if factory is dataclasses.MISSING else factory()
        if getattr(value, field.name) != default:
            result[field.name] = _without_defaults(getattr(value, field.name))
    return result


def _build(hint: Any, value: Any, path: str) -> Any:
    """`value`, checked against and converted to the type that `hint` names."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        (hint,) = [arg for arg in args if arg is not type(None)]
        return _build(hint, value, path)
    if origin is typing.Literal:
        if not any(type(value) is type(arg) and value == arg for arg in args):
            raise ConfigError(f"{path}={value}: choose one of {', '.join(map(str, args))}")
        return value
    if origin is tuple:
        return _build_tuple(args, value, path)
    if dataclasses.is_dataclass(hint) or issubclass(hint, Family):
        return _build_config(hint, value, path)
    return _build_scalar(hint, value, path)


def _build_config(hint: Any, value: Any, path: str) -> Any:
    if isinstance(value, str) and issubclass(hint, Family):
        value = {"kind": value}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{path}={value!r}: set its parts one by one, as {path}.NAME=value")
    return from_dict(hint, value, path)


def _build_tuple(args: tuple[Any, ...], value: Any, path: str) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise ConfigError(f'{path}={value}: expected a list, such as [1, 2] or ["a", "b"]')
    if args[-1] is Ellipsis:
        args = (args[0],) * len(value)
    if len(args) != len(value):
        raise ConfigError(f"{path}={value}: expected {len(args)} entries, got {len(value)}")
    return tuple(_build(arg, item, path) for arg, item in zip(args, value, strict=True))


def _build_scalar(hint: type, value: Any, path: str) -> Any:
    value = float(value) if hint is float and type(value) is int else value
    if hint is float and type(value) is float and not math.isfinite(value):
        raise ConfigError(f"{path}={value}: expected a finite number")
    if type(value) is not hint:
        raise ConfigError(f"{path}={value}: expected {hint.__name__}, got {type(value).__name__}")
    return value


def _member(family: type[Family], kind: Any, path: str) -> type[Family]:
    if not isinstance(kind, str) or kind not in family.members:
        raise ConfigError(_unknown(path or "kind", kind, family.members))
    return family.members[kind]


def _unknown(path: str, name: Any, known: typing.Iterable[str]) -> str:
    return f"{path}: unknown name '{name}'; {choices(name, sorted(known))}"


def _unknown_path(config: Any, path: str, keys: tuple[str, ...]) -> str:
    """A message about keys that begin with no entry of `config`, which stands at `path`."""
    ending = f".{'.'.join(keys)}".lower()
    found = [p for p in _paths(config, path) if f".{p}".lower().endswith(ending)]
    if not found:
        names = [field.name for field in dataclasses.fields(config)]
        return _unknown(_join(path, ".".join(keys)), keys[0], names)
    more = ["..."] if len(found) > NUM_SUGGESTED else []
    suggested = " or ".join([*found[:NUM_SUGGESTED], *more])
    return f"{_join(path, '.'.join(keys))}: unknown name '{keys[0]}'; did you mean {suggested}?"


def _paths(config: Any, path: str) -> Iterator[str]:
    """The paths of all entries at and below a config."""
    for field in dataclasses.fields(config):
        here, value = _join(path, field.name), getattr(config, field.name)
        yield here
        if dataclasses.is_dataclass(value):
            yield from _paths(value, here)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _parse(text: str) -> Any:
    """JSON where it is JSON (numbers, lists, true, null), otherwise the text itself."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
