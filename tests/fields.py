"""Writes docs/fields.md, what becomes of each field of a request, from docs/fields.toml.

Run ``make tables`` after a change of docs/fields.toml; tests/unit/docs holds both to the API and to the code.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from dockershim.api.cri.v1 import api_pb2

ROOT: Final = Path(__file__).parents[1]
TABLE: Final = ROOT / "docs/fields.toml"
DOCUMENT: Final = ROOT / "docs/fields.md"
#: The calls that say what a pod, a container, a pull or a dump is to be.
REQUESTS: Final = (
    "RunPodSandboxRequest",
    "CreateContainerRequest",
    "UpdateContainerResourcesRequest",
    "UpdatePodSandboxResourcesRequest",
    "PullImageRequest",
    "CheckpointContainerRequest",
)


@dataclass(frozen=True, slots=True)
class Row:
    """What becomes of a field, or of all fields below it that have no row of their own.

    ``honoured`` says by what; ``refused`` says with which gRPC code, and which values if others are honoured;
    ``ignored`` says why the field has no effect. ``tests`` are "file::test", files below tests/.
    """

    request: str
    field: str
    honoured: str = ""
    refused: str = ""
    ignored: str = ""
    tests: tuple[str, ...] = ()


def read_rows(text: str) -> list[Row]:
    """The rows of docs/fields.toml: a table for each request, in it a table for each field."""
    table: dict[str, dict[str, Any]] = tomllib.loads(text)
    return [
        Row(request, name, **{**row, "tests": tuple(row.get("tests", ()))})
        for request, rows in table.items()
        for name, row in rows.items()
    ]


def leaves(message: Descriptor, prefix: str = "") -> Iterator[tuple[str, FieldDescriptor]]:
    """Every field that has a value itself, with its path. A map is one, and so is a number that may be missing."""
    for field in message.fields:
        path = prefix + field.name
        below = field.message_type
        if below is None or below.GetOptions().map_entry or [one.name for one in below.fields] == ["value"]:
            yield path, field
        else:
            yield from leaves(below, f"{path}.")


def fields_of(request: str) -> dict[str, FieldDescriptor]:
    """The leaves of a request, by path."""
    return dict(leaves(api_pb2.DESCRIPTOR.message_types_by_name[request]))


def row_of(path: str, rows: dict[str, Row]) -> Row | None:
    """The row of a field: its own, or that of the nearest field above it."""
    while path:
        if path in rows:
            return rows[path]
        path = path.rpartition(".")[0]
    return None


def to_markdown(rows: list[Row]) -> str:
    """The whole of docs/fields.md."""
    introduction = TABLE.read_text().partition("\n\n")[0].splitlines()
    lines = ["# Fields of the CRI", "", *(re.sub("^# ?", "", line) for line in introduction)]
    for request in REQUESTS:
        lines += ["", f"## {request}", "", "| Field | Verdict | How | Shown by |", "|---|---|---|---|"]
        lines += [_line(row) for row in rows if row.request == request]
    return "\n".join(lines) + "\n"


def _line(row: Row) -> str:
    if row.honoured:
        verdict, how = "honoured", row.honoured + (f"<br>Refused: {row.refused}" if row.refused else "")
    else:
        verdict, how = ("refused", row.refused) if row.refused else ("no effect", row.ignored)
    tests = "<br>".join(f"`tests/{test}`" for test in row.tests)
    return f"| `{row.field}` | {verdict} | {how} | {tests} |"


if __name__ == "__main__":
    DOCUMENT.write_text(to_markdown(read_rows(TABLE.read_text())))
