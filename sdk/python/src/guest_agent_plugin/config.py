"""A plugin's configuration, and news of the machine, which arrive the same way.

A configuration may hold secrets: neither its `repr` nor an error shows anything of its content.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from .errors import BadConfig

T = TypeVar("T")


class VmEvent(str, enum.Enum):
    """News of the machine. An event that this version does not know is OTHER."""

    STARTUP = "startup"
    SHUTDOWN = "shutdown"
    """The machine is about to shut down. After success, the plugin may exit with code 0 when its work is over."""
    SPECIALIZE = "specialize"
    """The machine is a fresh instance made from an image."""
    OTHER = "other"


class Config:
    """A configuration: text or a structure, in the form that the order has, or absent."""

    def __init__(self, content: str | Mapping[str, Any] | None = None) -> None:
        self._content = content

    @property
    def is_present(self) -> bool:
        """Whether there is a configuration at all."""
        return self._content is not None

    @property
    def text(self) -> str:
        """The configuration as text: the text itself, or the structure as JSON; empty where there is none."""
        if self._content is None or isinstance(self._content, str):
            return self._content or ""
        return json.dumps(self._content, ensure_ascii=False)

    @property
    def fields(self) -> Mapping[str, Any] | None:
        """The structure, if the configuration is one. Whole numbers are integers."""
        return None if isinstance(self._content, str) else self._content

    def json(self) -> Any:
        """The text as JSON, or the structure; None where there is no configuration."""
        if not isinstance(self._content, str):
            return self._content
        try:
            return json.loads(self._content)
        except json.JSONDecodeError as error:
            # Its text has no values, and its cause the whole configuration.
            raise BadConfig(f"not valid JSON at line {error.lineno}, column {error.colno}") from None
        except RecursionError:
            raise BadConfig("it is nested too deeply") from None

    def decode(self, into: type[T], *, strict: bool = False) -> T:
        """Read the configuration into a dataclass of the plugin's own, text and structure alike.

        Fields that the configuration does not have keep their defaults; without a configuration all of them do. Fields may be
        bool, int, float, str, Any, lists, dicts with text as keys, optional, enumerations, Literal and other dataclasses. A
        ValueError of `__post_init__` refuses the configuration with its text. `strict` refuses fields that the class does
        not have. Every error is a BadConfig, which names the place and never a value.
        """
        value = self.json() if self.is_present else {}
        return typing.cast(T, _decode(value, into, "", strict))

    def vm_event(self) -> VmEvent | None:
        """The news of the machine that a request to apply holds, if it does not hold a configuration."""
        if not isinstance(self._content, str) or not self._content.lstrip().startswith("{"):
            return None
        try:
            found = json.loads(self._content)
        except (ValueError, RecursionError):
            return None
        # The command socket takes keys in any case and passes the bytes on unchanged.
        fields = {key.lower(): value for key, value in reversed(found.items())}
        event = fields.get("event")
        if fields.get("command") != "VmEvent" or not isinstance(event, str):
            return None
        try:
            return VmEvent(event)
        except ValueError:
            return VmEvent.OTHER

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and self._content == other._content

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        match self._content:
            case None:
                return "Config(absent)"
            case str(text):
                return f"Config({len(text.encode())} bytes)"
            case fields:
                return f"Config({len(fields)} fields)"


_NAMES = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    list: "a list",
    dict: "an object",
}


def _decode(value: Any, into: Any, place: str, strict: bool) -> Any:
    if into is Any:
        return value
    origin, arguments = typing.get_origin(into), typing.get_args(into)
    if origin in (typing.Union, types.UnionType):
        return _union(value, arguments, place, strict)
    if origin is typing.Literal:
        if value in arguments:
            return value
        raise BadConfig(f"{_at(place)} has to be one of {', '.join(map(repr, arguments))}")
    if origin is list:
        items = _expect(value, list, place)
        return [_decode(item, arguments[0], f"{place}[{number}]", strict) for number, item in enumerate(items)]
    if origin is dict:
        fields = _expect(value, dict, place)
        return {key: _decode(item, arguments[1], _below(place, key), strict) for key, item in fields.items()}
    if isinstance(into, type) and dataclasses.is_dataclass(into):
        return _dataclass(value, into, place, strict)
    if isinstance(into, type) and issubclass(into, enum.Enum):
        try:
            return into(value)
        except ValueError:
            raise BadConfig(f"{_at(place)} has to be one of {', '.join(repr(it.value) for it in into)}") from None
    if into in _NAMES:
        return _expect(value, into, place)
    raise TypeError(f"{_at(place)}: a configuration cannot be decoded into {into}")


def _union(value: Any, choices: tuple[Any, ...], place: str, strict: bool) -> Any:
    if value is None and type(None) in choices:
        return None
    refused = None
    for choice in (choice for choice in choices if choice is not type(None)):
        try:
            return _decode(value, choice, place, strict)
        except BadConfig as error:
            refused = refused or error
    raise refused or BadConfig(f"{_at(place)} has to be null")


def _dataclass(value: Any, into: type, place: str, strict: bool) -> Any:
    given = _expect(value, dict, place)
    kinds = typing.get_type_hints(into)
    made, known = {}, [field for field in dataclasses.fields(into) if field.init]
    for field in known:
        if field.name in given:
            made[field.name] = _decode(given[field.name], kinds[field.name], _below(place, field.name), strict)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise BadConfig(f"{_below(place, field.name)} is missing")
    unknown = sorted(set(given) - {field.name for field in known})
    if strict and unknown:
        raise BadConfig(f"there is no field {_below(place, unknown[0])}")
    try:
        return into(**made)
    except ValueError as error:
        raise BadConfig(f"{place}: {error}" if place else str(error)) from None


def _expect(value: Any, kind: type, place: str) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise BadConfig(f"{_at(place)} is too large") from None
    # A bool is an int in Python, and not in a configuration.
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise BadConfig(f"{_at(place)} has to be {_NAMES[kind]}")
    return value


def _below(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _at(place: str) -> str:
    return place or "the whole"
