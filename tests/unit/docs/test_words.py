"""Public texts have none of the phrases in the right column of the table "Words" in CONTRIBUTING.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dockershim.metrics.families import FAMILIES
from dockershim.server import cli, config

ROOT = Path(__file__).parents[3]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
HEADING = "## Words\n"
WORDS = CONTRIBUTING.partition(HEADING)[2].partition("\n## ")[0]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
PACKAGES = ("background", "checkpoints", "cni", "dockershim", "streaming")
SOURCES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")) if "api" not in path.parts]
#: Methods of loggers.
LEVELS = frozenset({"debug", "info", "warning", "error", "exception", "critical", "log"})
TEXTS = [ROOT / "Makefile", *sorted((ROOT / "deploy").glob("*.yaml")), *sorted((ROOT / "deploy/deb").glob("*.scd"))]


def phrases() -> list[str]:
    rows = re.findall(r"^\| `.* \| (`.*`) \|$", WORDS, re.MULTILINE)
    return [phrase for row in rows for phrase in re.findall(r"`([^`]+)`", row)]


# "There is no …" and "no longer" are plain English.
FORBIDDEN = re.compile(rf"(?<!\bthere )\b(?:{'|'.join(map(re.escape, phrases()))})\b(?! longer)", re.IGNORECASE)


def found(text: str) -> list[str]:
    """Each forbidden phrase with what stands around it. Code and ends of lines do not count."""
    plain = re.sub(r"\s+", " ", re.sub(r"`[^`]*`", "`…`", text))
    return [plain[max(0, one.start() - 30) : one.end() + 30] for one in FORBIDDEN.finditer(plain)]


def flags() -> Iterator[tuple[str, str]]:
    for option in config.OPTIONS:
        yield option.key, option.help
    for action in cli.make_parser()._actions:
        yield " ".join(action.option_strings), action.help or ""
    yield "the commands", cli.DESCRIPTION


def messages(source: str) -> Iterator[str]:
    """The texts of errors and logs: what an exception that is raised, or a logger, is called with."""
    for node in ast.walk(ast.parse(source)):
        call = node.exc if isinstance(node, ast.Raise) else node
        if not isinstance(call, ast.Call):
            continue
        logs = isinstance(call.func, ast.Attribute) and call.func.attr in LEVELS
        if logs or isinstance(node, ast.Raise):
            yield from map(_text, call.args)


def _text(argument: ast.expr) -> str:
    """Its literals; what is between them in an f-string counts as one word."""
    if isinstance(argument, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in argument.values)
    literals = (node.value for node in ast.walk(argument) if isinstance(node, ast.Constant))
    return "; ".join(one for one in literals if isinstance(one, str))


def test_the_list_is_read() -> None:
    assert {"is no", "mend", "heed", "whoever", "beside"} <= set(phrases())
    assert found("This is no file, whoever\nmade it.") == ["This is no file, whoever made it."] * 2
    assert found("There is no file, and it is no longer made. `is no`") == []


@pytest.mark.parametrize("key", dict(flags()))
def test_help_of_flags(key: str) -> None:
    assert found(dict(flags())[key]) == []


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_metrics(family: object) -> None:
    assert found(str(family).replace("_", " ")) == []


@pytest.mark.parametrize("path", DOCUMENTS + TEXTS, ids=lambda path: path.name)
def test_documents(path: Path) -> None:
    assert found(path.read_text().replace(WORDS, "")) == []


def test_messages_are_found() -> None:
    source = 'raise Bad(f"{a} is no time") from error\nlogger.warning("%s is away" if b else "ok", c)\nsay("heed")\n'
    assert list(messages(source)) == ["… is no time", "%s is away; ok", ""]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_errors_and_logs(path: Path) -> None:
    assert [place for text in messages(path.read_text()) for place in found(text)] == []
