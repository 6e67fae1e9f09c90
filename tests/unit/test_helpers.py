"""What several tests use is in a module of its own, which has no tests."""

from __future__ import annotations

import ast
import io
import tokenize
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


def test_a_sleep_of_so_many_seconds_says_why() -> None:
    """A wait is in tests/waiting.py. What is left in tests/engine is a load, a fault, or has no fact to wait for."""
    found = [
        f"{path.relative_to(TESTS)}:{line}"
        for path in sorted((TESTS / "engine").rglob("*.py"))
        for line in sleeps_without_a_reason(path.read_text())
    ]
    assert found == []


def sleeps_without_a_reason(source: str) -> list[int]:
    """The lines of calls of `sleep` with a number that have no comment, neither there nor on the line above."""
    reasons = {
        token.start[0]
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and (node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")) == "sleep"
        and any(isinstance(part, ast.Constant) for argument in node.args for part in parts(argument))
        and not reasons & {node.lineno - 1, node.lineno}
    ]


def parts(argument: ast.expr) -> list[ast.expr]:
    """The operands of an expression; what a call makes of a number may be random, or a rate."""
    return [*parts(argument.left), *parts(argument.right)] if isinstance(argument, ast.BinOp) else [argument]


def test_what_a_sleep_without_a_reason_is() -> None:
    assert sleeps_without_a_reason("import time\ntime.sleep(1)\n") == [2]
    assert sleeps_without_a_reason("# far above\n\nawait asyncio.sleep(0.5)\n") == [3]
    assert sleeps_without_a_reason("sleep(0)\ntext = '# no comment'\nsleep(0)\n") == [1, 3]
    assert sleeps_without_a_reason("time.sleep(1 + PAUSE / 2)\ntime.sleep(uniform(1, 3))\n") == [1]
    assert sleeps_without_a_reason("# why\ntime.sleep(1)\nasyncio.sleep(2)  # why\ntime.sleep(PAUSE)\n") == []
