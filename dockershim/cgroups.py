"""Limits that an engine has no field for, written into a container's cgroup files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from dockershim.errors import FailedPrecondition

ROOT = Path("/sys/fs/cgroup")
PROC = Path("/proc")


def cgroup_folder(pid: int, controller: str, *, root: Path = ROOT, proc: Path = PROC) -> Path:
    """The cgroup folder of a process that has this controller's files. Raises FailedPrecondition where none has,
    OSError where the process or its cgroup has ended.

    cgroups(7): a line of /proc/<pid>/cgroup is ``id:controllers:path``; controllers are empty for cgroup v2.
    """
    for line in (proc / str(pid) / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "" and (root / "cgroup.controllers").exists():
            folder = root / path.lstrip("/")
            if controller == "cgroup" or controller in (folder / "cgroup.controllers").read_text().split():
                return folder
        elif controller in controllers.split(","):
            return root / controllers / path.lstrip("/")
    raise FailedPrecondition(f"the node's kernel or its mounts have no cgroup controller {controller!r}")


def apply_files(pid: int, files: Mapping[str, str], *, root: Path = ROOT, proc: Path = PROC) -> None:
    """Write each ``controller.name`` file of a container's cgroup; one that has ended needs no limits.

    A limit of 0 huge pages needs no controller: without it there is nothing to limit, and kubelets always send it.
    Raises FailedPrecondition.
    """
    for name, value in files.items():
        controller = name.split(".", 1)[0]
        try:
            _write(cgroup_folder(pid, controller, root=root, proc=proc) / name, value)
        except FailedPrecondition:
            if controller != "hugetlb" or value != "0":
                raise
        except OSError as error:
            if not (proc / str(pid)).exists():
                return
            raise FailedPrecondition(f"cgroup file {name} does not take {value!r}: {error}") from error


def _write(path: Path, value: str) -> None:
    # Never create: a file that a cgroup does not have would be a permission error instead of a missing file.
    fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)


def set_oom_score(pid: int, score: int, *, root: Path = ROOT, proc: Path = PROC) -> None:
    """Give every process of the container the score; a process that ends meanwhile is none.

    Raises FailedPrecondition where this process may not lower it so far.
    """
    for process in _processes(pid, root, proc):
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            try:
                _write(proc / str(process) / "oom_score_adj", str(score))
            except PermissionError as error:
                raise FailedPrecondition(f"oom_score_adj {score} cannot be set: {error}") from error


def _processes(pid: int, root: Path, proc: Path) -> Iterator[int]:
    # A cgroup that is removed while it is read answers with ENODEV, which no class of exceptions stands for.
    with contextlib.suppress(OSError):
        for path, _, _ in os.walk(cgroup_folder(pid, "memory", root=root, proc=proc)):
            with contextlib.suppress(OSError):
                yield from map(int, (Path(path) / "cgroup.procs").read_text().split())
