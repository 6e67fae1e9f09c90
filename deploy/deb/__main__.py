"""`python -m deploy.deb [--suite bookworm|trixie] [--architecture amd64|arm64]`: build dist/dockershim_….deb.

With it comes dockershim-cri-dockerd, which has the names of cri-dockerd and fits every architecture.

The package has a Python environment with the wheels of deploy/locks/server.txt, so it needs the Python of one Debian
release: there is one package for each. Wheels need no compiler, so any machine builds for each of them.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path

from deploy import runc
from deploy.deb import texts
from dockershim import __version__

ROOT = Path(__file__).resolve().parents[2]
DEBIAN = Path(__file__).parent / "debian"
LOCK = ROOT / "deploy/locks/server.txt"
HOME = Path("usr/lib/dockershim")
#: The units of deploy/, and where debhelper looks for them.
UNITS = {
    "dockershim.service": "debian/dockershim.service",
    "dockershim.socket": "debian/dockershim.socket",
    "dockershim.service.d/10-socket.conf": "10-socket.conf",
    "cri-docker.service": "debian/dockershim-cri-dockerd.cri-docker.service",
    "cri-docker.socket": "debian/dockershim-cri-dockerd.cri-docker.socket",
}
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


class BuildError(Exception):
    """The package cannot be built; the text says why."""


@dataclass(frozen=True, slots=True)
class Suite:
    """A Debian release: the end of its packages' versions, and its Python."""

    number: int
    python: str

    @property
    def needs(self) -> str:
        """The dependency: extension modules fit one minor version of Python."""
        major, minor = self.python.split(".")
        return f"python3 (>= {self.python}~), python3 (<< {major}.{int(minor) + 1}~)"


SUITES = {"bookworm": Suite(12, "3.11"), "trixie": Suite(13, "3.13")}
#: Debian's names of architectures, and those of wheels.
ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}


def main() -> int:
    """Build the packages that the arguments ask for, and print their paths."""
    parser = argparse.ArgumentParser(prog="python -m deploy.deb", description=__doc__)
    parser.add_argument("--suite", choices=SUITES, default=own_suite(), help="the Debian release it is for")
    parser.add_argument("--architecture", choices=ARCHITECTURES, default=own_architecture())
    parser.add_argument("--revision", default="1", help="counts packages of one version")
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    given = parser.parse_args()
    try:
        packages = build(given.suite, given.architecture, given.revision, given.output)
    except BuildError as error:
        sys.stderr.write(f"make deb: {error}\n")
        return 1
    sys.stdout.write("".join(f"{os.path.relpath(package)}\n" for package in packages))
    return 0


def version_of(upstream: str, revision: str, suite: Suite) -> str:
    """Debian's version: releases sort after their candidates, and a newer Debian's package after an older one's."""
    for mark in ("a", "b", "rc", ".dev"):
        upstream = upstream.replace(mark, f"~{mark.removeprefix('.')}")
    return f"{upstream}-{revision}~deb{suite.number}"


def build(suite_name: str, architecture: str, revision: str, output: Path) -> tuple[Path, Path]:
    """Build both packages in build/deb, reproducibly, and return their paths in ``output``: the server's first."""
    suite = SUITES[suite_name]
    os.environ["SOURCE_DATE_EPOCH"] = epoch = _run("git", "log", "-1", "--format=%ct", cwd=ROOT).strip()
    # Modes of files are a part of the package.
    os.umask(0o022)
    work = ROOT / f"build/deb/{suite_name}-{architecture}"
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(DEBIAN, work / "debian")
    _lay_out(work / "files", suite, architecture)
    _write_command(work / "drop-in/usr/bin/cri-dockerd", DROP_IN_COMMAND)
    _write_texts(work)
    _copy_documents(work)
    _copy_units(work)
    version = version_of(__version__, revision, suite)
    (work / "debian/changelog").write_text(_changelog(version, suite_name, int(epoch)))
    environment = os.environ | {"PYTHON_DEPENDS": suite.needs, "DH_QUIET": "1"}
    # Without a compiler for the other architecture it only warns: nothing is compiled.
    architect = ("dpkg-architecture", "--force", f"--host-arch={architecture}", "--command")
    _run(*architect, "debian/rules binary", cwd=work, env=environment)
    output.mkdir(parents=True, exist_ok=True)
    names = (file_name(suite_name, architecture, revision), drop_in_file_name(suite_name, revision))
    server, drop_in = (Path(shutil.copy2(work.parent / name, output / name)) for name in names)
    return server, drop_in


def _lay_out(files: Path, suite: Suite, architecture: str) -> None:
    """The environment as ``python3 -m venv`` would make it, with the wheels for another Python and machine in it."""
    site = files / HOME / f"lib/python{suite.python}/site-packages"
    site.mkdir(parents=True)
    target = (
        f"--target={site}",
        f"--python-version={suite.python}",
        f"--python-platform={ARCHITECTURES[architecture]}-manylinux_2_28",
        "--no-deps",
        "--only-binary=:all:",
        "--link-mode=copy",
    )
    install = (sys.executable, "-m", "uv", "pip", "install", "-q", *target)
    _run(*install, "--require-hashes", f"--requirements={LOCK}")
    wheels = files.parent / "wheels"
    _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels), cwd=ROOT)
    _run(*install, "--no-index", f"--find-links={wheels}", f"dockershim=={__version__}")
    _drop_what_the_installer_left(site)

    home = files / HOME
    (home / "pyvenv.cfg").write_text(
        f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {suite.python}\n"
    )
    (home / "bin").mkdir()
    (home / "bin/python").symlink_to(f"../../../bin/python{suite.python}")
    # At a place that stays the same with the next Python: the engine's configuration names it.
    shutil.copyfile(runc.program(architecture), home / "dockershim-runc")
    (home / "dockershim-runc").chmod(0o755)
    _write_command(files / "usr/bin/dockershim", COMMAND)


def _write_command(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True)
    file.write_text(text)
    file.chmod(0o755)


def _drop_what_the_installer_left(site: Path) -> None:
    """Remove commands for the builder's Python, records of where and how the wheels were installed, and odd modes."""
    shutil.rmtree(site / "bin", ignore_errors=True)
    (site / ".lock").unlink(missing_ok=True)
    for name in ("RECORD", "REQUESTED", "direct_url.json", "uv_cache.json"):
        for file in site.glob(f"*.dist-info/{name}"):
            file.unlink()
    for file in site.rglob("*"):
        file.chmod(0o755 if file.is_dir() else 0o644)


def _write_texts(work: Path) -> None:
    config = work / "files/etc/dockershim/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(texts.config_file())
    for shell, path in texts.COMPLETIONS.items():
        file = work / "files" / path
        file.parent.mkdir(parents=True)
        file.write_text(texts.completion(shell))
    (work / "man").mkdir()
    for page in Path(__file__).parent.glob("*.scd"):
        (work / "man" / page.stem).write_text(_run("scdoc", text=texts.manual_page(page.read_text())))


def _copy_documents(work: Path) -> None:
    for pattern in ["CHANGELOG.md", *(DEBIAN / "docs").read_text().split()]:
        for file in ROOT.glob(pattern):
            copy = work / file.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, copy)
    sbom(work / BILL)


def sbom(file: Path) -> None:
    """Write the bill of materials of the server's libraries, in CycloneDX's form, from the lock."""
    options = ("--output-reproducible", "--of=JSON", f"--output-file={file}", f"--pyproject={ROOT / 'pyproject.toml'}")
    _run(sys.executable, "-m", "cyclonedx_py", "requirements", *options, str(LOCK))


def _copy_units(work: Path) -> None:
    for name, place in UNITS.items():
        text = (ROOT / "deploy" / name).read_text().replace(INSTALLED_BY_HAND, INSTALLED)
        if re.search(r"^ExecStart=/(?!usr/bin/(dockershim|cri-dockerd) )", text, re.MULTILINE):
            raise BuildError(f"deploy/{name} starts something that the package does not have")
        (work / place).write_text(text)


def _changelog(version: str, suite: str, epoch: int) -> str:
    maintainer = next(
        line.partition(": ")[2] for line in (DEBIAN / "control").read_text().splitlines() if "Maintainer: " in line
    )
    date = format_datetime(datetime.fromtimestamp(epoch, UTC))
    return f"""\
dockershim ({version}) {suite}; urgency=medium

  * See /usr/share/doc/dockershim/changelog.gz.

 -- {maintainer}  {date}
"""


def file_name(suite: str, architecture: str, revision: str = "1") -> str:
    """The name of the file of the server's package."""
    return f"dockershim_{version_of(__version__, revision, SUITES[suite])}_{architecture}.deb"


def drop_in_file_name(suite: str, revision: str = "1") -> str:
    """The name of the file of dockershim-cri-dockerd."""
    return f"dockershim-cri-dockerd_{version_of(__version__, revision, SUITES[suite])}_all.deb"


def own_suite() -> str:
    """The release of this machine, or the oldest one."""
    codename = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    return codename if codename in SUITES else next(iter(SUITES))


def own_architecture() -> str:
    """Debian's name of this machine's architecture."""
    return next((name for name, machine in ARCHITECTURES.items() if machine == platform.machine()))


def _run(*command: str, cwd: Path | None = None, env: dict[str, str] | None = None, text: str = "") -> str:
    done = subprocess.run(command, cwd=cwd, env=env, input=text, capture_output=True, text=True)
    if done.returncode:
        raise BuildError(f"`{' '.join(command)}` ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
