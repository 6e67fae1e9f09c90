"""The wheels of a tarball and a single file: those of deploy/locks/server.txt for several Pythons, and our own."""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from deploy.targets import ARCHITECTURES, ROOT
from deploy.tree import LOCK, BuildError, run

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
#: The C libraries, as extension modules name them, and the platforms whose wheels fit; pip adds no older ones.
GLIBC, MUSL = "gnu", "musl"
_PLATFORMS = {
    GLIBC: ("manylinux_2_28", "manylinux_2_17", "manylinux2014", "manylinux_2_12", "manylinux2010", "manylinux_2_5"),
    MUSL: ("musllinux_1_2", "musllinux_1_1"),
}
_FOLDER = ROOT / "build/wheels"


@dataclass(frozen=True, slots=True)
class Kind:
    """A Python on a kind of machine. ``architecture`` is Debian's name."""

    architecture: str
    python: str
    libc: str

    @property
    def abi(self) -> str:
        """What Python calls its extension modules by (``environment.ABI``)."""
        machine, version = ARCHITECTURES[self.architecture], self.python.replace(".", "")
        return f"cpython-{version}-{machine}-linux-{self.libc}"


def provide(architecture: str, *libcs: str) -> dict[str, list[Path]]:
    """All wheels for each ABI, our own one among them. Raises BuildError."""
    kinds = [Kind(architecture, python, libc) for libc in libcs for python in PYTHONS]
    with ThreadPoolExecutor(2) as threads:
        found = {kind.abi: wheels for kind, wheels in zip(kinds, threads.map(_locked, kinds), strict=True)}
    own = _own()
    for wheel in {own, *(wheel for wheels in found.values() for wheel in wheels)}:
        check(wheel)
    return {abi: [*wheels, own] for abi, wheels in found.items()}


def check(wheel: Path) -> None:
    """Raise BuildError for a wheel that has to be more than unpacked."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if re.match(r"[^/]*\.data/|/|(.*/)?\.\./|[^/]*\.pth$", name):
                raise BuildError(f"{wheel.name}: {name} needs an installer such as pip")


def _locked(kind: Kind) -> list[Path]:
    """The wheels of the lock. They are kept until the lock changes."""
    folder = _FOLDER / hashlib.sha256(LOCK.read_bytes()).hexdigest()[:12] / kind.abi
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            wheels = Path(scratch, "wheels")
            platforms = [f"--platform={one}_{ARCHITECTURES[kind.architecture]}" for one in _PLATFORMS[kind.libc]]
            options = ("--no-deps", "--only-binary=:all:", "--require-hashes", f"--requirement={LOCK}")
            download = (sys.executable, "-m", "pip", "download", "-q", *options)
            run(*download, f"--python-version={kind.python}", *platforms, f"--dest={wheels}")
            wheels.rename(folder)
    return sorted(folder.iterdir())


def _own() -> Path:
    folder = _FOLDER / "own"
    shutil.rmtree(folder, ignore_errors=True)
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder), cwd=ROOT)
    (wheel,) = folder.iterdir()
    return wheel
