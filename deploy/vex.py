"""The VEX file of a release, in CycloneDX's form: what known vulnerabilities of its libraries mean for the server."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deploy.targets import ROOT
from deploy.tree import LOCK, BuildError
from dockershim import __version__

STATEMENTS = ROOT / "deploy/vex.toml"
#: CycloneDX 1.6, impactAnalysisState and impactAnalysisJustification.
STATES = ("resolved", "exploitable", "in_triage", "false_positive", "not_affected")
JUSTIFICATIONS = (
    "code_not_present",
    "code_not_reachable",
    "requires_configuration",
    "requires_dependency",
    "requires_environment",
    "protected_by_compiler",
    "protected_at_runtime",
    "protected_at_perimeter",
    "protected_by_mitigating_control",
)
KEYS = {"id", "library", "state", "justification", "detail"}


def document(text: str, lock: str) -> str:
    """The file for the statements in ``text`` on libraries of the lock. Raises BuildError for a wrong one."""
    locked = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", lock, re.MULTILINE))
    try:
        statements = tomllib.loads(text).get("statement", [])
    except tomllib.TOMLDecodeError as error:
        raise BuildError(f"{STATEMENTS.name}: {error}") from error
    vex = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "dockershim", "version": __version__}},
        "vulnerabilities": [_vulnerability(one, locked) for one in statements],
    }
    return json.dumps(vex, indent=2) + "\n"


def _vulnerability(statement: Mapping[str, Any], locked: Mapping[str, str]) -> Mapping[str, object]:
    where = f"{STATEMENTS.name}: {statement.get('id', 'a statement without id')}"
    if unknown := set(statement) - KEYS:
        raise BuildError(f"{where}: unknown key {min(unknown)}")
    if missing := {"id", "library", "state", "detail"} - set(statement):
        raise BuildError(f"{where}: {min(missing)} is missing")
    library, state, justification = statement["library"], statement["state"], statement.get("justification")
    if library not in locked:
        raise BuildError(f"{where}: {library} is not in {LOCK.name}; remove the statement, or correct the name")
    if state not in STATES:
        raise BuildError(f"{where}: state must be one of {', '.join(STATES)}")
    if (justification in JUSTIFICATIONS) != (state == "not_affected"):
        raise BuildError(f"{where}: not_affected, and only that, needs a justification: {', '.join(JUSTIFICATIONS)}")
    analysis = {"state": state, "detail": statement["detail"]}
    return {
        "id": statement["id"],
        "analysis": analysis | ({"justification": justification} if justification else {}),
        "affects": [{"ref": f"pkg:pypi/{library}@{locked[library]}"}],
    }


def write(file: Path) -> None:
    """Write the file for the statements and the lock of this checkout."""
    file.write_text(document(STATEMENTS.read_text(), LOCK.read_text()))
