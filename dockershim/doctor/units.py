"""Units of systemd, as ``systemctl show`` prints them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from dockershim.doctor.node_files import output

SOCKET_UNIT: Final = "dockershim.socket"
KUBELET_UNIT: Final = "kubelet.service"
#: Seconds; a busy machine may need some for each command.
_SECONDS: Final = 10.0
_PROPERTIES: Final = (
    *("Id", "LoadState", "ActiveState", "UnitFileState", "MainPID", "ExecStart", "FragmentPath", "DropInPaths"),
    *("EnvironmentFiles", "Listen", "SocketGroup", "TriggeredBy", "WantedBy", "RequiredBy", "BoundBy", "UpheldBy"),
    "ExecMainStartTimestampMonotonic",
)
_ARGUMENTS: Final = re.compile(r"argv\[\]=(.*?) ; ignore_errors=", re.DOTALL)
#: Whose first word is a path, which may not have a blank, as systemd prints none in quotes.
_FIRST_WORD: Final = re.compile(r"^(\S+) \(", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit that exists. ``enabled`` and ``state`` are in the words of ``systemctl is-enabled`` and ``is-active``.

    ``pid`` is the main process of a service, 0 without one, ``started`` when it began, in seconds of the monotonic
    clock. ``command`` are the words of its ExecStart=, where one with a blank is several. ``files`` are the unit and
    its drop-ins, ``environment_files`` those with its variables. ``listens`` are the addresses of a socket, ``group``
    is its group. ``triggered_by`` are the sockets of a service, ``needed_by`` the units that start it.
    """

    name: str
    state: str = "inactive"
    enabled: str = ""
    pid: int = 0
    started: float = 0.0
    command: Sequence[str] = ()
    files: Sequence[str] = ()
    environment_files: Sequence[str] = ()
    listens: Sequence[str] = ()
    group: str = ""
    triggered_by: Sequence[str] = ()
    needed_by: Collection[str] = field(default_factory=frozenset)

    @property
    def is_active(self) -> bool:
        return self.state not in ("inactive", "failed")


def show(names: Sequence[str]) -> dict[str, Unit]:
    """The units of these names that exist. Of a unit with several names the name that is its own is the key."""
    words = ["systemctl", "show", f"--property={','.join(_PROPERTIES)}", *names]
    return {unit.name: unit for unit in parse(output(words, _SECONDS) or "")}


def parse(printed: str) -> Iterator[Unit]:
    """Lines ``Property=value``, and an empty line between two units. A property may have several lines."""
    for block in printed.split("\n\n"):
        values: dict[str, str] = {}
        for line in block.splitlines():
            name, equals, value = line.partition("=")
            if equals and name in _PROPERTIES:
                values[name] = f"{values[name]}\n{value}" if name in values else value
        if values.get("Id") and values.get("LoadState") not in (None, "not-found"):
            yield _unit(values)


def _unit(values: Mapping[str, str]) -> Unit:
    def words(*names: str) -> list[str]:
        return [word for name in names for word in values.get(name, "").split()]

    def number(name: str) -> int:
        word = values.get(name, "")
        return int(word) if word.isascii() and word.isdecimal() and len(word) < 20 else 0

    command = _ARGUMENTS.search(values.get("ExecStart", ""))
    return Unit(
        name=values["Id"],
        state=values.get("ActiveState", ""),
        enabled=values.get("UnitFileState", ""),
        pid=number("MainPID"),
        started=number("ExecMainStartTimestampMonotonic") / 1e6,
        command=command[1].split() if command else (),
        files=words("FragmentPath", "DropInPaths"),
        environment_files=_FIRST_WORD.findall(values.get("EnvironmentFiles", "")),
        listens=_FIRST_WORD.findall(values.get("Listen", "")),
        group=values.get("SocketGroup", ""),
        triggered_by=words("TriggeredBy"),
        needed_by=frozenset(words("WantedBy", "RequiredBy", "BoundBy", "UpheldBy")),
    )
