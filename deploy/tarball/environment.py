"""Make a Python environment of wheels, without pip and the network. It runs on the node, and needs Python alone.

Debian has pip and ensurepip in packages that a node may lack, and pip cannot make an environment that is moved to its
place when it is whole. So the wheels are unpacked here. Their builder makes sure that unpacking is all they need.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.machinery
import io
import json
import os
import re
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

#: What extension modules for this Python are called by: version, machine and C library, cpython-311-x86_64-linux-gnu.
ABI = importlib.machinery.EXTENSION_SUFFIXES[0].removeprefix(".").removesuffix(".so")
CONTENTS = "contents.json"
#: The commands of an environment: a script for each, so that the process has its name, by which tools look for it.
PROGRAMS = ("dockershim", "cri-dockerd")
#: Kernels before 5.1 cut the first line of a script here.
LONGEST_FIRST_LINE = 127
#: Names of environments: version and digest.
_NAME = re.compile(r"[0-9][0-9a-z.]*-[0-9a-f]{12}")
_SCRATCH, _LOCK = ".new", ".lock"
_SCRIPT = """\
#!{first_line}
import sys

from dockershim.server.cli import main

sys.exit(main())
"""


class Refused(Exception):
    """Something was not done; the text names it, and the remedy."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """The files that are shipped. ``open`` gives the bytes of one by its path; it raises KeyError or OSError.

    ``digests`` are the SHA-256 of all files by path, ``wheels`` the paths of those for each ABI.
    """

    version: str
    digests: Mapping[str, str]
    wheels: Mapping[str, list[str]]
    open: Callable[[str], bytes]

    @classmethod
    def of(cls, open_file: Callable[[str], bytes]) -> Bundle:
        """Read the table of contents. Raises Refused."""
        try:
            table = json.loads(open_file(CONTENTS))
            return cls(table["version"], table["files"], table["wheels"], open_file)
        except (KeyError, OSError, TypeError, ValueError) as error:
            raise Refused(f"{CONTENTS}: cannot be read ({error}); unpack or copy it again") from None

    def read(self, path: str) -> bytes:
        """The content of a file. Raises Refused if it is not what was shipped."""
        try:
            content = self.open(path)
        except (KeyError, OSError, zipfile.BadZipFile) as error:
            raise Refused(f"{path}: cannot be read ({error}); unpack or copy it again") from None
        if hashlib.sha256(content).hexdigest() != self.digests.get(path):
            raise Refused(f"{path}: is damaged, its SHA-256 is another one; unpack or copy it again")
        return content

    def needed(self) -> list[str]:
        """The wheels for this Python. Raises Refused if there are none."""
        if ABI not in self.wheels:
            known = ", ".join(sorted(self.wheels))
            raise Refused(
                f"{sys.executable} is {ABI}, but there are libraries only for {known}; "
                "set PYTHON=/path/to/python to choose another one"
            )
        return self.wheels[ABI]

    @property
    def environment(self) -> str:
        """The name of the environment for this Python: another content has another name."""
        parts = " ".join([ABI, *(self.digests[wheel] for wheel in self.needed())])
        return f"{self.version}-{hashlib.sha256(parts.encode()).hexdigest()[:12]}"


def is_program(content: bytes) -> bool:
    """Whether a file is a script, or a program of the machine."""
    return content.startswith((b"#!", b"\x7fELF"))


def python() -> Path:
    """The interpreter at the path that stays when the distribution updates it, and not that of an environment."""
    base = Path(sys._base_executable)  # type: ignore[attr-defined]
    named = base.with_name(f"python{sys.version_info[0]}.{sys.version_info[1]}")
    return named if named.exists() and named.samefile(base) else base


@contextlib.contextmanager
def _locked(parent: Path) -> Iterator[None]:
    # Of several processes that make or remove environments in a folder, one does, and the others wait.
    lock = os.open(parent / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def provide(bundle: Bundle, parent: Path, problem: Callable[[Path], str]) -> Path:
    """The environment in the folder ``parent``; it is made unless it is there and works.

    ``problem`` says why the environment in a folder does not work, or nothing. Raises Refused and OSError; then nothing
    has changed.
    """
    folder = parent / bundle.environment
    if problem(folder):
        with _locked(parent):
            if problem(folder):
                _renew(bundle, folder, problem)
    return folder


def _renew(bundle: Bundle, folder: Path, problem: Callable[[Path], str]) -> None:
    scratch = folder.with_name(_SCRATCH)
    _remove(scratch)
    # Modes of files are those of a program that anyone may run.
    umask = os.umask(0o022)
    try:
        _make(bundle, scratch, folder)
        if found := problem(scratch):
            raise Refused(f"the libraries do not work here: {found}")
        # The name is not to be on the disk before the files are: a power cut would leave empty ones.
        os.sync()
        _remove(folder)
        scratch.rename(folder)
    finally:
        os.umask(umask)
        _remove(scratch)


def _make(bundle: Bundle, scratch: Path, folder: Path) -> None:
    interpreter = python()
    site = scratch / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    site.mkdir(parents=True)
    for wheel in bundle.needed():
        with zipfile.ZipFile(io.BytesIO(bundle.read(wheel))) as archive:
            archive.extractall(site)
    (scratch / "bin").mkdir()
    (scratch / "bin/python").symlink_to(interpreter)
    (scratch / "pyvenv.cfg").write_text(f"home = {interpreter.parent}\ninclude-system-site-packages = false\n")
    first_line = f"{folder}/bin/python -P"
    if len(f"#!{first_line}") > LONGEST_FIRST_LINE:
        raise Refused(f"{folder}: is too long a path for the first line of a script")
    for program in PROGRAMS:
        file = scratch / "bin" / program
        file.write_text(_SCRIPT.format(first_line=first_line))
        file.chmod(0o755)


def _remove(folder: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)


def remove_others(folder: Path) -> None:
    """Remove the environments next to ``folder`` that no process uses."""
    others = [one for one in environments(folder.parent) if one != folder]
    if others:
        with _locked(folder.parent):
            for other in others:
                if in_use(other) is None:
                    _remove(other)


def remove_all(parent: Path) -> None:
    """Remove what was made in a folder, also by runs that were cut short."""
    for folder in (*environments(parent), parent / _SCRATCH):
        _remove(folder)
    (parent / _LOCK).unlink(missing_ok=True)


def environments(parent: Path) -> list[Path]:
    """The environments in a folder. A link is none of them."""
    return [one for one in parent.iterdir() if _NAME.fullmatch(one.name) and one.is_dir() and not one.is_symlink()]


def in_use(folder: Path) -> int | None:
    """The id of a process that was started from the environment."""
    start = f"{folder}/".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cmdline").read_bytes().startswith(start):
                return int(process.name)
    return None
