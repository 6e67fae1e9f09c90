"""The events for each change of state, and the error for a client that is too slow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.common.wire import Encoded
from dockershim.cri.events import MOST_WAITING, ContainerEvents, _Client, _of_container, _of_sandbox
from dockershim.errors import ResourceExhausted
from dockershim.translate.names import ContainerName, SandboxName
from dockershim.translate.records import ContainerRecord

CREATED, RUNNING, EXITED = cri.CONTAINER_CREATED, cri.CONTAINER_RUNNING, cri.CONTAINER_EXITED
READY, NOT_READY = cri.SANDBOX_READY, cri.SANDBOX_NOTREADY


def container(state: cri.ContainerState, started_at: int) -> ContainerRecord:
    return ContainerRecord(
        id="c0",
        sandbox_id="5a",
        name=ContainerName("main", 0, SandboxName("pod", "ns", "uid", 0)),
        image="",
        image_id="",
        state=state,
        created_at=1,
        labels={},
        annotations={},
        log_path="",
        started_at=started_at,
    )


def names(kinds: list[cri.ContainerEventType]) -> list[str]:
    return [cri.ContainerEventType.Name(kind).removeprefix("CONTAINER_").removesuffix("_EVENT") for kind in kinds]


@pytest.mark.parametrize(
    ("known", "state", "started_at", "expected"),
    [
        pytest.param(None, CREATED, 0, ["CREATED"], id="made"),
        pytest.param(CREATED, RUNNING, 2, ["STARTED"], id="started"),
        pytest.param(RUNNING, EXITED, 2, ["STOPPED"], id="ended"),
        pytest.param(CREATED, EXITED, 2, ["STARTED", "STOPPED"], id="ran and ended between two looks"),
        pytest.param(None, EXITED, 2, ["CREATED", "STARTED", "STOPPED"], id="all of it between two looks"),
        pytest.param(None, RUNNING, 2, ["CREATED", "STARTED"], id="made and started between two looks"),
        pytest.param(CREATED, EXITED, 0, ["STOPPED"], id="its start failed"),
        pytest.param(EXITED, RUNNING, 2, ["STARTED"], id="started again behind our back"),
        pytest.param(RUNNING, RUNNING, 2, [], id="another change than of its state"),
        pytest.param(EXITED, EXITED, 2, [], id="another change of one that has ended"),
    ],
)
def test_events_of_a_container(
    known: int | None, state: cri.ContainerState, started_at: int, expected: list[str]
) -> None:
    assert names(_of_container(known, container(state, started_at))) == expected


@pytest.mark.parametrize(
    ("known", "state", "expected"),
    [
        pytest.param(None, READY, ["CREATED", "STARTED"], id="run"),
        pytest.param(READY, NOT_READY, ["STOPPED"], id="stopped"),
        pytest.param(NOT_READY, READY, ["STARTED"], id="started behind our back"),
        pytest.param(READY, READY, [], id="another change"),
    ],
)
def test_events_of_a_sandbox(known: int | None, state: int, expected: list[str]) -> None:
    assert names(_of_sandbox(known, state)) == expected


async def test_a_pod_that_cannot_be_read_costs_its_own_events_only() -> None:
    async def broken(_: object) -> None:
        raise ValueError("a mistake")

    async def current() -> None: ...

    def listen(listener: Callable[..., None]) -> Callable[[], None]:
        listeners.append(listener)
        return lambda: None

    listeners: list[Callable[..., None]] = []
    before, after = container(CREATED, 0), container(RUNNING, 2)
    inventory: Any = SimpleNamespace(
        snapshot=lambda: [SimpleNamespace(id="bad"), before], listen=listen, peek={after.id: after}.get
    )
    follower: Any = SimpleNamespace(current=current)
    sandboxes: Any = SimpleNamespace(describe=broken)
    stream: Any = ContainerEvents(follower, inventory, MagicMock(), sandboxes).get_container_events(
        cri.GetEventsRequest()
    )
    first = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    listeners[0](after.id, before, after)
    event = cri.ContainerEventResponse.FromString((await first).wire)
    assert names([event.container_event_type]) == ["STARTED"]
    await stream.aclose()


async def test_a_client_gets_its_events_in_their_order() -> None:
    client = _Client()
    for number in range(3):
        client.put(Encoded(bytes([number])))
    assert [(await client.next()).wire for _ in range(3)] == [b"\x00", b"\x01", b"\x02"]


async def test_a_client_that_is_too_slow_is_cut_off_without_a_gap_in_what_it_got() -> None:
    client = _Client()
    for _ in range(MOST_WAITING):
        client.put(Encoded(b"x"))
    assert (await client.next()).wire == b"x"
    client.put(Encoded(b"fits again"))
    client.put(Encoded(b"one too many"))
    with pytest.raises(ResourceExhausted, match="list pods and containers"):
        await client.next()
