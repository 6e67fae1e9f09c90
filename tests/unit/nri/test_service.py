"""Where plugins come from: the socket, and the folders of installed ones."""

from __future__ import annotations

import logging
import socket
import stat
from pathlib import Path

import pytest

from dockershim.errors import StartError
from dockershim.nri.plugin import Rejected
from dockershim.nri.service import _executables, _listen, _read_config, _stop_listening


def test_only_we_can_reach_the_socket(tmp_path: Path) -> None:
    path = tmp_path / "nri" / "nri.sock"
    listener = _listen(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    _stop_listening(listener, path)
    assert list(path.parent.iterdir()) == []


def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "nri.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
        stale.listen()
    _stop_listening(_listen(path), path)


def test_a_socket_that_somebody_serves_is_left_to_them(tmp_path: Path) -> None:
    path = tmp_path / "nri.sock"
    listener = _listen(path)
    with pytest.raises(StartError, match="another runtime serves NRI there"):
        _listen(path)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    _stop_listening(listener, path)


@pytest.mark.parametrize(
    ("place", "reason"),
    [("file", "is there, and is no socket"), ("file/nri.sock", "Not a directory|File exists"), ("folder", "no socket")],
)
def test_a_place_that_cannot_be_used_stops_the_start(place: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("of somebody")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StartError, match=rf"^--nri-socket={tmp_path / place}: .*({reason})"):
        _listen(tmp_path / place)
    assert (tmp_path / "file").read_text() == "of somebody"


def test_which_files_are_plugins(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name, mode in (("20-b", 0o755), ("05-a", 0o700), ("10-text", 0o644), ("nameless", 0o755)):
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(mode)
    (tmp_path / "30-folder").mkdir()
    (tmp_path / "40-link").symlink_to(tmp_path / "20-b")
    (tmp_path / "50-broken").symlink_to(tmp_path / "nothing")
    with caplog.at_level(logging.ERROR):
        assert [path.name for path in _executables(tmp_path)] == ["05-a", "20-b", "40-link"]
    assert "nameless" in caplog.text
    assert _executables(tmp_path / "missing") == []


def test_the_configuration_of_a_plugin(tmp_path: Path) -> None:
    assert _read_config(tmp_path, "10-a") == ""
    (tmp_path / "a.conf").write_text("for every a")
    assert _read_config(tmp_path, "10-a") == "for every a"
    (tmp_path / "10-a.conf").write_text("for this one")
    assert _read_config(tmp_path, "10-a") == "for this one"
    (tmp_path / "10-a.conf").write_bytes(b"\xff")
    with pytest.raises(Rejected, match=r"10-a\.conf cannot be read"):
        _read_config(tmp_path, "10-a")
    (tmp_path / "10-a.conf").write_bytes(bytes(2 << 20))
    with pytest.raises(Rejected, match=r"10-a\.conf cannot be read"):
        _read_config(tmp_path, "10-a")
