"""Steps as people read them."""

from __future__ import annotations

from dockershim.changes.steps import Command, Run, SetValue, WriteFile, digest


def test_a_step_is_a_line_and_a_command_can_be_pasted() -> None:
    command = Command(words=("sh", "-c", 'kill "$(cat /run/a)"'), reason="r")
    assert str(Run(command=command)) == "sh -c 'kill \"$(cat /run/a)\"'"
    assert str(WriteFile(path="/etc/a", content=b"", reason="r", before="")) == "write /etc/a"
    assert str(SetValue(path="/proc/sys/a", value="1", reason="r")) == "set /proc/sys/a to 1"


def test_a_missing_file_is_not_an_empty_one() -> None:
    assert digest(None) == ""
    assert digest(b"") != ""
