"""Writes the table of docs/configuration.md from the options of the server.

Run ``make tables`` after a change of an option; tests/unit/docs holds the page to the code.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dockershim.server.config import OPTIONS, Option, flag_name, to_toml

DOCUMENT: Final = Path(__file__).parents[1] / "docs/configuration.md"
#: What is above this line is written by hand.
HEADING: Final = "## All options\n"
TITLES: Final = "\n| Flag | Default | |\n|---|---|---|\n"


def with_table(text: str) -> str:
    """The page with the table that the options have now. Raises ValueError if it has no place for it."""
    above, heading, _ = text.partition(HEADING)
    if not heading:
        raise ValueError(f"{DOCUMENT} has no line {HEADING!r}")
    return above + heading + TITLES + "".join(map(_row, OPTIONS))


def _row(option: Option) -> str:
    default = to_toml(option.default).strip('[]"')
    cells = [", ".join(_flags(option)), f"`{default}`" if default else "", " ".join(_words(option))]
    return f"| {' | '.join(cells)} |\n".replace("|  |", "| |")


def _flags(option: Option) -> Iterator[str]:
    for key in option.keys:
        yield f"`{flag_name(key)}`"


def _words(option: Option) -> Iterator[str]:
    yield option.help
    if option.reloads:
        yield "Reloaded on SIGHUP."


if __name__ == "__main__":
    DOCUMENT.write_text(with_table(DOCUMENT.read_text()))
