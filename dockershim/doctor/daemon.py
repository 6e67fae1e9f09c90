"""How dockerd was started on this machine: its flags, its configuration file, its unit."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dockershim.doctor.findings import Finding, ok, warn
from dockershim.doctor.node_files import SHORT, number, text

DEFAULT_FILE: Final = "/etc/docker/daemon.json"
#: What install.md advises: json-file has no limit of its own.
LIMITS: Final = {"max-size": "32m", "max-file": "3"}
JSON_FILE: Final = "json-file"
_PID_FILE: Final = Path("/run/docker.pid")
_UNIT: Final = re.compile(r"/([^/\s]+\.service)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Daemon:
    """The dockerd that runs. ``flags`` are the names of those that it was given, without dashes.

    ``unit`` is that of systemd, empty if there is none.
    """

    program: str
    flags: frozenset[str] = frozenset()
    config_file: str = DEFAULT_FILE
    unit: str = ""


def read_daemon(pid_file: Path = _PID_FILE, proc: Path = Path("/proc")) -> Daemon | None:
    """The dockerd of this machine; None if none runs, or not with its usual file of the process id."""
    pid = number(pid_file)
    if pid is None or (text(proc / str(pid) / "comm") or "").strip() != "dockerd":
        return None
    words = (text(proc / str(pid) / "cmdline") or "").split("\0")[:-1]
    try:
        program = os.readlink(proc / str(pid) / "exe").removesuffix(" (deleted)")  # noqa: PTH115
    except OSError:
        program = "dockerd"
    units = _UNIT.findall(text(proc / str(pid) / "cgroup", SHORT) or "")
    return Daemon(
        program=program,
        flags=frozenset(word[2:].partition("=")[0] for word in words if word.startswith("--")),
        config_file=_value(words, "--config-file") or DEFAULT_FILE,
        unit=units[0] if units else "",
    )


def _value(words: Sequence[str], flag: str) -> str:
    found = ""
    for word, following in zip(words, [*words, ""][1:], strict=False):
        if word == flag:
            found = following
        elif word.startswith(f"{flag}="):
            found = word.partition("=")[2]
    return found


def check_logs(driver: str, daemon: Daemon | None, settings: str | None) -> Iterator[Finding]:
    """``driver`` is the engine's default for containers, ``settings`` the text of its configuration file, if any."""
    title = "container logs"
    if driver != JSON_FILE:
        yield ok(title, f"{driver or 'no default driver'}, by default")
    elif daemon is None or "log-opt" in daemon.flags or _has_limit(settings):
        yield ok(title, f"{driver}, with a limit" if daemon else driver)
    else:
        found = f"{driver} without max-size: a container that is not of a pod can fill the disk"
        edit = f'add "log-opts": {json.dumps(LIMITS)} to {daemon.config_file}, then: systemctl restart docker.service'
        yield warn(title, found, edit)


def _has_limit(settings: str | None) -> bool:
    try:
        document = json.loads(settings or "{}")
        return "max-size" in document["log-opts"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return False
