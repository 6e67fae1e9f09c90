"""Steps, done and undone. tests/unit/setup/test_command.py kills the program before each change."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from dockershim.changes.disk import ChangeError, Disk, FileState
from dockershim.changes.journal import Journal
from dockershim.changes.perform import Function, Performer, spawn
from dockershim.changes.steps import NEW_CONTENT, Call, Command, Run, SetValue, WriteFile, digest

FOLDER = "/var/setup"


class Place:
    """A folder, and a performer that notes what it runs and says."""

    def __init__(self, root: Path) -> None:
        (root / "etc").mkdir()
        self.root = root
        self.disk = Disk(root)
        self.ran: list[str] = []
        self.said: list[str] = []
        self.fails = "nothing"
        self.holds = True
        self.journal = Journal(FOLDER, self.disk)

    def performer(self) -> Performer:
        return Performer(
            disk=self.disk,
            journal=self.journal,
            spawn=self.spawn,
            conditions={"it holds": lambda: self.holds},
            report=self.said.append,
            functions={"call": Function(self.call, lambda *words: self.ran.append(f"undo {' '.join(words)}"))},
        )

    def call(self, *words: str) -> None:
        self.ran.append(" ".join(words))
        if self.fails in words:
            raise ChangeError("not yet")

    def spawn(self, words: Sequence[str]) -> None:
        self.ran.append(" ".join(words))
        if self.fails in words:
            raise ChangeError(f"{words} failed")

    def write(self, content: bytes, before: bytes | None, **more: object) -> WriteFile:
        return WriteFile(path="/etc/new/a", content=content, reason="r", before=digest(before), **more)  # type: ignore[arg-type]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def command(*words: str, **more: object) -> Command:
    return Command(words=words, reason="r", **more)  # type: ignore[arg-type]


def test_commands_follow_the_file_both_ways(place: Place) -> None:
    step = place.write(b"1", None, check=("check", NEW_CONTENT), then=(command("then"),), undone=(command("undone"),))
    with place.journal.locked():
        place.performer().do(step)
        assert place.ran == [f"check {place.root}/etc/new/.a.dockershim-new", "then"]
        assert place.performer().undo_all() == []
    assert place.ran[2:] == ["undone"]
    assert list((place.root / "etc").iterdir()) == []


def test_a_file_that_changed_since_the_plan_is_not_overwritten(place: Place) -> None:
    with place.journal.locked(), pytest.raises(ChangeError, match="has changed since the plan was made"):
        place.performer().do(place.write(b"1", b"planned from this"))
    assert list((place.root / "etc").iterdir()) == []


@pytest.mark.parametrize("now", [b"other", None], ids=["changed", "removed"])
def test_undo_goes_on_after_what_it_leaves(place: Place, now: bytes | None) -> None:
    file = place.root / "etc/new/a"
    with place.journal.locked():
        place.performer().do(Run(command=command("x"), undo=(command("y"),)))
        file.parent.mkdir()
        file.write_bytes(b"0")
        place.performer().do(place.write(b"1", b"0"))
        place.performer().do(Run(command=command("x"), undo=(command("z"),)))
        file.write_bytes(now) if now is not None else file.unlink()
        [problem] = place.performer().undo_all()
    assert problem.startswith("/etc/new/a: was changed since")
    assert place.ran == ["x", "x", "z", "y"]
    assert [entry.step for entry in place.journal.entries] == [place.write(b"1", b"0")]
    assert (file.read_bytes() if file.exists() else None) == now


def test_two_changes_of_one_file_are_undone_to_the_first(place: Place) -> None:
    with place.journal.locked():
        place.performer().do(place.write(b"1", None))
        place.performer().do(place.write(b"2", b"1"))
        assert place.performer().undo_all() == []
    assert list((place.root / "etc").iterdir()) == []


def test_mode_is_kept_and_restored(place: Place) -> None:
    file = place.root / "etc/new/a"
    file.parent.mkdir()
    file.write_bytes(b"0")
    file.chmod(0o600)
    with place.journal.locked():
        place.performer().do(place.write(b"1", b"0", mode=0o755))
        assert file.stat().st_mode & 0o777 == 0o600
        file.chmod(0o644)
        place.performer().undo_all()
    assert (file.read_bytes(), file.stat().st_mode & 0o777) == (b"0", 0o600)


def test_a_value_that_others_have_set_stays(place: Place) -> None:
    value = place.root / "etc/value"
    for others, left in (("1", "0"), ("7", "7")):
        value.write_text("0\n")
        with place.journal.locked():
            place.performer().do(SetValue(path="/etc/value", value="1", reason="r"))
            assert value.read_text() == "1\n"
            value.write_text(others)
            assert place.performer().undo_all() == []
        assert value.read_text().strip() == left


def test_a_command_that_needs_what_does_not_hold_is_left_out(place: Place) -> None:
    step = Run(command=command("x", needs="it holds", otherwise="it does not"))
    place.holds = False
    with place.journal.locked():
        place.performer().do(step)
        assert (place.ran, place.said[-1]) == ([], "it does not")
        place.holds = True
        place.performer().do(step)
    assert place.ran == ["x"]


def test_a_failure_that_does_not_count(place: Place) -> None:
    place.fails = "y"
    with place.journal.locked():
        place.performer().do(Run(command=command("x"), undo=(command("y", may_fail=True),)))
        assert place.performer().undo_all() == []
    assert "no failure" in place.said[-1]


def test_all_commands_of_an_undo_are_tried_and_all_failures_said(place: Place) -> None:
    place.fails = "y"
    with place.journal.locked():
        place.performer().do(Run(command=command("x"), undo=(command("y", "1"), command("z"), command("y", "2"))))
        [problem] = place.performer().undo_all()
    assert "'1'" in problem
    assert "'2'" in problem
    assert place.ran == ["x", "y 1", "z", "y 2"]
    assert len(place.journal.entries) == 1


def test_an_interrupted_step_whose_file_others_changed_is_theirs(place: Place) -> None:
    with place.journal.locked():
        place.journal.begin(place.write(b"1", None, then=(command("then"),)))
        (place.root / "etc/new").mkdir()
        (place.root / "etc/new/a").write_bytes(b"theirs")
        place.performer().finish_interrupted()
    assert (place.root / "etc/new/a").read_bytes() == b"theirs"
    assert place.ran == []
    assert "was changed by others" in place.said[-1]


def test_a_function_is_undone_only_if_it_has_ended(place: Place) -> None:
    step = Call(name="call", arguments=("a", "b"), reason="r")
    with place.journal.locked():
        place.performer().do(step)
        place.fails = "a"
        with pytest.raises(ChangeError, match="not yet"):
            place.performer().do(step)
        assert place.performer().undo_all() == []
    assert place.ran == ["a b", "a b", "undo a b"]
    assert str(step) == "call"


def test_a_step_whose_undo_was_interrupted_is_neither_done_nor_undone(place: Place) -> None:
    place.fails = "y"
    with place.journal.locked():
        place.performer().do(Run(command=command("x"), undo=(command("y"),)))
        with pytest.raises(ChangeError):
            place.performer().undo(place.journal.entries[0])
        assert [entry.done for entry in place.journal.entries] == [False]
        place.performer().finish_interrupted()
    assert place.ran == ["x", "y", "x"]
    assert [entry.done for entry in place.journal.entries] == [True]


@pytest.mark.parametrize(
    ("now", "left"),
    [
        pytest.param(b"new\n", b"old\n", id="as the step has written it"),
        pytest.param(b"theirs\nnew\n", b"theirs\nold\n", id="changed by others"),
        pytest.param(b"theirs\nold\n", b"theirs\nold\n", id="the undo was interrupted"),
        pytest.param(b"theirs\n", None, id="neither is there"),
    ],
)
def test_one_value_is_put_back_in_what_others_have_written(place: Place, now: bytes, left: bytes | None) -> None:
    file = place.root / "etc/new/a"
    file.parent.mkdir()
    file.write_bytes(b"old\n")
    step = WriteFile(path="/etc/new/a", content=b"new\n", reason="r", before=digest(b"old\n"), replaced=("old", "new"))
    with place.journal.locked():
        place.performer().do(step)
        file.write_bytes(now)
        problems = place.performer().undo_all()
        assert file.read_bytes() == (now if left is None else left)
        assert len(problems) == (left is None)
        if left is None:
            place.journal.forget(place.journal.entries[0])


def test_an_interrupted_step_puts_its_value_into_what_others_have_written(place: Place) -> None:
    file = place.root / "etc/new/a"
    file.parent.mkdir()
    file.write_bytes(b"theirs\nold\n")
    step = WriteFile(path="/etc/new/a", content=b"new\n", reason="r", before=digest(b"old\n"), replaced=("old", "new"))
    with place.journal.locked():
        place.journal.begin(step, FileState(b"old\n", 0o644, 0, 0))
        place.performer().finish_interrupted()
    assert file.read_bytes() == b"theirs\nnew\n"


def test_a_program_that_fails_says_why() -> None:
    spawn([sys.executable, "-c", ""])
    with pytest.raises(ChangeError, match=r"failed with exit code 3: \\x1b\[2Jwhy"):
        spawn([sys.executable, "-c", "import sys; sys.stderr.write('\\033[2Jwhy\\n'); sys.exit(3)"])
    with pytest.raises(ChangeError, match="cannot run /none: No such file"):
        spawn(["/none"])
    with pytest.raises(ChangeError, match=r"`sleep 60` did not end within 0\.01 s"):
        spawn(["sleep", "60"], 0.01)
