"""Debian packages, unpacked into the cache instead of installed over what a machine has.

Each suite is read through apt with a source list and an index of its own, so the machine's apt configuration
stays as it is. The mirror is the one that the machine's own sources name.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.node.cache import CACHE, appearing, locked, say, used

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


class SetupError(Exception):
    """The machine cannot provide what a node needs; the text says what to do."""


def run(*command: str | Path, env: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    """Run a set-up command and return its standard output; raise SetupError with everything it said if it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, env=env, cwd=cwd, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise SetupError(f"`{' '.join(words)}` ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def install(packages: Iterable[str]) -> None:
    """Install on the machine those of `packages` that it does not have: ordinary tools and shared libraries."""
    missing = [name for name in packages if not _is_installed(name)]
    if not missing:
        return
    say(f"installing on this machine: {', '.join(missing)}")
    apt = ["apt-get", "-o", "DPkg::Lock::Timeout=300", "-qq"]
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    run(*apt, "update", env=env)
    run(*apt, "install", "-y", "--no-install-recommends", *missing, env=env)


def _is_installed(package: str) -> bool:
    asked = subprocess.run(["dpkg-query", "-W", "-f", "${Status}", package], capture_output=True, text=True)
    return asked.stdout == "install ok installed"


@dataclass(frozen=True, slots=True)
class Suite:
    """One Debian suite ("bookworm", "forky"), read through an apt index of its own."""

    name: str

    def unpack(self, packages: Sequence[str], target: Path, *, with_dependencies: bool = False) -> Path:
        """Unpack `packages` (with all they depend on, if asked) into the folder `target`, once."""
        if not used(target):
            with appearing(target) as made:
                archives = made.parent / "archives"
                (archives / "partial").mkdir(parents=True)
                with locked("apt"):
                    _refresh(self)
                    self._download(packages, archives, with_dependencies)
                for archive in sorted(archives.glob("*.deb")):
                    run("dpkg-deb", "-x", archive, made)
        return target

    def _download(self, packages: Sequence[str], archives: Path, with_dependencies: bool) -> None:
        if not with_dependencies:
            run("apt-get", *self.options, "download", *packages, cwd=archives)
            return
        # An empty package database makes apt resolve down to the C library, whatever the machine has.
        empty = archives.parent / "status"
        empty.touch()
        isolated = (*self.options, "-o", f"Dir::State::status={empty}", "-o", f"Dir::Cache::archives={archives}")
        run("apt-get", *isolated, "install", "-y", "--download-only", "--no-install-recommends", *packages)

    @property
    def source(self) -> str:
        """The suite's line in a source list of apt."""
        return f"deb [signed-by={KEYRING}] {_mirror()} {self.name} main"

    @property
    def state(self) -> Path:
        return CACHE / "apt" / self.name

    @property
    def options(self) -> tuple[str, ...]:
        """The options that make apt read this suite and nothing else, as root (the cache may be private)."""
        settings = {
            "Dir::Etc::sourcelist": self.state / "sources.list",
            "Dir::Etc::sourceparts": "-",
            "Dir::State::lists": self.state / "lists",
            "Dir::Cache::pkgcache": "",
            "Dir::Cache::srcpkgcache": "",
            "APT::Sandbox::User": "root",
            # A mirror may be a snapshot of some day: its signature is checked, its age is not.
            "Acquire::Check-Valid-Until": "false",
        }
        return tuple(word for name, value in settings.items() for word in ("-o", f"{name}={value}"))


@cache
def _refresh(suite: Suite) -> None:
    if not KEYRING.exists():
        raise SetupError(f"{KEYRING} is missing: a test node is made of Debian packages, run it on Debian 12")
    (suite.state / "lists" / "partial").mkdir(parents=True, exist_ok=True)
    (suite.state / "sources.list").write_text(f"{suite.source}\n")
    run("apt-get", *suite.options, "update")


@cache
def _mirror() -> str:
    """The address of the Debian archive in the machine's own apt sources, of any kind and format."""
    release = platform.freedesktop_os_release()["VERSION_CODENAME"]
    found = _archives_of(release)
    if not found:
        run("apt-get", "-o", "DPkg::Lock::Timeout=300", "update")  # apt names no index it has never fetched
        found = _archives_of(release)
    if not found:
        raise SetupError(f"no apt source of this machine holds the suite {release!r}: add Debian's archive")
    return found[0]


def _archives_of(release: str) -> list[str]:
    listed = run("apt-get", "indextargets", "--format", "$(RELEASE) $(REPO_URI)", "Created-By: Packages")
    rows = (line.split() for line in listed.splitlines())
    return [uri for suite, uri in rows if suite == release]


def executable(name: str) -> Path:
    """The path of a program of the machine; SetupError when it is missing."""
    found = shutil.which(name, path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    if found is None:
        raise SetupError(f"the program {name!r} is missing from this machine")
    return Path(found)
