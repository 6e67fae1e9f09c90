"""docs/install.md, command by command, as somebody would who follows it."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deb.conftest import Debian, answers, log_end
from tests.node.cache import REPOSITORY

pytestmark = pytest.mark.timeout(300)

DOCUMENT = (REPOSITORY / "docs/install.md").read_text()
BLOCKS = re.findall(r"(?:^    .*\n)+", DOCUMENT, re.MULTILINE)
#: The programs of commands; other blocks are files.
PROGRAMS = ("apt-get", "crictl", "dockershim", "journalctl", "systemctl")
COMMANDS = [line.strip() for block in BLOCKS for line in block.splitlines() if line.split()[0] in PROGRAMS]
(DROP_IN,) = (block for block in BLOCKS if "[Service]" in block)
(SETTING,) = (block for block in BLOCKS if " = " in block)
#: Commands that are not run here, and why.
NOT_RUN = {"journalctl -u dockershim": "a chroot has no journal; tests/vm reads it"}


def test_each_command_of_the_document_works(debian: Debian) -> None:
    packages = iter((debian.old_package, debian.package))
    done = []
    for command in COMMANDS:
        if command in NOT_RUN:
            continue
        words = shlex.split(command)
        if words[0] == "crictl":
            answers()
            subprocess.run(words, check=True, capture_output=True)
        elif words[:2] == ["apt-get", "install"]:
            debian.install(next(packages))
        elif words[0] == "apt-get":
            debian.run(*words, "-y")
        else:
            debian.run(*words)
        done.append(words[:2])
    assert next(packages, None) is None
    assert done[0] == ["apt-get", "install"]
    assert done[-1] == ["apt-get", "purge"]
    assert set(NOT_RUN) <= set(COMMANDS)


def test_a_drop_in_of_systemctl_edit_has_its_flags_heeded(debian: Debian) -> None:
    debian.install(debian.package)
    override = debian.root / "etc/systemd/system/dockershim.service.d/override.conf"
    override.parent.mkdir(parents=True)
    override.write_text("".join(line.strip() + "\n" for line in DROP_IN.splitlines()))
    settings = debian.root / "etc/dockershim/config.toml"
    with settings.open("a") as file:
        file.write(SETTING.strip() + "\n")
    # As Debian's containernetworking-plugins has them.
    shutil.copytree("/opt/cni/bin", debian.root / "usr/lib/cni")
    debian.run("systemd-analyze", "verify", "--man=no", "dockershim.service")
    debian.run("systemctl", "start", "dockershim.service")
    answers()
    server = debian.server()
    assert "--log-level=debug" in Path(f"/proc/{server}/cmdline").read_text().split("\0")
    assert "DEBUG" in log_end()
