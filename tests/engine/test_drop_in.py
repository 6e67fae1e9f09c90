"""The program under the name cri-dockerd, as its unit starts it: one pod, and a checkpoint of a real cri-dockerd's."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import pytest

from checkpoints.format import Checkpoint
from checkpoints.store import Store
from dockershim.api.cri.v1 import api_pb2 as api
from tests.cri_client import CRI
from tests.engine.pods import container_config, pull, sandbox_config
from tests.node.server import DropIn

LOST = "0123456789abcdef" * 4
#: What systemd does for a unit with a socket, which this gets as its standard input.
ACTIVATED = ("sh", "-c", 'exec env LISTEN_PID=$$ LISTEN_FDS=1 "$@" 3<&0', "sh")


async def test_a_unit_of_cri_dockerd_starts_it_and_tools_find_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The session's server has the usual ones.
    monkeypatch.setenv("DOCKERSHIM_ROOT_DIRECTORY", str(tmp_path / "root"))
    monkeypatch.setenv("DOCKERSHIM_STATE_DIRECTORY", str(tmp_path / "state"))
    old = tmp_path / "old"
    Store(old / "sandbox").write(Checkpoint(LOST, "lost", "tests"))
    flags = ("--container-runtime-endpoint", "fd://", "--network-plugin=cni", "--hairpin-mode=hairpin-veth")
    server = DropIn(flags=(*flags, f"--cri-dockerd-root-directory={old}", "--ipv6-dual-stack=True"))
    with socket.socket(socket.AF_UNIX) as listener, server.log.open("ab") as log:
        listener.bind(str(server.socket))
        listener.listen(16)
        command = [*ACTIVATED, *server.command()]
        server.process = subprocess.Popen(command, stdin=listener.fileno(), stdout=log, stderr=log)
        try:
            server.wait_ready(60)
            # Without a configuration crictl tries the sockets that it knows.
            crictl = subprocess.run(["crictl", "--config=/dev/null", "version"], capture_output=True, text=True)
            assert "RuntimeName:  docker" in crictl.stdout, crictl.stderr
            async with CRI(server.target) as cri:
                await _live(cri)
        finally:
            assert server.stop() == 0, server.log_end()
            server.socket.unlink()
    assert list((old / "sandbox").iterdir()) == []
    assert server.log_end().count("--ipv6-dual-stack is accepted for compatibility") == 1


async def _live(cri: CRI) -> None:
    """The lost pod is listed and removed, and another one lives."""
    await pull(cri)
    config = sandbox_config()
    pod = (await cri.runtime.RunPodSandbox(api.RunPodSandboxRequest(config=config))).pod_sandbox_id
    create = api.CreateContainerRequest(pod_sandbox_id=pod, config=container_config(), sandbox_config=config)
    container = (await cri.runtime.CreateContainer(create)).container_id
    await cri.runtime.StartContainer(api.StartContainerRequest(container_id=container))
    said = await cri.runtime.ExecSync(api.ExecSyncRequest(container_id=container, cmd=["echo", "alive"], timeout=30))
    assert said.stdout == b"alive\n"
    listed = (await cri.runtime.ListPodSandbox(api.ListPodSandboxRequest())).items
    assert {one.id: one.state for one in listed if one.id in (pod, LOST)} == {
        pod: api.SANDBOX_READY,
        LOST: api.SANDBOX_NOTREADY,
    }
    for one in (pod, LOST):
        await cri.runtime.StopPodSandbox(api.StopPodSandboxRequest(pod_sandbox_id=one))
        await cri.runtime.RemovePodSandbox(api.RemovePodSandboxRequest(pod_sandbox_id=one))
