"""What is read of the node."""

from __future__ import annotations

from pathlib import Path

import pytest

from dockershim.changes.disk import Disk
from dockershim.doctor import units
from dockershim.doctor.units import Unit
from dockershim.migrate.facts import command_line, look
from dockershim.server.config import Config


def test_the_words_of_a_process_may_have_blanks(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/cmdline").write_bytes(b"/usr/bin/cri-dockerd\0--pod-cidr=\0a b\0")
    assert command_line(7, tmp_path) == ["/usr/bin/cri-dockerd", "--pod-cidr=", "a b"]
    assert command_line(8, tmp_path) == []


def test_the_sockets_of_cri_dockerd_are_looked_up_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("x")
    there = {
        "cri-dockerd.service": Unit("cri-dockerd.service", triggered_by=["other.socket"]),
        "other.socket": Unit("other.socket"),
    }
    monkeypatch.setattr(units, "show", lambda names: {name: there[name] for name in names if name in there})
    found = look(Config(), Disk(tmp_path), "/etc/dockershim/config.toml.d")
    assert found.units == there
    assert (found.read("/a"), found.read("/b")) == (b"x", None)
