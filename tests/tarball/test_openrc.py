"""The OpenRC script, by the OpenRC of Debian in place of systemd."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deb.conftest import Debian, answers
from tests.tarball.conftest import unpacked

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def openrc(debian: Debian) -> Iterator[Debian]:
    """A Debian that OpenRC has started."""
    pack = ["tar", "-C", os.environ["TEST_OPENRC"], "-c", "."]
    packed = subprocess.run(pack, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-C", debian.root, "--keep-directory-symlink", "-x"], input=packed, check=True)
    shutil.rmtree("/run/systemd/system")
    # As it does at a boot.
    for folder in ("daemons", "exclusive", "failed", "inactive", "options", "started", "starting", "stopping", "tmp"):
        Path("/run/openrc", folder).mkdir(parents=True)
    Path("/run/openrc/softlevel").write_text("default\n")
    yield debian
    debian.attempt("rc-service", "dockershim", "stop")
    shutil.rmtree("/run/openrc")
    Path("/run/systemd/system").mkdir()


def test_the_service_starts_is_reloaded_started_again_and_removed(openrc: Debian) -> None:
    old = unpacked(openrc, openrc.old_package)
    said = openrc.run(f"{old}/install.sh")
    assert "rc-update add dockershim && rc-service dockershim start" in said
    assert not (openrc.root / "etc/systemd/system/dockershim.service").exists()
    openrc.run("rc-update", "add", "dockershim")
    openrc.run("rc-service", "dockershim", "start")
    answers()
    first = pid(openrc)
    limits = Path(f"/proc/{first}/limits").read_text()
    assert [line.split()[4:6] for line in limits.splitlines() if line.startswith("Max core file")] == [["0", "0"]]
    openrc.run("rc-service", "dockershim", "reload")
    assert pid(openrc) == first

    os.kill(first, signal.SIGKILL)
    answers()
    second = pid(openrc)
    assert second != first

    openrc.run(f"{unpacked(openrc, openrc.package)}/install.sh")
    answers()
    assert pid(openrc) not in (first, second)
    openrc.run("/usr/local/lib/dockershim/install.sh", "--uninstall")
    assert not (openrc.root / "etc/init.d/dockershim").exists()
    assert "dockershim" not in openrc.run("rc-update", "show")
    assert not Path("/run/dockershim.sock").exists()


def pid(debian: Debian) -> int:
    """Of the server."""
    found = debian.run("sh", "-c", "grep -l '^dockershim$' /proc/[0-9]*/comm").split()
    (only,) = (path.split("/")[2] for path in found)
    return int(only)
