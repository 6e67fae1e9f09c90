"""What an installation changes, and that its files work."""

from __future__ import annotations

from pathlib import Path

import pytest

from dockershim import __version__
from dockershim.server import config
from tests.deb.conftest import Debian

# On a busy machine dpkg and the compilation of a thousand modules take their time.
pytestmark = pytest.mark.timeout(300)


def test_install_starts_nothing_and_says_what_is_next(installed: tuple[Debian, str]) -> None:
    debian, said = installed
    assert "systemctl enable --now dockershim.socket dockershim.service" in said
    assert "containerRuntimeEndpoint: unix:///run/dockershim.sock" in said
    assert set(debian.asked_of_systemd()) == {"daemon-reload"}
    assert not Path("/run/dockershim.sock").exists()


def test_the_command_works_wherever_it_is_called(installed: tuple[Debian, str]) -> None:
    """A file of its caller is not imported, though it has the name of a library."""
    debian, _ = installed
    (debian.root / "tmp/json.py").write_text("raise SystemExit('the wrong json')")
    assert debian.run("sh", "-c", "cd /tmp && dockershim --version") == f"dockershim {__version__}\n"
    assert debian.run("dockershim", "config", "default") == config.default_file()


def test_manual_pages_and_completions_work(installed: tuple[Debian, str]) -> None:
    debian, _ = installed
    assert "--adopt-from" in debian.run("man", "-P", "cat", "dockershim")
    assert "adopt_from" in debian.run("man", "-P", "cat", "dockershim-config")
    assert "--adopt-from" in debian.run("fish", "-c", "complete -C 'dockershim serve --adopt'")
    ask = "autoload -Uz compinit && compinit -u && print -r -- $_comps[dockershim]"
    assert debian.run("zsh", "-fc", ask).strip() == "_dockershim"
    debian.run("zsh", "-n", "/usr/share/zsh/vendor-completions/_dockershim")


def test_systemd_takes_the_units(installed: tuple[Debian, str]) -> None:
    debian, _ = installed
    said = debian.run("systemd-analyze", "verify", "--man=no", "dockershim.service", "dockershim.socket")
    assert "dockershim" not in said
