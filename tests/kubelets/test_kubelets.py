"""One life of a pod. The tests are its parts, in their order: each goes on with the pod of the one before.

The runner makes a column of the README's table of each test.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import docker
import pytest
from docker import DockerClient

from tests.engine.pods import BUSYBOX, cgroup_file, process
from tests.kubelets.kubelet import FOLDER, LINKS, LOGS, ROOT, Kubelet
from tests.kubernetes.leftovers import left, snapshot
from tests.node.server import Server
from tests.node.state import Snapshot
from tests.streaming_client import Command, spdy_command, websocket_command

pytestmark = pytest.mark.timeout(300)

NAME = "web"
PAGE = "a page\n"
#: The containers write what they do into a file of the node, which outlives the pod.
NOTES = FOLDER / "notes/notes"
# The shell is the first process and gets the signals; what it waits for is not to keep it from them.
FOREVER = "while true; do sleep 1 & wait $!; done"
INIT = f"echo init >> /notes/notes; printf '{PAGE}' > /data/index.html"
SIDECAR = (
    "trap 'echo sidecar: SIGTERM >> /notes/notes; exit 0' TERM; sleep 1; echo sidecar >> /notes/notes;"
    f" touch /data/sidecar; {FOREVER}"
)
MAIN = (
    "trap 'echo main: SIGTERM >> /notes/notes; sleep 2; echo main: end >> /notes/notes; exit 0' TERM;"
    " touch /tmp/alive; httpd -p 80 -h /data; echo main >> /notes/notes;"
    f" echo it has started; echo it fails >&2; {FOREVER}"
)
#: A kubelet collects the containers and sandboxes of ended pods once a minute.
COLLECTED = 150.0

Connect = Callable[..., AbstractAsyncContextManager[Command]]


def manifest(cpu: str = "500m") -> dict[str, Any]:
    """The pod. Its uid is fixed, so that a change of its file changes the pod instead of replacing it."""
    mounts = [{"name": "data", "mountPath": "/data"}, {"name": "notes", "mountPath": "/notes"}]

    probing = {"periodSeconds": 1, "timeoutSeconds": 10, "failureThreshold": 3}

    def container(name: str, command: str, **more: Any) -> dict[str, Any]:
        return {"name": name, "image": BUSYBOX, "command": ["sh", "-c", command], "volumeMounts": mounts, **more}

    main = container(
        "main",
        MAIN,
        ports=[{"containerPort": 80}],
        resources={"requests": {"cpu": "100m", "memory": "32Mi"}, "limits": {"cpu": cpu, "memory": "64Mi"}},
        livenessProbe={"exec": {"command": ["cat", "/tmp/alive"]}, **probing},
        readinessProbe={"httpGet": {"port": 80, "path": "/index.html"}, **probing},
    )
    started = {"exec": {"command": ["test", "-e", "/data/sidecar"]}, **probing, "failureThreshold": 60}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": NAME, "namespace": "default", "uid": "11111111-2222-3333-4444-555555555555"},
        "spec": {
            "terminationGracePeriodSeconds": 20,
            "initContainers": [
                container("init", INIT),
                container("sidecar", SIDECAR, restartPolicy="Always", startupProbe=started),
            ],
            "containers": [main],
            "volumes": [
                {"name": "data", "emptyDir": {}},
                {"name": "notes", "hostPath": {"path": str(NOTES.parent), "type": "DirectoryOrCreate"}},
            ],
        },
    }


@pytest.fixture(scope="session")
def engine() -> Iterator[DockerClient]:
    client = docker.from_env()
    yield client
    client.close()


@pytest.fixture(scope="module")
def before(kubelet: Kubelet) -> Snapshot:
    """The node before the pod."""
    return snapshot()


def restarts(kubelet: Kubelet, name: str) -> int:
    return int(kubelet.containers(NAME)[name]["restartCount"])


def notes() -> list[str]:
    return NOTES.read_text().splitlines()


def crictl(server: Server, *arguments: str) -> str:
    command = ["crictl", f"--runtime-endpoint={server.target}", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout


def exec_url(kubelet: Kubelet, *command: str, scheme: str = "https", stdin: bool = False) -> str:
    query = {"command": command, "output": 1, "error": 1, **({"input": 1} if stdin else {})}
    return kubelet.url(f"/exec/default/{kubelet.full_name(NAME)}/main", query, scheme)


async def run(kubelet: Kubelet, *command: str, connect: Connect = spdy_command, stdin: bytes | None = None) -> bytes:
    """The output of a command in ``main``. AssertionError unless it ends with the exit code 0."""
    scheme = "https" if connect is spdy_command else "wss"
    url = exec_url(kubelet, *command, scheme=scheme, stdin=stdin is not None)
    async with connect(url, stdin=stdin is not None, tls=kubelet.tls) as running:
        if stdin is not None:
            await running.channels["stdin"].write(stdin)
            await running.channels["stdin"].close_write()
        output = await running.all("stdout")
        assert await running.exit_code() == 0, output
    return output


def test_start(kubelet: Kubelet, before: Snapshot) -> None:
    """Init container, then sidecar, then main; all of it is ready and has an address."""
    kubelet.run(manifest())
    kubelet.wait(lambda: kubelet.is_ready(NAME), 90, "the pod")
    assert notes() == ["init", "sidecar", "main"]
    found = kubelet.status(NAME)
    assert (found["phase"], found["podIP"][:3]) == ("Running", "10.")
    containers = kubelet.containers(NAME)
    assert {name: next(iter(one["state"])) for name, one in containers.items()} == {
        "init": "terminated",
        "sidecar": "running",
        "main": "running",
    }
    assert {one["restartCount"] for one in containers.values()} == {0}


def test_logs(kubelet: Kubelet) -> None:
    assert set(kubelet.log(NAME, "main").splitlines()) == {"it has started", "it fails"}
    [line] = kubelet.log(NAME, "main", tailLines=1, timestamps="true").splitlines()
    assert line.partition("Z ")[2] in {"it has started", "it fails"}


@pytest.mark.parametrize(
    "connect", [pytest.param(spdy_command, id="SPDY"), pytest.param(websocket_command, id="WebSocket")]
)
async def test_exec(kubelet: Kubelet, connect: Connect) -> None:
    assert await run(kubelet, "cat", "/data/index.html", connect=connect) == PAGE.encode()
    assert (await run(kubelet, "wc", "-c", connect=connect, stdin=b"x" * 1_000_000)).strip() == b"1000000"
    scheme = "https" if connect is spdy_command else "wss"
    command = exec_url(kubelet, "sh", "-c", "echo no >&2; exit 7", scheme=scheme)
    async with connect(command, tls=kubelet.tls) as running:
        assert await running.all("stderr") == b"no\n"
        assert await running.exit_code() == 7


async def test_probes(kubelet: Kubelet) -> None:
    """An HTTP probe makes the pod ready or not; a command that fails has the container stopped and started again."""
    await run(kubelet, "mv", "/data/index.html", "/data/away")
    kubelet.wait(lambda: not kubelet.is_ready(NAME), 30, "the failure of the readiness probe")
    assert restarts(kubelet, "main") == 0
    await run(kubelet, "mv", "/data/away", "/data/index.html")
    kubelet.wait(lambda: kubelet.is_ready(NAME), 30, "the pod")
    await run(kubelet, "rm", "/tmp/alive")
    kubelet.wait(lambda: restarts(kubelet, "main") == 1, 60, "the restart by the liveness probe")
    assert kubelet.containers(NAME)["main"]["lastState"]["terminated"]["exitCode"] == 0
    kubelet.wait(lambda: kubelet.is_ready(NAME), 60, "the pod")
    assert notes() == ["init", "sidecar", "main", "main: SIGTERM", "main: end", "main"]


def test_a_killed_container_is_started_again(kubelet: Kubelet, engine: DockerClient) -> None:
    """It alone: the other one goes on."""
    for name, other in (("main", "sidecar"), ("sidecar", "main")):
        kubelet.wait(lambda: kubelet.is_ready(NAME), 60, "the pod")
        number, others = restarts(kubelet, name), kubelet.engine_id(NAME, other)
        os.kill(int(process(engine, kubelet.engine_id(NAME, name)).name), signal.SIGKILL)
        kubelet.wait(lambda: restarts(kubelet, name) == number + 1, 60, f"the restart of {name}")  # noqa: B023
        ended = kubelet.containers(NAME)[name]["lastState"]["terminated"]
        assert (ended["exitCode"], ended["reason"]) == (137, "Error")
        assert kubelet.engine_id(NAME, other) == others
    kubelet.wait(lambda: kubelet.is_ready(NAME), 60, "the pod")
    assert "it has started" in kubelet.log(NAME, "main", previous="true")
    assert restarts(kubelet, "init") == 0


def test_resize(kubelet: Kubelet, engine: DockerClient) -> None:
    """The same container goes on with another limit."""
    container = kubelet.engine_id(NAME, "main")
    main = process(engine, container)

    def quota() -> str:
        return cgroup_file(main, "cpu.cfs_quota_us")

    assert quota() == "50000"
    kubelet.run(manifest(cpu="700m"))
    kubelet.wait(lambda: quota() == "70000", 60, "the limit in the kernel")
    kubelet.wait(
        lambda: kubelet.containers(NAME)["main"].get("resources", {}).get("limits", {}).get("cpu") == "700m",
        60,
        "the limit in the pod's status",
    )
    assert kubelet.engine_id(NAME, "main") == container


def test_stop(kubelet: Kubelet, server: Server, before: Snapshot) -> None:
    """Main gets SIGTERM and the time that it needs, then the sidecar; nothing of the pod stays."""
    began = len(notes())
    assert json.loads(crictl(server, "pods", "-o", "json"))["items"]
    kubelet.remove(manifest())
    kubelet.wait(lambda: not crictl(server, "ps", "-q"), 60, "the end of the containers")
    assert notes()[began:] == ["main: SIGTERM", "main: end", "sidecar: SIGTERM"]
    kubelet.wait(lambda: not crictl(server, "pods", "-q"), COLLECTED, "the kubelet's collection of what has ended")
    assert left(before) == []
    assert kubelet.pods() == []
    folders = (ROOT / "pods", LOGS, LINKS)
    kubelet.wait(lambda: not any(any(folder.iterdir()) for folder in folders), COLLECTED, "the end of its folders")
