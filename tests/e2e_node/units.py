"""What the suite asks of systemd about its kubelet, for a node in which none runs: systemd-run, systemctl, sudo.

Specs that run alone stop their kubelet and start it again, and know no other way. The unit's command and its process id
are kept in a folder: any process of the suite may ask.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

UNITS: Final = Path("/run/e2e-node-units")
PATIENCE: Final = 30.0  # seconds for a unit to end, as long as the suite waits for its kubelet
_SCRIPT: Final = '#!/bin/sh\nexec {python} -m tests.e2e_node.units {name} "$@"\n'


def install(folder: Path) -> None:
    """Write the programs into `folder`, which has to stand first in PATH."""
    UNITS.mkdir()
    for name in _PROGRAMS:
        path = folder / name
        path.write_text(_SCRIPT.format(python=sys.executable, name=name))
        path.chmod(0o755)


def systemd_run(words: Sequence[str]) -> int:
    """Start the command behind the options as the unit that they name."""
    if words == ["--version"]:
        # From 240 on the log of a unit that starts again is appended to.
        sys.stdout.write("systemd 252\n")
        return 0
    options: dict[str, str] = {}
    left = list(words)
    while left[0].startswith("-"):
        word = left.pop(0)
        name, _, value = (left.pop(0) if word == "-p" else word).partition("=")
        options[name] = value
    log = options["StandardError"].removeprefix("append:")
    (UNITS / f"{options['--unit']}.json").write_text(json.dumps({"command": left, "log": log}))
    return _start(options["--unit"])


def systemctl(words: Sequence[str]) -> int:
    """One of the commands that the suite gives. 1 for any other."""
    command, *rest = words
    if command == "list-units":
        return _list("--state=running" in rest)
    commands: Mapping[str, Callable[[str], int]] = {
        "restart": lambda unit: _stop(unit) or _start(unit),
        "kill": _stop,
        "stop": _stop,
        "reset-failed": lambda _: 0,
    }
    if command not in commands:
        return 1
    return commands[command](f"{rest[0].removesuffix('.service')}.service")


def sudo(words: Sequence[str]) -> int:
    """Run the command: the suite is root."""
    os.execvp(words[0], list(words))


def _list(running: bool) -> int:
    for path in sorted(UNITS.glob("*.json")):
        if not running or _process(path.stem) is not None:
            sys.stdout.write(f"{path.stem} loaded active running\n")
    return 0


def _start(unit: str) -> int:
    found = json.loads((UNITS / f"{unit}.json").read_text())
    with Path(found["log"]).open("ab") as log:
        process = subprocess.Popen(
            found["command"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    (UNITS / f"{unit}.pid").write_text(str(process.pid))
    return 0


def _stop(unit: str) -> int:
    """0 when it has ended, 1 when it is still there in the end."""
    process = _process(unit)
    if process is None:
        return 0
    signal.pidfd_send_signal(process, signal.SIGTERM)
    return 0 if select.select([process], [], [], PATIENCE)[0] else 1


def _process(unit: str) -> int | None:
    """A descriptor of the unit's process, None when it has ended."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        pid = int((UNITS / f"{unit}.pid").read_text())
        descriptor = os.pidfd_open(pid)
        if not select.select([descriptor], [], [], 0)[0]:
            return descriptor
    return None


_PROGRAMS: Final[Mapping[str, Callable[[Sequence[str]], int]]] = {
    "systemd-run": systemd_run,
    "systemctl": systemctl,
    "sudo": sudo,
}

if __name__ == "__main__":
    sys.exit(_PROGRAMS[sys.argv[1]](sys.argv[2:]))
