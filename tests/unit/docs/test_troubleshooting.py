"""docs/troubleshooting.md and the alerts that lead to it: their words are the server's, and their metrics exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from dockershim.metrics.families import FAMILIES

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/troubleshooting.md").read_text()
GROUPS = yaml.safe_load((ROOT / "deploy/alerts.yaml").read_text())["groups"]
RULES = [rule for group in GROUPS for rule in group["rules"]]
PACKAGES = ("dockershim", "background", "cni", "checkpoints", "loopio", "streaming")
SOURCE = "\n".join(path.read_text() for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
# What the kernel, the engine or a registry says in our errors.
WORDS_OF_OTHERS = ("No space left on device", "Address already in use", "No such image", "lookup", "dial tcp", "exec:")

each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])


def messages() -> list[str]:
    """What the tables of the page quote from messages, in the pieces between their variable parts."""
    cells = [line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| ")]
    quoted = [text for cell in cells for text in re.findall(r"`([^`]+)`", cell)]
    return [piece.strip(" :") for text in quoted for piece in text.split("…") if len(piece.strip(" :")) > 3]


@pytest.mark.parametrize("piece", messages())
def test_each_message_is_one_of_the_server(piece: str) -> None:
    # Long texts are split into literals, with the names of variables between them.
    source = re.sub(r'"\s*f?"', "", SOURCE)
    assert piece in source or piece.startswith(WORDS_OF_OTHERS) or re.fullmatch(r"--[a-z-]+=|[A-Z][A-Za-z]+", piece)


@each_rule
def test_each_alert_has_a_section(rule: dict[str, object]) -> None:
    annotations = rule["annotations"]
    assert isinstance(annotations, dict)
    assert set(annotations) == {"summary", "description", "runbook"}
    headings = {heading.lower().replace(" ", "-").replace(",", "") for heading in re.findall(r"^## (.+)$", PAGE, re.M)}
    page, _, section = annotations["runbook"].partition("#")
    assert (page, section in headings) == ("docs/troubleshooting.md", True)


def test_the_page_names_each_alert_and_no_other() -> None:
    assert set(re.findall(r"\bDockershim\w+", PAGE)) == {rule["alert"] for rule in RULES}


@each_rule
def test_alerts_ask_for_metrics_that_are_there(rule: dict[str, object]) -> None:
    asked = re.findall(r"\bdockershim_\w+", str(rule["expr"]))
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in asked} <= set(FAMILIES)
