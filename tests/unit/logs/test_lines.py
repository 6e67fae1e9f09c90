"""Engine lines as CRI lines."""

from __future__ import annotations

import json
import time
import timeit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockershim.logs.lines import to_cri
from tests.unit.logs.engine import engine_line

TIME = "2026-01-02T03:04:05.000000000Z"


def slowly(line: bytes) -> bytes:
    """What a JSON reader makes of an engine line: the truth that fast ways are measured by."""
    entry = json.loads(line)
    text = entry["log"]
    tag, text = ("F", text[:-1]) if text.endswith("\n") else ("P", text)
    return f"{entry['time']} {entry['stream']} {tag} {text}\n".encode()


@pytest.mark.parametrize(
    ("line", "cri"),
    [
        pytest.param(engine_line("hello\n"), "stdout F hello\n", id="a line"),
        pytest.param(engine_line("hello\n", stream="stderr"), "stderr F hello\n", id="of the other stream"),
        pytest.param(engine_line("hel"), "stdout P hel\n", id="a part of one"),
        pytest.param(engine_line("\n"), "stdout F \n", id="an empty line"),
        pytest.param(engine_line(""), "stdout P \n", id="nothing"),
        pytest.param(engine_line("a\r\n"), "stdout F a\r\n", id="a terminal's line end"),
        pytest.param(engine_line('{"log":"x\\n"}\n'), 'stdout F {"log":"x\\n"}\n', id="JSON in a line"),
        pytest.param(
            engine_line('","stream":"stderr","time":"\n'), 'stdout F ","stream":"stderr","time":"\n', id="keys"
        ),
        pytest.param(engine_line("c:\\new\\\n"), "stdout F c:\\new\\\n", id="backslashes"),
        pytest.param(engine_line("ends in \\n"), "stdout P ends in \\n\n", id="what looks like a line's end"),
        pytest.param(engine_line("\x1b[1mbold\x1b[0m\t<&>\n"), "stdout F \x1b[1mbold\x1b[0m\t<&>\n", id="colours"),
        pytest.param(engine_line("\0\1\2\n"), "stdout F \0\1\2\n", id="control characters"),
        pytest.param(engine_line("\ufffd\u2028é😀\n"), "stdout F \ufffd\u2028é😀\n", id="other characters"),
        pytest.param(
            b'{"log":"\\u00e9\\ud83d\\ude00\\n","stream":"stdout","time":"%b"}\n' % TIME.encode(),
            "stdout F é😀\n",
            id="characters as escapes",
        ),
        pytest.param(
            b'{"log":"x\\n","stream":"stdout","attrs":{"a":"b"},"time":"%b"}\n' % TIME.encode(),
            "stdout F x\n",
            id="with attributes that the node's configuration asks for",
        ),
        pytest.param(b'{"stream":"stdout","time":"%b"}\n' % TIME.encode(), "stdout P \n", id="without a text"),
    ],
)
def test_line(line: bytes, cri: str) -> None:
    expected = f"{TIME} {cri}".encode()
    assert to_cri(line) == (expected, 0)
    assert to_cri(line * 3) == (expected * 3, 0)


def test_bytes_that_are_no_utf8_stay() -> None:
    line = b'{"log":"a\xff\xfeb%b\\n","stream":"stdout","time":"t"}\n'
    assert to_cri(line % b"") == (b"t stdout F a\xff\xfeb\n", 0)
    assert to_cri(line % b"\\u0000") == (b"t stdout F a\xff\xfeb\0\n", 0)


@pytest.mark.parametrize(
    "torn",
    [
        pytest.param(b'{"log":"half a li', id="in the text"),
        pytest.param(b'{"log":"text\\n","stream":"std', id="in the stream"),
        pytest.param(b'{"log":"text\\n","stream":"stdout","time":"2026-0', id="in the time"),
        pytest.param(b"\0\0\0\0", id="zeros of a lost write"),
    ],
)
def test_a_torn_line_leaves_the_next_one(torn: bytes) -> None:
    line = engine_line("whole\n")
    cri = f"{TIME} stdout F whole\n".encode()
    assert to_cri(line + torn + line + line) == (cri * 3, 0)
    assert to_cri(line + torn + b"\n" + line) == (cri * 2, len(torn))


def test_of_two_on_one_line_the_last_one_counts_whatever_is_beside_them() -> None:
    line = engine_line("whole\n")
    cri = f"{TIME} stdout F whole\n".encode()
    assert to_cri(line[:-1] + line) == (cri, 0)
    assert to_cri(b"\n" + line[:-1] + line) == (cri, 0)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20).map(lambda text: text.replace("\n", "~"))
tricky = st.lists(
    st.sampled_from(['"', "\\", "n", ",", "{", "}", ":", "log", "stream", "\t", "\0", "\1", "\2", "<"])
).map("".join)
entries = st.lists(
    st.builds(
        lambda text, end, stream: engine_line(text + end, stream=stream),
        texts | tricky,
        st.sampled_from(["\n", "\n", ""]),
        st.sampled_from(["stdout", "stderr"]),
    ),
    min_size=1,
    max_size=8,
)


@given(entries)
def test_any_lines_are_what_a_json_reader_makes_of_them(lines: list[bytes]) -> None:
    assert to_cri(b"".join(lines)) == (b"".join(map(slowly, lines)), 0)


@given(entries, st.data())
def test_lines_are_the_same_however_they_are_cut(lines: list[bytes], data: st.DataObject) -> None:
    lines += data.draw(st.lists(st.binary(max_size=12).map(lambda junk: junk.replace(b"\n", b"") + b"\n"), max_size=2))
    lines = data.draw(st.permutations(lines))
    cut = data.draw(st.integers(0, len(lines)))
    whole, parts = to_cri(b"".join(lines)), [to_cri(b"".join(part)) for part in (lines[:cut], lines[cut:]) if part]
    assert whole == (b"".join(cri for cri, _ in parts), sum(bad for _, bad in parts))


def seconds(lines: bytes) -> float:
    """Of CPU, as other processes may run beside this one."""
    return min(timeit.repeat(lambda: to_cri(lines), timer=time.thread_time, number=3, repeat=7))


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param(["\1\n"], id="control characters that the engine writes as escapes"),
        pytest.param(["a line of text\n"] * 200 + ["\0\n"], id="one odd line among many"),
        pytest.param(['\ufffd\x0f\x7f \ufffd"\\\n'], id="bytes that were no text"),
        pytest.param(["😀 done\n"], id="characters beyond the first plane"),
        pytest.param(["part"], id="parts of lines"),
    ],
)
def test_no_text_makes_the_conversion_slow(odd: list[str]) -> None:
    usual = engine_line("2026-01-02 INFO request served\n")
    size = 128 * 1024
    unusual = b"".join(map(engine_line, odd))
    rates = [size / seconds(lines * (size // len(lines))) for lines in (usual, unusual)]
    assert rates[1] > rates[0] / 4, rates


def test_a_damaged_line_does_not_slow_the_others() -> None:
    lines = [engine_line("a line of text\n")] * 1000
    whole = seconds(b"".join(lines))
    damaged = seconds(b"".join([*lines[:500], b'{"log":"half a li\n', *lines[500:]]))
    assert damaged < 8 * whole, (damaged, whole)
