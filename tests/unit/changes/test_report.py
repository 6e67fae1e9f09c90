"""What is printed of steps."""

from __future__ import annotations

import errno
import io

import pytest

from dockershim.changes.report import Report, diff
from dockershim.changes.steps import WriteFile, digest


def step(content: bytes, before: bytes | None) -> WriteFile:
    return WriteFile(path="/etc/a", content=content, reason="why", before=digest(before))


def test_a_file_is_a_unified_diff() -> None:
    assert diff(step(b"a\nc\n", b"a\nb\n"), b"a\nb\n") == [
        "--- /etc/a", "+++ /etc/a", "@@ -1,2 +1,2 @@", " a", "-b", "+c",
    ]  # fmt: skip
    assert diff(step(b"a\n", None), None)[:2] == ["--- /dev/null", "+++ /etc/a"]
    assert diff(step(b"\0\1", None), None) == ["binary, 2 bytes, mode 644"]


class Lost(io.StringIO):
    """A connection that does not exist any more."""

    def write(self, text: str) -> int:
        raise self.error

    error: OSError = BrokenPipeError()


@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(errno.EIO, "Input/output error")], ids=type)
def test_a_change_goes_on_if_nothing_can_be_printed_any_more(error: OSError) -> None:
    lost = Lost()
    lost.error = error
    Report(lost, lost).line("a")
    Report(lost, lost).failure("b")
