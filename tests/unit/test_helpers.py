"""What several tests use is in a module of its own, which has no tests."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_no_test_module_is_imported() -> None:
    """Who changes a test should not have to know that other tests need a part of it."""
    found = [
        f"{path.relative_to(TESTS)}: {node.module}"
        for path in sorted(TESTS.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        and node.module is not None
        and any(name.startswith("test_") for name in (node.module.split(".")[-1], *(one.name for one in node.names)))
    ]
    assert found == []
