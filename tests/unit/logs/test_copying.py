"""Each line once, in order, whatever is killed, rotated, full or gone."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dockershim.logs import copying
from dockershim.logs.position import Place
from dockershim.logs.target import Target
from tests.unit.logs.engine import Files, engine_line


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Files]:
    made = Files(tmp_path)
    yield made
    made.copying.close()


class Writes:
    """os.write and os.pwrite, until ``room`` bytes are written: then ``fail``, with the room used up."""

    def __init__(self, room: int, fail: Callable[[], BaseException]) -> None:
        self.room, self.fail = room, fail

    def write(self, fd: int, content: Any) -> int:
        return self._through(content, lambda part: _WRITE(fd, part))

    def pwrite(self, fd: int, content: Any, offset: int) -> int:
        # The kernel copies a few bytes at once or not at all.
        if self.room < len(content):
            raise self.fail()
        self.room -= len(content)
        return _PWRITE(fd, content, offset)

    def _through(self, content: Any, write: Callable[[Any], int]) -> int:
        if self.room >= len(content):
            self.room -= len(content)
            return write(content)
        write(content[: self.room])
        self.room = 0
        raise self.fail()


_WRITE, _PWRITE = os.write, os.pwrite


class CrashMachine(RuleBasedStateMachine):
    """An engine that writes and rotates, a kubelet that rotates, a process that is killed within its writes."""

    @initialize()
    def begin(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.files = Files(Path(self._folder.name))
        # The engine drops what was not read after so many rotations; it must not have to be in this test.
        self.rotations_unread = 0

    @rule(count=st.integers(1, 30))
    def engine_writes(self, count: int) -> None:
        self.files.engine.write(count)

    @precondition(lambda self: self.rotations_unread < 2)
    @rule()
    def engine_rotates(self) -> None:
        # It does so when it has a line to write, and the file is full.
        self.files.engine.write(1)
        self.files.engine.rotate()
        self.files.engine.write(1)
        self.rotations_unread += 1

    @rule(room=st.integers(0, 6000))
    def killed_while_copying(self, room: int) -> None:
        self._killed(room, self.files.copy)

    @rule(room=st.integers(0, 200))
    def killed_while_reopening(self, room: int) -> None:
        self.files.copy()
        self.files.kubelet.rotate()
        self._killed(room, self.files.copying.reopen)

    def _killed(self, room: int, work: Callable[[], object]) -> None:
        writes = Writes(room, Killed)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "write", writes.write)
            patch.setattr(os, "pwrite", writes.pwrite)
            try:
                work()
            except Killed:
                self.files.restart()

    @rule(room=st.integers(0, 3000))
    def disk_is_full_for_a_while(self, room: int) -> None:
        writes = Writes(room, lambda: OSError(errno.ENOSPC, "no space"))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "write", writes.write)
            with contextlib.suppress(OSError):
                self.files.copy()

    @rule()
    def copied(self) -> None:
        self.files.copy()
        self.rotations_unread = 0
        self.files.check()

    @rule()
    def restarted(self) -> None:
        self.files.restart()

    @rule()
    def kubelet_rotates(self) -> None:
        self.files.copy()
        self.files.kubelet.rotate()
        self.files.copying.reopen()
        assert self.files.kubelet.path.read_bytes() == b""

    @rule()
    def kubelet_renames(self) -> None:
        self.files.copy()
        self.files.kubelet.rotate()

    @invariant()
    def no_line_is_there_twice(self) -> None:
        lines = self.files.kubelet.lines()
        assert lines[:-1] == self.files.engine.written[: len(lines) - 1] if lines else True

    def teardown(self) -> None:
        try:
            self.files.copy()
            self.files.check()
        finally:
            self.files.copying.close()
            self._folder.cleanup()


TestCrashes = CrashMachine.TestCase
TestCrashes.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


@given(room=st.integers(0, 4000), batch=st.sampled_from([200, 500, 256 * 1024]))
def test_killed_anywhere_within_its_writes(room: int, batch: int) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(copying, "BATCH", batch)
        files = Files(Path(folder))
        files.engine.write(20)
        files.engine.rotate()
        files.engine.write(20)
        writes = Writes(room, Killed)
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(os, "write", writes.write)
            inner.setattr(os, "pwrite", writes.pwrite)
            try:
                files.copy()
            except Killed:
                files.restart()
        files.copy()
        files.check()
        files.copying.close()


@pytest.mark.parametrize("room", range(0, 100, 7))
def test_a_full_disk_after_a_kill_within_a_line(room: int) -> None:
    """What the first try of a restart has passed stays passed, where the rest of a torn line has no room."""
    machine = CrashMachine()
    machine.begin()
    machine.copied()
    machine.engine_writes(count=2)
    machine.killed_while_copying(room=room)
    machine.disk_is_full_for_a_while(room=0)
    machine.copied()
    machine.teardown()


def test_a_renamed_file_is_written_until_the_reopen(files: Files) -> None:
    files.engine.write(5)
    files.copy()
    files.kubelet.rotate()
    files.engine.write(5)
    files.copy()
    assert not files.kubelet.path.exists()
    files.copying.reopen()
    files.engine.write(5)
    files.copy()
    assert files.kubelet.path.read_bytes().count(b"\n") == 5
    files.check()


def test_a_renamed_file_is_written_after_a_restart_too(files: Files) -> None:
    files.engine.write(5)
    files.copy()
    files.kubelet.rotate()
    files.restart()
    files.engine.write(5)
    files.copy()
    # A kubelet that hears of a failed reopen gives the file its name back, over whatever is there.
    assert not files.kubelet.path.exists()
    files.check()


def test_a_file_that_is_renamed_while_it_is_looked_for_is_found_at_the_next_try(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubelet rotates the log at the moment at which a process takes it up that another one has left half-way."""
    files.engine.write(3)
    files.copy()
    files.engine.write(2)
    with files.kubelet.path.open("ab") as log:
        log.write(b"".join(files.engine.written[3:]))
    files.restart()
    candidates = Target._candidates

    def and_renamed(target: Target, folder: int, inode: int) -> list[Path]:
        found = candidates(target, folder, inode)
        files.kubelet.rotate()
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Target, "_candidates", and_renamed)
        with contextlib.suppress(FileNotFoundError):
            files.copy()
    files.engine.write(1)
    files.copy()
    files.check()


def test_a_file_that_was_made_right_before_the_kill_is_written(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    files.engine.write(5)
    files.copy()
    files.kubelet.rotate()
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", Writes(0, Killed).pwrite)
        with pytest.raises(Killed):
            files.copying.reopen()
    assert files.kubelet.path.exists()
    files.restart()
    files.engine.write(5)
    files.copy()
    assert files.kubelet.path.read_bytes().count(b"\n") == 5
    files.check()


def test_a_file_that_is_removed_while_it_is_written_is_written_anew(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.copy()
    files.engine.write(5)

    def write(fd: int, content: bytes) -> int:
        files.kubelet.path.unlink()
        return _WRITE(fd, content)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        with pytest.raises(FileNotFoundError):
            files.copy()
    files.copy()
    files.check()


def test_a_log_that_was_emptied_while_nobody_followed_is_no_known_file(files: Files) -> None:
    files.engine.write(5)
    files.copy()
    files.copying.close()
    files.kubelet.path.write_bytes(b"x" * files.kubelet.path.stat().st_size + b"\n")
    files.start()
    files.engine.write(5)
    files.copy()
    assert files.kubelet.lines()[1:] == files.engine.written[5:]


@pytest.mark.parametrize("how", ["rotated", "removed while it is followed", "removed while nobody follows"])
def test_what_was_written_to_a_new_file_right_before_a_kill_is_there_once(
    files: Files, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The new file is in the position before it has lines: the next process compares them with the engine's."""
    files.engine.write(5)
    files.copy()
    if how == "rotated":
        files.kubelet.rotate()
        files.copying.reopen()
    else:
        files.kubelet.path.unlink()
    if how == "removed while nobody follows":
        files.restart()
    files.engine.write(5)
    written: list[int] = []

    def write(fd: int, content: bytes) -> int:
        written.append(_WRITE(fd, content))
        return written[-1]

    def pwrite(fd: int, content: bytes, offset: int) -> int:
        if written:
            raise Killed
        return _PWRITE(fd, content, offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        patch.setattr(os, "pwrite", pwrite)
        with pytest.raises(Killed):
            files.copy()
    files.restart()
    files.engine.write(5)
    files.copy()
    assert files.kubelet.lines() == files.engine.written[0 if how == "rotated" else 5 :]


def test_a_reopen_without_a_rename_changes_nothing(files: Files) -> None:
    files.engine.write(5)
    files.copy()
    files.copying.reopen()
    files.engine.write(5)
    files.copy()
    files.check()


def test_a_rotation_that_is_behind_the_copying_loses_nothing(files: Files) -> None:
    files.copying.copy_batch()
    for _ in range(10):
        files.engine.write(10)
        files.engine.rotate()
        files.copying.scan()
    files.copy()
    files.check()


@pytest.mark.parametrize("keep", [2, 3])
def test_what_the_engine_dropped_before_it_was_seen_is_told(files: Files, keep: int) -> None:
    files.engine.keep = keep
    files.engine.write(10)
    files.copy()
    files.copying.scan()
    for _ in range(keep + 1):
        files.engine.rotate()
        files.engine.write(10)
    files.copying.scan(keep + 1)
    # As large as the smallest of the others.
    size = len(engine_line("line 0\n")) * 10
    why = "the engine rotated faster than its files could be read"
    assert files.reports == [f"at least {size} bytes are missing in {files.kubelet.path}: {why}"]
    files.copy()
    assert files.kubelet.lines() == files.engine.written[:10] + files.engine.written[20:]


def test_files_that_are_seen_before_they_are_told_of_are_none_too_many(files: Files) -> None:
    files.engine.write(10)
    files.copy()
    for told in (0, 1, 2, 0, 3):
        files.engine.rotate()
        files.engine.write(10)
        files.engine.rotate()
        files.engine.write(10)
        files.copying.scan(told)
    files.copying.scan(4)
    files.copy()
    files.check()


def test_what_the_engine_dropped_while_nobody_followed_is_told(files: Files) -> None:
    files.engine.write(5)
    files.copy()
    files.copying.close()
    for _ in range(4):
        files.engine.write(10)
        files.engine.rotate()
    files.start()
    files.copy()
    size = files.engine.path.with_name("c-json.log.1").stat().st_size
    (report,) = files.reports
    assert report.startswith("at least ")
    assert 0 < int(report.split()[2]) < size
    assert files.kubelet.lines() == files.engine.written[:5] + files.engine.written[-20:]


def test_an_inode_that_is_used_again_is_no_known_file(files: Files) -> None:
    files.engine.write(5)
    files.copy()
    files.copying.close()
    # Emptied and written anew is to the inode what removed and made anew is.
    files.engine.path.write_bytes(b"")
    files.engine.write(40)
    files.start()
    files.copy()
    assert files.kubelet.lines() == files.engine.written
    assert len(files.reports) == 1


def test_an_emptied_engine_file_is_read_from_its_start(files: Files) -> None:
    files.engine.write(5)
    files.copy()
    files.engine.path.write_bytes(b"")
    files.copy()
    files.engine.write(3)
    files.copy()
    files.check()


@pytest.mark.parametrize("room", [0, 1, 30, 150])
def test_what_was_written_when_the_disk_was_full_is_not_written_again(files: Files, room: int) -> None:
    files.engine.write(5)
    writes = Writes(room, lambda: OSError(errno.ENOSPC, "no space"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", writes.write)
        with pytest.raises(OSError, match="no space"):
            files.copy()
    files.copy()
    files.check()
    assert files.kubelet.lines() == files.engine.written


def test_the_end_of_a_log_that_was_emptied_is_what_it_has(tmp_path: Path) -> None:
    target = Target(tmp_path, tmp_path / "0.log")
    target.open()
    target.write(b"one\n")
    os.truncate(tmp_path / "0.log", 0)
    target.write(b"two\n")
    assert target.place == Place((tmp_path / "0.log").stat().st_ino, 4, zlib.crc32(b"two\n"))
    target.close()


def test_lines_of_another_before_ours_stay(files: Files) -> None:
    files.kubelet.path.write_bytes(b"2026-01-01T00:00:00Z stdout F of another\n")
    files.engine.write(2)
    files.copy()
    assert files.kubelet.lines()[1:] == files.engine.written


def test_a_removed_folder_is_waited_for(files: Files) -> None:
    files.engine.write(2)
    files.copy()
    files.kubelet.path.unlink()
    files.kubelet.path.parent.rmdir()
    files.engine.write(3)
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            files.copy()
    files.kubelet.path.parent.mkdir()
    files.copy()
    assert files.kubelet.lines() == files.engine.written[2:]


def test_what_cannot_be_written_does_not_hold_what_the_engine_removed(files: Files) -> None:
    files.copy()
    files.fall_behind()
    files.copying.let_go()
    (report,) = files.reports
    lost = 2 * len(engine_line("line 10\n", 10)) * 10 - 10
    assert report.startswith(f"{lost} bytes are missing")
    assert files.copying.totals.missing == lost
    assert files.copying.unread()[1].startswith("2026-01-02T03:04:05")
    files.copy()
    assert files.kubelet.lines() == files.engine.written[-20:]


def test_what_was_let_go_is_not_told_again_by_another_process(files: Files) -> None:
    files.engine.write(5)
    files.copy()
    files.fall_behind()
    files.copying.let_go()
    assert len(files.reports) == 1
    files.restart()
    files.copy()
    assert files.kubelet.lines() == files.engine.written[:5] + files.engine.written[-20:]
    assert len(files.reports) == 1


def test_what_is_let_go_before_it_is_written_is_told_once(files: Files) -> None:
    files.engine.write(5)
    files.copy()
    files.kubelet.path.unlink()
    files.kubelet.path.parent.rmdir()
    files.restart()
    for _ in range(4):
        with pytest.raises(FileNotFoundError):
            files.copy()
        files.engine.write(10)
        files.engine.rotate()
        files.copying.let_go()
    files.kubelet.path.parent.mkdir()
    files.copy()
    files.copying.close()
    lost = sum(int(report.split()[0]) for report in files.reports)
    assert (lost, len(files.reports)) == (files.copying.totals.missing, 2)
    assert files.kubelet.lines() == files.engine.written[-20:]


def held_and_removed(path: Path) -> int:
    """Bytes that this process has open of files in this folder that have no name any more."""
    found = 0
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            if fd.readlink().parent == path and fd.stat().st_nlink == 0:
                found += fd.stat().st_size
    return found


def test_a_container_that_writes_more_than_can_be_copied_holds_so_much_and_no_more(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = len(engine_line("line 1000\n")) * 100
    monkeypatch.setattr(copying, "BATCH", file // 4)
    monkeypatch.setattr(copying, "MOST_REMOVED", 3 * file)
    held = []
    for _ in range(12):
        files.engine.write(100)
        files.engine.rotate()
        files.copying.scan()
        files.copying.copy_batch()
        held.append(held_and_removed(files.engine.path.parent))
    assert 2 * file < max(held) <= 3 * file
    files.copy()
    files.restart()
    files.copy()
    found = files.kubelet.lines()
    lost = [line for line in files.engine.written if line not in found]
    assert found == [line for line in files.engine.written if line not in lost]
    assert found[-400:] == files.engine.written[-400:]
    engine_bytes = sum(len(engine_line(line.split(b" ", 3)[3].decode())) for line in lost)
    told = [int(report.split()[0]) for report in files.reports]
    assert sum(told) == engine_bytes
    assert len(told) == 2, "at once, and what came within the next minute at the end"
    assert "faster than they could be copied" in files.reports[0]


def test_what_only_a_killed_process_held_is_told(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    files.engine.write(100)
    files.copy()
    monkeypatch.setattr(copying, "MOST_REMOVED", 2 * files.engine.path.stat().st_size)
    for _ in range(8):
        files.engine.rotate()
        files.engine.write(100)
        files.copying.scan()
    assert held_and_removed(files.engine.path.parent) > 0
    files.reports.clear()
    files.restart()
    files.copy()
    assert files.reports, "at least that"
    assert files.kubelet.lines() == files.engine.written[:100] + files.engine.written[-300:]


def test_what_is_missing_is_told_once_a_minute(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    for turn in range(3):
        for _ in range(10):
            files.fall_behind()
            files.copying.let_go()
        assert len(files.reports) == turn + 1
        now += copying.REPORT_AGAIN
    files.copy()
    assert sum(int(report.split()[0]) for report in files.reports) == files.copying.totals.missing


def test_a_torn_end_of_a_file_is_told_once(files: Files) -> None:
    files.engine.write(5)
    with files.engine.path.open("ab") as file:
        file.write(b'{"log":"to')
    files.engine.rotate()
    for _ in range(2):
        files.copy()
        files.restart()
    (report,) = files.reports
    assert report.startswith("10 bytes are missing")
    files.engine.write(5)
    files.copy()
    assert files.kubelet.lines() == files.engine.written
    assert len(files.reports) == 1


def test_a_link_at_the_path_is_not_followed(files: Files, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").touch()
    files.kubelet.path.symlink_to(tmp_path / "elsewhere")
    files.engine.write(1)
    with pytest.raises(OSError, match="not a regular file"):
        files.copy()
    assert (tmp_path / "elsewhere").read_bytes() == b""


@pytest.mark.parametrize("how", ["rotated", "removed"])
def test_a_link_that_comes_later_is_not_followed_either(files: Files, tmp_path: Path, how: str) -> None:
    files.engine.write(1)
    files.copy()
    (tmp_path / "elsewhere").touch()
    if how == "rotated":
        files.kubelet.rotate()
    else:
        files.kubelet.path.unlink()
    files.kubelet.path.symlink_to(tmp_path / "elsewhere")
    files.engine.write(1)
    with pytest.raises(OSError, match="not a regular file"):
        files.copying.reopen()
    assert (tmp_path / "elsewhere").read_bytes() == b""
