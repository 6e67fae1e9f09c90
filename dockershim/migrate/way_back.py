"""What cri-dockerd needs of us to take pods back, and what it cannot do with them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from dockershim.changes.disk import ChangeError, Disk
from dockershim.doctor import units
from dockershim.doctor.engine import connect, containers_of
from dockershim.doctor.node_files import is_program
from dockershim.server.config import Config
from dockershim.translate.labels import (
    SANDBOX_TYPE,
    TYPE_LABEL,
    ContainerExtra,
    SandboxExtra,
    read_extra,
)

_SHOWN: Final = 5
_INSTALL: Final = "install cri-dockerd, then run migrate --back"


def hand_over(disk: Disk, source: str, target: str) -> None:
    """Move the checkpoints in the folder ``source`` to ``target``, each durably. May be called again at any time.

    Raises ChangeError.
    """
    # Those with a dot are of a write that did not end.
    names = [name for name in disk.names(source) if not name.startswith(".")]
    if names:
        disk.make_folders(disk.missing_folders(f"{target}/{names[0]}"), 0o700)
    for name in names:
        checkpoint = disk.read(f"{source}/{name}")
        if checkpoint is not None:
            disk.stage(f"{target}/{name}", checkpoint)
            disk.commit(f"{target}/{name}")
            disk.remove(f"{source}/{name}")


def check_startable(names: Sequence[str]) -> None:
    """Raises ChangeError if one of these units of cri-dockerd cannot be started."""
    found = units.show(names)
    for name in names:
        unit = found.get(name)
        if unit is None or unit.enabled.startswith("masked"):
            problem = "does not exist" if unit is None else "is masked"
            raise ChangeError(f"{name}: {problem}, so cri-dockerd cannot be started; {_INSTALL}")
        if unit.command and not is_program(unit.command[0]):
            raise ChangeError(f"{name}: its program {unit.command[0]} does not exist; {_INSTALL}")


def losses(config: Config) -> list[str]:
    """Lines for what cri-dockerd cannot do with pods that exist. Raises ShimError if the engine cannot be asked."""
    lines = list(_of_labels(asyncio.run(_listed(config))))
    if config.oci_runtime and (users := containers_of(config, (config.oci_runtime,))):
        lines.append(f"{_named(users)} need {config.oci_runtime}, which the engine must have until they are removed")
    return lines


async def _listed(config: Config) -> Any:
    async with connect(config) as client:
        return await client.get("/containers/json", params={"all": "true"})


def _of_labels(listed: Any) -> Iterator[str]:
    """``listed`` is the engine's list of containers."""
    logged, hidden = [], []
    for item in listed if isinstance(listed, list) else ():
        labels: Mapping[str, str] = item.get("Labels") or {}
        name = ((item.get("Names") or [""])[0]).removeprefix("/")
        if labels.get(TYPE_LABEL) == SANDBOX_TYPE:
            sandbox = read_extra(SandboxExtra, labels)
            is_hidden = sandbox is not None and sandbox.name is not None
        else:
            container = read_extra(ContainerExtra, labels)
            is_hidden = container is not None and container.name is not None
            if container is not None and container.log and item.get("State") == "running":
                logged.append(name)
        if is_hidden:
            hidden.append(name)
    if logged:
        yield f"{_named(logged)} write no more to kubectl logs, only to docker logs, until they are replaced"
    if hidden:
        yield f"{_named(hidden)} have names that cri-dockerd cannot read: the kubelet would make their pods again"


def _named(names: Sequence[str]) -> str:
    more = ", ..." if len(names) > _SHOWN else ""
    return f"{len(names)} containers ({', '.join(names[:_SHOWN])}{more})"
