"""One plugin over a real socket: how it joins, what its failures mean, and what it can make us hold."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from google.protobuf.message import Message

from dockershim.api.nri.v1alpha1 import api_pb2 as api
from dockershim.api.ttrpc.v1 import api_pb2 as ttrpc
from dockershim.errors import HookFailure
from dockershim.nri import connection
from dockershim.nri.plugin import Plugin, Rejected, Timeouts
from tests import nri_plugin
from tests.nri_plugin import Answer, Error, FakePlugin

LIMIT = 0.2
POD = api.PodSandbox(id="p", name="pod")
EVENTS = [cast("api.Event", event) for event in range(1, api.LAST)]
RUN = api.RunPodSandboxRequest(pod=POD)


async def no_updates(_: Plugin, request: api.UpdateContainersRequest) -> list[api.ContainerUpdate]:
    return list(request.update)


@asynccontextmanager
async def pair(
    answer: Answer = nri_plugin.accept, name: str = "", limit: float = LIMIT
) -> AsyncIterator[tuple[Plugin, FakePlugin]]:
    ours, theirs = socket.socketpair()
    for sock in (ours, theirs):
        sock.setblocking(False)
    plugin = Plugin(ours, lambda: Timeouts(limit, limit), no_updates, name)
    running = asyncio.create_task(plugin.run())
    try:
        async with nri_plugin.over(theirs, answer) as fake:
            yield plugin, fake
    finally:
        plugin.close("the test is over")
        await running


@asynccontextmanager
async def registered(answer: Answer = nri_plugin.accept, **more: Any) -> AsyncIterator[tuple[Plugin, FakePlugin]]:
    async with pair(answer, **more) as (plugin, fake):
        registering = asyncio.create_task(fake.register())
        await plugin.register("the config")
        await registering
        yield plugin, fake


def answering(**answers: Message | Error) -> Answer:
    """Answers by method; everything else with nothing."""

    async def answer(method: str, request: bytes) -> Message:
        found = answers.get(method)
        if isinstance(found, Error):
            raise found
        return found if found is not None else await nri_plugin.accept(method, request)

    return answer


def stalling(stalled: str) -> Answer:
    """Never answers one method."""

    async def answer(method: str, request: bytes) -> Message:
        if method == stalled:
            await asyncio.Event().wait()
        return await nri_plugin.accept(method, request)

    return answer


# -- Joining.


async def test_it_registers_is_configured_and_subscribed() -> None:
    async with registered(answering(Configure=api.ConfigureResponse(events=1 | 8))) as (plugin, fake):
        assert plugin.name == "10-fake"
        [(method, request)] = fake.told
        asked = api.ConfigureRequest.FromString(request)
        assert (method, asked.config, asked.runtime_name) == ("Configure", "the config", "dockershim")
        assert (asked.registration_timeout, asked.request_timeout) == (200, 200)
        assert [event for event in EVENTS if plugin.wants(event)] == [1, 4]


async def test_no_subscription_is_one_to_everything() -> None:
    async with registered() as (plugin, _):
        assert all(plugin.wants(event) for event in EVENTS)


@pytest.mark.parametrize(
    ("name", "index"),
    [("", "10"), ("a/b", "10"), ("a" * 254, "10"), ("ok", "1"), ("ok", "100"), ("ok", "1a"), ("ok", "١٢")],
)
async def test_a_wrong_name_is_refused(name: str, index: str) -> None:
    async with pair() as (plugin, fake):
        registering = asyncio.create_task(fake.register(name, index))
        with pytest.raises(Rejected, match=r"name|index"):
            await plugin.register("")
        with pytest.raises(Error, match=r"name|index"):
            await registering


async def test_one_that_we_started_keeps_the_name_of_its_file() -> None:
    async with registered(name="05-file") as (plugin, _):
        assert plugin.name == "05-file"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (answering(Configure=Error(2, "bad config")), "Configure: bad config"),
        (answering(Configure=api.ConfigureResponse(events=1 << 14)), "unknown events"),
        (answering(Configure=api.ConfigureResponse(events=-1)), "unknown events"),
        (stalling("Configure"), "did not respond to Configure within 0.2 s"),
    ],
)
async def test_one_that_cannot_be_configured_is_rejected(answer: Answer, reason: str) -> None:
    async with pair(answer) as (plugin, fake):
        registering = asyncio.create_task(fake.register())
        with pytest.raises(Rejected, match=reason):
            await plugin.register("")
        await registering


async def test_one_that_says_nothing_is_rejected_in_time() -> None:
    async with pair() as (plugin, _):
        with pytest.raises(Rejected, match=r"did not register within 0\.2 s"):
            await plugin.register("")


async def test_one_that_goes_away_is_rejected_at_once() -> None:
    async with pair(limit=60.0) as (plugin, fake):
        await fake.close()
        with pytest.raises(Rejected, match="the connection was closed"):
            await plugin.register("")


async def test_a_second_registration_changes_nothing() -> None:
    async with registered() as (plugin, fake):
        with pytest.raises(Error, match="already registered"):
            await fake.register("other", "99")
        assert plugin.name == "10-fake"


# -- What runs.


def objects(number: int, size: int = 0) -> tuple[list[api.PodSandbox], list[api.Container]]:
    text = "x" * size
    return (
        [api.PodSandbox(id=f"p{at}", name=text) for at in range(number)],
        [api.Container(id=f"c{at}", name=text) for at in range(number)],
    )


async def test_what_runs_is_told_in_one_message_if_it_fits() -> None:
    update = api.ContainerUpdate(container_id="c1")
    async with registered(answering(Synchronize=api.SynchronizeResponse(update=[update]))) as (plugin, fake):
        pods, containers = objects(3)
        assert list(await plugin.synchronize(pods, containers)) == [update]
        assert api.SynchronizeRequest.FromString(fake.told[-1][1]) == api.SynchronizeRequest(
            pods=pods, containers=containers
        )


async def test_what_runs_is_told_in_several_messages_if_it_does_not_fit() -> None:
    async with registered(limit=10.0) as (plugin, fake):
        pods, containers = objects(300, 20_000)
        await plugin.synchronize(pods, containers)
        told = [api.SynchronizeRequest.FromString(request) for method, request in fake.told if method == "Synchronize"]
        assert len(told) > 2
        assert [request.more for request in told] == [True] * (len(told) - 1) + [False]
        assert [pod.id for request in told for pod in request.pods] == [pod.id for pod in pods]
        assert [one.id for request in told for one in request.containers] == [one.id for one in containers]


@pytest.mark.parametrize(
    ("answer", "sizes", "reason"),
    [
        (stalling("Synchronize"), (1, 0), "did not respond to Synchronize within"),
        (answering(Synchronize=Error(2, "no")), (1, 0), "Synchronize: no"),
        (answering(Synchronize=api.SynchronizeResponse()), (300, 20_000), "does not support Synchronize in several"),
        (nri_plugin.accept, (4, 2_000_000), "do not fit"),
    ],
)
async def test_one_that_cannot_be_told_what_runs_is_rejected(
    answer: Answer, sizes: tuple[int, int], reason: str
) -> None:
    async with registered(answer, limit=5.0 if sizes[1] else LIMIT) as (plugin, _):
        with pytest.raises(Rejected, match=reason):
            await plugin.synchronize(*objects(*sizes))


# -- Events and failures.


async def send(plugin: Plugin) -> Message | None:
    return await plugin.send(api.RUN_POD_SANDBOX, RUN, api.RunPodSandboxResponse)


async def test_an_error_stops_the_request_and_keeps_the_plugin() -> None:
    async with registered(answering(RunPodSandbox=Error(4, "no such pod"))) as (plugin, _):
        with pytest.raises(HookFailure, match=r"^NRI plugin 10-fake: RunPodSandbox: no such pod$"):
            await send(plugin)
        assert plugin.end is None


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("fails", [False, True])
async def test_the_policy_says_what_silence_means(fails: bool, keeps: bool) -> None:
    policy = api.FailurePolicy(fail_request=fails, keep_connected=keeps)
    stalled = stalling("RunPodSandbox")

    async def answer(method: str, request: bytes) -> Message:
        return api.ConfigureResponse(failure_policy=policy) if method == "Configure" else await stalled(method, request)

    async with registered(answer) as (plugin, _):
        if fails:
            with pytest.raises(HookFailure, match=r"no answer to RunPodSandbox within 0\.2 s"):
                await send(plugin)
        else:
            assert await send(plugin) is None
        assert plugin.end == (None if keeps else "no answer to RunPodSandbox within 0.2 s")


async def test_one_that_stays_silent_is_waited_for_once() -> None:
    """It is told everything meanwhile, and waited for again once it has answered."""
    policy = api.FailurePolicy(keep_connected=True)
    goes_on = asyncio.Event()

    async def answer(method: str, request: bytes) -> Message:
        if method == "Configure":
            return api.ConfigureResponse(failure_policy=policy)
        await goes_on.wait()
        return api.Empty()

    async with registered(answer) as (plugin, fake):
        assert await send(plugin) is None
        async with asyncio.timeout(0.1):
            for _ in range(20):
                assert await send(plugin) is None
            with pytest.raises(
                HookFailure, match="no answer to ValidateContainerAdjustment, nor to the requests before"
            ):
                await plugin.validate(api.ValidateContainerAdjustmentRequest())
        await fake.until(lambda: len(fake.told) == 23)
        # What it wants of its own accord is no answer.
        await fake.call("UpdateContainers", api.UpdateContainersRequest())
        async with asyncio.timeout(0.1):
            assert await send(plugin) is None
        goes_on.set()
        for _ in range(2):  # its answers are written before the second one
            await fake.call("UpdateContainers", api.UpdateContainersRequest())
        assert await send(plugin) == api.RunPodSandboxResponse()


async def test_one_that_goes_away_during_a_request_does_not_stop_it() -> None:
    async with registered(stalling("RunPodSandbox"), limit=60.0) as (plugin, fake):
        sending = asyncio.create_task(send(plugin))
        await fake.until(lambda: "RunPodSandbox" in fake.methods)
        fake.writer.close()
        assert await sending is None
        assert not plugin.wants(api.RUN_POD_SANDBOX)


async def test_an_answer_that_is_no_message_drops_the_plugin() -> None:
    """A field of Empty is skipped, but one that is no message is not."""
    async with registered(stalling("CreateContainer"), limit=60.0) as (plugin, fake):
        request = api.CreateContainerRequest(pod=POD)
        sending = asyncio.create_task(plugin.send(api.CREATE_CONTAINER, request, api.CreateContainerResponse))
        await fake.until(lambda: "CreateContainer" in fake.methods)
        answer = ttrpc.Response(payload=b"\xff").SerializeToString()
        fake.writer.write(nri_plugin.frame(nri_plugin.PLUGIN, nri_plugin.RESPONSE, 3, answer))
        assert await sending is None
        assert plugin.end == "the answer to CreateContainer is not a CreateContainerResponse"


async def test_a_plugin_of_an_older_nri_gets_state_changes() -> None:
    async def answer(method: str, request: bytes) -> Message:
        if method in ("Configure", "StateChange", "CreateContainer"):
            return api.Empty()
        raise Error(12, f"method {method}")

    async with registered(answer) as (plugin, fake):
        assert await send(plugin) == api.RunPodSandboxResponse()
        assert await send(plugin) == api.RunPodSandboxResponse()
        with pytest.raises(HookFailure, match="UpdateContainer"):
            await plugin.send(api.UPDATE_CONTAINER, api.UpdateContainerRequest(), api.UpdateContainerResponse)
        assert fake.methods == ["Configure", "RunPodSandbox", "StateChange", "StateChange", "UpdateContainer"]
        assert api.StateChangeEvent.FromString(fake.told[2][1]) == api.StateChangeEvent(
            event=api.RUN_POD_SANDBOX, pod=POD
        )


@pytest.mark.parametrize("failure", [Error(2, "no"), Error(12, "method ValidateContainerAdjustment")])
async def test_a_validator_that_fails_has_not_agreed(failure: Error) -> None:
    async with registered(answering(ValidateContainerAdjustment=failure)) as (plugin, _):
        with pytest.raises(HookFailure, match="validator '10-fake' failed"):
            await plugin.validate(api.ValidateContainerAdjustmentRequest())


# -- What it asks of us.


async def test_it_may_ask_for_updates_once_it_is_registered() -> None:
    update = api.UpdateContainersRequest(update=[api.ContainerUpdate(container_id="c")])
    async with pair() as (plugin, fake):
        with pytest.raises(Error, match="not registered yet"):
            await fake.call("UpdateContainers", update)
        registering = asyncio.create_task(fake.register())
        await plugin.register("")
        await registering
        answer = api.UpdateContainersResponse.FromString(await fake.call("UpdateContainers", update))
        assert list(answer.failed) == list(update.update)


@pytest.mark.parametrize(
    ("service", "method", "payload", "code"),
    [
        ("Runtime", "Reboot", b"", 12),
        ("Other", "RegisterPlugin", b"", 12),
        ("Runtime", "UpdateContainers", b"\xff", 3),
    ],
)
async def test_what_makes_no_sense_is_refused(service: str, method: str, payload: bytes, code: int) -> None:
    async with registered() as (plugin, fake):
        request = ttrpc.Request(service=f"{nri_plugin.SERVICE}.{service}", method=method, payload=payload)
        answer: asyncio.Future[ttrpc.Response] = asyncio.get_running_loop().create_future()
        fake._waiting[101] = answer
        fake.writer.write(nri_plugin.frame(nri_plugin.RUNTIME, nri_plugin.REQUEST, 101, request.SerializeToString()))
        assert (await answer).status.code == code
        assert plugin.end is None


# -- Attacks.


@pytest.mark.parametrize(
    "rubbish",
    [b"GET / HTTP/1.1\r\n\r\n", struct.pack(">LL", 2, 2**31), nri_plugin.frame(2, 1, 99, b"\x12\x01x") * 2],
    ids=["HTTP", "a long frame", "an id twice"],
)
async def test_rubbish_ends_the_connection(rubbish: bytes) -> None:
    async with registered() as (plugin, fake):
        fake.writer.write(rubbish)
        await fake.closed()
        assert plugin.end is not None
        assert await send(plugin) is None


async def test_calls_without_number_are_refused_beyond_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    served = 0
    enough = asyncio.Event()

    async def never(_: Plugin, __: api.UpdateContainersRequest) -> Sequence[api.ContainerUpdate]:
        nonlocal served
        served += 1
        await enough.wait()
        return []

    async with registered() as (plugin, fake):
        monkeypatch.setattr(plugin, "_update", never)
        calls = [asyncio.create_task(fake.call("UpdateContainers", api.Empty())) for _ in range(1000)]
        done, waiting = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        while len(done) < 1000 - connection._MOST_CALLS:
            more, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            done |= more
        assert served == connection._MOST_CALLS
        assert all(getattr(call.exception(), "code", None) == 8 for call in done)
        enough.set()
        await asyncio.gather(*waiting)


async def test_the_bytes_of_calls_count_while_they_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_MOST_BYTES", 1000)
    go_on, held, both = asyncio.Event(), 0, asyncio.Event()

    async def hold(_: Plugin, request: api.UpdateContainersRequest) -> Sequence[api.ContainerUpdate]:
        nonlocal held
        if request.update[0].container_id.startswith("held"):
            held += 1
            if held == 2:
                both.set()
            await go_on.wait()
        return []

    def request(name: str, size: int = 400) -> api.UpdateContainersRequest:
        return api.UpdateContainersRequest(update=[api.ContainerUpdate(container_id=name.ljust(size))])

    async with registered() as (plugin, fake):
        monkeypatch.setattr(plugin, "_update", hold)
        calls = [asyncio.create_task(fake.call("UpdateContainers", request("held")))]
        for _ in range(5):
            await fake.call("UpdateContainers", request("quick"))
        calls.append(asyncio.create_task(fake.call("UpdateContainers", request("held"))))
        await both.wait()
        with pytest.raises(Error) as refused:
            await fake.call("UpdateContainers", request("quick"))
        assert refused.value.code == 8
        go_on.set()
        await asyncio.gather(*calls)
        # Alone it may be as long as a message.
        await fake.call("UpdateContainers", request("quick", 2000))


async def test_what_it_asked_for_ends_with_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def last(*_: object) -> list[api.ContainerUpdate]:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return []

    async with registered() as (plugin, fake):
        monkeypatch.setattr(plugin, "_update", last)
        call = asyncio.create_task(fake.call("UpdateContainers", api.Empty()))
        await begun.wait()
        plugin.close("a test")
        await ended.wait()
        with pytest.raises(Error):
            await call


async def test_nothing_is_kept_for_answers_that_do_not_come() -> None:
    policy = api.ConfigureResponse(failure_policy=api.FailurePolicy(keep_connected=True))
    stalled = stalling("RunPodSandbox")

    async def answer(method: str, request: bytes) -> Message:
        return policy if method == "Configure" else await stalled(method, request)

    async with registered(answer) as (plugin, _):
        for _ in range(3):
            assert await send(plugin) is None
        assert plugin._connection._answers == {}


async def test_one_that_does_not_read_is_dropped_before_much_waits_for_it() -> None:
    """Its policy keeps it connected, however long it takes: what waits for it must not grow for ever."""
    policy = api.ConfigureResponse(failure_policy=api.FailurePolicy(keep_connected=True))
    async with registered(answering(Configure=policy), limit=5.0) as (plugin, fake):
        plugin._timeouts = lambda: Timeouts(0.02, 0.02)
        fake._run.cancel()
        large = api.RunPodSandboxRequest(pod=api.PodSandbox(name="x" * 1_000_000))
        for _ in range(30):
            if plugin.end is not None:
                break
            await plugin.send(api.RUN_POD_SANDBOX, large, api.RunPodSandboxResponse)
        assert plugin.end == "the plugin does not read"
