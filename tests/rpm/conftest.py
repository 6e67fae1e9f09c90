"""A clean Debian for each test, as tests/deb has it, and rpm that installs into it from outside."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.deb.conftest import Debian, clean_debian
from tests.node.packages import run

#: What the Debian has of what the packages need, in rpm's words.
STAND_IN = """\
Name: debian
Version: 1
Release: 1
Summary: a stand-in
License: none
BuildArch: noarch
Provides: /bin/sh
Provides: /usr/bin/python{python}
Provides: findutils
Provides: glibc = {glibc}
Provides: libgcc
Provides: libstdc++
Provides: systemd
%description
x
%files
"""


@dataclass(frozen=True, slots=True)
class Packages:
    """The files of one build: the server, the names of cri-dockerd, and the SELinux module."""

    server: Path
    drop_in: Path
    selinux: Path


@dataclass(frozen=True, slots=True)
class Root:
    """A Debian as the root folder of rpm."""

    debian: Debian

    def rpm(self, *arguments: str | Path) -> str:
        """Run rpm and return all that it prints; AssertionError if it fails."""
        done = self.attempt(*arguments)
        assert done.returncode == 0, f"rpm {arguments}:\n{done.stdout}"
        return done.stdout

    def attempt(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return _attempt("rpm", f"--root={self.debian.root}", *map(str, arguments))

    def dnf(self, *arguments: str | Path) -> str:
        """Run dnf with the repositories of the root; AssertionError if it fails."""
        options = (f"--installroot={self.debian.root}", "--releasever=1", "--assumeyes")
        done = _attempt("dnf", *options, *map(str, arguments))
        assert done.returncode == 0, f"dnf {arguments}:\n{done.stdout}"
        return done.stdout


def _attempt(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def build(spec: str, folder: Path) -> Path:
    """Build the package of a spec file in ``folder``, which is empty, and return its path."""
    file = folder / "spec"
    file.write_text(spec)
    run("rpmbuild", "-bb", f"--define=_topdir {folder}", "--define=__os_install_post %{nil}", file)
    (package,) = folder.rglob("*.rpm")
    return package


def _packages(variable: str) -> Packages:
    return Packages(*map(Path, os.environ[variable].split(os.pathsep)))


@pytest.fixture(scope="session")
def new() -> Packages:
    """The packages in dist."""
    return _packages("TEST_RPM_NEW")


@pytest.fixture(scope="session")
def old() -> Packages:
    """The same, built with a revision that sorts before every other."""
    return _packages("TEST_RPM_OLD")


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package that provides what the Debian has."""
    spec = STAND_IN.format(python=os.environ["TEST_RPM_PYTHON"], glibc=os.environ["TEST_RPM_GLIBC"])
    return build(spec, tmp_path_factory.mktemp("stand-in"))


@pytest.fixture
def root(new: Packages, old: Packages, stand_in: Path) -> Iterator[Root]:
    """A clean Debian of the test's own."""
    with clean_debian(new.server, old.server) as debian:
        made = Root(debian)
        made.rpm("--install", stand_in)
        yield made
