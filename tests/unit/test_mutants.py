"""The lists of `make mutants` are of the code as it is now, and what is killed counts."""

from __future__ import annotations

import ast
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from tests.mutants.__main__ import Result, report, try_all
from tests.mutants.table import REPOSITORY, Mutant, focused, read_mutants

MUTANTS = read_mutants()
ONE = Mutant("nri", "dockershim/a.py", "a < b", "a <= b", "one too many", ("tests/unit/nri",))


@cache
def code_of(file: str) -> tuple[str, str]:
    """The text of a module, and what it means."""
    text = (REPOSITORY / file).read_text()
    return text, ast.dump(ast.parse(text))


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_each_can_be_put_into_the_code(mutant: Mutant) -> None:
    """Where the code has changed, its mutant has to change too, or to go."""
    original, meaning = code_of(mutant.file)
    assert ast.dump(ast.parse(mutant.applied(original))) != meaning, "it changes nothing"
    assert [test for test in mutant.tests if not (REPOSITORY / test).exists()] == []


def test_no_two_have_the_same_words() -> None:
    told = [str(mutant) for mutant in MUTANTS]
    assert sorted(set(told)) == sorted(told)


@pytest.mark.parametrize(("text", "count"), [("if a > b:", 0), ("if a < b or c and a < b:", 2)])
def test_what_is_not_there_once_is_an_error(text: str, count: int) -> None:
    with pytest.raises(ValueError, match=f"found {count} times"):
        ONE.applied(text)
    assert ONE.applied("if a < b:") == "if a <= b:"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("", "a list has", id="empty"),
        pytest.param("[[mutants]]", "a list has", id="another key"),
        pytest.param('[[mutant]]\nold = "a"', "'file'", id="without a file"),
        pytest.param('[[mutant]]\nfile = "a.py"\nline = 5', "line", id="with what is unknown"),
    ],
)
def test_a_list_that_makes_no_sense_is_an_error(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "nri.toml").write_text(text)
    with pytest.raises(ValueError, match=reason):
        read_mutants(tmp_path)


def test_the_focus_is_a_package_or_a_text() -> None:
    other = replace(ONE, package="cri", file="dockershim/nri.py")
    assert focused([ONE, other], "nri") == [ONE]
    assert focused([ONE, other], "nri.py") == [other]
    assert focused([ONE, other], "one too many") == [ONE, other]
    assert focused([ONE, other], "nothing") == []


@pytest.mark.parametrize(
    ("killed", "survived", "is_good"),
    [(19, 1, True), (18, 1, False), (1, 0, True), (0, 1, False), (0, 0, True)],
)
def test_how_many_may_survive(killed: int, survived: int, is_good: bool) -> None:
    results = [Result(ONE, "a test", 1.0)] * killed + [Result(ONE, "", 1.0)] * survived
    text, good = report(results)
    assert good is is_good
    assert text.count("survives: dockershim/a.py: one too many") == survived


def test_one_that_nothing_can_notice_does_not_count_unless_something_does() -> None:
    equivalent = replace(ONE, equivalent="both are the same")
    assert report([Result(equivalent, "", 1.0)])[1]
    text, good = report([Result(equivalent, "a test", 1.0), *[Result(ONE, "a test", 1.0)] * 30])
    assert not good
    assert "said to be equivalent, and killed by a test" in text


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_mistake_is_noticed_in_a_copy(tmp_path: Path) -> None:
    module, tests = "dockershim/stats/rates.py", ("tests/unit/stats/test_rates.py",)
    before = (REPOSITORY / module).read_bytes()
    killed = Mutant("stats", module, "SHORTEST: Final = 10**9", "SHORTEST: Final = 1", "no bound", tests)
    survives = Mutant("stats", module, "SHORTEST: Final = 10**9", "SHORTEST: Final = 1000**3", "nothing", tests)
    first, second, third = try_all([killed, survives, replace(killed, breaks="again")], tmp_path, 1)
    assert first.killer.startswith("tests/unit/stats/test_rates.py::")
    assert second.killer == ""
    assert third.killer == first.killer, "what was compiled is of each change anew"
    assert (REPOSITORY / module).read_bytes() == before
