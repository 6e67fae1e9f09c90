"""A Debian of the other architecture, in a folder: qemu runs one program of it at a time, so there are no pods."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.deb import debian
from tests.node.packages import SetupError, executable, install, run

ARCHITECTURE: Final = "arm64"
MACHINE: Final = "aarch64"
#: Prints the machine, when all modules of the server could be imported.
IMPORT_ALL: Final = """\
import importlib, pkgutil, platform
for top in ("dockershim", "background", "cni", "checkpoints", "loopio", "streaming"):
    for found in pkgutil.walk_packages(importlib.import_module(top).__path__, f"{top}."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
print(platform.machine())
"""


@contextmanager
def emulated(suite: str, test: str) -> Iterator[tuple[Path, tuple[str | Path, ...]]]:
    """The root of a new Debian, and the words that run a program in it. ``test`` is the target of make.

    SystemExit on a machine of that architecture, and when a program that is needed fails.
    """
    if platform.machine() == MACHINE:
        sys.exit(f"this machine is an {ARCHITECTURE}: {test}")
    try:
        install(("qemu-user-static",))
        clean = debian.provide_foreign(suite, ARCHITECTURE)
        with TemporaryDirectory() as folder:
            root = Path(folder, "root")
            run("cp", "-a", clean, root)
            if not (root / "lib").exists():
                (root / "lib").symlink_to("usr/lib")  # base-files would, if it were configured
            run("cp", executable(f"qemu-{MACHINE}-static"), root / "emulator")
            yield root, ("chroot", root, "/emulator")
    except SetupError as error:
        sys.exit(f"{test}: {error}")


def judge(answers: Sequence[str], wanted: Sequence[str]) -> int:
    """Print which answers differ from what was wanted. Gives the exit code."""
    failed = [
        f"expected {want!r}, got {answer!r}" for want, answer in zip(wanted, answers, strict=True) if want != answer
    ]
    sys.stdout.write("".join(f"{line}\n" for line in failed))
    sys.stdout.write(f"{len(wanted) - len(failed)} passed, {len(failed)} failed\n")
    return 1 if failed else 0
