"""What Debian's archive gives: packages installed for good, or unpacked beside the machine's own for a while."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

# Another apt on the machine is waited for, in seconds, instead of failing.
APT = ("apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300")


class SetupError(Exception):
    """The machine lacks something that cannot be brought; the message says what to do."""


def install(*packages: str) -> None:
    """Install ``packages`` with apt-get. Raises SetupError with everything it said."""
    # Without systemd, RUNLEVEL=1 keeps invoke-rc.d(8) from starting a service by its init script, out of our sight.
    environment = {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    run(*APT, "update")
    run(*APT, "install", "-y", "--no-install-recommends", *packages, environment=environment)


def unpack(package: str, folder: Path) -> Path:
    """Unpack one package, without what it depends on, into a folder of its name in ``folder``. Raises SetupError."""
    target = folder / package
    target.mkdir()
    # apt would go over to a user of its own, who may not write here.
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
    """Run a command to its end. Raises SetupError with everything it said when it fails or is not there."""
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
