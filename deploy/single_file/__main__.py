"""`python -m deploy.single_file [--architecture amd64|arm64]`: build dist/ARCHITECTURE/cri-dockerd.

It is a shell script that looks for a Python, with a zip behind it that Python runs (launcher.py). In the zip are the
server's wheels for Python 3.11 to 3.14 with glibc. dist/dockershim-cri-dockerd-VERSION.ARCHITECTURE.tgz has the same
file, in a folder as in the releases of cri-dockerd.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from deploy.single_file import launcher
from deploy.tarball import archives, wheels
from deploy.tarball.__main__ import RUNTIME, commit_time, main_module, modules, start_script, with_contents
from deploy.targets import ARCHITECTURES, ROOT, own_architecture
from deploy.tree import BuildError
from dockershim import __version__
from dockershim.server import cri_dockerd


def main() -> int:
    """Build the file that the arguments ask for, and print its path and that of its archive."""
    parser = argparse.ArgumentParser(prog="python -m deploy.single_file", description=__doc__)
    parser.add_argument("--architecture", choices=ARCHITECTURES, default=own_architecture())
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    given = parser.parse_args()
    try:
        made = build(given.architecture, given.output)
    except BuildError as error:
        sys.stderr.write(f"make single-file: {error}\n")
        return 1
    sys.stdout.write("".join(f"{os.path.relpath(file)}\n" for file in made))
    return 0


def archive_name(architecture: str) -> str:
    """The name of the archive with the file."""
    return f"dockershim-{cri_dockerd.NAME}-{__version__}.{architecture}.tgz"


def build(architecture: str, output: Path) -> tuple[Path, Path]:
    """Build the file reproducibly; return its path in ``output`` and that of its archive. Raises BuildError."""
    epoch = commit_time()
    version = cri_dockerd.command(["--version"])
    assert isinstance(version, str)
    files = {
        "__main__.py": main_module("deploy.single_file.launcher"),
        launcher.VERSION_FILE: version.encode(),
        **modules((*RUNTIME, "single_file/__init__.py", "single_file/launcher.py")),
    }
    program = output / architecture / cri_dockerd.NAME
    program.parent.mkdir(parents=True, exist_ok=True)
    start = start_script(cri_dockerd.NAME, '"$here/${0##*/}"')
    archives.write_zip(program, start, with_contents(files, wheels.provide(architecture, wheels.GLIBC)), epoch)
    archive = output / archive_name(architecture)
    archives.write_tar(archive, {f"{cri_dockerd.NAME}/{cri_dockerd.NAME}": program.read_bytes()}, epoch)
    return program, archive


if __name__ == "__main__":
    sys.exit(main())
