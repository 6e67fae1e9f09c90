"""The journal on the disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dockershim.changes.disk import ChangeError, Disk, FileState
from dockershim.changes.journal import Journal
from dockershim.changes.steps import Command, Run, SetValue, WriteFile, digest

FOLDER = "/var/lib/dockershim/setup"
COMMAND = Command(words=("a", "b c"), reason="why", needs="n", otherwise="o", may_fail=True)
FILE = WriteFile(
    path="/etc/a", content=b"\0\xff", reason="why", before=digest(b"x"), mode=0o755, check=("c", "{}"), then=(COMMAND,)
)
#: As version 0.1.0 wrote it: each later version reads it.
OF_0_1_0 = """\
{"version": 1, "folders": ["/var/lib/dockershim/setup"], "entries": [
 {"number": 1, "done": true, "folders": ["/etc/new"], "value": null,
  "saved": {"name": "1-a", "mode": 420, "uid": 0, "gid": 0},
  "step": {"type": "write-file", "path": "/etc/new/a", "content": "YQ==", "reason": "r", "before": "", "mode": 420,
   "check": ["c"], "then": [{"words": ["x"], "reason": "r", "needs": "", "otherwise": "", "may_fail": false}],
   "undone": []}},
 {"number": 2, "done": false, "folders": [], "value": "0", "saved": null,
  "step": {"type": "set-value", "path": "/proc/sys/a", "value": "1", "reason": "r"}},
 {"number": 3, "done": false, "folders": [], "value": null, "saved": null,
  "step": {"type": "run", "command": {"words": ["x"], "reason": "r"}, "undo": []}}]}
"""


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    (tmp_path / "var/lib").mkdir(parents=True)
    return Disk(tmp_path)


def test_what_was_noted_is_there_for_the_next_process(disk: Disk, tmp_path: Path) -> None:
    before = FileState(b"secret", 0o600, 7, 8)
    journal = Journal(FOLDER, disk)
    with journal.locked():
        first = journal.begin(FILE, before)
        journal.finish(first)
        journal.begin(SetValue(path="/proc/sys/a", value="1", reason="r"), value="0")
        journal.begin(Run(command=COMMAND, undo=(COMMAND,)))
    again = Journal(FOLDER, disk)
    assert [(entry.number, entry.done) for entry in again.entries] == [(1, True), (2, False), (3, False)]
    assert again.entries == journal.entries
    assert again.before(again.entries[0]) == before
    assert again.entries[1].value == "0"
    root = tmp_path / FOLDER[1:]
    assert {path.stat().st_mode & 0o077 for path in (root, root / "saved", root / "journal.json")} == {0}


def test_the_plan_goes_on_after_its_last_entry(disk: Disk) -> None:
    run = Run(command=COMMAND)
    journal = Journal(FOLDER, disk)
    with journal.locked():
        journal.intend((run, FILE, run))
        journal.finish(journal.begin(run))
        journal.write_note("n")
        again = Journal(FOLDER, disk)
        assert (again.plan, again.remaining, again.note) == ((run, FILE, run), (FILE, run), "n")
        journal.forget(journal.entries[0])
        assert journal.remaining == journal.plan
    assert Journal(FOLDER, disk).plan == ()


def test_an_empty_journal_leaves_nothing(disk: Disk, tmp_path: Path) -> None:
    journal = Journal(FOLDER, disk)
    with journal.locked():
        pass
    assert list((tmp_path / "var/lib").iterdir()) == []
    with journal.locked():
        journal.begin(FILE, FileState(b"x", 0o600, 0, 0))
    assert len(list((tmp_path / "var/lib").rglob("*"))) > 3
    with journal.locked():
        journal.forget(journal.entries[0])
    assert list((tmp_path / "var/lib").iterdir()) == []


def test_one_process_at_a_time(disk: Disk) -> None:
    with Journal(FOLDER, disk).locked():
        assert is_locked(disk)
        assert is_locked(disk, f"{FOLDER}-of-another-command")
    assert not is_locked(disk)


def is_locked(disk: Disk, folder: str = FOLDER) -> bool:
    try:
        with Journal(folder, disk).locked():
            return False
    except ChangeError as error:
        return "another process is changing this machine" in str(error)


def test_what_the_process_before_did_is_seen_under_the_lock(disk: Disk) -> None:
    early = Journal(FOLDER, disk)
    other = Journal(FOLDER, disk)
    with other.locked():
        other.begin(FILE)
    assert len(early.entries) == 0
    with early.locked():
        assert [entry.step for entry in early.entries] == [FILE]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b'{"version": 2, "entries": "of another form"}', "newer version", id="newer"),
        pytest.param(b'{"version": 1, "entries": [{}]}', "is damaged", id="of another form"),
        pytest.param(b"", "is damaged", id="empty"),
        pytest.param(b"[" * 100_000, "is damaged", id="nested"),
    ],
)
def test_a_journal_that_cannot_be_read(disk: Disk, tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / FOLDER[1:]).mkdir(parents=True)
    (tmp_path / FOLDER[1:] / "journal.json").write_bytes(content)
    with pytest.raises(ChangeError, match=message):
        Journal(FOLDER, disk)


@settings(max_examples=50)
@given(st.binary())
def test_any_bytes_are_a_journal_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    root = tmp_path_factory.mktemp("any")
    (root / "journal.json").write_bytes(content)
    with pytest.raises(ChangeError):
        Journal("/", Disk(root))


def test_the_journal_of_an_earlier_version(disk: Disk, tmp_path: Path) -> None:
    (tmp_path / FOLDER[1:]).mkdir(parents=True)
    (tmp_path / FOLDER[1:] / "journal.json").write_text(OF_0_1_0)
    first, second, third = Journal(FOLDER, disk).entries
    assert isinstance(first.step, WriteFile)
    assert (first.step.content, first.done, first.folders) == (b"a", True, ("/etc/new",))
    assert (second.step, second.value) == (SetValue(path="/proc/sys/a", value="1", reason="r"), "0")
    assert isinstance(third.step, Run)
    with pytest.raises(ChangeError, match="the saved file does not exist"):
        Journal(FOLDER, disk).before(first)


def test_the_lock_is_not_one_that_was_removed_meanwhile(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process before removes the file between our open and our lock."""
    lock = (tmp_path / FOLDER[1:]).with_name("changes.lock")
    opened = os.open
    removed: list[Path] = []

    def open_and_remove(path: Path, flags: int, mode: int = 0o777) -> int:
        descriptor = opened(path, flags, mode)
        if path == lock and not removed:
            removed.append(lock)
            lock.unlink()
        return descriptor

    monkeypatch.setattr(os, "open", open_and_remove)
    with Journal(FOLDER, disk).locked():
        assert is_locked(disk)
    assert removed
