"""Finds the folder in which the engine's containerd started a container: no call of the engine tells it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

PROC: Final = Path("/proc")
#: Where containerd's shim keeps runc's state if nobody says otherwise.
_DEFAULT_ROOT: Final = "/run/containerd/runc"
_LONGEST_FILE: Final = 16 << 20


class NoBundle(Exception):
    """The container has ended, or another kind of shim has started it. The text is for the caller of the CRI."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """``spec`` is the OCI specification of the container. ``runtime`` is the program of its OCI runtime, a name or a
    path; ``root`` is the folder in which that keeps its containers."""

    spec: dict[str, Any]
    runtime: str
    root: str


def find_bundle(pid: int, container_id: str, proc: Path = PROC) -> Bundle:
    """The bundle of a running container, by its first process.

    That process is a child of containerd's shim, whose working folder is ``<state>/<namespace>/<id>`` and has
    ``config.json``, ``init.pid``, ``runtime`` (the program) and ``options.json`` (``root``). Source: containerd,
    cmd/containerd-shim-runc-v2. Raises NoBundle for another kind of shim, and if the process has ended.
    """
    folder = _working_folder_of_parent(pid, container_id, proc).parent / container_id
    try:
        if _read(folder / "init.pid").strip() != str(pid):
            raise NoBundle(f"container {container_id} has exited or was replaced")
        runtime = _read(folder / "runtime").strip()
        options = json.loads(_read(folder / "options.json") or "{}")
        spec = json.loads(_read(folder / "config.json"))
        root = options.get("root") or _DEFAULT_ROOT
    except (OSError, ValueError, AttributeError) as error:
        raise NoBundle(
            f"container {container_id} cannot be dumped, because it was not started by containerd's shim for runc:"
            f" {error}"
        ) from error
    return Bundle(spec, runtime, str(Path(root) / folder.parent.name))


def _working_folder_of_parent(pid: int, container_id: str, proc: Path) -> Path:
    try:
        # proc_pid_stat(5): the name is in brackets, and may contain some; state and parent follow it.
        parent = (proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()[1]
        return (proc / parent / "cwd").readlink()
    except (OSError, IndexError) as error:
        raise NoBundle(f"container {container_id} has exited, or its shim is not visible") from error


def _read(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return file.read(_LONGEST_FILE)
