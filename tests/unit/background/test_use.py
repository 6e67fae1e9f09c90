"""Every task of the program is made by ``background``: else its failure may never be seen."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROGRAM = ("dockershim", "cni", "checkpoints", "loopio", "streaming")
FILES = [path for package in PROGRAM for path in sorted((ROOT / package).rglob("*.py")) if "_pb2" not in path.name]
#: In any spelling: of the module, of a loop, or imported by name. ruff forbids the first alone.
MAKERS = {"create_task", "ensure_future", "run_coroutine_threadsafe"}


def made(source: str) -> Iterator[int]:
    """The lines that make a task past ``background``. A task of a TaskGroup is awaited where the group ends."""
    tree = ast.parse(source)
    groups = {
        ast.unparse(item.optional_vars)
        for node in ast.walk(tree)
        if isinstance(node, ast.AsyncWith)
        for item in node.items
        if item.optional_vars is not None and ast.unparse(item.context_expr) == "asyncio.TaskGroup()"
    }
    for node in ast.walk(tree):
        if (isinstance(node, ast.Attribute) and node.attr in MAKERS and ast.unparse(node.value) not in groups) or (
            isinstance(node, ast.ImportFrom) and {alias.name for alias in node.names} & MAKERS
        ):
            yield node.lineno


def owners(source: str) -> Iterator[ast.expr | None]:
    """What is named as an owner of tasks."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and (called := ast.unparse(node.func)).startswith("background."):
            if called in ("background.start", "background.keep", "background.kept"):
                yield next((keyword.value for keyword in node.keywords if keyword.arg == "owner"), None)
            elif called == "background.Tasks":
                yield node.args[0]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_tasks_are_made_by_the_guard(path: Path) -> None:
    assert list(made(path.read_text())) == []


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        pytest.param("asyncio.create_task(work())", [1], id="of the module"),
        pytest.param("asyncio.get_running_loop().create_task(work())", [1], id="of a loop"),
        pytest.param("loop.run_in_executor\nmake = loop.create_task", [2], id="passed on"),
        pytest.param("from asyncio import ensure_future as later", [1], id="by another name"),
        pytest.param("async def f():\n async with asyncio.TaskGroup() as g:\n  g.create_task(h())", [], id="group"),
        pytest.param("background.child(work(), 'a child')", [], id="the guard"),
    ],
)
def test_every_spelling_is_found(source: str, lines: list[int]) -> None:
    assert list(made(source)) == lines


def test_owners_are_few_words_of_the_source() -> None:
    found = [owner for path in FILES for owner in owners(path.read_text())]
    assert len(found) > 30
    assert [ast.unparse(owner) if owner else "" for owner in found if not isinstance(owner, ast.Constant)] == []
    names = {owner.value for owner in found if isinstance(owner, ast.Constant)}
    # A metric has them as a label.
    assert len(names) < 40
