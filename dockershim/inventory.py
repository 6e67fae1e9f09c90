"""What exists now: the one place reads of sandboxes and containers are answered from.

The engine is asked for what can change, with one list; what cannot is read once for each container.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.engine.client import Engine
from dockershim.errors import NotFound
from dockershim.translate.names import CONTAINER_TYPE, SANDBOX_ID_LABEL, SANDBOX_TYPE, TYPE_LABEL
from dockershim.translate.records import (
    ContainerRecord,
    SandboxRecord,
    read_container,
    read_container_summary,
    read_sandbox,
    read_sandbox_summary,
)

_INSPECTS_AT_ONCE = 16
_ID = re.compile(r"[0-9a-f]{1,64}")

R = TypeVar("R", SandboxRecord, ContainerRecord)


class Inventory:
    """Sandboxes and containers of any dockershim on one engine; containers of others never appear."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._sandboxes: dict[str, SandboxRecord] = {}
        self._containers: dict[str, ContainerRecord] = {}
        self._inspects = asyncio.Semaphore(_INSPECTS_AT_ONCE)

    async def find_sandbox(self, sandbox_id: str) -> SandboxRecord | None:
        """The sandbox with this id, or None where the engine has none."""
        inspect = await self._inspect(sandbox_id)
        record = read_sandbox(inspect) if inspect is not None and _type(inspect) == SANDBOX_TYPE else None
        if record is not None:
            self._sandboxes[record.id] = record
        return record

    def known_sandbox(self, sandbox_id: str) -> SandboxRecord | None:
        """The sandbox as it was last seen, without asking: for what never changes."""
        return self._sandboxes.get(sandbox_id)

    async def find_container(self, container_id: str) -> ContainerRecord | None:
        """The application container with this id, or None where the engine has none."""
        inspect = await self._inspect(container_id)
        record = read_container(inspect) if inspect is not None and _type(inspect) == CONTAINER_TYPE else None
        if record is not None:
            record = self._containers[record.id] = _with_current_score(record)
        return record

    async def container(self, container_id: str) -> ContainerRecord:
        """The application container with this id. Raises NotFound."""
        record = await self.find_container(container_id)
        if record is None:
            raise NotFound(f"container {container_id!r} does not exist")
        return record

    async def known_container(self, container_id: str) -> ContainerRecord:
        """Like ``container``, but whatever is known of it will do: for what never changes. Raises NotFound."""
        return self._containers.get(container_id) or await self.container(container_id)

    async def _inspect(self, container_id: str) -> Mapping[str, Any] | None:
        if not is_id(container_id):
            return None
        try:
            async with self._inspects:
                inspect: Mapping[str, Any] = await self._engine.get(f"/containers/{container_id}/json")
                return inspect
        except NotFound:
            self.forget(container_id)
            return None

    def forget(self, container_id: str) -> None:
        """It was removed."""
        self._sandboxes.pop(container_id, None)
        self._containers.pop(container_id, None)

    async def sandboxes(self) -> list[SandboxRecord]:
        """Every sandbox that the engine has."""
        items = await self._list(f"{TYPE_LABEL}={SANDBOX_TYPE}")
        records = await self._refresh(
            map(read_sandbox_summary, items), self._sandboxes, _same_sandbox, self.find_sandbox
        )
        self._sandboxes = {record.id: record for record in records}
        return records

    async def containers(self, sandbox_id: str = "") -> list[ContainerRecord]:
        """Every application container that the engine has, or those of one sandbox."""
        labels = [f"{TYPE_LABEL}={CONTAINER_TYPE}"]
        if sandbox_id:
            labels.append(f"{SANDBOX_ID_LABEL}={sandbox_id}")
        items = await self._list(*labels)
        records = await self._refresh(
            map(read_container_summary, items), self._containers, _same_container, self.find_container
        )
        if not sandbox_id:
            self._containers = {record.id: record for record in records}
        return records

    async def _list(self, *labels: str) -> list[Mapping[str, Any]]:
        filters = json.dumps({"label": labels})
        items: list[Mapping[str, Any]] = await self._engine.get(
            "/containers/json", params={"all": "1", "filters": filters}
        )
        return items

    async def _refresh(
        self,
        summaries: Iterable[R | None],
        known: Mapping[str, R],
        holds: Callable[[R, R], bool],
        find: Callable[[str], Awaitable[R | None]],
    ) -> list[R]:
        """Records of what a list shows: a known one that still holds, a fresh inspect otherwise."""

        async def current(summary: R) -> R | None:
            record = known.get(summary.id)
            return record if record is not None and holds(summary, record) else await find(summary.id)

        found = await asyncio.gather(
            *(current(summary) for summary in summaries if summary is not None), return_exceptions=True
        )
        for failure in found:
            if isinstance(failure, BaseException):
                raise failure
        return [record for record in found if record is not None and not isinstance(record, BaseException)]


def _same_sandbox(summary: SandboxRecord, known: SandboxRecord) -> bool:
    return summary.running == known.running


def _same_container(summary: ContainerRecord, known: ContainerRecord) -> bool:
    # A container whose start failed is listed as if it had never been started.
    return summary.state == known.state != cri.CONTAINER_CREATED


def _with_current_score(record: ContainerRecord) -> ContainerRecord:
    """The OOM score of a running container is the kernel's: an engine keeps the one of the creation only."""
    if not record.pid:
        return record
    try:
        score = int(Path("/proc", str(record.pid), "oom_score_adj").read_text())
    except OSError:
        return record
    return dataclasses.replace(record, host_config={**record.host_config, "OomScoreAdj": score})


def is_id(text: str) -> bool:
    """Whether this can be an id, or the start of one. Only then may it go into the path of an engine call."""
    return _ID.fullmatch(text) is not None


def _type(inspect: Mapping[str, Any]) -> str:
    labels = (inspect.get("Config") or {}).get("Labels") or {}
    return str(labels.get(TYPE_LABEL, ""))
