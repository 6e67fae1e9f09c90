"""The lists of mutants: a TOML file for each package, beside this module."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

REPOSITORY: Final = Path(__file__).parents[2]
_LISTS: Final = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change of ``old`` to ``new``, which is once in ``file``, and what it ``breaks``.

    The name of the list is the ``package``. ``tests`` are what has to fail, by default the test module of the file, or
    those of the package; paths are relative to the repository. ``equivalent`` says why nothing can notice the change;
    empty if something can.
    """

    package: str
    file: str
    old: str
    new: str
    breaks: str
    tests: tuple[str, ...]
    equivalent: str = ""

    def __str__(self) -> str:
        return f"{self.file}: {self.breaks}"

    def applied(self, text: str) -> str:
        """``text`` with the change. Raises ValueError if it does not have ``old`` exactly once."""
        if (count := text.count(self.old)) != 1:
            raise ValueError(f"{self}: found {count} times, not once: {self.old!r}")
        return text.replace(self.old, self.new)


def read_mutants(folder: Path = _LISTS) -> list[Mutant]:
    """All mutants of the lists in ``folder``. Raises ValueError for a list that makes no sense."""
    return [mutant for path in sorted(folder.glob("*.toml")) for mutant in _read(path)]


def _read(path: Path) -> Iterator[Mutant]:
    content: dict[str, Any] = tomllib.loads(path.read_text())
    rows = content.pop("mutant", [])
    if content or not rows:
        raise ValueError(f"{path.name}: a list has [[mutant]] and nothing else")
    for row in rows:
        try:
            tests = row.pop("tests", None) or [_tests_of(path.stem, Path(row["file"]))]
            yield Mutant(path.stem, **row, tests=tuple(tests))
        except (KeyError, TypeError) as error:
            raise ValueError(f"{path.name}: {error}: a mutant has file, old, new, breaks, tests, equivalent") from error


def _tests_of(package: str, file: Path) -> str:
    folder = Path("tests/unit") / package
    module = folder / f"test_{file.name}"
    return str(module if (REPOSITORY / module).exists() else folder)


def focused(mutants: list[Mutant], focus: str) -> list[Mutant]:
    """Those of the package ``focus``, or, if there is no such package, those whose file or text contains it."""
    return [one for one in mutants if one.package == focus] or [one for one in mutants if focus in str(one)]
