"""What a package of any kind consists of: a Python environment with the locked wheels, texts, documents and units.

Wheels need no compiler, so any machine builds for each target. The builders of deploy/deb and deploy/rpm put it into
their packages.
"""

from __future__ import annotations

import argparse
import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from deploy import runc
from deploy.deb import texts
from deploy.targets import ARCHITECTURES, ROOT, TARGETS, Target, of_kind, own_architecture
from dockershim import __version__

LOCK = ROOT / "deploy/locks/server.txt"
HOME = Path("usr/lib/dockershim")
#: The units of deploy/.
UNITS = (
    "dockershim.service",
    "dockershim.socket",
    "dockershim.service.d/10-socket.conf",
    "cri-docker.service",
    "cri-docker.socket",
)
DOCUMENTS = ("README.md", "docs/*.md", "deploy/grafana-dashboard.json")
BILL = "sbom.cdx.json"
#: Where a unit of deploy/ and where the package has the command.
INSTALLED_BY_HAND, INSTALLED = "ExecStart=/opt/dockershim/bin/dockershim ", "ExecStart=/usr/bin/dockershim "
COMMAND = f"""\
#!/bin/sh
exec /{HOME}/bin/python -P -m dockershim "$@"
"""
#: A script of its own, so that the process has its name too: tools look for it by pgrep and pidof.
DROP_IN_COMMAND = f"""\
#!/{HOME}/bin/python -P
import sys

from dockershim.server.cli import main

sys.exit(main())
"""
#: What the wheels may need of the C library at most is that of their platform.
WHEELS_GLIBC = "2.28"


class BuildError(Exception):
    """The package cannot be built; the text says why."""


def command(
    kind: str,
    description: str | None,
    build: Callable[[Target, str, str, Path], Sequence[Path]],
    default: str | None = None,
) -> int:
    """What `python -m deploy.deb` and `python -m deploy.rpm` do: build what the arguments ask for, and print the paths.

    ``default`` is the target when none is named.
    """
    parser = argparse.ArgumentParser(prog=f"python -m deploy.{kind}", description=description)
    about = "the release it is for"
    parser.add_argument("--target", choices=of_kind(kind), default=default, required=default is None, help=about)
    parser.add_argument("--architecture", choices=ARCHITECTURES, default=own_architecture())
    parser.add_argument("--revision", default="1", help="counts packages of one version")
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    given = parser.parse_args()
    try:
        packages = build(TARGETS[given.target], given.architecture, given.revision, given.output)
    except BuildError as error:
        sys.stderr.write(f"make {kind}: {error}\n")
        return 1
    sys.stdout.write("".join(f"{os.path.relpath(package)}\n" for package in packages))
    return 0


def version(upstream: str = __version__) -> str:
    """A version as dpkg and rpm sort it: releases come after their candidates."""
    for mark in ("a", "b", "rc", ".dev"):
        upstream = upstream.replace(mark, f"~{mark.removeprefix('.')}")
    return upstream


def check_revision(revision: str) -> None:
    """Raise BuildError for what is not a revision of a package."""
    if not re.fullmatch(r"[0-9][0-9a-z.]*", revision):
        raise BuildError(f"revision {revision!r}: must be a number, such as 1 or 1.2")


def begin(kind: str, target: Target, architecture: str) -> tuple[Path, int]:
    """Prepare a reproducible build: an empty folder below build, and the time of the last commit in seconds."""
    epoch = run("git", "log", "-1", "--format=%ct", cwd=ROOT).strip()
    os.environ["SOURCE_DATE_EPOCH"] = epoch
    # Modes of files are a part of the package.
    os.umask(0o022)
    work = ROOT / f"build/{kind}/{target.name}-{architecture}"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    return work, int(epoch)


def write_server(files: Path, target: Target, architecture: str) -> None:
    """The environment as ``python3 -m venv`` would make it, with the wheels for another Python and machine in it."""
    site = files / HOME / f"lib/python{target.python}/site-packages"
    site.mkdir(parents=True)
    options = (
        f"--target={site}",
        f"--python-version={target.python}",
        f"--python-platform={ARCHITECTURES[architecture]}-manylinux_{WHEELS_GLIBC.replace('.', '_')}",
        "--no-deps",
        "--only-binary=:all:",
        "--link-mode=copy",
    )
    install = (sys.executable, "-m", "uv", "pip", "install", "-q", *options)
    run(*install, "--require-hashes", f"--requirements={LOCK}")
    run(*install, "--no-index", f"--find-links={_wheel().parent}", f"dockershim=={__version__}")
    _drop_what_the_installer_left(site)
    check_glibc(site, target)

    home = files / HOME
    (home / "pyvenv.cfg").write_text(
        f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {target.python}\n"
    )
    (home / "bin").mkdir()
    (home / "bin/python").symlink_to(f"../../../bin/python{target.python}")
    # At a place that stays the same with the next Python: the engine's configuration names it.
    shutil.copyfile(runc.program(architecture), home / "dockershim-runc")
    (home / "dockershim-runc").chmod(0o755)
    write_command(files / "usr/bin/dockershim", COMMAND)


@functools.cache
def _wheel() -> Path:
    """The wheel of the server, built once in a process. No build of it may be there from before."""
    folder = ROOT / "build/wheel"
    shutil.rmtree(folder, ignore_errors=True)
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder), cwd=ROOT)
    (wheel,) = folder.iterdir()
    return wheel


def _drop_what_the_installer_left(site: Path) -> None:
    """Remove commands for the builder's Python, records of where and how the wheels were installed, and odd modes."""
    shutil.rmtree(site / "bin", ignore_errors=True)
    (site / ".lock").unlink(missing_ok=True)
    for name in ("RECORD", "REQUESTED", "direct_url.json", "uv_cache.json"):
        for file in site.glob(f"*.dist-info/{name}"):
            file.unlink()
    for file in site.rglob("*"):
        file.chmod(0o755 if file.is_dir() else 0o644)


def check_glibc(site: Path, target: Target) -> None:
    """Raise BuildError if a compiled file names a version of the C library that the target does not have."""
    for file in sorted(site.rglob("*.so*")):
        found = re.findall(rb"GLIBC_(\d+)\.(\d+)", file.read_bytes())
        newest = max((tuple(map(int, one)) for one in found), default=(0, 0))
        if newest > tuple(map(int, target.glibc.split("."))):
            needs = ".".join(map(str, newest))
            raise BuildError(f"{file.relative_to(site)} needs glibc {needs}, but {target.title} has {target.glibc}")


def write_command(file: Path, text: str) -> None:
    """Write a program that anyone may run."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(0o755)


def write_texts(files: Path, pages: Path) -> None:
    """The configuration file and the completions in ``files``, and the manual pages in the folder ``pages``."""
    config = files / "etc/dockershim/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(texts.config_file())
    for shell, path in texts.COMPLETIONS.items():
        file = files / path
        file.parent.mkdir(parents=True)
        file.write_text(texts.completion(shell))
    pages.mkdir(parents=True)
    for page in Path(texts.__file__).parent.glob("*.scd"):
        (pages / page.stem).write_text(run("scdoc", text=texts.manual_page(page.read_text())))


def write_documents(folder: Path) -> None:
    """The documents, in folders as in the repository, with the changelog and the bill of materials."""
    for pattern in ("CHANGELOG.md", *DOCUMENTS):
        for file in ROOT.glob(pattern):
            copy = folder / file.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, copy)
    sbom(folder / BILL)


def sbom(file: Path) -> None:
    """Write the bill of materials of the server's libraries, in CycloneDX's form, from the lock."""
    options = ("--output-reproducible", "--of=JSON", f"--output-file={file}", f"--pyproject={ROOT / 'pyproject.toml'}")
    run(sys.executable, "-m", "cyclonedx_py", "requirements", *options, str(LOCK))


def unit(name: str) -> str:
    """A unit of deploy/ as the package has it."""
    text = (ROOT / "deploy" / name).read_text().replace(INSTALLED_BY_HAND, INSTALLED)
    if re.search(r"^ExecStart=/(?!usr/bin/(dockershim|cri-dockerd) )", text, re.MULTILINE):
        raise BuildError(f"deploy/{name} starts something that the package does not have")
    return text


def run(*command: str, cwd: Path | None = None, env: dict[str, str] | None = None, text: str = "") -> str:
    """Run a command and return its output. Raises BuildError, with all that it said, if it fails or does not exist."""
    try:
        done = subprocess.run(command, cwd=cwd, env=env, input=text, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise BuildError(f"the program {command[0]} is missing from this machine") from error
    if done.returncode:
        raise BuildError(f"`{' '.join(command)}` ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout
