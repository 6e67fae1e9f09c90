"""`make run` and `make demo`, with the node's engine; nothing can be installed in a node, so images are named."""

from __future__ import annotations

import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from docker import DockerClient

from deploy.cri import CRI, answers
from deploy.left import Place, left_behind
from deploy.pod import Pod
from dockershim.cri.infra_image import BUILTIN_INFRA_IMAGE, docker_archive
from tests.node.server import Server
from tests.node.state import Snapshot
from tests.waiting import wait_until

BUSYBOX = "registry.k8s.io/e2e-test-images/busybox:1.29-2"
EVERYTHING = {
    "pod in ListPodSandbox",
    "container in ListContainers",
    "container on the engine",
    "endpoint in the engine's networks",
    "image",
    "checkpoint",
    "network namespace",
    "log",
}
DEMO = [sys.executable, "-m", "deploy.demo"]


@pytest.fixture(autouse=True)
def without_busybox(engine_api: DockerClient) -> None:
    """The demo pulls missing images, and removes only the images that it has pulled."""
    if engine_api.images.list(BUSYBOX):
        engine_api.images.remove(BUSYBOX, force=True)


@pytest.fixture(autouse=True)
def leaves_nothing(snapshot: Callable[[], Snapshot], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = snapshot()
    # Not pytest's folder: the path of a socket below it would be too long.
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield
        assert list(Path(folder).iterdir()) == []
    assert snapshot().gained(before) == {}


@contextmanager
def stopped(server: Server) -> Iterator[None]:
    server.stop()
    try:
        yield
    finally:
        server.start()


def run_demo(image: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*DEMO, f"--image={image}"], capture_output=True, text=True, timeout=90)


@pytest.mark.every_engine
def test_demo_uses_the_server_that_serves(server: Server, engine_api: DockerClient) -> None:
    done = run_demo(BUSYBOX)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"The server on {server.target} is used." in done.stdout
    assert "hello from dockershim-demo" in done.stdout
    assert "whose process 1 is sh; exit code 7" in done.stdout
    assert done.stdout.endswith("Nothing is left. The engine runs on.\n")
    assert engine_api.images.list(BUSYBOX) == []


def test_demo_starts_a_server_of_its_own_where_none_serves(server: Server, engine_api: DockerClient) -> None:
    with stopped(server):
        if engine_api.images.list(BUILTIN_INFRA_IMAGE):
            engine_api.images.remove(BUILTIN_INFRA_IMAGE)
        done = run_demo(BUSYBOX)
        assert (done.returncode, done.stderr) == (0, "")
        assert not answers(server.target)
        assert engine_api.images.list(BUILTIN_INFRA_IMAGE) == []


def test_demo_leaves_an_image_that_was_there(server: Server, engine_api: DockerClient) -> None:
    engine_api.images.pull(BUSYBOX)
    done = run_demo(BUSYBOX)
    assert done.returncode == 0
    assert "PullImage" not in done.stdout
    assert engine_api.images.list(BUSYBOX) != []


def test_demo_fails_with_the_call_that_failed(server: Server) -> None:
    done = run_demo("127.0.0.1:1/nothing:1")
    assert done.returncode == 1
    assert "make demo: PullImage: " in done.stderr


def test_demo_removes_a_pod_whose_container_does_not_start(server: Server, engine_api: DockerClient) -> None:
    engine_api.images.load(docker_archive(platform.machine()))
    done = run_demo(BUILTIN_INFRA_IMAGE)
    assert done.returncode == 1
    assert "make demo: StartContainer: " in done.stderr


@pytest.mark.parametrize("step", ["PullImage", "RunPodSandbox", "StartContainer", "ExecSync"])
def test_demo_tidies_up_when_it_is_ended_after(step: str, server: Server) -> None:
    demo = subprocess.Popen([*DEMO, f"--image={BUSYBOX}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert demo.stdout is not None
    for line in demo.stdout:
        if step in line:
            break
    demo.send_signal(signal.SIGTERM)
    _, said = demo.communicate(timeout=60)
    assert (demo.returncode, said) == (1, "make demo: interrupted\n")


@pytest.mark.parametrize(
    ("flags", "never"),
    [
        pytest.param(["--network-plugin=cni"], set(), id="a pod on a CNI network"),
        pytest.param(["--network-plugin=kubenet", "--pod-cidr=10.77.0.0/24"], set(), id="a pod on kubenet's bridge"),
        # No pin is needed if the engine itself tears the network down.
        pytest.param(["--network-plugin=docker"], {"network namespace"}, id="a pod on the engine's bridge"),
    ],
)
def test_the_look_finds_all_that_a_pod_is_while_it_lives(
    flags: list[str],
    never: set[str],
    start_server: Callable[..., Server],
    engine_api: DockerClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = start_server(*flags)
    place = Place(server.target, Path("/var/lib", server.name), Path("/run", server.name))
    found: list[str] = []
    end = Pod._end

    def look_first(pod: Pod) -> None:
        found.extend(left_behind(engine_api, connection, place, pod))
        end(pod)

    monkeypatch.setattr(Pod, "_end", look_first)
    with CRI(server.target) as connection:
        pod = Pod(connection, tmp_path / "logs")
        pod.live(BUSYBOX)
        assert left_behind(engine_api, connection, place, pod) == []
    assert {line.partition(": ")[0] for line in found} == EVERYTHING - never


def test_run_serves_says_what_to_try_and_ends_with_a_signal(tmp_path: Path) -> None:
    endpoint = f"unix://{tmp_path}/run.sock"
    flags = [f"--container-runtime-endpoint={endpoint}", f"--root-directory={tmp_path}/root"]
    command = [sys.executable, "-m", "deploy.run", *flags, f"--state-directory={tmp_path}/state"]
    with (tmp_path / "out").open("w+") as out:
        serving = subprocess.Popen(command, stdout=out, stderr=out)
        said = (tmp_path / "out").read_text
        wait_until(lambda: "Ctrl-C stops dockershim" in said(), said)
        assert answers(endpoint)
        second = subprocess.run(command, capture_output=True, text=True, timeout=30)
        assert second.returncode == 1
        assert f"a server answers on {endpoint} already" in second.stderr
        serving.terminate()
        assert serving.wait(40) == 0
    assert not answers(endpoint)
