"""The engine's daemon.json: settings merged into what is there. Pure.

What is not changed stays as it is written, each byte. What the engine would not read is refused, so nothing is lost.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from dockershim.doctor.daemon import JSON_FILE, LIMITS

#: What may be before a key or a value.
_SPACE: Final = re.compile(r"[\s,:]*")
_INDENT: Final = re.compile(r"^([ \t]+)\S", re.MULTILINE)


class InvalidSettings(Exception):
    """The file cannot be merged; the text names it, and what is wrong."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the file must have. ``runtime`` is the name and the path of an OCI runtime, None for none."""

    live_restore: bool = False
    log_limits: bool = False
    runtime: tuple[str, str] | None = None

    def __bool__(self) -> bool:
        return self.live_restore or self.log_limits or self.runtime is not None


def merge(content: bytes | None, wanted: Wanted, path: str) -> bytes:
    """The file with ``wanted`` in it; the same bytes if it has it already. ``content`` is None if there is no file.

    Raises InvalidSettings, which names ``path``.
    """
    text = _decode(content, path)
    before = _parse(text, path)
    after = dict(before)
    if wanted.live_restore:
        after["live-restore"] = True
    if wanted.log_limits:
        after.setdefault("log-driver", JSON_FILE)
        limits = _object(before, "log-opts", path)
        after["log-opts"] = limits if "max-size" in limits else LIMITS | limits
    if wanted.runtime is not None:
        name, program = wanted.runtime
        runtimes = _object(before, "runtimes", path)
        own = _object(runtimes, name, path) if name in runtimes else {}
        after["runtimes"] = {**runtimes, name: {**own, "path": program}}
    changed = {key: value for key, value in after.items() if key not in before or before[key] != value}
    if content is not None and not changed:
        return content
    return _edited(text, before, changed).encode()


def _edited(text: str, before: Mapping[str, Any], changed: Mapping[str, Any]) -> str:
    """The text of an object with the members ``changed``: in their place, or else at the end."""
    found = _INDENT.search(text)
    indent = found[1] if found else "  "
    if not before or "\n" not in text.strip():
        newline = "" if before and not text.endswith("\n") else "\n"
        return json.dumps({**before, **changed}, indent=indent, ensure_ascii=False) + newline

    def written(value: object) -> str:
        return json.dumps(value, indent=indent, ensure_ascii=False).replace("\n", f"\n{indent}")

    places = _places(text)
    new = "".join(f",\n{indent}{json.dumps(key)}: {written(changed[key])}" for key in changed if key not in places)
    last = max(end for _, end in places.values())
    text = text[:last] + new + text[last:]
    # From the end, so that the places before stay where they are.
    for name in sorted(changed.keys() & places.keys(), key=lambda one: places[one], reverse=True):
        begin, end = places[name]
        text = text[:begin] + written(changed[name]) + text[end:]
    return text


def _places(text: str) -> dict[str, tuple[int, int]]:
    """Where the values of an object begin and end, by their keys. The text is valid JSON."""
    decoder = json.JSONDecoder()
    places: dict[str, tuple[int, int]] = {}
    begin = _after_space(text, text.index("{") + 1)
    while text[begin] != "}":
        key, end = decoder.raw_decode(text, begin)
        begin = _after_space(text, end)
        _, end = decoder.raw_decode(text, begin)
        places[key] = (begin, end)
        begin = _after_space(text, end)
    return places


def _after_space(text: str, position: int) -> int:
    found = _SPACE.match(text, position)
    return found.end() if found else position


def live_restore(content: bytes | None) -> bool:
    """Whether an engine with this file keeps containers over its restart."""
    return _lenient(content).get("live-restore") is True


def runtimes(content: bytes | None) -> frozenset[str]:
    """The names of the OCI runtimes in this file."""
    found = _lenient(content).get("runtimes")
    return frozenset(found) if isinstance(found, dict) else frozenset()


def _lenient(content: bytes | None) -> dict[str, Any]:
    try:
        document = json.loads(content or b"{}")
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _decode(content: bytes | None, path: str) -> str:
    try:
        return (content or b"").decode()
    except UnicodeDecodeError as error:
        raise InvalidSettings(f"{path}: is not UTF-8 ({error}); fix the file, then run setup again") from None


def _parse(text: str, path: str) -> dict[str, Any]:
    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        document = dict(found)
        if len(document) != len(found):
            twice = next(key for key, _ in found if [one for one, _ in found].count(key) > 1)
            raise InvalidSettings(f"{path}: has the key {twice!r} twice; remove one, then run setup again")
        return document

    def constant(name: str) -> NoReturn:
        raise InvalidSettings(f"{path}: is not valid JSON: {name} is not a value; fix the file, then run setup again")

    if not text.strip():
        return {}
    try:
        document = json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except (ValueError, RecursionError) as error:
        raise InvalidSettings(f"{path}: is not valid JSON: {error}; fix the file, then run setup again") from None
    if not isinstance(document, dict):
        raise InvalidSettings(f"{path}: must be a JSON object; fix the file, then run setup again")
    return document


def _object(document: Mapping[str, Any], key: str, path: str) -> dict[str, Any]:
    value = document.get(key, {})
    if not isinstance(value, dict):
        raise InvalidSettings(f"{path}: {key!r} must be an object; fix the file, then run setup again")
    return value
