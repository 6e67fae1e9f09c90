"""Limits that an engine has no field for, written into a container's cgroup files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from dockershim.errors import FailedPrecondition

ROOT = Path("/sys/fs/cgroup")


def cgroup_folder(pid: int, controller: str, *, root: Path = ROOT, proc: Path = Path("/proc")) -> Path:
    """The cgroup folder of a process that has this controller's files. Raises FailedPrecondition where none has.

    cgroups(7): a line of /proc/<pid>/cgroup is ``id:controllers:path``; controllers are empty for cgroup v2.
    """
    for line in (proc / str(pid) / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "" and (root / "cgroup.controllers").exists():
            return root / path.lstrip("/")
        if controller in controllers.split(","):
            return root / controllers / path.lstrip("/")
    raise FailedPrecondition(f"the node's kernel or its mounts have no cgroup controller {controller!r}")


def apply_files(pid: int, files: Mapping[str, str]) -> None:
    """Write each ``controller.name`` file of a container's cgroup.

    A limit of 0 huge pages needs no controller: without it there is nothing to limit, and kubelets always send it.
    Raises FailedPrecondition.
    """
    for name, value in files.items():
        controller = name.split(".", 1)[0]
        try:
            (cgroup_folder(pid, controller) / name).write_text(value)
        except FailedPrecondition:
            if controller != "hugetlb" or value != "0":
                raise
        except OSError as error:
            raise FailedPrecondition(f"cgroup file {name} does not take {value!r}: {error}") from error


def set_oom_score(pid: int, score: int) -> None:
    """Give every process of the container the score; a process that ends meanwhile is none."""
    for process in _processes(pid):
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            try:
                Path("/proc", str(process), "oom_score_adj").write_text(str(score))
            except PermissionError as error:
                raise FailedPrecondition(f"oom_score_adj {score} cannot be set: {error}") from error


def _processes(pid: int) -> Iterator[int]:
    folder = cgroup_folder(pid, "memory")
    for path, _, _ in os.walk(folder):
        with contextlib.suppress(FileNotFoundError):
            yield from map(int, (Path(path) / "cgroup.procs").read_text().split())
