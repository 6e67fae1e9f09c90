"""Each line once also after a loss of power, of which every file may come back with another part of its end missing."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockershim.logs import position
from dockershim.logs.alignment import align
from dockershim.logs.source import Sources
from tests.unit.logs.engine import EngineLog, Files, engine_line

BOOTS = iter(range(1, 2**31))


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Files]:
    made = Files(tmp_path)
    yield made
    made.copying.close()


def reboot(files: Files, patch: pytest.MonkeyPatch) -> None:
    """A new process in another boot."""
    boot = next(BOOTS)
    patch.setattr(position, "this_boot", lambda: boot)
    files.start()


def lose(path: Path, kept: int, zeros: int) -> None:
    """Of a file, ``kept`` bytes are on the disk, and up to ``zeros`` of it that are allocated but were not written."""
    content = path.read_bytes()
    path.write_bytes((content[:kept] + bytes(zeros))[: max(kept, len(content))])


NEW = b"2026-01-02T03:04:05.999999999Z stdout F new\n"


def whole(files: Files) -> list[bytes]:
    """The lines of the log without what is left of one that was torn."""
    written = {*files.engine.written, NEW}
    return [line for line in files.kubelet.lines() if line in written]


@given(
    st.data(),
    st.lists(st.sampled_from(["write", "copy", "engine rotates", "kubelet rotates"]), min_size=1, max_size=12),
)
def test_no_line_that_a_file_still_has_is_lost_or_doubled(data: st.DataObject, steps: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        files = Files(Path(folder))
        # What the engine has dropped is not what this is about.
        files.engine.keep = 20
        positions = [b"", bytes(128)]
        for step in steps:
            if step == "engine rotates":
                files.engine.write(1)
                files.engine.rotate()
            files.engine.write(5)
            if step in ("copy", "kubelet rotates"):
                files.copy()
            if step == "kubelet rotates":
                files.kubelet.rotate()
                files.copying.reopen()
            if files.position.exists():
                positions.append(files.position.read_bytes())
        files.copying.close()
        files.position.write_bytes(data.draw(st.sampled_from(positions)))
        cut = st.integers(0, 600)
        for path in (files.engine.path, files.kubelet.path):
            if path.exists():
                lose(path, max(0, path.stat().st_size - data.draw(cut)), data.draw(cut))
        # That of its end which was lost may have been only the line's end.
        copied = len([line for line in files.kubelet.lines() if line.rstrip(b"\0\n") + b"\n" in files.engine.written])
        there = len(_engine_lines(files))
        reboot(files, patch)
        files.copy()
        assert whole(files) == files.engine.written[: max(copied, there)]
        assert not any(b"\0" in line for line in files.kubelet.lines())
        # The next process, in the same boot, finds all as it was left.
        files.restart()
        with files.engine.path.open("ab") as file:
            # An engine's first line after a torn one begins behind it.
            file.write(engine_line("new\n", 999_999_999))
        files.copy()
        files.copying.close()
        assert whole(files) == [*files.engine.written[: max(copied, there)], NEW]


def _engine_lines(files: Files) -> list[bytes]:
    paths = sorted(files.engine.path.parent.iterdir(), key=lambda path: len(files.engine.written) - _age(path))
    return [line for path in paths for line in path.read_bytes().split(b"\n")[:-1] if line.endswith(b'Z"}')]


def _age(path: Path) -> int:
    return int(path.suffix[1:]) if path.suffix[1:].isdigit() else 0


def test_a_log_that_is_shorter_than_its_position_is_completed(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    files.engine.write(50)
    files.copy()
    files.copying.close()
    lose(files.kubelet.path, 700, 0)
    reboot(files, monkeypatch)
    files.copy()
    files.check()


def test_a_log_whose_end_is_zeros_is_completed(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    files.engine.write(50)
    files.copy()
    files.copying.close()
    lose(files.kubelet.path, 700, 100_000)
    reboot(files, monkeypatch)
    files.copy()
    files.check()


@pytest.mark.parametrize("content", [b"", bytes(128), b"LOG1 of an older version"], ids=["empty", "zeros", "unknown"])
def test_without_a_position_a_log_goes_on_where_it_ends(files: Files, content: bytes) -> None:
    files.engine.write(50)
    files.copy()
    files.engine.write(50)
    files.copying.close()
    files.position.write_bytes(content)
    files.start()
    files.copy()
    files.check()


def test_what_the_lost_file_had_is_behind_what_was_rotated_before(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.engine.write(20)
    files.copy()
    files.kubelet.rotate()
    files.copying.reopen()
    files.engine.write(20)
    files.copy()
    files.copying.close()
    lose(files.kubelet.path, 0, 0)
    reboot(files, monkeypatch)
    files.copy()
    files.check()
    assert files.kubelet.path.read_bytes().count(b"\n") == 20


def test_a_log_that_is_ahead_of_the_engines_file_gets_what_is_newer(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.engine.write(50)
    files.copy()
    files.copying.close()
    lose(files.engine.path, 1000, 0)
    reboot(files, monkeypatch)
    files.copy()
    files.check()
    files.engine.write(5)
    files.copy()
    files.check()


def test_an_engines_file_that_comes_back_empty_is_no_loss(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    files.engine.write(50)
    files.copy()
    files.copying.close()
    lose(files.engine.path, 0, 0)
    reboot(files, monkeypatch)
    files.copy()
    files.engine.write(5)
    files.copy()
    files.check()


def test_a_log_that_someone_emptied_is_not_written_again(files: Files) -> None:
    files.engine.write(50)
    files.copy()
    files.copying.close()
    files.kubelet.path.write_bytes(b"")
    files.start()
    files.engine.write(1)
    files.copy()
    assert files.kubelet.lines() == files.engine.written[50:]


@pytest.mark.parametrize(
    ("tail", "found"),
    [
        pytest.param([], None, id="an empty log"),
        pytest.param(["of nobody\n"], None, id="no line of ours"),
        pytest.param(["2026-01-02T03:04:04.5Z stdout F older\n"], None, id="older than all"),
        pytest.param(["{1} stdout F a\n"], 1, id="the first"),
        pytest.param(["{2} stdout P x\n"], 2, id="the first of a line's parts"),
        pytest.param(["{2} stdout P x\n"] * 2, 3, id="the second, which is the same"),
        pytest.param(["{3} stderr F before its turn\n"], 5, id="written after a newer one"),
        pytest.param(["{5} stdout F b\n"], 4, id="written before an older one"),
        pytest.param(["{6} stderr F \\ \r\n"], 6, id="of characters that are escaped, or end other lines"),
        pytest.param(["{7} stdout F the engine has lost it\n"], 6, id="newer than all"),
        pytest.param(["{4} stdout F lost\n"], 5, id="between two"),
    ],
)
def test_the_end_of_a_log_is_found_in_the_engines_lines(tmp_path: Path, tail: list[str], found: int | None) -> None:
    times = {number: f"2026-01-02T03:04:05.{number:09}Z" for number in range(1, 8)}
    lines = [
        engine_line("a\n", 1),
        engine_line("x", 2),
        engine_line("x", 2),
        engine_line("b\n", 5),
        engine_line("before its turn\n", 3, "stderr"),
        engine_line("\\ \r\n", 6, "stderr"),
    ]
    path = tmp_path / "c-json.log"
    path.write_bytes(b"".join(lines))
    text = "".join(tail)
    for number, time in times.items():
        text = text.replace(f"{{{number}}}", time)
    sources = Sources(path)
    sources.scan()
    place = align(sources, text.encode())
    sources.close()
    assert (place.offset if place else None) == (None if found is None else sum(map(len, lines[:found])))


def test_a_hundred_thousand_lines_are_searched(tmp_path: Path) -> None:
    log = EngineLog(tmp_path / "c-json.log")
    log.write(50_000)
    log.rotate()
    log.write(50_000)
    sources = Sources(log.path)
    sources.scan()
    place = align(sources, b"".join(log.written[60_000:70_000]))
    sources.close()
    assert place is not None
    assert place.offset == len(b"".join(log.path.read_bytes().splitlines(keepends=True)[:20_000]))
