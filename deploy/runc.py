"""`make runc`: compile dockershim-runc for both architectures, into the files beside its source.

The files are in the repository, as those of the infra image: nobody needs a compiler to install the server. A test
compiles them again and compares the bytes, so they are what Debian 12's gcc makes of the source.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "dockershim/runc"
#: Debian's names of architectures, and gcc's.
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
FLAGS = (
    "-std=gnu11",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Os",
    "-ffreestanding",
    "-fno-stack-protector",
    "-fno-asynchronous-unwind-tables",
    "-fno-pie",
    "-fno-ident",
    "-nostdlib",
    "-static",
    "-no-pie",
    "-Wl,--build-id=none,-z,noseparate-code,-z,noexecstack,-s",
)


def program(architecture: str) -> Path:
    """The file that is in the repository and in the package."""
    return SOURCE / f"dockershim-runc-{architecture}"


def build(architecture: str, target: Path) -> None:
    """Compile the program for ``architecture``, amd64 or arm64, into ``target``."""
    compiler = f"{MACHINES[architecture]}-linux-gnu-gcc"
    subprocess.run([compiler, *FLAGS, "-o", target, "main.c", "config.c"], cwd=SOURCE, check=True)


def main() -> int:
    """Compile for each architecture."""
    for architecture in MACHINES:
        build(architecture, program(architecture))
    return 0


if __name__ == "__main__":
    sys.exit(main())
