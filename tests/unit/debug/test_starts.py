"""What is noted of pod starts, which start a call belongs to, and how little it costs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import cni
from dockershim import errors
from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.common.rollback import run_to_completion
from dockershim.common.steps import step
from dockershim.common.timed import Kind, Timed, subscribed, timed
from dockershim.debug import starts as module
from dockershim.debug.starts import PodStart, PodStarts
from dockershim.network.plugins import TimedPlugins


def metadata(name: str = "web", uid: str = "1", attempt: int = 0) -> cri.PodSandboxMetadata:
    return cri.PodSandboxMetadata(name=name, namespace="default", uid=uid, attempt=attempt)


def handling(call: str, request: Any) -> Timed:
    return timed(Kind.HANDLER, call, about=request)


def run_pod(starts: PodStarts, sandbox_id: str = "s1", failure: BaseException | None = None, **names: Any) -> None:
    request = cri.RunPodSandboxRequest(config=cri.PodSandboxConfig(metadata=metadata(**names)))
    with (
        suppress(*([type(failure)] if failure is not None else [])),
        handling("RunPodSandbox", request) as handled,
    ):
        with step("create the infra container"):
            pass
        if failure is not None:
            raise failure
        handled.result = cri.RunPodSandboxResponse(pod_sandbox_id=sandbox_id)


def pull(starts: PodStarts, **names: Any) -> None:
    request = cri.PullImageRequest(
        image=cri.ImageSpec(image="busybox"), sandbox_config=cri.PodSandboxConfig(metadata=metadata(**names))
    )
    with handling("PullImage", request) as handled:
        handled.result = cri.PullImageResponse(image_ref="x")


def create(starts: PodStarts, container_id: str = "c1", sandbox_id: str = "s1", attempt: int = 0) -> None:
    config = cri.ContainerConfig(metadata=cri.ContainerMetadata(name="main", attempt=attempt))
    request = cri.CreateContainerRequest(pod_sandbox_id=sandbox_id, config=config)
    with handling("CreateContainer", request) as handled:
        handled.result = cri.CreateContainerResponse(container_id=container_id)


def start(starts: PodStarts, container_id: str = "c1") -> None:
    with handling("StartContainer", cri.StartContainerRequest(container_id=container_id)) as handled:
        handled.result = cri.StartContainerResponse()


def told(starts: PodStarts, *, parts: bool = False) -> list[list[tuple[str, str, str]]]:
    """The calls of each start, and their parts if asked for."""
    return [
        [(span.name, span.subject, span.code) for span in one.spans if parts or span.depth == 0]
        for one in starts.newest_first()
    ]


@pytest.fixture
def starts() -> Iterator[PodStarts]:
    starts = PodStarts()
    with subscribed(starts.begin, *starts.kinds):
        yield starts


def test_a_pods_start_has_its_calls_and_their_steps(starts: PodStarts) -> None:
    run_pod(starts)
    pull(starts)
    create(starts)
    start(starts)
    with step("of another call"):
        pass
    (one,) = starts.newest_first()
    assert told(starts, parts=True) == [
        [
            ("RunPodSandbox", "", "OK"),
            ("create the infra container", "", "OK"),
            ("PullImage", "busybox", "OK"),
            ("CreateContainer", "main", "OK"),
            ("StartContainer", "main", "OK"),
        ]
    ]
    assert (one.pod, one.tries) == ("default/web", 1)
    assert time.time() - 5 < one.begun <= time.time()
    calls = [span for span in one.spans if span.depth == 0]
    assert all(before.end <= after.begun for before, after in pairwise(calls))
    assert one.spans[1].call == "RunPodSandbox"
    assert one.spans[0].begun <= one.spans[1].begun <= one.spans[1].end <= one.spans[0].end


@pytest.mark.parametrize(
    "act",
    [
        pytest.param(lambda starts: pull(starts, uid="2"), id="a pull for another pod of that name"),
        pytest.param(lambda starts: create(starts, sandbox_id="s2"), id="a container of another sandbox"),
        pytest.param(lambda starts: create(starts, attempt=1), id="a container that is started again"),
        pytest.param(lambda starts: start(starts, "c2"), id="another container"),
    ],
)
def test_other_calls_are_no_part_of_it(starts: PodStarts, act: Any) -> None:
    run_pod(starts)
    act(starts)
    assert told(starts) == [[("RunPodSandbox", "", "OK")]]


def test_a_container_that_comes_much_later_is_no_part_of_it(starts: PodStarts, monkeypatch: pytest.MonkeyPatch) -> None:
    run_pod(starts)
    create(starts)
    monkeypatch.setattr(module, "_LONGEST_PAUSE", -1.0)
    start(starts)
    assert len(told(starts)[0]) == 2


def test_a_failed_try_gives_way_to_the_next_and_one_that_worked_does_not(starts: PodStarts) -> None:
    for attempt in range(3):
        run_pod(starts, failure=errors.NetworkFailure("no"), attempt=attempt)
    assert told(starts) == [[("RunPodSandbox", "", "INTERNAL")]]
    run_pod(starts, "s1", attempt=3)
    run_pod(starts, "s2", attempt=4)
    assert [one.tries for one in starts.newest_first()] == [1, 4]
    create(starts, sandbox_id="s1")
    assert [len(spans) for spans in told(starts)] == [1, 2]


def test_a_try_that_lasts_is_none_that_failed(starts: PodStarts) -> None:
    """A kubelet whose call has run out of time calls again, while we still undo the first one."""
    request = cri.RunPodSandboxRequest(config=cri.PodSandboxConfig(metadata=metadata()))
    with handling("RunPodSandbox", request):
        run_pod(starts, "s2")
        assert [(spans[0][2], one.tries) for spans, one in zip(told(starts), starts.newest_first(), strict=True)] == [
            ("OK", 1),
            ("", 1),
        ]


def test_calls_belong_to_the_newest_start_of_a_pod_also_when_the_older_is_dropped(starts: PodStarts) -> None:
    run_pod(starts, "s1")
    run_pod(starts, "s2", attempt=1)
    for number in range(49):
        run_pod(starts, f"other{number}", name=f"other-{number}")
    assert len(starts.newest_first()) == 50
    pull(starts)
    create(starts, sandbox_id="s1")
    assert [name for name, _, _ in told(starts)[-1]] == ["RunPodSandbox", "PullImage"]


def test_a_step_began_before_it_ended(starts: PodStarts) -> None:
    request = cri.RunPodSandboxRequest(config=cri.PodSandboxConfig(metadata=metadata()))
    with handling("RunPodSandbox", request), step("long") as block:
        block.begun -= 1000.0
    span = starts.newest_first()[0].spans[1]
    assert -1000.0 <= span.begun < -900.0
    assert span.end == pytest.approx(span.begun + 1000.0, abs=1.0)


def test_a_step_that_fails_is_left_out(starts: PodStarts) -> None:
    request = cri.RunPodSandboxRequest(config=cri.PodSandboxConfig(metadata=metadata()))
    with handling("RunPodSandbox", request), suppress(KeyError), step("look"):
        raise KeyError
    assert told(starts, parts=True) == [[("RunPodSandbox", "", "OK")]]


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        pytest.param(errors.Unavailable("no engine"), "UNAVAILABLE", id="of the engine"),
        pytest.param(asyncio.CancelledError(), "CANCELLED", id="of the caller"),
        pytest.param(KeyError("x"), "INTERNAL", id="of ours"),
    ],
)
def test_how_a_call_failed(starts: PodStarts, failure: BaseException, code: str) -> None:
    run_pod(starts, failure=failure)
    assert told(starts) == [[("RunPodSandbox", "", code)]]


def test_a_call_that_lasts_is_shown_as_long_as_it_lasted(starts: PodStarts) -> None:
    request = cri.RunPodSandboxRequest(config=cri.PodSandboxConfig(metadata=metadata()))
    with handling("RunPodSandbox", request):
        (before,) = starts.newest_first()[0].spans
        (after,) = starts.newest_first()[0].spans
    assert (before.code, after.code) == ("", "")
    assert before.seconds is not None
    assert after.seconds is not None
    assert 0 <= before.seconds < after.seconds < 5


async def test_steps_of_tasks_belong_to_the_call_that_began_them_until_it_ends(starts: PodStarts) -> None:
    ended = asyncio.Event()

    async def work() -> None:
        with step("in time"):
            pass

    async def late() -> None:
        with step("too late"):
            await ended.wait()

    request = cri.RunPodSandboxRequest(config=cri.PodSandboxConfig(metadata=metadata()))
    with handling("RunPodSandbox", request):
        await run_to_completion(work(), "work")
        behind = asyncio.create_task(late())
        await asyncio.sleep(0)
    ended.set()
    await behind
    assert [name for name, _, _ in told(starts, parts=True)[0]] == ["RunPodSandbox", "in time"]


async def test_two_pods_at_once_do_not_mix(starts: PodStarts) -> None:
    async def one(name: str) -> None:
        request = cri.RunPodSandboxRequest(config=cri.PodSandboxConfig(metadata=metadata(name, name)))
        with handling("RunPodSandbox", request):
            for _ in range(3):
                with step(f"of {name}"):
                    await asyncio.sleep(0)

    await asyncio.gather(*(one(name) for name in ("a", "b", "c")))
    for found in starts.newest_first():
        assert [span.name for span in found.spans[1:]] == [f"of {found.pod.removeprefix('default/')}"] * 3


class Plugins:
    """Runs no plugin. One named ``bad`` fails, one named ``hung`` never ends."""

    async def run(self, invocation: cni.Invocation) -> cni.Completion:
        if invocation.plugin.name == "hung":
            raise cni.PluginTimeout("it did not end")
        return cni.Completion(int(invocation.plugin.name == "bad"), b"", b"")


async def test_plugins_are_parts_of_the_call_that_runs_them(starts: PodStarts) -> None:
    plugins = TimedPlugins(Plugins())
    environment = {"CNI_COMMAND": "ADD"}
    request = cri.RunPodSandboxRequest(config=cri.PodSandboxConfig(metadata=metadata()))

    async def add(name: str) -> None:
        await plugins.run(cni.Invocation(Path("/opt/cni/bin") / name, environment, b"{}", 1.0))

    with handling("RunPodSandbox", request):
        await add("bridge")
        await add("bad")
        with pytest.raises(cni.PluginTimeout):
            await add("hung")
    await add("bridge")
    assert [(name, code) for name, _, code in told(starts, parts=True)[0]] == [
        ("RunPodSandbox", "OK"),
        ("CNI ADD bridge", "OK"),
        ("CNI ADD bad", "INTERNAL"),
        ("CNI ADD hung", "DEADLINE_EXCEEDED"),
    ]


def test_its_memory_is_bounded(starts: PodStarts) -> None:
    for number in range(300):
        run_pod(starts, f"s{number}", name="n" * 10_000, uid=str(number))
    for number in range(1000):
        create(starts, f"c{number}", "s299")
        pull(starts, name="n" * 10_000, uid="299")
    found = starts.newest_first()
    assert len(found) == 50
    assert len(found[0].spans) == 100
    assert len(starts._by_key) < 300
    assert all(len(one.pod) < 700 for one in found)
    run_pod(starts, "s", uid="new")
    create(starts, "c", "s")
    assert len(told(starts)[0]) == 2


def test_what_is_not_told_is_not_watched(starts: PodStarts) -> None:
    with handling("ListContainers", cri.ListContainersRequest()), step("read"):
        pass
    assert starts.newest_first() == []
    assert PodStart("a/b", 0.0, 0.0).end == 0.0
