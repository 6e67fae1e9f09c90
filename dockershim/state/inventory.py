"""The sandboxes and containers that exist now. All reads of them are answered from here.

It keeps one record of each in memory, with the CRI messages made of it, and inspects a container anew when an event or
a call of ours says that it has changed. Inspects of one container never overlap, so a record never goes back in time.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

import msgspec

import background
from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.common.rollback import Locks
from dockershim.engine.client import Engine
from dockershim.engine.events import CONTAINER, DESTROY, NETWORK, Event
from dockershim.errors import DeadlineExceeded, EngineFailure, InvalidArgument, NotFound, ShimError
from dockershim.state.follower import ON_ITS_WAY, EngineFollower
from dockershim.translate.labels import CONTAINER_TYPE, SANDBOX_TYPE, TYPE_LABEL
from dockershim.translate.records import (
    ContainerRecord,
    ListedContainer,
    SandboxRecord,
    Unreadable,
    is_mixed,
    read_bare,
    read_record,
    read_summary,
)

logger = logging.getLogger(__name__)

_INSPECTS_AT_ONCE: Final = 16
#: A refresh that nobody waits for begins this many times as long after the last one of a container with a long
#: description as that took.
_REST: Final = 4
#: An inspect waits until the engine is done with the container, for example with its start.
_INSPECT_DEADLINE: Final = 10.0
_OURS: Final = {"label": [TYPE_LABEL]}
#: How many containers that never ran each tick inspects. There are few, so mostly each is inspected once a second.
NEVER_RAN_AT_ONCE: Final = 16
_ID = re.compile(r"[0-9a-f]{1,64}")

Record = SandboxRecord | ContainerRecord
R = TypeVar("R", SandboxRecord, ContainerRecord)

#: Called with the id and the record before and after each change; None stands for "does not exist".
Listener = Callable[[str, Record | None, Record | None], None]


class Inventory:
    """Sandboxes and containers of any dockershim on one engine. Containers that other programs made never appear.

    Reads take ids or the start of one, as the engine does. They raise Unavailable while the records are not current.
    """

    def __init__(
        self,
        engine: Engine,
        follower: EngineFollower,
        was_oom_killed: Callable[[str], bool] = lambda _: False,
        kept_limits: Callable[[str], Mapping[str, str]] = lambda _: {},
    ) -> None:
        """``was_oom_killed`` tells of OOM kills that the engine may have missed, by the container's id;
        ``kept_limits`` of cgroup files that updates changed since the label was made."""
        self._engine = engine
        self._follower = follower
        self._was_oom_killed = was_oom_killed
        self._kept_limits = kept_limits
        self._sandboxes: dict[str, SandboxRecord] = {}
        self._containers: dict[str, ContainerRecord] = {}
        self._of_sandbox: dict[str, dict[str, ContainerRecord]] = {}
        self._made: dict[str, tuple[Record, dict[object, bytes]]] = {}
        #: The records in the order of lists; None until a caller asks for them after a change.
        self._sandboxes_in_order: tuple[SandboxRecord, ...] | None = None
        self._containers_in_order: tuple[ContainerRecord, ...] | None = None
        #: One count orders refresh requests and inspects. ``_begun`` has, by id, its value when the last inspect began.
        self._count = itertools.count(1)
        self._begun: dict[str, int] = {}
        self._turns = Locks()
        self._inspects = asyncio.Semaphore(_INSPECTS_AT_ONCE)
        #: Containers that are being inspected, and whether the answer is still valid.
        self._under_way: dict[str, bool] = {}
        #: Containers whose description is long, each with the monotonic time until which the engine rests from it.
        self._rests: dict[str, float] = {}
        self._slow = asyncio.Semaphore(1)
        #: The background refreshes that events and ticks started, each with the container's id.
        self._refreshes: dict[asyncio.Task[None], str] = {}
        #: Containers that calls of ours are starting, with the number of calls; those to be inspected afterwards.
        self._starting: Counter[str] = Counter()
        self._put_off: set[str] = set()
        #: During a comparison: containers whose refresh was under way at its begin, or that an event named since.
        self._reported: set[str] | None = None
        #: Containers whose labels or annotations cannot be read: each is logged once.
        self._unreadable: set[str] = set()
        #: The LABELs of images by id, for containers that do not record which labels the CRI request had.
        self._image_labels: dict[str, Mapping[str, str]] = {}
        self._listeners: list[Listener] = []
        follower.attach(self)

    # -- reading ---------------------------------------------------------------------------------------------

    async def sandboxes(self) -> tuple[SandboxRecord, ...]:
        """Every sandbox that the engine has, the newest first, as the engine lists them."""
        await self._follower.current()
        if self._sandboxes_in_order is None:
            self._sandboxes_in_order = _newest_first(self._sandboxes)
        return self._sandboxes_in_order

    async def containers(self, sandbox_id: str = "") -> tuple[ContainerRecord, ...]:
        """Every application container that the engine has, or those of the sandbox with this whole id; newest first."""
        await self._follower.current()
        if sandbox_id:
            return _newest_first(self._of_sandbox.get(sandbox_id, {}))
        if self._containers_in_order is None:
            self._containers_in_order = _newest_first(self._containers)
        return self._containers_in_order

    async def find_sandbox(self, sandbox_id: str) -> SandboxRecord | None:
        """The sandbox with this id, or None. Raises InvalidArgument for the start of several ids."""
        await self._follower.current()
        return _find(self._sandboxes, sandbox_id)

    async def find_container(self, container_id: str) -> ContainerRecord | None:
        """The application container with this id, or None. Raises InvalidArgument for the start of several ids."""
        await self._follower.current()
        return _find(self._containers, container_id)

    async def sandbox(self, sandbox_id: str) -> SandboxRecord:
        """The sandbox with this id. Raises NotFound."""
        record = await self.find_sandbox(sandbox_id)
        if record is None:
            raise NotFound(f"sandbox {sandbox_id!r} does not exist")
        return record

    async def container(self, container_id: str) -> ContainerRecord:
        """The application container with this id. Raises NotFound."""
        record = await self.find_container(container_id)
        if record is None:
            raise NotFound(f"container {container_id!r} does not exist")
        return record

    def ready_made(self, record: R, key: object, make: Callable[[R], bytes]) -> bytes:
        """The result of ``make(record)``, which is called once for each record and ``key``."""
        made = self._made.get(record.id)
        if made is None or made[0] is not record:
            if self._known(record.id) is not record:
                return make(record)
            made = self._made[record.id] = (record, {})
        wire = made[1].get(key)
        if wire is None:
            wire = made[1][key] = make(record)
        return wire

    def snapshot(self) -> list[Record]:
        """All records as last known, current or not; for listeners."""
        return [*self._sandboxes.values(), *self._containers.values()]

    def peek(self, container_id: str) -> Record | None:
        """One of ``snapshot``, by its whole id."""
        return self._known(container_id)

    def peek_containers(self, sandbox_id: str) -> tuple[ContainerRecord, ...]:
        """The containers of one sandbox in ``snapshot``."""
        return _newest_first(self._of_sandbox.get(sandbox_id, {}))

    def notify(self, container_id: str) -> None:
        """Call the listeners for a change that is not in the container's record."""
        record = self._known(container_id)
        self._call_listeners(container_id, record, record)

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call ``listener`` for every change from now on. Returns a function that ends this."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    # -- changing --------------------------------------------------------------------------------------------

    async def refresh_sandbox(
        self, sandbox_id: str, until: Callable[[SandboxRecord], bool] | None = None
    ) -> SandboxRecord | None:
        """Like ``refresh_container``, for a sandbox."""
        refresh = self._refresh if until is None else self._refresh_patiently
        await refresh(sandbox_id, lambda: _satisfied(self._sandboxes.get(sandbox_id), until))
        return self._sandboxes.get(sandbox_id)

    async def refresh_container(
        self, container_id: str, until: Callable[[ContainerRecord], bool] | None = None
    ) -> ContainerRecord | None:
        """Read the container with this whole id from the engine and return its record; None if it does not exist.

        For a call that has changed the container: when this returns, every read shows the change. ``until`` tells
        whether a record already shows it; then the engine is not asked, and else it may take its time: the request
        timeout.
        """
        refresh = self._refresh if until is None else self._refresh_patiently
        await refresh(container_id, lambda: _satisfied(self._containers.get(container_id), until))
        return self._containers.get(container_id)

    async def _refresh_patiently(self, container_id: str, satisfied: Callable[[], bool]) -> None:
        """Refresh until the request timeout: a busy engine that has just started a container may take long to show it.

        After a failure a kubelet makes another container in place of the one that runs.
        """
        async with self._engine.deadline(f"GET /containers/{container_id}/json"):
            while True:
                with suppress(DeadlineExceeded):
                    return await self._refresh(container_id, satisfied)

    async def refresh_ended(self, container_id: str) -> bool:
        """Like ``refresh_container``, for a sandbox or container that a call ended. Returns whether it has ended."""
        await self._refresh(container_id, lambda: _has_ended(self._known(container_id)))
        known = self._known(container_id)
        return known is None or _has_ended(known)

    @contextmanager
    def starting(self, container_id: str) -> Iterator[None]:
        """A block in which the engine starts a container.

        It answers an inspect only at the start's end, which may take minutes: what comes meanwhile is read then.
        """
        self._starting[container_id] += 1
        try:
            yield
        finally:
            self._starting[container_id] -= 1
            if not self._starting[container_id]:
                del self._starting[container_id]
                if container_id in self._put_off:
                    self._put_off.discard(container_id)
                    self._spawn(container_id)

    def forget(self, container_id: str) -> None:
        """Drop a container that was removed."""
        if container_id in self._under_way:
            self._under_way[container_id] = False
        self._begun.pop(container_id, None)
        self._rests.pop(container_id, None)
        self._put(container_id, None)

    async def _refresh(self, container_id: str, satisfied: Callable[[], bool], asked: int | None = None) -> None:
        """Inspect a container, unless an inspect has begun since ``asked``, by default since now."""
        if asked is None:
            asked = next(self._count)
        if satisfied():
            return
        async with self._turns.hold(container_id):
            if self._begun.get(container_id, 0) > asked or satisfied():
                return
            begun = next(self._count)
            self._under_way[container_id] = True
            try:
                record = await self._inspect(container_id)
                if record is not None and self._under_way[container_id]:
                    self._begun[container_id] = begun
                    self._put(container_id, record)
                else:
                    # Also if it was removed meanwhile: the answer may have left something since.
                    self.forget(container_id)
            finally:
                del self._under_way[container_id]

    async def _inspect(self, container_id: str) -> Record | None:
        if not is_id(container_id):
            return None
        begun = time.monotonic()
        try:
            async with self._slow if container_id in self._rests else self._inspects:
                answer = await self._engine.get_shortened(
                    f"/containers/{container_id}/json", deadline=_INSPECT_DEADLINE
                )
        except NotFound:
            return None
        inspect: Mapping[str, Any] = answer.json
        if answer.is_long:
            now = time.monotonic()
            self._note_long(container_id, now + _REST * (now - begun), answer.left_out)
        else:
            self._rests.pop(container_id, None)
        try:
            image_labels = await self._labels_of(inspect.get("Image")) if is_mixed(inspect) else {}
            record = read_record(inspect, image_labels)
            self._unreadable.discard(container_id)
        except Unreadable as error:
            record = read_bare(inspect)
            self._report(container_id, error, left_out=record is None)
        if not isinstance(record, ContainerRecord):
            return record
        if changed := self._kept_limits(container_id):
            files = {**record.extra.cgroup_files, **changed}
            record = dataclasses.replace(record, extra=msgspec.structs.replace(record.extra, cgroup_files=files))
        if record.exit_code and not record.oom_killed and self._was_oom_killed(container_id):
            return dataclasses.replace(record, oom_killed=True)
        return _with_current_score(record)

    def _note_long(self, container_id: str, rest_until: float, left_out: int) -> None:
        if left_out and container_id not in self._rests:
            logger.warning(
                "container %s: the engine's description is too long; ignoring %d bytes of its image's labels, variables"
                " or other texts",
                container_id,
                left_out,
            )
        self._rests[container_id] = rest_until

    def _report(self, container_id: str, error: Unreadable, *, left_out: bool) -> None:
        if container_id not in self._unreadable:
            self._unreadable.add(container_id)
            what = "ignoring it" if left_out else "ignoring most of its labels and annotations"
            logger.warning("container %s has invalid labels, %s: %s", container_id, what, error)

    async def _labels_of(self, image_id: str | None) -> Mapping[str, str]:
        """The LABELs of an image; none if it is gone or the engine cannot describe it."""
        if not image_id:
            return {}
        if image_id not in self._image_labels:
            try:
                async with self._inspects:
                    found: Mapping[str, Any] = await self._engine.get(
                        f"/images/{quote(image_id, safe=':')}/json", deadline=_INSPECT_DEADLINE
                    )
            except (NotFound, EngineFailure):
                return {}
            self._image_labels[image_id] = (found.get("Config") or {}).get("Labels") or {}
        return self._image_labels[image_id]

    def _known(self, container_id: str) -> Record | None:
        return self._containers.get(container_id) or self._sandboxes.get(container_id)

    def _put(self, container_id: str, record: Record | None) -> None:
        before = self._known(container_id)
        if before == record:
            return
        self._made.pop(container_id, None)
        self._sandboxes_in_order = self._containers_in_order = None
        if isinstance(before, ContainerRecord):
            self._drop_container(before)
        if record is None:
            self._sandboxes.pop(container_id, None)
        elif isinstance(record, SandboxRecord):
            self._sandboxes[container_id] = record
        else:
            self._containers[container_id] = record
            self._of_sandbox.setdefault(record.sandbox_id, {})[container_id] = record
        self._call_listeners(container_id, before, record)

    def _call_listeners(self, container_id: str, before: Record | None, record: Record | None) -> None:
        """Call each listener; one that fails costs neither the others nor the caller, whose change is made."""
        for listener in tuple(self._listeners):
            try:
                listener(container_id, before, record)
            except Exception:
                logger.exception("a listener failed to handle the change of container %s", container_id)

    def _drop_container(self, record: ContainerRecord) -> None:
        del self._containers[record.id]
        siblings = self._of_sandbox[record.sandbox_id]
        del siblings[record.id]
        if not siblings:
            del self._of_sandbox[record.sandbox_id]

    # -- following the engine; see follower.Replica -------------------------------------------------------------

    def take(self, event: Event) -> None:
        """Note what an event reports. Events of containers that no dockershim made are dropped here."""
        container_id = event.subject
        if event.kind == NETWORK:
            container_id = (event.attributes or {}).get("container", "")
            sandbox = self._sandboxes.get(container_id)
            if sandbox is None or sandbox.network_mode in ("none", "host"):
                return
        elif event.kind != CONTAINER or not _may_be_ours(event.attributes):
            return
        if self._reported is not None:
            self._reported.add(container_id)
        if event.kind == CONTAINER and event.action == DESTROY:
            self.forget(container_id)
            self._unreadable.discard(container_id)
        else:
            self._spawn(container_id)

    def _spawn(self, container_id: str) -> None:
        if container_id in self._starting:
            self._put_off.add(container_id)
            return
        # A call that waited for the same change may inspect before the task runs: that inspect shows it, too.
        refreshing = self._refresh_in_background(container_id, next(self._count))
        task = background.start(refreshing, owner="inventory", name=f"refresh {container_id}")
        self._refreshes[task] = container_id
        task.add_done_callback(self._refreshes.pop)

    async def _refresh_in_background(self, container_id: str, asked: int) -> None:
        try:
            # It is a crash loop, mostly: what its owner's image costs, others are not to wait for.
            if (rest := self._rests.get(container_id, 0.0) - time.monotonic()) > 0:
                await asyncio.sleep(rest)
            await self._refresh_or_summarize(container_id, asked)
        except ShimError as error:
            self._follower.suspect(str(error))
        except Exception:
            logger.exception("cannot read container %s", container_id)
            self._follower.suspect(f"cannot read container {container_id}")

    async def _refresh_or_summarize(self, container_id: str, asked: int | None = None) -> None:
        """Refresh a container; if the engine cannot inspect it, use what the list says, so that it hides no others."""
        if container_id in self._starting:
            self._put_off.add(container_id)
            await self._summarize(container_id)
            return
        try:
            await self._refresh(container_id, _never, asked)
        except (EngineFailure, DeadlineExceeded) as error:
            logger.warning("%s", error)
            await self._summarize(container_id)

    async def _summarize(self, container_id: str) -> None:
        """Take what the list says of a container, unless something newer has come before its answer."""
        before = self._known(container_id)
        filters = json.dumps({"id": [container_id]})
        items = await self._engine.get("/containers/json", params={"all": "1", "filters": filters})
        summary = _summary(items[0]) if items else None
        if self._known(container_id) is before and not _same(summary, before):
            if summary is None:
                self.forget(container_id)
            else:
                self._put(container_id, summary)

    async def resync(self) -> None:
        """Read every container anew. Raises Unavailable."""
        listed = {item["Id"] for item in await self._list()}
        self._unreadable &= listed
        self._image_labels.clear()
        await self._all(self._refresh_or_summarize(key) for key in {*listed, *self._sandboxes, *self._containers})

    async def compare(self) -> list[str]:
        """Find by one list the changes that events did not report, inspect those containers, and return what changed.

        The engine shows a change in its list before it sends the event, and answers an inspect only when it is done
        with the container. So an event may have come whose inspect is not answered yet, as during a start, and the
        event of a change may come after an inspect has shown it.
        """
        reported = self._reported = {*self._refreshes.values(), *self._starting}
        try:
            listed = {item["Id"]: _summary(item) for item in await self._list()}
            known: dict[str, Record] = {**self._sandboxes, **self._containers}
            doubtful = {*listed, *known} - reported
            before = {key: self._known(key) for key in doubtful if not _same(listed.get(key), known.get(key))}
            await self._all(map(self._refresh_or_summarize, before))
            changed = [key for key in before if before[key] != self._known(key)]
            if changed:
                await asyncio.sleep(ON_ITS_WAY)
            missed = [key for key in changed if key not in reported]
            return [f"{key}: {_state(before[key])} -> {_state(self._known(key))}" for key in missed]
        finally:
            self._reported = None

    def tick(self) -> None:
        """Inspect containers that never ran: no event and no list shows that a start failed."""
        never_ran = (container.id for container in self._containers.values() if not container.started_at)
        idle = sorted(
            (key for key in never_ran if key not in self._under_way and key not in self._starting),
            key=lambda key: self._begun.get(key, 0),
        )
        for container_id in idle[:NEVER_RAN_AT_ONCE]:
            self._spawn(container_id)

    async def close(self) -> None:
        """End the background refreshes."""
        await background.end(*self._refreshes)

    async def _list(self) -> list[ListedContainer]:
        params = {"all": "1", "filters": json.dumps(_OURS)}
        return await self._engine.get_list("/containers/json", ListedContainer, params=params)

    async def _all(self, work: Iterable[Coroutine[Any, Any, None]]) -> None:
        for result in await asyncio.gather(*work, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result


def _newest_first(records: Mapping[str, R]) -> tuple[R, ...]:
    return tuple(sorted(records.values(), key=lambda record: (record.created_at, record.id), reverse=True))


def _never() -> bool:
    return False


def _satisfied(record: R | None, until: Callable[[R], bool] | None) -> bool:
    return record is not None and until is not None and until(record)


def _has_ended(record: Record | None) -> bool:
    if isinstance(record, SandboxRecord):
        return not record.running
    return record is not None and record.state == cri.CONTAINER_EXITED


def _find(records: Mapping[str, R], text: str) -> R | None:
    if text in records or not is_id(text):
        return records.get(text)
    found = [record for key, record in records.items() if key.startswith(text)]
    if len(found) > 1:
        raise InvalidArgument(f"{text!r} is ambiguous: {len(found)} ids begin with it; use a longer prefix")
    return found[0] if found else None


def _summary(item: Mapping[str, Any] | ListedContainer) -> Record | None:
    """The record of a list item; None also if it is unreadable: the inspect fails in the same way, and logs it."""
    try:
        return read_summary(item)
    except Unreadable:
        return None


def _same(summary: Record | None, known: Record | None) -> bool:
    """Whether the list agrees with the known record, in the fields that a list has."""
    if isinstance(summary, SandboxRecord) and isinstance(known, SandboxRecord):
        return (summary.running, summary.name) == (known.running, known.name)
    if isinstance(summary, ContainerRecord) and isinstance(known, ContainerRecord):
        # A container whose start failed is listed as if it had never been started.
        failed_to_start = known.state == cri.CONTAINER_EXITED and not known.started_at
        state = cri.CONTAINER_CREATED if failed_to_start and summary.state == cri.CONTAINER_CREATED else known.state
        return (summary.state, summary.name) == (state, known.name)
    return summary is known


def _state(record: Record | None) -> str:
    """The state that a list shows, in words for the log."""
    if isinstance(record, SandboxRecord):
        return "sandbox that runs" if record.running else "sandbox that does not run"
    return "none" if record is None else cri.ContainerState.Name(record.state)


def _with_current_score(record: ContainerRecord) -> ContainerRecord:
    """The record with the kernel's OOM score if the container runs: the engine only keeps the one of the creation."""
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


def _may_be_ours(attributes: Mapping[str, str] | None) -> bool:
    """Whether an event with these may be of a shim's container; of a long event nobody knows them."""
    return attributes is None or attributes.get(TYPE_LABEL) in (SANDBOX_TYPE, CONTAINER_TYPE)
