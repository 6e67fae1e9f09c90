"""Reads the CDI specifications that may describe a device, and turns those in YAML into JSON."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from dockershim.host_paths.operations import Touch, reach, read

#: Bounds of a folder: its files, bytes of one, characters of all that are read and of those that are answered (as JSON
#: in JSON) or are no YAML.
_MOST_FILES: Final = 4096
_LONGEST_FILE: Final = 1024 * 1024
_MOST_READ: Final = 64 * 1024 * 1024
_LONGEST_ANSWER: Final = 3 * 1024 * 1024
_LONG_ANSWER: Final = "its CDI specifications of these devices must be no longer than {} characters"
#: Mappings and lists inside of each other; a specification has five.
_DEEPEST: Final = 16
#: The names that CDI's own library and so the other runtimes read; a ``.yml`` is none.
_ENDINGS: Final = (".json", ".yaml")
_NULLS: Final = ("", "~", "null", "Null", "NULL")


class Found(NamedTuple):
    """A file that may describe a device: its content as JSON, or what is wrong with it."""

    path: str
    json: str = ""
    problem: str = ""


def find(folder: str, devices: Sequence[tuple[str, str]], touch: Touch) -> list[Found]:
    """The specifications of a folder that may have one of the devices, each a kind and a name; none without a folder.

    A file that names none of them is not parsed. Raises OSError if the folder cannot be read, or passes a bound.
    """
    found: list[Found] = []
    length = answer_length = 0
    for path in _files(folder, touch):
        try:
            text = read(path, _LONGEST_FILE, touch)
        except FileNotFoundError:
            continue  # It was removed since, or is a link to nothing.
        except OSError as error:
            found.append(Found(path, problem=error.strerror or str(error)))
        else:
            length += len(text)
            _bound(length, _MOST_READ, "its CDI specifications must be no longer than {} characters in total")
            if not _may_have(text, devices):
                continue
            # Before a long time goes into YAML that may be none.
            _bound(answer_length + len(text), _LONGEST_ANSWER, _LONG_ANSWER)
            found.append(_in_json(path, text))
            answer_length += len(text) if found[-1].problem else 0
        answer_length += len(json.dumps(found[-1]))
        _bound(answer_length, _LONGEST_ANSWER, _LONG_ANSWER)
    return found


def _files(folder: str, touch: Touch) -> list[str]:
    reach(folder, touch)
    try:
        with os.scandir(folder) as entries:
            named = (entry for entry in entries if entry.name.endswith(_ENDINGS))
            files = [entry.path for entry in islice(named, _MOST_FILES + 1) if not entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
    _bound(len(files), _MOST_FILES, "it must have no more than {} CDI specifications")
    return sorted(files)


def _bound(value: int, most: int, text: str) -> None:
    if value > most:
        raise OSError(errno.EFBIG, text.format(most))


def _may_have(text: str, devices: Sequence[tuple[str, str]]) -> bool:
    # An escape could hide a name.
    return "\\" in text or any(kind in text and name in text for kind, name in devices)


def _in_json(path: str, text: str) -> Found:
    if path.endswith(".json"):
        return Found(path, text)
    try:
        return Found(path, yaml_to_json(text))
    except ValueError as error:
        return Found(path, problem=str(error))


def yaml_to_json(text: str) -> str:
    """The first document of a YAML stream as JSON. Raises ValueError.

    Every scalar becomes a string, so that who knows the fields decides what is a number: a device may be called 0.
    A key without a value is left out. We go through the parser's events, because its loaders call themselves for
    each level of a document, and aliases could make a small document a huge one.
    """
    import yaml  # Only here, as most nodes have no YAML to read.

    try:
        value = _build(yaml.parse(text, Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader)))
    except yaml.MarkedYAMLError as error:
        line = f" in line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ValueError(f"is not valid YAML: {error.problem or error.context}{line}") from None
    except yaml.reader.ReaderError as error:
        raise ValueError(f"is not valid YAML: {error.reason} at character {error.position}") from None
    return json.dumps(value)


def _build(events: Iterator[Any]) -> Any:
    #: The open lists and mappings; a mapping is a list of its keys and values until it ends.
    levels: list[list[Any]] = [[]]
    for event in events:
        match type(event).__name__:
            case "DocumentEndEvent":
                break
            case "AliasEvent":
                raise ValueError(f"has an alias in line {event.start_mark.line + 1}; aliases are not supported")
            case "ScalarEvent":
                _no_tag(event)
                levels[-1].append(None if event.style in (None, "") and event.value in _NULLS else event.value)
            case "SequenceStartEvent" | "MappingStartEvent":
                _no_tag(event)
                if len(levels) > _DEEPEST:
                    raise ValueError(f"is nested more than {_DEEPEST} levels deep in line {event.start_mark.line + 1}")
                levels.append([])
            case "SequenceEndEvent":
                ended = levels.pop()
                levels[-1].append(ended)
            case "MappingEndEvent":
                ended = levels.pop()
                levels[-1].append(_mapping(ended, event.start_mark.line + 1))
    return next(iter(levels[0]), None)


def _no_tag(event: Any) -> None:
    if event.tag is not None:
        raise ValueError(f"has a tag in line {event.start_mark.line + 1}; tags are not supported")


def _mapping(items: list[Any], line: int) -> dict[str, Any]:
    keys, values = items[::2], items[1::2]
    if not all(isinstance(key, str) for key in keys):
        raise ValueError(f"has a key that is not a string before line {line}")
    if len(set(keys)) != len(keys):
        raise ValueError(f"has a duplicate key before line {line}")
    return {key: value for key, value in zip(keys, values, strict=True) if value is not None}


def look_at(path: str, touch: Touch) -> dict[str, int] | None:
    """What is at a path: ``mode``, ``uid``, ``gid``, ``major`` and ``minor`` of the path itself, also if it is a link,
    and ``flags`` (``ST_NOSUID`` and so on) of the mount where it leads. None if it leads to nothing."""
    reach(path, touch)
    try:
        status = os.lstat(path)
        flags = os.statvfs(path).f_flag
    except (FileNotFoundError, NotADirectoryError):
        return None
    is_device = stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode)
    number = status.st_rdev if is_device else 0
    return {
        "mode": status.st_mode,
        "uid": status.st_uid,
        "gid": status.st_gid,
        "major": os.major(number),
        "minor": os.minor(number),
        "flags": flags,
    }
