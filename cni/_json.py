"""Reads JSON that other programs wrote.

Each helper returns a value of its type, or raises :class:`Malformed` with the place and the type found there; callers
turn that into an error type of their own. A missing key and ``null`` mean the same, as in the Go programs on the other
side.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NoReturn, TypeVar

Object = dict[str, Any]
_Value = TypeVar("_Value")

# Real configurations have less than ten levels; the limit protects the recursive encoder from hostile files.
_DEPTH_LIMIT: Final = 64


class Malformed(ValueError):
    """Not JSON, or JSON of the wrong shape."""


def decode_object(data: bytes) -> Object:
    """Decode a JSON object in UTF-8; raises :class:`Malformed`."""
    try:
        value = json.loads(data.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"invalid JSON: {error}") from error
    if not isinstance(value, dict):
        raise Malformed(f"expected an object, found {_kind(value)}")
    if _deeper(value, _DEPTH_LIMIT):
        raise Malformed(f"nested more than {_DEPTH_LIMIT} levels deep")
    return value


def encode(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def text(source: Mapping[str, Any], key: str, where: str = "") -> str:
    return _take(source, key, str, where) or ""


def integer(source: Mapping[str, Any], key: str, where: str = "") -> int | None:
    value = _take(source, key, int, where)
    if isinstance(value, bool):
        raise Malformed(f"{where}{key}: expected an integer, found a boolean")
    return value


def mapping(source: Mapping[str, Any], key: str) -> Object:
    return _take(source, key, dict, "") or {}


def objects(source: Mapping[str, Any], key: str, where: str = "") -> list[Object]:
    values: list[Any] = _take(source, key, list, where) or []
    for index, value in enumerate(values):
        if not isinstance(value, dict):
            raise Malformed(f"{where}{key}[{index}]: expected an object, found {_kind(value)}")
    return values


def texts(source: Mapping[str, Any], key: str, where: str = "") -> tuple[str, ...]:
    values: list[Any] = _take(source, key, list, where) or []
    for index, value in enumerate(values):
        if not isinstance(value, str):
            raise Malformed(f"{where}{key}[{index}]: expected a string, found {_kind(value)}")
    return tuple(values)


def flag(source: Mapping[str, Any], key: str) -> bool:
    """A boolean, or the string "true" or "false": existing configurations have both."""
    value = source.get(key)
    if value is None or isinstance(value, bool):
        return bool(value)
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise Malformed(f"{key}: expected true or false, found {value!r:.80}")


def _take(source: Mapping[str, Any], key: str, kind: type[_Value], where: str) -> _Value | None:
    value = source.get(key)
    if value is None or isinstance(value, kind):
        return value
    raise Malformed(f"{where}{key}: expected {_NAMES[kind]}, found {_kind(value)}")


_NAMES: Final[Mapping[type, str]] = {
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "a boolean",
    list: "a list",
    dict: "an object",
    type(None): "null",
}


def _kind(value: object) -> str:
    return _NAMES[type(value)]


def _deeper(value: object, left: int) -> bool:
    if isinstance(value, dict):
        return left == 0 or any(_deeper(child, left - 1) for child in value.values())
    if isinstance(value, list):
        return left == 0 or any(_deeper(child, left - 1) for child in value)
    return False


def _no_constant(name: str) -> NoReturn:
    raise Malformed(f"{name} is not a valid JSON number")
