"""The commands of docs/first-pod.md, as its reader copies them, and the engine's settings of install.md."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.node.cache import REPOSITORY

PAGE = REPOSITORY / "docs/first-pod.md"
INSTALL = REPOSITORY / "docs/install.md"
_BLOCK = re.compile(r"^(?P<not_run><!-- not run: .+ -->\n\n)?```sh\n(?P<script>.*?)^```$", re.MULTILINE | re.DOTALL)
# `cat > PATH <<'END'`, and what is written to the path.
_HERE_DOCUMENT = re.compile(
    r"^cat > (?P<path>\S+) <<'(?P<end>\w+)'\n(?P<content>.*)^(?P=end)$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Command:
    """One command with all its lines, and the title of the section that it is in."""

    section: str
    text: str

    def __str__(self) -> str:
        return self.text.partition("\n")[0]


def commands(page: Path = PAGE) -> list[Command]:
    """All commands of the page in their order, but those whose block is marked as not run."""
    found = []
    for section in re.split(r"^## ", page.read_text(), flags=re.MULTILINE)[1:]:
        for block in _BLOCK.finditer(section):
            if not block["not_run"]:
                found += [Command(section.partition("\n")[0], text) for text in split(block["script"])]
    return found


def files(page: Path = PAGE) -> dict[str, str]:
    """What the page's commands write into files, by the path."""
    documents = (_HERE_DOCUMENT.search(command.text) for command in commands(page))
    return {found["path"]: found["content"] for found in documents if found}


def engine_settings() -> str:
    """The daemon.json that install.md advises."""
    (settings,) = re.findall(r"^```json\n(.*?)^```$", INSTALL.read_text(), re.MULTILINE | re.DOTALL)
    return str(settings)


def split(script: str) -> Iterator[str]:
    r"""The commands of a script that has one in each line, but for lines that end with \ and here-documents."""
    lines = iter(script.splitlines())
    for line in lines:
        text = [line]
        while text[-1].endswith("\\"):
            text.append(next(lines))
        document = re.search(r"<<'(\w+)'", line)
        while document and text[-1] != document[1]:
            text.append(next(lines))
        yield "\n".join(text)
