"""Debian packages: installs them, or unpacks them into a folder without installing."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

# Waits up to 300 s for another apt on the machine instead of failing.
APT = ("apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300")


class SetupError(Exception):
    """The machine lacks something that cannot be installed or started; the message says what."""


def install(*packages: str) -> None:
    """Install ``packages`` with apt-get. Raises SetupError with its whole output."""
    # Without systemd, RUNLEVEL=1 keeps invoke-rc.d(8) from starting a service by its init script: we start it.
    environment = {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    run(*APT, "update")
    run(*APT, "install", "-y", "--no-install-recommends", *packages, environment=environment)


def unpack(package: str, folder: Path) -> Path:
    """Unpack one package, without its dependencies, into a folder of its name in ``folder``. Raises SetupError."""
    target = folder / package
    target.mkdir()
    # By default apt downloads as another user, who may not write here.
    download = (*APT, "-o", "APT::Sandbox::User=root", "download", package)
    try:
        run(*download, cwd=target)
    except SetupError:
        run(*APT, "update")  # the index was never fetched, or names a version that the archive has replaced
        run(*download, cwd=target)
    archive = next(target.glob("*.deb"))
    run("dpkg-deb", "-x", str(archive), str(target))
    archive.unlink()
    return target


def run(*command: str, cwd: Path | None = None, environment: dict[str, str] | None = None) -> None:
    """Run a command to its end. Raises SetupError, with its whole output, if it fails or does not exist."""
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env=os.environ | (environment or {}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
    except FileNotFoundError as error:
        raise SetupError(f"{command[0]} is not on this machine; this works on Debian and its kin") from error
    if done.returncode:
        raise SetupError(f"`{' '.join(command)}` ended with {done.returncode}:\n{done.stdout}{done.stderr}".rstrip())
