"""Records are lines, whatever is in them."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockershim.server import log


def record(message: str, *args: object, error: BaseException | None = None) -> logging.LogRecord:
    info = (type(error), error, error.__traceback__) if error is not None else None
    made = logging.LogRecord("dockershim.test", logging.INFO, __file__, 1, message, args, info)
    made.created = 1767323045.6789
    return made


@pytest.fixture
def root_logger() -> Iterator[logging.Logger]:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield root
    root.handlers[:], level = before
    root.setLevel(level)


@pytest.mark.parametrize(
    ("message", "pod", "line"),
    [
        pytest.param("up", None, "up", id="no field"),
        pytest.param("up", "default/web", "up pod=default/web", id="a field"),
        pytest.param("up", "", 'up pod=""', id="an empty field is seen to be empty"),
        pytest.param("up", "a b=c", 'up pod="a b=c"', id="a field that looks like two"),
        pytest.param("up", "a\nERROR", r'up pod="a\nERROR"', id="a line end in a field"),
        pytest.param("a\r\nb\x1b[2J", None, r"a\r\nb\x1b[2J", id="line ends and a terminal sequence in the message"),
        pytest.param("a\u2028b\x85c", None, r"a\u2028b\x85c", id="line ends of Unicode"),
        pytest.param("a\udc80b", None, r"a\udc80b", id="a byte of a file name that is not UTF-8"),
        pytest.param("Käse 容器", None, "Käse 容器", id="letters of other languages stay"),
    ],
)
def test_a_text_record_is_one_line(message: str, pod: str | None, line: str) -> None:
    with log.fields(pod=pod):
        text = log.TextFormatter().format(record(message))
    assert text == f"2026-01-02T03:04:05.678Z INFO dockershim.test {line}"


#: So short that it is not cut, whatever it is escaped to.
SHORT = st.text(st.characters(exclude_categories=()), max_size=80)


@given(message=SHORT, pod=SHORT)
def test_nothing_breaks_a_line(message: str, pod: str) -> None:
    with log.fields(pod=pod):
        text = log.TextFormatter().format(record("%s", message))
        entry = log.JsonFormatter().format(record("%s", message))
    assert text.isprintable()
    assert entry.isprintable()
    decoded = json.loads(entry)
    # Two halves of a surrogate pair come back as the character they make.
    assert decoded["message"] == json.loads(json.dumps(message))
    assert decoded["pod"] == json.loads(json.dumps(pod))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("x", id="letters"),
        pytest.param('"', id="quotes"),
        pytest.param("\x1b[2J\n", id="terminal sequences"),
        pytest.param("\U0001f600", id="characters beyond the first plane"),
        pytest.param("\udc80", id="bytes that are not UTF-8"),
    ],
)
@pytest.mark.parametrize("times", [log.LONGEST_FIELD, 1_000_000])
def test_no_record_is_longer_than_journald_takes(text: str, times: int) -> None:
    """It would make the rest a record of its own, whose text is somebody else's."""
    huge = text * times
    with log.fields(rpc="RunPodSandbox", pod=huge, container=huge, sandbox_id=huge, container_id=huge):
        lines = [form().format(record("%s", huge)) for form in (log.TextFormatter, log.JsonFormatter)]
        traces = log.TextFormatter().format(record("failed", error=ValueError(huge))).splitlines()
    for line in (*lines, *traces):
        assert len(line.encode()) < 48 * 1024
    assert json.loads(lines[1])["pod"].endswith("...")
    assert sum(map(len, traces)) < 2 * log.LONGEST_MESSAGE


def test_what_is_long_enough_stays_whole() -> None:
    pod, message = f"{'n' * 63}/{'p' * 253}", "m" * (log.LONGEST_MESSAGE - 3)
    with log.fields(pod=pod):
        assert log.TextFormatter().format(record(message)).endswith(f" {message} pod={pod}")


def test_a_traceback_cannot_pretend_to_be_a_record() -> None:
    error = ValueError("one\n2026-01-02T03:04:05.678Z ERROR forged\x1b")
    lines = log.TextFormatter().format(record("failed", error=error)).split("\n")
    assert lines[0].endswith("failed")
    assert all(line.startswith(log.TRACEBACK_INDENT) and line.isprintable() for line in lines[1:])
    assert "forged" in json.loads(log.JsonFormatter().format(record("failed", error=error)))["traceback"]


def test_fields_nest_and_end() -> None:
    with log.fields(pod="default/web", rpc="RunPodSandbox"):
        with log.fields(sandbox_id="abc", rpc=None):
            assert log.current_fields() == {"pod": "default/web", "rpc": "RunPodSandbox", "sandbox_id": "abc"}
        assert log.current_fields() == {"pod": "default/web", "rpc": "RunPodSandbox"}
    assert log.current_fields() == {}


async def test_fields_stay_in_their_task() -> None:
    async def worker(name: str) -> tuple[str, str]:
        with log.fields(container=name):
            await asyncio.sleep(0)
            inner = await asyncio.create_task(asyncio.to_thread(log.current_fields))
            return log.current_fields()["container"], inner["container"]

    assert list(await asyncio.gather(worker("a"), worker("b"))) == [("a", "a"), ("b", "b")]


def test_configuring_again_replaces_the_format(root_logger: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    log.configure("info", "text")
    log.configure("warning", "json")
    logging.getLogger("dockershim.test").warning("seen")
    logging.getLogger("dockershim.test").info("not seen")
    assert [json.loads(line)["message"] for line in capsys.readouterr().err.splitlines()] == ["seen"]
