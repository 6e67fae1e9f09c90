"""What `make release-check` finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.release import METADATA, changelog_problems, metadata_problems
from dockershim import __version__

ROOT = Path(__file__).parents[3]
FULL = dict.fromkeys(METADATA, "x")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param(
            "# Changelog\n\n## 1.2.0 - 2026-01-31\n\n### Added\n\n* x\n\n## 1.1.0 - 2026-01-01\n", [], id="whole"
        ),
        pytest.param("## 1.2.0 - unreleased\n\n* x\n", ["is unreleased"], id="no day yet"),
        pytest.param("## 1.2.0\n\n* x\n", ["without a day"], id="no day"),
        pytest.param("## 1.1.0 - 2026-01-01\n\n* x\n", ["first section"], id="another version"),
        pytest.param(
            "## 1.1.0 - 2026-01-01\n\n* x\n\n## 1.2.0 - 2026-01-31\n\n* x\n", ["first section"], id="older first"
        ),
        pytest.param("## 1.2.0 - 2026-01-31\n\n## 1.1.0 - 2026-01-01\n\n* x\n", ["is empty"], id="nothing under it"),
        pytest.param("", ["first section"], id="nothing"),
    ],
)
def test_the_changelog_names_the_version(text: str, found: list[str]) -> None:
    problems = list(changelog_problems(text, "1.2.0"))
    assert len(problems) == len(found)
    assert all(words in problem for words, problem in zip(found, problems, strict=True))


def test_the_changelog_of_the_project_lacks_a_day_at_most() -> None:
    problems = list(changelog_problems((ROOT / "CHANGELOG.md").read_text(), __version__))
    assert [problem for problem in problems if "write the day" not in problem] == []


@pytest.mark.parametrize("field", METADATA)
def test_metadata_without_a_field_is_found(field: str) -> None:
    assert list(metadata_problems(FULL)) == []
    assert list(metadata_problems(FULL | {field: ""})) == [f"wheel: its metadata has no {field}"]
