"""The VEX file: its statements are about libraries that are in the packages, in CycloneDX's words."""

from __future__ import annotations

import json

import pytest

from deploy import vex
from deploy.tree import LOCK, BuildError

LOCKED = "pyyaml==6.0.3 \\\n    --hash=sha256:00\n"
STATEMENT = {
    "id": "CVE-2026-12345",
    "library": "pyyaml",
    "state": "not_affected",
    "justification": "code_not_reachable",
    "detail": "safe loader only",
}


def toml(statement: dict[str, str]) -> str:
    return "[[statement]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in statement.items())


def test_a_statement_names_the_library_with_its_version() -> None:
    made = json.loads(vex.document(toml(STATEMENT), LOCKED))
    assert (made["bomFormat"], made["specVersion"]) == ("CycloneDX", "1.6")
    assert made["vulnerabilities"] == [
        {
            "id": "CVE-2026-12345",
            "analysis": {
                "state": "not_affected",
                "justification": "code_not_reachable",
                "detail": "safe loader only",
            },
            "affects": [{"ref": "pkg:pypi/pyyaml@6.0.3"}],
        }
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param({"library": "left-pad"}, "left-pad is not in server.txt", id="not in the packages"),
        pytest.param({"state": "fine"}, "state must be one of", id="unknown state"),
        pytest.param({"justification": "trust me"}, "needs a justification", id="unknown justification"),
        pytest.param({"state": "exploitable"}, "needs a justification", id="justified though exploitable"),
        pytest.param({"note": "x"}, "unknown key note", id="unknown key"),
        pytest.param({"detail": None}, "detail is missing", id="no detail"),
        pytest.param({"id": None}, "a statement without id: id is missing", id="no id"),
    ],
)
def test_a_wrong_statement_is_refused(change: dict[str, str | None], words: str) -> None:
    changed = {key: value for key, value in {**STATEMENT, **change}.items() if value is not None}
    with pytest.raises(BuildError, match=words):
        vex.document(toml(changed), LOCKED)


def test_what_is_not_toml_is_refused() -> None:
    with pytest.raises(BuildError, match=r"vex\.toml"):
        vex.document("[[statement", LOCKED)


def test_the_statements_of_the_project_are_right() -> None:
    json.loads(vex.document(vex.STATEMENTS.read_text(), LOCK.read_text()))
