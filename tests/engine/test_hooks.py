"""Runtime hooks in the life of real pods, with the example hook server and with servers that fail in every way."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from docker import DockerClient

from dockershim.api.cri.v1 import api_pb2 as api
from dockershim.api.hooks.v1alpha1 import api_pb2 as hooks
from tests.cri_client import CRI, ApiVersion
from tests.engine.hook_servers import FOLDER, HOOKS, Answer, Example, Folder, answering, example
from tests.engine.pods import (
    BUSYBOX,
    cgroup_file,
    container_config,
    create,
    pod,
    process,
    refused,
    remove_pod,
    run_pod,
    sandbox_config,
    sandbox_status,
    sh,
    start,
    status,
    stop,
)
from tests.node.server import Server
from tests.node.state import Snapshot
from tests.waiting import until

TIMEOUT = 1.0  # seconds that a hook server has
MIB = 1024 * 1024
_numbers = itertools.count(1)


@pytest.fixture(autouse=True, scope="module")
def image(engine_api: DockerClient) -> None:
    engine_api.images.pull(BUSYBOX)


@pytest.fixture(scope="module", autouse=True)
def impatient(server: Server) -> Any:
    """The server with a shorter time limit for hook servers."""
    server.restart(f"--runtime-hook-timeout={TIMEOUT:g}s")
    yield
    server.flags = ()
    server.restart()


@pytest.fixture
async def folder(server: Server) -> AsyncIterator[Folder]:
    folder = Folder(server)
    yield folder
    await folder.clear()


@pytest.fixture
def socket() -> Path:
    """A short path: a socket's has at most 107 bytes."""
    return Path(f"/run/hooks-{next(_numbers)}.sock")


# A pod's life


def life_config(number: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Configurations of a pod and its container, for either version of the API."""
    pod = {
        "metadata": {"name": f"life-{number}", "namespace": "tests", "uid": f"uid-life-{number}", "attempt": 2},
        "log_directory": f"/var/log/pods/life-{number}",
        "labels": {"app": "web"},
        "annotations": {"note": "of the pod"},
        "linux": {"cgroup_parent": "/kubepods/burstable/pod-life"},
    }
    container = {
        "metadata": {"name": "main", "attempt": 1},
        "image": {"image": BUSYBOX},
        "command": ["sh", "-c", "exec sleep 1000"],
        "log_path": "main.log",
        "envs": [{"key": "GREETING", "value": b"hello"}, {"key": "NAME", "value": b"world"}],
        "annotations": {"note": "of the container"},
        "linux": {"resources": {"cpu_shares": 100, "memory_limit_in_bytes": 64 * MIB, "oom_score_adj": 500}},
    }
    return pod, container


async def lead_a_life(server: Server, version: ApiVersion, between: Callable[[], object]) -> tuple[str, str]:
    """Make every call that has a hook, with a call of ``between`` between each two. Returns the ids."""

    @asynccontextmanager
    async def connected() -> AsyncIterator[CRI]:
        async with CRI(server.target, version) as cri:
            yield cri
        between()

    pod, container = life_config(1)
    async with connected() as cri:
        made = await cri.runtime.RunPodSandbox(cri.api.RunPodSandboxRequest(config=pod, runtime_handler="runc"))
        sandbox_id = made.pod_sandbox_id
    async with connected() as cri:
        request = cri.api.CreateContainerRequest(pod_sandbox_id=sandbox_id, config=container, sandbox_config=pod)
        container_id = (await cri.runtime.CreateContainer(request)).container_id
    async with connected() as cri:
        await cri.runtime.StartContainer(cri.api.StartContainerRequest(container_id=container_id))
    async with connected() as cri:
        update = cri.api.UpdateContainerResourcesRequest(container_id=container_id, linux={"cpu_shares": 200})
        await cri.runtime.UpdateContainerResources(update)
    async with connected() as cri:
        await cri.runtime.StopContainer(cri.api.StopContainerRequest(container_id=container_id, timeout=0))
    async with connected() as cri:
        await cri.runtime.StopPodSandbox(cri.api.StopPodSandboxRequest(pod_sandbox_id=sandbox_id))
    async with CRI(server.target, version) as cri:
        await cri.runtime.StopPodSandbox(cri.api.StopPodSandboxRequest(pod_sandbox_id=sandbox_id))
        await cri.runtime.RemoveContainer(cri.api.RemoveContainerRequest(container_id=container_id))
        await cri.runtime.RemovePodSandbox(cri.api.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id))
    return sandbox_id, container_id


def expected_life(container_id: str) -> list[tuple[str, dict[str, Any]]]:
    """The calls that the hook server gets of it, in JSON as protobuf writes it."""
    meta = {"name": "life-1", "namespace": "tests", "uid": "uid-life-1", "attempt": 2}
    labels, annotations = {"app": "web"}, {"note": "of the pod"}
    of_pod = {
        "pod_meta": meta,
        "runtime_handler": "runc",
        "labels": labels,
        "annotations": annotations,
        "cgroup_parent": "/kubepods/burstable/pod-life",
    }
    asked = {"cpu_shares": "100", "memory_limit_in_bytes": str(64 * MIB), "oom_score_adj": "500"}
    # A memory limit alone leaves no swap.
    has = {**asked, "memory_swap_limit_in_bytes": str(64 * MIB)}

    def of_container(resources: dict[str, str], **container_meta: Any) -> dict[str, Any]:
        return {
            "pod_meta": meta,
            "container_meta": {"name": "main", "attempt": 1, **container_meta},
            "container_annotations": {"note": "of the container"},
            "container_resources": resources,
            "pod_annotations": annotations,
            "pod_labels": labels,
            "pod_cgroup_parent": "/kubepods/burstable/pod-life",
            "container_envs": {"GREETING": "hello", "NAME": "world"},
        }

    updated = {**has, "cpu_shares": "200"}
    return [
        ("PreRunPodSandbox", of_pod),
        ("PreCreateContainer", of_container(asked)),
        ("PreStartContainer", of_container(has, id=container_id)),
        ("PostStartContainer", of_container(has, id=container_id)),
        ("PreUpdateContainerResources", of_container(updated, id=container_id)),
        ("PostStopContainer", of_container(updated, id=container_id)),
        ("PostStopPodSandbox", of_pod),
    ]


@pytest.mark.parametrize(
    ("version", "restarts"),
    [
        pytest.param("v1", False, id="v1"),
        pytest.param("v1alpha2", False, id="v1alpha2"),
        pytest.param("v1", True, id="restarts between the calls"),
    ],
)
async def test_the_seven_hooks_of_a_pods_life_in_order(
    version: ApiVersion, restarts: bool, server: Server, tmp_path: Path, folder: Folder
) -> None:
    """With a restart between each two calls, hook servers get the same requests: nothing comes from memory alone."""
    async with example(tmp_path) as hook_server:
        await folder.write("example.json", tmp_path / "example.sock", "Fail")
        _, container_id = await lead_a_life(server, version, server.restart if restarts else lambda: None)
        calls = hook_server.calls()
    expected = expected_life(container_id)
    if restarts:
        # Which stops were reported is not stored: rather twice than never.
        expected.append(expected[-1])
    assert calls == expected


async def test_what_a_hook_server_changes(
    cri: CRI, engine_api: DockerClient, tmp_path: Path, folder: Folder, snapshot: Callable[[], Snapshot]
) -> None:
    before = snapshot()
    options = (
        "--label=by=hook",
        "--annotation=changed=true",
        "--env=GREETING=good morning",
        "--cgroup-parent=/hooked/pod1",
        "--cpuset=0",
        "--cpu-shares=300",
        "--cpu-quota=40000",
        f"--memory={32 * MIB}",
        "--register=/etc/runtime/hookserver.d/example.json",
    )
    sandbox = sandbox_config(labels={"app": "web"}, linux=api.LinuxPodSandboxConfig(cgroup_parent="/kubepods/pod1"))
    config = container_config(envs=[api.KeyValue(key="GREETING", value=b"hello"), api.KeyValue(key="A", value=b"1")])
    config.linux.resources.cpu_shares = 100
    async with AsyncExitStack() as stack:
        async with folder.applied():
            hook_server = await stack.enter_async_context(example(tmp_path, *options))
        async with pod(cri, sandbox) as sandbox_id:
            shown = await sandbox_status(cri, sandbox_id)
            assert dict(shown.labels) == {"app": "web", "by": "hook"}
            assert dict(shown.annotations) == {"changed": "true"}
            container_id = await start(cri, sandbox_id, config, sandbox)
            running = process(engine_api, container_id)
            for one in (running, process(engine_api, sandbox_id)):
                assert "/hooked/pod1/" in (one / "cgroup").read_text()
                assert "/kubepods/pod1" not in (one / "cgroup").read_text()
            assert kernel_limits(running) == ("300", "40000", "0", str(32 * MIB))
            assert await sh(cri, container_id, "echo $GREETING, $A") == "good morning, 1"
            assert dict((await status(cri, container_id)).annotations) == {"changed": "true"}
            update = api.LinuxContainerResources(cpu_shares=200, cpu_period=50000)
            await cri.runtime.UpdateContainerResources(
                api.UpdateContainerResourcesRequest(container_id=container_id, linux=update)
            )
            assert kernel_limits(running) == ("300", "40000", "0", str(32 * MIB))
            assert cgroup_file(running, "cpu.cfs_period_us") == "50000"
        calls = dict(hook_server.calls())
    # Later hooks get the changed values.
    assert calls["PreCreateContainer"]["pod_labels"] == {"app": "web", "by": "hook"}
    assert calls["PreCreateContainer"]["pod_cgroup_parent"] == "/hooked/pod1"
    assert calls["PostStartContainer"]["container_envs"] == {"GREETING": "good morning", "A": "1"}
    assert calls["PostStartContainer"]["container_annotations"] == {"changed": "true"}
    assert calls["PostStartContainer"]["container_resources"]["cpu_shares"] == "300"
    assert snapshot().gained(before) == {}


async def test_resources_given_to_a_pod_are_shown_and_told(cri: CRI, socket: Path, folder: Folder) -> None:
    given = hooks.LinuxContainerResources(cpu_shares=77, memory_limit_in_bytes=64 * MIB)
    told: list[hooks.LinuxContainerResources] = []

    async def answer(hook: str, request: Any) -> bytes:
        if hook == "PreRunPodSandbox":
            return hooks.PodSandboxHookResponse(resources=given).SerializeToString()
        told.append(request.pod_resources)
        return b""

    sandbox = sandbox_config()
    async with answering(socket, answer):
        await folder.write("a.json", socket, "Fail", ["PreRunPodSandbox", "PreCreateContainer"])
        async with pod(cri, sandbox) as sandbox_id:
            await create(cri, sandbox_id, container_config(), sandbox)
            asked = api.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id, verbose=True)
            info = json.loads((await cri.runtime.PodSandboxStatus(asked)).info["info"])
    assert told == [given]
    assert info["resources"] == {"cpu_shares": "77", "memory_limit_in_bytes": str(64 * MIB)}


def kernel_limits(running: Path) -> tuple[str, ...]:
    names = ("cpu.shares", "cpu.cfs_quota_us", "cpuset.cpus", "memory.limit_in_bytes")
    return tuple(cgroup_file(running, name) for name in names)


# Failures


async def refuse(hook: str, request: Any) -> bytes:
    raise PermissionError(f"{hook} is not allowed")


async def rubbish(hook: str, request: Any) -> bytes:
    return b"\xff\xff\xff"


@asynccontextmanager
async def failing(how: str, socket: Path, tmp_path: Path) -> AsyncIterator[Path]:
    """A hook server that fails in this way. Returns its socket."""
    if how == "absent":
        yield socket
    elif how == "refuses":
        async with answering(socket, refuse):
            yield socket
    elif how == "rubbish":
        async with answering(socket, rubbish):
            yield socket
    else:
        async with example(tmp_path, "--delay=60") as hook_server, asyncio.TaskGroup() as tasks:
            if how == "dies":
                tasks.create_task(_kill_when_asked(hook_server))
            yield tmp_path / "example.sock"


async def _kill_when_asked(hook_server: Example) -> None:
    await until(lambda: bool(hook_server.calls()))
    hook_server.kill()


FAILURES = ("absent", "slow", "refuses", "rubbish", "dies")


@pytest.mark.parametrize("policy", [pytest.param("Fail"), pytest.param("Ignore"), pytest.param("", id="no policy")])
@pytest.mark.parametrize("how", FAILURES)
async def test_a_pod_whose_hook_server_fails(
    how: str,
    policy: str,
    cri: CRI,
    server: Server,
    socket: Path,
    tmp_path: Path,
    folder: Folder,
    engine_api: DockerClient,
    snapshot: Callable[[], Snapshot],
) -> None:
    """By the policy, the call fails before it does anything, or goes on as if there were no hook server."""
    before = snapshot()
    begun = time.time()
    async with failing(how, socket, tmp_path) as endpoint:
        await folder.write("a.json", endpoint, policy, ["PreRunPodSandbox"])
        if policy == "Fail":
            async with refused("UNKNOWN", "hook server err: a.json: PreRunPodSandbox: "):
                await run_pod(cri, sandbox_config())
            assert created_since(engine_api, begun) == []
        else:
            config = sandbox_config(labels={"a": "b"})
            async with pod(cri, config) as sandbox_id:
                assert dict((await sandbox_status(cri, sandbox_id)).labels) == {"a": "b"}
            assert len(created_since(engine_api, begun)) == 1
            assert "PreRunPodSandbox continues without its response" in server.log_end()
    assert snapshot().gained(before) == {}


def created_since(engine_api: DockerClient, begun: float) -> list[str]:
    """The containers that the engine has made since then, also those that are gone."""
    events = engine_api.events(
        since=begun, until=time.time(), filters={"type": "container", "event": "create"}, decode=True
    )
    return [event["Actor"]["Attributes"]["name"] for event in events]


@pytest.mark.parametrize("policy", ["Fail", "Ignore"])
@pytest.mark.parametrize("hook", [hook for hook in HOOKS if "Pod" not in hook])
async def test_a_container_whose_hook_server_fails(
    hook: str, policy: str, cri: CRI, socket: Path, folder: Folder, engine_api: DockerClient
) -> None:
    """A hook before an action fails its call if the policy says so. A hook after it never does."""
    fails = policy == "Fail" and hook.startswith("Pre")
    sandbox = sandbox_config()
    async with pod(cri, sandbox) as sandbox_id, answering(socket, refuse):
        await folder.write("a.json", socket, policy, [hook])
        message = f"hook server err: a.json: {hook}: PERMISSION_DENIED: {hook} is not allowed"
        begun = time.time()
        if hook == "PreCreateContainer" and fails:
            async with refused("UNKNOWN", message):
                await create(cri, sandbox_id, container_config(), sandbox)
            assert created_since(engine_api, begun) == []
            await folder.clear()
        container_id = await create(cri, sandbox_id, container_config(), sandbox)
        starting = api.StartContainerRequest(container_id=container_id)
        if hook == "PreStartContainer" and fails:
            async with refused("UNKNOWN", message):
                await cri.runtime.StartContainer(starting)
            assert (await status(cri, container_id)).state == api.CONTAINER_CREATED
            await folder.clear()
        await cri.runtime.StartContainer(starting)
        update = api.UpdateContainerResourcesRequest(
            container_id=container_id, linux=api.LinuxContainerResources(cpu_shares=512)
        )
        if hook == "PreUpdateContainerResources" and fails:
            async with refused("UNKNOWN", message):
                await cri.runtime.UpdateContainerResources(update)
            assert cgroup_file(process(engine_api, container_id), "cpu.shares") == "1024"
            await folder.clear()
        await cri.runtime.UpdateContainerResources(update)
        assert cgroup_file(process(engine_api, container_id), "cpu.shares") == "512"
        await stop(cri, container_id)
        assert (await status(cri, container_id)).state == api.CONTAINER_EXITED


async def test_a_hook_server_that_is_back_is_asked_at_once(
    cri: CRI, socket: Path, folder: Folder, snapshot: Callable[[], Snapshot]
) -> None:
    before = snapshot()
    await folder.write("a.json", socket, "Fail", ["PreRunPodSandbox"])
    for _ in range(5):
        async with refused("UNKNOWN", "UNAVAILABLE"):
            await run_pod(cri, sandbox_config())
    async with answering(socket, answer_with(labels={"by": "hook"})), pod(cri) as sandbox_id:
        assert dict((await sandbox_status(cri, sandbox_id)).labels) == {"by": "hook"}
    assert snapshot().gained(before) == {}


async def test_a_caller_that_goes_while_a_hook_server_thinks_leaves_nothing(
    cri: CRI, tmp_path: Path, folder: Folder, engine_api: DockerClient, snapshot: Callable[[], Snapshot]
) -> None:
    before, begun = snapshot(), time.time()
    async with example(tmp_path, "--delay=0.5") as hook_server:
        await folder.write("a.json", tmp_path / "example.sock", "Ignore", ["PreRunPodSandbox"])
        calling = asyncio.create_task(run_pod(cri, sandbox_config()))
        await until(lambda: bool(hook_server.calls()))
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        # The hook server answers in turn: when the next pod has its answer, the one of the first has come, too.
        async with pod(cri):
            pass
        assert len(hook_server.calls()) == 2
    assert len(created_since(engine_api, begun)) == 1, "the second pod's"
    assert snapshot().gained(before) == {}


@pytest.mark.every_engine
async def test_what_only_the_engine_can_judge_fails_the_call(
    cri: CRI, socket: Path, folder: Folder, engine_api: DockerClient
) -> None:
    async def answer(hook: str, request: Any) -> bytes:
        resources = hooks.LinuxContainerResources(cpuset_cpus="999")
        return hooks.ContainerResourceHookResponse(container_resources=resources).SerializeToString()

    sandbox = sandbox_config()
    async with pod(cri, sandbox) as sandbox_id, answering(socket, answer):
        await folder.write("a.json", socket, "Ignore", ["PreCreateContainer"])
        begun = time.time()
        async with refused("INVALID_ARGUMENT", "999"):
            await create(cri, sandbox_id, container_config(), sandbox)
        assert created_since(engine_api, begun) == []


def answer_with(**fields: Any) -> Answer:
    """The same answer to each hook of a pod, and none to those of containers."""

    async def answer(hook: str, request: Any) -> bytes:
        if isinstance(request, hooks.PodSandboxHookRequest):
            return hooks.PodSandboxHookResponse(**fields).SerializeToString()
        return b""

    return answer


HOSTILE_PODS = [
    pytest.param({"cgroup_parent": "/../../escaped"}, "cgroup_parent", id="a parent that leads out"),
    pytest.param({"cgroup_parent": "relative"}, "cgroup_parent", id="a relative parent"),
    pytest.param({"labels": {"io.kubernetes.docker.type": "container"}}, "reserved", id="a label of the runtime's own"),
    pytest.param({"annotations": {"a": "b" * (3 << 20)}}, "annotations", id="annotations without end"),
    pytest.param({"annotations": {"a": "b" * (5 << 20)}}, "RESOURCE_EXHAUSTED", id="an answer without end"),
    pytest.param({"resources": {"cpu_quota": -5}}, "cpu_quota", id="a quota that is none"),
]


@pytest.mark.parametrize(("fields", "mentions"), HOSTILE_PODS)
async def test_an_answer_about_a_pod_that_cannot_be_used(
    fields: dict[str, Any], mentions: str, cri: CRI, socket: Path, folder: Folder, snapshot: Callable[[], Snapshot]
) -> None:
    before = snapshot()
    async with answering(socket, answer_with(**fields)):
        await folder.write("a.json", socket, "Fail", ["PreRunPodSandbox"])
        async with refused("UNKNOWN", mentions):
            await run_pod(cri, sandbox_config())
        assert snapshot().gained(before) == {}
        await folder.write("a.json", socket, "Ignore", ["PreRunPodSandbox"])
        async with pod(cri) as sandbox_id:
            assert dict((await sandbox_status(cri, sandbox_id)).labels) == {}


def env(key: bytes, value: bytes) -> bytes:
    """A variable in an answer, with any bytes: ``container_envs`` is field 4, its key 1, its value 2."""
    entry = b"\x0a" + bytes([len(key)]) + key + b"\x12" + bytes([len(value)]) + value
    return b"\x22" + bytes([len(entry)]) + entry


HOSTILE_CONTAINERS = [
    pytest.param(env(b"A", b"\xff\xfe"), "not a ContainerResourceHookResponse", id="a value that is not UTF-8"),
    pytest.param(env(b"A=B", b"c"), "not a valid name of a variable", id="a name with a sign"),
    pytest.param(env(b"A", b"a\0b"), "NUL", id="a value with a NUL"),
    pytest.param(env(b"", b"a"), "not a valid name of a variable", id="no name"),
    pytest.param(
        hooks.ContainerResourceHookResponse(container_envs={"A": "a" * (1 << 20)}).SerializeToString(),
        "longer than the kernel allows",
        id="a value that no process could get",
    ),
    pytest.param(
        hooks.ContainerResourceHookResponse(pod_cgroup_parent="/a/../..").SerializeToString(),
        "pod_cgroup_parent",
        id="a parent that leads out",
    ),
    pytest.param(
        hooks.ContainerResourceHookResponse(
            container_resources=hooks.LinuxContainerResources(unified={"../x": "1"})
        ).SerializeToString(),
        "unified",
        id="a file outside of the cgroup",
    ),
]


async def test_answers_about_a_container_that_cannot_be_used(cri: CRI, socket: Path, folder: Folder) -> None:
    """With Fail the call is refused and makes nothing; with Ignore it goes on without hooks. One pod for all."""
    sandbox = sandbox_config()
    answers = [parameter.values for parameter in HOSTILE_CONTAINERS]
    given: list[bytes] = []

    async def answer(hook: str, request: Any) -> bytes:
        return given[-1]

    async with pod(cri, sandbox) as sandbox_id, answering(socket, answer):
        await folder.write("a.json", socket, "Fail", ["PreCreateContainer"])
        for content, mentions in answers:
            given.append(content)  # type: ignore[arg-type]
            async with refused("UNKNOWN", str(mentions)):
                await create(cri, sandbox_id, container_config(), sandbox)
        listed = await cri.runtime.ListContainers(api.ListContainersRequest())
        assert [one for one in listed.containers if one.pod_sandbox_id == sandbox_id] == []
        await folder.write("a.json", socket, "Ignore", ["PreCreateContainer"])
        for number, (content, _) in enumerate(answers):
            given.append(content)  # type: ignore[arg-type]
            config = container_config(name=f"main-{number}", envs=[api.KeyValue(key="A", value=b"mine")])
            container_id = await start(cri, sandbox_id, config, sandbox)
            assert await sh(cri, container_id, "echo $A") == "mine"


# The folder


async def test_the_folder_is_edited_while_pods_come_and_go(cri: CRI, tmp_path: Path, folder: Folder) -> None:
    async def labels() -> dict[str, str]:
        async with pod(cri) as sandbox_id:
            return dict((await sandbox_status(cri, sandbox_id)).labels)

    first, second = Path("/run/hooks-first.sock"), Path("/run/hooks-second.sock")
    async with answering(first, answer_with(labels={"a": "1"})), answering(second, answer_with(labels={"a": "2"})):
        assert await labels() == {}
        await folder.write("50-a.json", first, "Fail")
        assert await labels() == {"a": "1"}
        await folder.write("40-b.json", second, "Fail")
        assert await labels() == {"a": "1"}, "the last one's change stands"
        await folder.write("60-c.json", second, "Fail")
        assert await labels() == {"a": "2"}
        # A file that cannot be used keeps its earlier content in force.
        await folder.put("60-c.json", "{", expected="60-c.json: not JSON")
        assert await labels() == {"a": "2"}
        async with folder.applied():
            (FOLDER / "60-c.json").rename(FOLDER / "60-c.off")
        assert await labels() == {"a": "1"}
        await folder.clear()
        assert await labels() == {}


async def test_several_hook_servers_see_each_others_changes(cri: CRI, folder: Folder) -> None:
    seen: list[tuple[str, dict[str, str], dict[str, str]]] = []

    def server(name: str) -> Answer:
        async def answer(hook: str, request: Any) -> bytes:
            if hook == "PreRunPodSandbox":
                seen.append((name, dict(request.labels), {}))
                return hooks.PodSandboxHookResponse(labels={name: "x"}).SerializeToString()
            seen.append((name, dict(request.pod_labels), dict(request.container_envs)))
            envs = {**request.container_envs, name: "x"}
            return hooks.ContainerResourceHookResponse(container_envs=envs).SerializeToString()

        return answer

    sockets = {name: Path(f"/run/hooks-{name}.sock") for name in ("a", "b")}
    sandbox = sandbox_config()
    async with answering(sockets["a"], server("a")), answering(sockets["b"], server("b")):
        for name in ("b", "a"):
            await folder.write(f"{name}.json", sockets[name], "Fail", ["PreRunPodSandbox", "PreCreateContainer"])
        async with pod(cri, sandbox) as sandbox_id:
            container_id = await start(cri, sandbox_id, container_config(), sandbox)
            assert await sh(cri, container_id, "echo $a $b") == "x x"
    both = {"a": "x", "b": "x"}
    assert seen == [("a", {}, {}), ("b", {"a": "x"}, {}), ("a", both, {}), ("b", both, {"a": "x"})]


async def test_a_pod_may_do_without_hooks(cri: CRI, socket: Path, folder: Folder) -> None:
    sandbox = sandbox_config(labels={"runtimeproxy.koordinator.sh/skip-hookserver": "true"})
    await folder.write("a.json", socket, "Fail")  # nobody is there
    async with pod(cri, sandbox) as sandbox_id:
        container_id = await start(cri, sandbox_id, container_config(), sandbox)
        await stop(cri, container_id)


# What stops


async def test_of_each_stop_is_told_once_and_of_those_that_ended_by_themselves(
    cri: CRI, socket: Path, folder: Folder, engine_api: DockerClient
) -> None:
    told: list[tuple[str, str]] = []

    async def answer(hook: str, request: Any) -> bytes:
        name = request.pod_meta.name if hook == "PostStopPodSandbox" else request.container_meta.id
        told.append((hook, name))
        return b""

    sandbox = sandbox_config()
    async with answering(socket, answer):
        await folder.write("a.json", socket, "Fail", ["PostStopContainer", "PostStopPodSandbox"])
        sandbox_id = await run_pod(cri, sandbox)
        ended_by_itself = await start(cri, sandbox_id, container_config("exit 0", name="short"), sandbox)
        await until(lambda: not engine_api.containers.get(ended_by_itself).attrs["State"]["Running"])
        stopped = await start(cri, sandbox_id, container_config(), sandbox)
        for container_id in (ended_by_itself, stopped, stopped):
            await stop(cri, container_id)
        await stop(cri, "f" * 64)
        # No hook is called for containers that a removal ends: a removal is meant for containers that do not run.
        await remove_pod(cri, sandbox_id)
        await remove_pod(cri, sandbox_id)
    assert told == [
        ("PostStopContainer", ended_by_itself),
        ("PostStopContainer", stopped),
        ("PostStopPodSandbox", sandbox.metadata.name),
    ]


async def test_a_pod_that_the_engine_has_lost_is_told_of_when_it_is_stopped(
    cri: CRI, socket: Path, folder: Folder, engine_api: DockerClient
) -> None:
    told: list[hooks.PodSandboxHookRequest] = []

    async def answer(hook: str, request: Any) -> bytes:
        told.append(request)
        return b""

    sandbox = sandbox_config(labels={"a": "b"}, linux=api.LinuxPodSandboxConfig(cgroup_parent="/kubepods/lost"))
    async with answering(socket, answer):
        await folder.write("a.json", socket, "Fail", ["PostStopPodSandbox"])
        sandbox_id = await run_pod(cri, sandbox)
        engine_api.api.remove_container(sandbox_id, force=True)
        await remove_pod(cri, sandbox_id)
    assert [(one.pod_meta.name, dict(one.labels), one.cgroup_parent) for one in told] == [
        (sandbox.metadata.name, {"a": "b"}, "/kubepods/lost")
    ]
