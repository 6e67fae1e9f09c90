"""Finds the folder in which the engine's containerd started a container: no call of the engine tells it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dockershim.dumps.problems import Kind, Problem

PROC: Final = Path("/proc")
#: Where containerd's shim keeps runc's state if nobody says otherwise.
_DEFAULT_ROOT: Final = "/run/containerd/runc"
_LONGEST_FILE: Final = 16 << 20


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
    cmd/containerd-shim-runc-v2. Raises Problem for another kind of shim, and if the process has ended.
    """
    folder = _working_folder_of_parent(pid, container_id, proc).parent / container_id
    try:
        if _read(folder / "init.pid").strip() != str(pid):
            raise Problem(Kind.STATE, f"container {container_id} has ended or is another one now")
        runtime = _read(folder / "runtime").strip()
        options = json.loads(_read(folder / "options.json") or "{}")
        spec = json.loads(_read(folder / "config.json"))
        root = options.get("root") or _DEFAULT_ROOT
    except (OSError, ValueError, AttributeError) as error:
        raise Problem(
            Kind.STATE,
            f"container {container_id} was not started by containerd's shim for runc, so its runtime cannot be"
            f" told to dump it: {error}",
        ) from error
    return Bundle(spec, runtime, str(Path(root) / folder.parent.name))


def _working_folder_of_parent(pid: int, container_id: str, proc: Path) -> Path:
    try:
        # proc_pid_stat(5): the name is in brackets, and may contain some; state and parent follow it.
        parent = (proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()[1]
        return (proc / parent / "cwd").readlink()
    except (OSError, IndexError) as error:
        raise Problem(Kind.STATE, f"container {container_id} has ended, or its shim is not to be seen") from error


def _read(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return file.read(_LONGEST_FILE)
