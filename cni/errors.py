"""The errors of a runtime and its network plugins.

All errors that this package raises are :class:`CNIError`. :class:`PluginError` is the error that a plugin itself
reported; the other classes show which side broke the protocol.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import IntEnum
from typing import Final

_TEXT_LIMIT: Final = 4096


class ErrorCode(IntEnum):
    """The codes of plugin errors that make a difference here (SPEC.md, section 5 "Error")."""

    UNKNOWN = 0
    UNKNOWN_CONTAINER = 3


class CNIError(Exception):
    """Base of every error of this package."""


class ConfigError(CNIError):
    """A network configuration cannot be used: it is damaged, incomplete, or of an unsupported version."""


class AttachmentError(CNIError):
    """The specification does not allow the caller's container id, interface name, namespace or arguments."""


class PluginNotFound(CNIError):
    """No folder of the search path has an executable file of the plugin's name."""


class PluginStartError(CNIError):
    """The plugin's file exists but could not be executed; the cause is the ``OSError``."""


class ResultError(CNIError):
    """A plugin reported success, but its output is not a result: no JSON, wrong types, or too large."""


class CacheError(CNIError):
    """A cached result cannot be read, understood or written."""


class NotSupported(CNIError):
    """The configuration's version of the specification does not have the operation."""


class OperationTimeout(CNIError):
    """The time for the whole operation was used up."""


class PluginTimeout(OperationTimeout):
    """A plugin did not end in time; it and its process group were killed."""


class OperationFailed(CNIError):
    """An operation that tries every plugin had failures. ``failures`` has all of them, in their order."""

    def __init__(self, operation: str, failures: Sequence[CNIError]) -> None:
        super().__init__(f"{operation}: " + "; ".join(str(failure) for failure in failures))
        self.operation = operation
        self.failures = tuple(failures)


class PluginError(CNIError):
    """A plugin ended with a failure.

    ``code`` is the specification's, or the plugin's own number (100 and above).
    ``stderr`` is the end of the plugin's output there.
    """

    def __init__(self, plugin: str, command: str, code: int, msg: str, details: str = "", stderr: str = "") -> None:
        said = "; ".join(part for part in (msg, details) if part)
        noise = quote_stderr(stderr.encode()) if stderr not in said else ""
        super().__init__(f"plugin {plugin} failed {command} with code {int(code)}: {said}{noise}")
        self.plugin = plugin
        self.command = command
        self.code = code
        self.msg = msg
        self.details = details
        self.stderr = stderr

    @classmethod
    def parse(cls, plugin: str, command: str, exit_status: int, stdout: bytes, stderr: bytes) -> PluginError:
        """Make the error from the output of a failed plugin (SPEC.md, section 5, "Error").

        ``exit_status`` is negative for a signal, as in :mod:`subprocess`. Never raises: a crashed plugin may print
        anything or nothing, and that must not hide the failure itself.
        """
        noise = _text(stderr)
        try:
            answer = json.loads(stdout)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            said = _text(stdout) or noise or "it printed no error"
            return cls(plugin, command, ErrorCode.UNKNOWN, f"{_ending(exit_status)}: {said}", stderr=noise)
        code = answer.get("code")
        return cls(
            plugin,
            command,
            code if isinstance(code, int) and not isinstance(code, bool) and code >= 0 else ErrorCode.UNKNOWN,
            str(answer.get("msg") or _ending(exit_status))[:_TEXT_LIMIT],
            str(answer.get("details") or "")[:_TEXT_LIMIT],
            noise,
        )


def quote_stderr(stderr: bytes | bytearray) -> str:
    """The end of a plugin's stderr as a suffix for a message; empty if it wrote nothing."""
    text = _text(stderr)
    return f" (stderr: {text})" if text else ""


def _ending(exit_status: int) -> str:
    return f"killed by signal {-exit_status}" if exit_status < 0 else f"exit status {exit_status}"


def _text(output: bytes | bytearray) -> str:
    return output[-_TEXT_LIMIT:].decode(errors="replace").strip()
