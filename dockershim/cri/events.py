"""GetContainerEvents, for the kubelet's evented PLEG.

Events are made from changes of the inventory's records. So they agree with the status calls, and there are events also
for changes that happened while the engine's event stream was cut.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Final

import background
from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.common.wire import Encoded
from dockershim.cri.accounts import ImageAccounts
from dockershim.cri.sandbox_reads import SandboxReads
from dockershim.errors import ResourceExhausted, ShimError, Unavailable
from dockershim.state.follower import EngineFollower
from dockershim.state.inventory import Inventory, Record
from dockershim.translate.records import ContainerRecord, SandboxRecord, to_cri_container_status

logger = logging.getLogger(__name__)

#: How many events, of a few kilobytes each, may wait for one client. A slower client has to list again.
MOST_WAITING: Final = 1000
_AGAIN: Final = 0.5

_CREATED, _STARTED = cri.CONTAINER_CREATED_EVENT, cri.CONTAINER_STARTED_EVENT
_STOPPED, _DELETED = cri.CONTAINER_STOPPED_EVENT, cri.CONTAINER_DELETED_EVENT


class _Client:
    """The events that wait for one client."""

    def __init__(self) -> None:
        self._waiting: deque[Encoded[cri.ContainerEventResponse]] = deque()
        self._news = asyncio.Event()
        self._overrun = False

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def put(self, event: Encoded[cri.ContainerEventResponse]) -> None:
        if len(self._waiting) >= MOST_WAITING:
            self._overrun = True
        else:
            self._waiting.append(event)
        self._news.set()

    async def next(self) -> Encoded[cri.ContainerEventResponse]:
        """The next event. Raises ResourceExhausted once an event was dropped because too many were waiting."""
        while not self._waiting and not self._overrun:
            self._news.clear()
            await self._news.wait()
        if self._overrun:
            raise ResourceExhausted(
                f"the client reads events too slowly: more than {MOST_WAITING} are waiting;"
                " list pods and containers, and call GetContainerEvents again"
            )
        return self._waiting.popleft()


class ContainerEvents:
    """Sends the same events to every client. While there is no client, it does nothing."""

    def __init__(
        self, follower: EngineFollower, inventory: Inventory, accounts: ImageAccounts, sandboxes: SandboxReads
    ) -> None:
        self._follower = follower
        self._inventory = inventory
        self._accounts = accounts
        self._sandboxes = sandboxes
        self._clients: set[_Client] = set()
        self._changes: asyncio.Queue[tuple[str, Record | None]] = asyncio.Queue()
        #: By id of a sandbox or container: the state that clients know from events.
        self._sent: dict[str, int] = {}
        self._feeding: asyncio.Task[None] | None = None
        self._stop_listening: Callable[[], None] = lambda: None

    @property
    def clients(self) -> int:
        """The number of clients now."""
        return len(self._clients)

    @property
    def backlog(self) -> int:
        """The number of events that wait for the slowest client."""
        return max((client.waiting for client in self._clients), default=0)

    async def get_container_events(
        self, request: cri.GetEventsRequest
    ) -> AsyncIterator[Encoded[cri.ContainerEventResponse]]:
        """GetContainerEvents: all changes from now on.

        Raises Unavailable if the inventory is not current, and ResourceExhausted if the client reads too slowly.
        """
        await self._follower.current()
        with self._subscribed() as client:
            while True:
                yield await client.next()

    @contextlib.contextmanager
    def _subscribed(self) -> Iterator[_Client]:
        client = _Client()
        if not self._clients:
            self._begin()
        self._clients.add(client)
        try:
            yield client
        finally:
            self._clients.discard(client)
            if not self._clients:
                self._end()

    def _begin(self) -> None:
        self._changes = asyncio.Queue()
        self._sent = {}
        self._stop_listening = self._inventory.listen(self._note)
        known = self._inventory.snapshot()
        self._feeding = background.keep(partial(self._feed, known), owner="events", name="container events")

    def _end(self) -> None:
        self._stop_listening()
        if self._feeding is not None:
            self._feeding.cancel()

    def _note(self, container_id: str, before: Record | None, after: Record | None) -> None:
        self._changes.put_nowait((container_id, before if after is None else None))

    async def _feed(self, known: list[Record]) -> None:
        for record in known:
            try:
                self._sent[record.id] = await self._state(record)
            except Exception:
                # Its next change shows it as new; the others must not wait for it.
                logger.exception("the state of container %s cannot be read for events", record.id)
        while True:
            container_id, removed = await self._changes.get()
            try:
                await self._send(container_id, removed)
            except Exception:
                logger.exception("the events of container %s cannot be created", container_id)

    async def _send(self, container_id: str, removed: Record | None) -> None:
        await self._wait_until_current()
        record = removed or self._inventory.peek(container_id)
        if record is None:
            return  # It was removed since: the queue has that change, too.
        kinds = await self._kinds(record, removed=removed is not None)
        for kind in kinds:
            event: Encoded[cri.ContainerEventResponse] = Encoded((await self._event(kind, record)).SerializeToString())
            for client in self._clients:
                client.put(event)

    async def _wait_until_current(self) -> None:
        """Wait until the inventory is current: an event must not show an old state. Changes stay in the queue."""
        while True:
            try:
                return await self._follower.current()
            except Unavailable:
                await asyncio.sleep(_AGAIN)

    async def _kinds(self, record: Record, *, removed: bool) -> list[cri.ContainerEventType]:
        """The events that lead from the state that clients know to that of the record."""
        known = self._sent.get(record.id)
        if removed:
            self._sent.pop(record.id, None)
            return [] if known is None else [_DELETED]
        state = await self._state(record)
        if known is None and isinstance(record, SandboxRecord) and state == cri.SANDBOX_NOTREADY:
            return []  # RunPodSandbox has not returned it yet.
        self._sent[record.id] = state
        if isinstance(record, SandboxRecord):
            return _of_sandbox(known, state)
        return _of_container(known, record)

    async def _state(self, record: Record) -> int:
        if isinstance(record, ContainerRecord):
            return record.state
        return (await self._status(record)).state

    async def _status(self, record: SandboxRecord) -> cri.PodSandboxStatus:
        try:
            return await self._sandboxes.describe(record)
        except ShimError as error:
            logger.warning("events show sandbox %s as not ready: %s", record.id, error)
            return self._sandboxes.describe_ended(record)

    async def _event(self, kind: cri.ContainerEventType, record: Record) -> cri.ContainerEventResponse:
        inventory = self._inventory
        sandbox: Record | None = record
        if isinstance(record, ContainerRecord):
            sandbox = inventory.peek(record.sandbox_id)
        event = cri.ContainerEventResponse(container_id=record.id, container_event_type=kind)
        if isinstance(sandbox, SandboxRecord):
            gone = sandbox is record and kind == _DELETED
            status = self._sandboxes.describe_ended(sandbox) if gone else await self._status(sandbox)
            event.pod_sandbox_status.CopyFrom(status)
            for container in inventory.peek_containers(sandbox.id):
                image, account = await self._accounts.used_by(container)
                event.containers_statuses.append(to_cri_container_status(container, image, account))
        event.created_at = time.time_ns()
        return event


def _of_sandbox(known: int | None, state: int) -> list[cri.ContainerEventType]:
    if known is None:
        return [_CREATED, _STARTED]
    if known == state:
        return []
    return [_STARTED if state == cri.SANDBOX_READY else _STOPPED]


def _of_container(known: int | None, record: ContainerRecord) -> list[cri.ContainerEventType]:
    kinds = [_CREATED] if known is None else []
    ran = record.state == cri.CONTAINER_RUNNING or bool(record.started_at)
    if ran and known in (None, cri.CONTAINER_CREATED):
        kinds.append(_STARTED)
    if record.state == cri.CONTAINER_RUNNING and known == cri.CONTAINER_EXITED:
        kinds.append(_STARTED)
    if record.state == cri.CONTAINER_EXITED and known != cri.CONTAINER_EXITED:
        kinds.append(_STOPPED)
    return kinds
