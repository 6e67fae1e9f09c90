"""A container's cgroup, and limits that an engine has no field for, written into its files."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from dockershim.errors import FailedPrecondition

ROOT = Path("/sys/fs/cgroup")
PROC = Path("/proc")
_HUGE_PAGES = Path("/sys/kernel/mm/hugepages")

_USED_PAGES = re.compile(r"(hugetlb\.[0-9]+[KMGT]B)\.(max|limit_in_bytes)")

#: A container that may make cgroups, as an engine or systemd in one does, makes as many as it likes.
MOST_CGROUPS: Final = 2000


def read_cgroups(pid: int, *, proc: Path = PROC) -> list[tuple[str, str]]:
    """The controllers and the path of each line of /proc/<pid>/cgroup, which is ``id:controllers:path`` (cgroups(7)).

    Controllers are empty for cgroup v2. Their names can have any bytes but a slash and a newline, so
    a path is as ``os.fsdecode`` has it. Raises OSError.
    """
    lines = (proc / str(pid) / "cgroup").read_bytes().split(b"\n")
    fields = (os.fsdecode(line).split(":", 2) for line in lines)
    return [(field[1], field[2]) for field in fields if len(field) == 3]


def own_cgroup(path: str, container_id: str) -> str | None:
    """The cgroup of a container, by the path of one of its processes; None where that is no process of it.

    Both drivers of an engine have the id in its name: ``…/<id>`` and ``….slice/docker-<id>.scope``. What is below is
    the container's doing: an engine or systemd in a container moves its first process there.
    """
    before, found, behind = path.partition(container_id)
    return before + found + behind.partition("/")[0] if found else None


def is_process_of(pid: int, container_id: str, *, proc: Path = PROC) -> bool:
    """Whether the process with this pid is one of the container's: another one may have the pid by now.

    It may be in a cgroup below the container's. Raises OSError if no process has the pid.
    """
    return any(own_cgroup(path, container_id) is not None for _, path in read_cgroups(pid, proc=proc))


def cgroup_folder(pid: int, container_id: str, controller: str, *, root: Path = ROOT, proc: Path = PROC) -> Path:
    """The folder of a container's cgroup that has this controller's files, by the first process. Raises
    FailedPrecondition where none has, OSError where the process or the cgroup has ended, or is another's by now.
    """
    for controllers, path in read_cgroups(pid, proc=proc):
        if controllers == "" and (root / "cgroup.controllers").exists():
            folder = root / _owned(pid, container_id, path)
            if controller == "cgroup" or controller in (folder / "cgroup.controllers").read_text().split():
                return folder
        elif controller in controllers.split(","):
            return root / controllers / _owned(pid, container_id, path)
    raise FailedPrecondition(f"the cgroup controller {controller!r} is disabled in the kernel, or not mounted")


def _owned(pid: int, container_id: str, path: str) -> str:
    own = own_cgroup(path, container_id)
    if own is None:
        raise ProcessLookupError(f"process {pid} does not belong to container {container_id}")
    return own.lstrip("/")


def apply_files(pid: int, container_id: str, files: Mapping[str, str], *, root: Path = ROOT, proc: Path = PROC) -> None:
    """Write each ``controller.name`` file of a container's cgroup; one that has ended needs no limits.

    A limit of 0 huge pages needs no controller: without it there is nothing to limit, and kubelets always send it.
    What may be used of huge pages is also what may be reserved of them, on kernels that tell the two apart (Linux 5.7):
    what a container reserves, no other can use. Raises FailedPrecondition.
    """
    for name, value in files.items():
        controller = name.split(".", 1)[0]
        if "/" in name:
            # What comes from a label may be anybody's.
            raise FailedPrecondition(f"{name!r} is not a cgroup file")
        try:
            folder = cgroup_folder(pid, container_id, controller, root=root, proc=proc)
            _write(folder / name, value)
            reserved = _reserved_file(name)
            if reserved and reserved not in files and (folder / reserved).exists():
                _write(folder / reserved, value)
        except FailedPrecondition:
            if controller != "hugetlb" or value != "0":
                raise
        except ProcessLookupError:
            return
        except OSError as error:
            if not (proc / str(pid)).exists():
                return
            raise FailedPrecondition(f"cannot write {value!r} to the cgroup file {name}: {error}") from error


def read_files(
    pid: int, container_id: str, names: Iterable[str], *, root: Path = ROOT, proc: Path = PROC
) -> dict[str, str]:
    """The content of those of these files that the container's cgroup has."""
    found = {}
    for name in names:
        with contextlib.suppress(OSError, FailedPrecondition):
            folder = cgroup_folder(pid, container_id, name.split(".", 1)[0], root=root, proc=proc)
            found[name] = (folder / name).read_text().strip()
    return found


def own_memory(pid: int, container_id: str, *, root: Path = ROOT, proc: Path = PROC) -> int:
    """The bytes of a container's memory, and in swap, that neither files nor other processes share; 0 if unknown."""
    files = read_files(pid, container_id, ("memory.stat", "memory.swap.current"), root=root, proc=proc)
    counters = dict(line.split(" ", 1) for line in files.get("memory.stat", "").splitlines())
    names = ("total_rss", "total_swap") if "total_rss" in counters else ("anon",)
    return sum(int(counters.get(name, 0)) for name in names) + int(files.get("memory.swap.current", 0))


def _reserved_file(name: str) -> str:
    """The file that limits reservations beside ``hugetlb.<size>.max`` or ``.limit_in_bytes``; empty beside others."""
    match = _USED_PAGES.fullmatch(name)
    return f"{match[1]}.rsvd.{match[2]}" if match else ""


def _write(path: Path, value: str) -> None:
    # Never create: a file that a cgroup does not have would be a permission error instead of a missing file.
    fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)


def limited_huge_pages(root: Path = ROOT, pages: Path = _HUGE_PAGES) -> list[str]:
    """The sizes of huge pages that cgroups can limit, the smallest first, as in the names of the files: ``2MB``."""
    try:
        has_controller = (root / "hugetlb").is_dir() or "hugetlb" in (root / "cgroup.controllers").read_text().split()
        kibibytes = sorted(int(path.name.removeprefix("hugepages-").removesuffix("kB")) for path in pages.iterdir())
    except OSError:
        return []
    return [huge_page_size(number) for number in kibibytes] if has_controller else []


def huge_page_size(kibibytes: int) -> str:
    """A size of huge pages as in the names of cgroup files: ``2MB``."""
    for unit in ("KB", "MB"):
        if kibibytes % 1024:
            return f"{kibibytes}{unit}"
        kibibytes //= 1024
    return f"{kibibytes}GB"


def set_oom_score(pid: int, container_id: str, score: int, *, root: Path = ROOT, proc: Path = PROC) -> None:
    """Give every process of the container the score; a process that ends meanwhile is none.

    Raises FailedPrecondition where this process may not lower it so far.
    """
    for process in _processes(pid, container_id, root, proc):
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            try:
                _write(proc / str(process) / "oom_score_adj", str(score))
            except PermissionError as error:
                raise FailedPrecondition(f"cannot set oom_score_adj to {score}: {error}") from error


def _processes(pid: int, container_id: str, root: Path, proc: Path) -> Iterator[int]:
    # A cgroup that is removed while it is read answers with ENODEV, which no class of exceptions stands for.
    with contextlib.suppress(OSError):
        yield from processes_in(str(cgroup_folder(pid, container_id, "memory", root=root, proc=proc)))


def processes_in(folder: str) -> Iterator[int]:
    """The processes of a cgroup and of those below it, of which at most ``MOST_CGROUPS`` are read."""
    with contextlib.suppress(OSError):
        for path in itertools.chain((folder,), cgroups_below(folder)):
            with contextlib.suppress(OSError):
                yield from map(int, Path(path, "cgroup.procs").read_bytes().split())


def cgroups_below(folder: str, fd: int | None = None) -> Iterator[str]:
    """The folders of the cgroups below this one, ``fd`` if it is open, the nearest first; at most ``MOST_CGROUPS``.

    Those that end meanwhile are left out, and so are those that lie too deep to have a path. Raises OSError where the
    first has ended.
    """
    found = _folders(folder, fd, MOST_CGROUPS)
    for path in found:  # which grows meanwhile
        yield path
        if len(found) < MOST_CGROUPS:
            with contextlib.suppress(OSError):
                found += _folders(path, None, MOST_CGROUPS - len(found))


def _folders(folder: str, fd: int | None, most: int) -> list[str]:
    """The cgroups in this one. Two of its links are its own, each further one is a cgroup's."""
    if os.stat(folder if fd is None else fd).st_nlink <= 2:  # noqa: PTH116 - a Path costs more than the call
        return []
    with os.scandir(folder) as entries:
        return list(itertools.islice((entry.path for entry in entries if entry.is_dir(follow_symlinks=False)), most))
