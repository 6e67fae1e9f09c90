"""The table of docs/doctor.md, held to the code."""

from __future__ import annotations

import re
from pathlib import Path

from dockershim.doctor import findings

ROOT = Path(__file__).parents[3]


def test_every_title_is_in_the_table() -> None:
    source = "".join(path.read_text() for path in (ROOT / "dockershim/doctor").glob("*.py"))
    titles = set(re.findall(r'\b(?:ok|warn|fail|level)\(\s*"([^"]+)"', source))
    titles |= set(re.findall(r'\btitle(?:, \w+)? = "([^"]+)"', source))
    titles |= {getattr(findings, name) for name in dir(findings) if re.fullmatch("[A-Z][A-Z_]+", name)}
    titles |= set(re.findall(r'^SERVER: Final = "(\w+)"', source, re.MULTILINE)) | {"CgroupDriverMatches"}
    column = re.findall(r"^\| (`[^|]+`) \|", (ROOT / "docs/doctor.md").read_text(), re.MULTILINE)
    listed = {title for row in column for title in re.findall("`([^`]+)`", row)}
    assert {title.partition(":")[0] for title in titles} == listed
