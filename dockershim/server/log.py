"""Logging: one record is one line, whatever its content.

Names of pods and images and messages of the engine and plugins are foreign text. The formatters escape characters that
are not printable and cut long texts, so that no text can break a line, imitate another record, or fill the disk.

A context variable carries the subject of the current work, so that functions need no parameter for it::

    with log.fields(sandbox_id=sandbox_id):
        logger.info("network is up")        # ... network is up sandbox_id=3f9c...
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final

from dockershim.common.text import escape

TRACEBACK_INDENT = "    "

#: In bytes, escaped. journald splits a line of more than 48 KiB into several records; a message with all its fields is
#: shorter.
LONGEST_MESSAGE: Final = 32 * 1024
#: Room for a namespace and a name of 253 characters, in ASCII as Kubernetes has them.
LONGEST_FIELD: Final = 1024
_CUT: Final = "..."
#: The most bytes of one character: two halves of a surrogate pair in JSON.
_LONGEST_ESCAPE: Final = 12

_NO_FIELDS: Mapping[str, str] = MappingProxyType({})
_fields: ContextVar[Mapping[str, str]] = ContextVar("log_fields", default=_NO_FIELDS)


@contextmanager
def fields(
    *,
    rpc: str | None = None,
    pod: str | None = None,
    container: str | None = None,
    sandbox_id: str | None = None,
    container_id: str | None = None,
) -> Iterator[None]:
    """Add fields to every record logged inside, in this task and in those it starts; ``None`` adds nothing.

    ``rpc`` is the method's name, ``pod`` is ``namespace/name``, ``container`` the name within its pod.
    """
    values = {"rpc": rpc, "pod": pod, "container": container, "sandbox_id": sandbox_id, "container_id": container_id}
    token = _fields.set({**_fields.get(), **{key: value for key, value in values.items() if value is not None}})
    try:
        yield
    finally:
        _fields.reset(token)


def current_fields() -> Mapping[str, str]:
    """The fields a record logged here would carry."""
    return _fields.get()


def configure(level: str, log_format: str) -> None:
    """Send all records of ``level`` (a name of ``logging``, any case) and above to standard error.

    ``log_format`` is ``text`` or ``json``. Calling it again replaces the earlier set-up.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    # At debug these log their own internals, which would bury the log of the calls.
    for chatty in ("asyncio", "grpc", "urllib3"):
        logging.getLogger(chatty).setLevel(max(root.level, logging.INFO))


class TextFormatter(logging.Formatter):
    """``2026-01-02T03:04:05.678Z INFO dockershim.cri.sandbox message key=value``; a traceback follows, indented."""

    def format(self, record: logging.LogRecord) -> str:
        head = f"{_timestamp(record)} {record.levelname} {record.name} {escape(_message(record))}"
        line = head + "".join(f" {key}={_quoted(_cut(value, LONGEST_FIELD))}" for key, value in _fields.get().items())
        return line + "".join(f"\n{TRACEBACK_INDENT}{escape(row)}" for row in self._traceback(record).splitlines())

    def _traceback(self, record: logging.LogRecord) -> str:
        return _cut(self.formatException(record.exc_info), LONGEST_MESSAGE) if record.exc_info else ""


class JsonFormatter(logging.Formatter):
    """One JSON object per line: ``time``, ``level``, ``logger``, ``message``, the fields, and any ``traceback``."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": _timestamp(record),
            "level": record.levelname,
            "logger": record.name,
            "message": _message(record),
            **{key: _cut(value, LONGEST_FIELD) for key, value in _fields.get().items()},
        }
        if record.exc_info:
            entry["traceback"] = _cut(self.formatException(record.exc_info), LONGEST_MESSAGE)
        return json.dumps(entry)


def _message(record: logging.LogRecord) -> str:
    return _cut(record.getMessage(), LONGEST_MESSAGE)


def _cut(text: str, longest: int) -> str:
    """``text``, cut at its end so that it takes at most ``longest`` bytes in both formats."""
    if len(text) * _LONGEST_ESCAPE <= longest:
        return text
    size = 0
    for index, char in enumerate(text):
        size += 1 if " " <= char <= "~" and char not in '"\\' else _LONGEST_ESCAPE
        if size > longest - len(_CUT):
            return text[:index] + _CUT
    return text


def _quoted(value: str) -> str:
    plain = value.isprintable() and value and not any(char in ' "=' for char in value)
    return value if plain else json.dumps(value)


def _timestamp(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
