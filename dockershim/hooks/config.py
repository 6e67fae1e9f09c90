"""The configuration of hook servers: one JSON file for each, in one folder."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from cni import read_bounded

_SUFFIX: Final = "json"
_LONGEST_FILE: Final = 1 << 20
# The kernel's sockaddr_un holds 108 bytes with the closing NUL.
_LONGEST_SOCKET: Final = 107


class Hook(StrEnum):
    """The points at which a hook server can be called, by their names in its configuration."""

    PRE_RUN_POD_SANDBOX = "PreRunPodSandbox"
    POST_STOP_POD_SANDBOX = "PostStopPodSandbox"
    PRE_CREATE_CONTAINER = "PreCreateContainer"
    PRE_START_CONTAINER = "PreStartContainer"
    POST_START_CONTAINER = "PostStartContainer"
    POST_STOP_CONTAINER = "PostStopContainer"
    PRE_UPDATE_CONTAINER_RESOURCES = "PreUpdateContainerResources"


class FailurePolicy(StrEnum):
    """What the failure of a hook does to its CRI call; NONE is the same as IGNORE."""

    FAIL = "Fail"
    IGNORE = "Ignore"
    NONE = ""


class ConfigError(Exception):
    """A file that is not a valid configuration; the text has its name and the reason."""


@dataclass(frozen=True, slots=True)
class HookServer:
    """``name`` is the name of its file; ``endpoint`` is the path of its unix socket.

    ``unknown`` are configured hooks that do not exist. They are ignored; the others work.
    """

    name: str
    endpoint: str
    policy: FailurePolicy
    hooks: frozenset[Hook]
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reading:
    """What a folder contains: the hook servers in the order of their files' names, and one line for each problem."""

    servers: tuple[HookServer, ...] = ()
    problems: tuple[str, ...] = ()


def read_folder(folder: Path, before: Reading) -> Reading:
    """Read every ``*json`` file of ``folder``. Sub-folders are ignored; a missing folder counts as empty.

    If a file cannot be used, the hook server that ``before`` had by its name stays in force. Never raises.
    """
    known = {server.name: server for server in before.servers}
    servers: list[HookServer] = []
    problems: list[str] = []
    try:
        names = sorted(path.name for path in folder.iterdir() if path.name.endswith(_SUFFIX))
    except (FileNotFoundError, NotADirectoryError):
        return Reading()
    except OSError as error:
        return Reading(before.servers, (f"{folder}: {error.strerror}; the hook servers are unchanged",))
    for name in names:
        try:
            servers.append(_read_file(folder, name))
        except (FileNotFoundError, IsADirectoryError):
            continue  # the former was removed since the folder was listed
        except ConfigError as error:
            previous = known.get(name)
            servers += [previous] if previous else []
            problems.append(f"{error}; {'its earlier content remains in effect' if previous else 'it is ignored'}")
    problems += [
        f"{folder / file.name}: runtime-hooks: unknown hook {hook!r:.80}" for file in servers for hook in file.unknown
    ]
    return Reading(tuple(servers), tuple(problems))


def _read_file(folder: Path, name: str) -> HookServer:
    try:
        return parse(name, read_bounded(folder / name, _LONGEST_FILE))
    except (FileNotFoundError, IsADirectoryError):
        raise
    except OSError as error:
        raise ConfigError(f"{folder / name}: {error.strerror}") from error
    except (ConfigError, ValueError) as error:
        raise ConfigError(f"{folder / name}: {error}") from error


class _File(msgspec.Struct, rename=lambda name: name.replace("_", "-")):
    """Null is as good as absent."""

    remote_endpoint: str | None = None
    failure_policy: str | None = None
    runtime_hooks: list[str] | None = None


def parse(name: str, content: bytes) -> HookServer:
    """The hook server of one file. Unknown keys are ignored. Raises ConfigError."""
    try:
        file = msgspec.json.decode(content, type=_File)
    except msgspec.ValidationError as error:
        raise ConfigError(str(error)) from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ConfigError(f"not JSON: {error}") from error
    asked = file.runtime_hooks or ()
    known = {hook.value: hook for hook in Hook}
    return HookServer(
        name=name,
        endpoint=_endpoint(file.remote_endpoint or ""),
        policy=_policy(file.failure_policy or ""),
        hooks=frozenset(known[name] for name in asked if name in known),
        unknown=tuple(name for name in asked if name not in known),
    )


def _endpoint(text: str) -> str:
    if not text.startswith("/") or "\0" in text:
        raise ConfigError(f"remote-endpoint: {text!r:.200} is not the path of a socket")
    if (size := len(text.encode())) > _LONGEST_SOCKET:
        raise ConfigError(f"remote-endpoint: {size} bytes, at most {_LONGEST_SOCKET} are allowed")
    return text


def _policy(text: str) -> FailurePolicy:
    try:
        return FailurePolicy(text)
    except ValueError:
        raise ConfigError(f"failure-policy: {text!r:.80} must be Fail, Ignore or empty") from None
