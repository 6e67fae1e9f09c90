"""``dockershim info`` beside what the engine and the kernel tell of themselves."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from docker import DockerClient

from dockershim.api.cri.v1 import api_pb2 as api
from tests.cri_client import CRI
from tests.node.engine import Engine
from tests.node.server import Server
from tests.waiting import eventually


def info(server: Server, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dockershim", "info", f"--container-runtime-endpoint={server.target}", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


@pytest.mark.every_engine
async def test_it_is_what_the_engine_tells_of_itself(cri: CRI, server: Server, engine_api: DockerClient) -> None:
    done = info(server, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found, engine, version = json.loads(done.stdout), engine_api.info(), engine_api.version()
    assert found["kernel"] == {
        "release": Path("/proc/sys/kernel/osrelease").read_text().strip(),
        "operatingSystem": engine["OperatingSystem"],
        "architecture": engine["Architecture"],
    }
    assert found["engine"]["version"] == version["Version"]
    assert found["engine"]["rootDirectory"] == engine["DockerRootDir"]
    assert found["engine"]["liveRestore"] is engine["LiveRestoreEnabled"]
    assert found["engine"]["cdi"] is bool(engine.get("CDISpecDirs"))
    major = int(version["Version"].split(".")[0])
    assert found["engine"]["imageVolumes"] is (major >= 28)
    in_containerd = any(value.startswith("io.containerd.snapshotter") for _, value in engine["DriverStatus"])
    assert found["images"] == {
        "store": "containerd" if in_containerd else "engine",
        "storageDriver": engine["Driver"],
    }
    assert (found["cgroups"]["version"], found["cgroups"]["driver"]) == (
        int(engine["CgroupVersion"]),
        engine["CgroupDriver"],
    )
    for name, size in (("2MB", "2048kB"), ("1GB", "1048576kB")):
        has_pages = Path(f"/sys/kernel/mm/hugepages/hugepages-{size}").exists()
        assert (name in found["cgroups"]["hugePages"]) is (has_pages and Path("/sys/fs/cgroup/hugetlb").exists())
    assert ("swap" in found["cgroups"]["missingLimits"]) is not engine["SwapLimit"]
    options = " ".join(engine["SecurityOptions"])
    assert found["security"] == {name: f"name={name.lower()}" in options for name in found["security"]}
    told = {one["name"]: one["recursiveReadOnlyMounts"] for one in found["runtimeHandlers"]}
    assert set(told) == {"", "docker", *engine["Runtimes"]}
    status = await cri.runtime.Status(api.StatusRequest())
    assert told == {one.name: one.features.recursive_read_only_mounts for one in status.runtime_handlers}
    assert dict(status.info) == {}
    # The same, for people.
    printed = info(server)
    assert printed.returncode == 0
    assert f"Docker {version['Version']}, API {found['engine']['api']}, in {engine['DockerRootDir']}" in printed.stdout


async def test_it_says_in_a_line_what_is_not_there(cri: CRI, server: Server, engine: Engine) -> None:
    engine.kill()
    try:

        async def is_ready() -> bool:
            conditions = (await cri.runtime.Status(api.StatusRequest())).status.conditions
            return all(one.status for one in conditions if one.type == "RuntimeReady")

        await eventually(is_ready, False)
        without_engine = info(server)
    finally:
        engine.start()
    server.stop()
    without_server = info(server, "--json")
    server.start()
    away = "the server is running, but the engine does not respond: "
    absent = f"no server responds on {server.target}: start dockershim"
    for done, what in ((without_engine, away), (without_server, absent)):
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(f"dockershim: {what}")
        assert done.stderr.count("\n") == 1
