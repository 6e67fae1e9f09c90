"""A host path on a file system that does not answer: its pod cannot start, and all other calls work."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import grpc
from docker import DockerClient

from dockershim.api.cri.v1 import api_pb2 as api
from tests.cri_client import CRI
from tests.engine.hung import disconnected, hung
from tests.engine.pods import (
    BUSYBOX,
    container_config,
    containers,
    create,
    linux_container,
    linux_sandbox,
    pod,
    refused,
    remove_pod,
    run_pod,
    sandbox_config,
    sh,
    start,
)
from tests.node.server import Server
from tests.waiting import until

#: Seconds: longer than any of these calls takes on a loaded machine, and much shorter than a hang.
SOON = 8.0


def on_host(**options: Any) -> api.PodSandboxConfig:
    """A pod without a network of its own, which is made sooner."""
    return sandbox_config(linux=linux_sandbox(namespace_options=api.NamespaceOption(network=api.NODE)), **options)


def mounting(path: Path) -> api.ContainerConfig:
    return container_config(mounts=[api.Mount(host_path=str(path), container_path="/mounted")])


async def failure(call: Coroutine[Any, Any, object]) -> tuple[str, str]:
    """The code and the message of a call that has to fail."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code().name, error.details() or ""
    raise AssertionError("the call has not failed")


async def test_who_waits_for_a_hung_host_path_waits_alone(
    start_server: Callable[..., Server], engine_api: DockerClient, tmp_path: Path
) -> None:
    engine_api.images.pull(BUSYBOX)
    server = start_server("--network-plugin=docker")
    (tmp_path / "link").symlink_to(tmp_path / "hung")
    async with CRI(server.target) as cri:
        bystander = await start(cri, await run_pod(cri, sandbox_config()))
        ids = await asyncio.gather(*(run_pod(cri, on_host()) for _ in range(10)))
        with hung(tmp_path / "hung") as folder:
            paths = [*(folder / str(number) for number in range(8)), tmp_path / "link" / "8", folder]
            began = time.monotonic()
            calls = [
                asyncio.create_task(failure(create(cri, sandbox_id, mounting(path))))
                for sandbox_id, path in zip(ids, paths, strict=True)
            ]
            while time.monotonic() - began < SOON:
                async with asyncio.timeout(SOON), pod(cri) as sandbox_id:
                    container_id = await start(cri, sandbox_id, mounting(tmp_path / "other" / "folder"))
                    assert await sh(cri, container_id, "echo here") == "here"
                    assert await sh(cri, bystander, "echo here") == "here"
            for code, message in await asyncio.gather(*calls):
                assert code in ("DEADLINE_EXCEEDED", "FAILED_PRECONDITION"), message
                assert f"at {folder} does not respond" in message
                assert str(tmp_path) in message
            assert time.monotonic() - began < 30
            await _check_later_callers(cri, ids[0], folder)
            status = await cri.runtime.Status(api.StatusRequest(verbose=True))
            assert all(condition.status for condition in status.status.conditions)
            assert json.loads(status.info["hostPaths"]) == {"hanging": [str(folder)]}
            async with asyncio.timeout(SOON):
                await asyncio.gather(*(remove_pod(cri, sandbox_id) for sandbox_id in ids))
            process = _looks_at_paths(server)
            assert await asyncio.to_thread(server.stop, SOON) == 0
            assert process.exists(), "it did not hang so that it could not be ended"
            await asyncio.to_thread(server.start)
            assert await sh(cri, bystander, "echo here") == "here"
        ids = list({one.pod_sandbox_id for one in (await containers(cri)).values()})
        assert await start(cri, ids[0], container_config(name="late", mounts=mounting(folder / "late").mounts))
        await remove_pod(cri, ids[0])
    assert [path.name for path in folder.iterdir()] == ["late"]
    await until(lambda: not process.exists())


async def test_a_host_path_whose_driver_has_died_is_named(cri: CRI, engine_api: DockerClient, tmp_path: Path) -> None:
    engine_api.images.pull(BUSYBOX)
    with disconnected(tmp_path / "dead") as folder:
        async with pod(cri, on_host()) as sandbox_id:
            for path in (folder, folder / "below"):
                async with refused("FAILED_PRECONDITION", "mounts[/mounted].host_path", str(path), "not connected"):
                    await create(cri, sandbox_id, mounting(path))


async def _check_later_callers(cri: CRI, sandbox_id: str, folder: Path) -> None:
    """The path is known to hang by now, so calls fail at once, no matter how they use it."""
    device = container_config(devices=[api.Device(host_path=str(folder / "device"))])
    localhost = api.SecurityProfile(profile_type=api.SecurityProfile.Localhost, localhost_ref=str(folder / "profile"))
    for config in (mounting(folder / "new"), device, container_config(linux=linux_container(seccomp=localhost))):
        async with asyncio.timeout(SOON), refused("FAILED_PRECONDITION", str(folder), "umount"):
            await create(cri, sandbox_id, config)


def _looks_at_paths(server: Server) -> Path:
    """/proc/<pid> of the server's process that looks at host paths."""
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    found = [Path("/proc", pid) for pid in children if b"host_paths" in Path("/proc", pid, "cmdline").read_bytes()]
    assert len(found) == 1, found
    return found[0]
