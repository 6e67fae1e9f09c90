"""CDI devices: an engine that has no CDI gives containers the same as one that reads the specifications itself."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from docker import DockerClient

from dockershim.api.cri.v1 import api_pb2 as api
from tests.cri_client import CRI
from tests.engine.hung import hung
from tests.engine.pods import (
    BUSYBOX,
    container,
    container_config,
    containers,
    create,
    ended,
    linux_container,
    pod,
    refused,
    start,
)
from tests.node.engine import Engine
from tests.node.server import Server

KIND = "tests.example/device"
ETC, RUN = Path("/etc/cdi"), Path("/var/run/cdi")
ENGINE = os.environ.get("TEST_NODE_ENGINE")
#: Docker 25 was the first with CDI.
ENGINE_HAS_CDI = ENGINE != "20"

Write = Callable[[Path, str], None]


@pytest.fixture(autouse=True, scope="module")
def image(engine_api: DockerClient) -> None:
    engine_api.images.pull(BUSYBOX)


@pytest.fixture
def write() -> Iterator[Write]:
    """`write(path, text)`: a specification for the length of a test."""
    written: list[Path] = []
    folders = [folder for folder in (ETC, RUN) if not folder.exists()]

    def write(path: Path, text: str) -> None:
        path.parent.mkdir(exist_ok=True)
        written.append(path)
        path.write_text(text)

    yield write
    for path in written:
        path.unlink()
    for folder in folders:
        if folder.exists():
            folder.rmdir()


def spec(*devices: dict[str, Any], **fields: Any) -> str:
    return json.dumps({"cdiVersion": "0.7.0", "kind": KIND, "devices": devices, **fields})


def device(name: str = "0", **edits: Any) -> dict[str, Any]:
    return {"name": name, "containerEdits": edits or {"env": [f"DEVICE_{name}=there"]}}


def asking(*names: str, **fields: Any) -> api.ContainerConfig:
    return container_config(CDI_devices=[api.CDIDevice(name=f"{KIND}={name}") for name in names], **fields)


YAML = f"""\
cdiVersion: 0.7.0
kind: {KIND}
containerEdits:
  env: [EVERY=device, LEVEL=all]
devices:
- name: "0"
  containerEdits:
    env:
    - LEVEL=one
    - ASKED=device
    deviceNodes:
    - {{path: /dev/mine, hostPath: /dev/loop-control, permissions: r}}
    - {{path: /dev/mine-too, hostPath: /dev/loop-control, type: c, major: 10, minor: 237, permissions: r}}
    mounts:
    - hostPath: %s
      containerPath: /given
      options: [ro, rbind, rprivate]
    - hostPath: %s
      containerPath: /data
      options: [rw, bind]
- name: "1"
  containerEdits:
    env: [LEVEL=etc]
"""


async def output(cri: CRI, engine_api: DockerClient, config: api.ContainerConfig) -> str:
    """What the container's own process prints: an engine's own CDI changes no command that is run beside it."""
    async with container(cri, config) as container_id:
        await ended(cri, container_id)
        logs: bytes = engine_api.api.logs(container_id)
        return logs.decode()


LOOK = """\
echo $EVERY $LEVEL $ASKED $POD $RUN
ls /given /data
touch /given/new 2>/dev/null || echo given is read-only
touch /data/new && echo data can be written
stat -c '%t:%T' /dev/mine
: </dev/mine && echo mine can be read
(: >/dev/mine) 2>/dev/null || echo mine cannot be written
test -c /dev/mine-too && echo mine-too is there
"""
SEEN = """\
device one device too counts more
/data:
data

/given:
given
given is read-only
data can be written
a:ed
mine can be read
mine cannot be written
mine-too is there
"""


@pytest.mark.every_engine
async def test_a_container_gets_what_its_devices_say(
    cri: CRI, engine_api: DockerClient, write: Write, tmp_path: Path
) -> None:
    for name in "given", "data":
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    write(ETC / "tests.yaml", YAML % (tmp_path / "given", tmp_path / "data"))
    write(RUN / "tests.json", spec(device("1", env=["RUN=counts more"])))
    write(ETC / "malformed.json", spec(device())[:-1])
    config = asking(
        "0",
        command=LOOK,
        annotations={"cdi.k8s.io/plugin_0": f"{KIND}=1,{KIND}=0"},
        envs=[api.KeyValue(key="ASKED", value=b"pod"), api.KeyValue(key="POD", value=b"too")],
    )
    assert await output(cri, engine_api, config) == SEEN


@pytest.fixture
def engine_without_cdi(engine: Engine) -> Iterator[None]:
    """An engine with its CDI turned off, if it has any."""
    engine.restart(*(["--feature=cdi=false"] if ENGINE_HAS_CDI else []))
    yield
    engine.restart()


async def test_an_engine_whose_cdi_is_off_gives_the_same(
    engine_without_cdi: None, cri: CRI, engine_api: DockerClient, write: Write, tmp_path: Path
) -> None:
    assert not engine_api.info().get("CDISpecDirs")
    await test_a_container_gets_what_its_devices_say(cri, engine_api, write, tmp_path)


async def test_a_folder_of_specifications_that_hangs_concerns_only_who_needs_it(
    engine_without_cdi: None, start_server: Callable[..., Server], write: Write
) -> None:
    write(RUN / "tests.json", spec(device()))
    async with CRI(start_server("--network-plugin=docker").target) as cri, pod(cri) as sandbox_id:
        with hung(ETC):
            calls = [asyncio.create_task(create(cri, sandbox_id, asking("0", name=name))) for name in ("a", "b")]
            async with asyncio.timeout(8):
                await start(cri, sandbox_id)
            for call in calls:
                with pytest.raises(
                    grpc.aio.AioRpcError, match="the file system at /etc/cdi does not respond"
                ) as caught:
                    await call
                assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            async with asyncio.timeout(8), refused("FAILED_PRECONDITION", "'/etc/cdi'", "does not respond"):
                await create(cri, sandbox_id, asking("0", name="c"))
        assert await create(cri, sandbox_id, asking("0", name="d"))


FLAGS = ["nosuid", "nodev", "noexec"]


@pytest.mark.every_engine
async def test_flags_of_the_hosts_mount_are_kept(
    cri: CRI, engine_api: DockerClient, write: Write, tmp_path: Path
) -> None:
    """An engine without CDI cannot set them, and has no way to keep them for a mount that it makes read-only."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", ",".join(FLAGS), "none", tmp_path], check=True)
    try:
        mount = {"hostPath": str(tmp_path), "containerPath": "/given", "options": ["rbind", "rw", *FLAGS]}
        read_only = mount | {"options": ["rbind", "ro", *FLAGS]}
        write(ETC / "tests.json", spec(device(mounts=[mount]), device("ro", mounts=[read_only])))
        look = asking("0", command="grep ' /given ' /proc/self/mountinfo | cut -d' ' -f6")
        assert await output(cri, engine_api, look) == "rw,nosuid,nodev,noexec,relatime\n"
        if not ENGINE_HAS_CDI:
            refusal = refused("INVALID_ARGUMENT", "cannot set nosuid of a read-only mount")
            async with pod(cri) as sandbox_id, refusal:
                await create(cri, sandbox_id, asking("ro"))
    finally:
        subprocess.run(["umount", tmp_path], check=True)


@pytest.mark.every_engine
async def test_groups_and_mounts_of_devices_meet_those_of_the_pod(
    cri: CRI, engine_api: DockerClient, write: Write, tmp_path: Path
) -> None:
    """Ours count as in other runtimes. Engines with CDI make the mounts of the pod after it, and 28 its groups, too."""
    for name in "device", "pod":
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    mount = {"hostPath": str(tmp_path / "device"), "containerPath": "/data", "options": ["rbind"]}
    write(ETC / "tests.json", spec(device(mounts=[mount], additionalGids=[4711])))
    config = asking(
        "0",
        command="ls /data; id -G | tr ' ' '\\n' | grep -x -e 815 -e 4711",
        mounts=[api.Mount(host_path=str(tmp_path / "pod"), container_path="/data")],
        linux=linux_container(supplemental_groups=[815]),
    )
    mounted = "pod" if ENGINE_HAS_CDI else "device"
    groups = "815" if ENGINE == "28" else "815\n4711"
    assert await output(cri, engine_api, config) == f"{mounted}\n{groups}\n"


MISSING: dict[str, Any] = {"deviceNodes": [{"path": "/dev/none"}]}
NO_MOUNT: dict[str, Any] = {"mounts": [{"hostPath": "/none", "containerPath": "/c", "options": ["rbind"]}]}


@pytest.mark.every_engine
@pytest.mark.parametrize(
    ("files", "mentions"),
    [
        pytest.param({}, (), id="nobody knows it"),
        pytest.param({ETC / "a.json": spec(device("1"))}, (), id="its specification does not know it"),
        pytest.param({ETC / "a.json": spec(device())[:-1]}, ("'/etc/cdi/a.json'",), id="its file is malformed"),
        pytest.param(
            {ETC / "a.json": spec(device()), ETC / "b.yaml": spec(device())},
            ("'/etc/cdi/a.json' and '/etc/cdi/b.yaml'",),
            id="two specifications have it",
        ),
        pytest.param({RUN / "a.json": spec(device(**MISSING))}, ("/dev/none",), id="the host has no such device"),
        pytest.param({RUN / "a.json": spec(device(**NO_MOUNT))}, ("/none",), id="the host has no such path"),
    ],
)
@pytest.mark.parametrize("asks", [pytest.param("field", id="field"), pytest.param("annotation", id="annotation")])
async def test_a_device_that_cannot_be_had(
    cri: CRI, write: Write, files: dict[Path, str], mentions: tuple[str, ...], asks: str
) -> None:
    """An engine with CDI looks for the device when the container starts."""
    for path, text in files.items():
        write(path, text)
    annotated = container_config(annotations={"cdi.k8s.io/plugin_0": f"{KIND}=0"})
    config = asking("0") if asks == "field" else annotated
    async with pod(cri) as sandbox_id:
        if ENGINE_HAS_CDI:
            with pytest.raises(grpc.aio.AioRpcError, match=r"POST /containers/\w+/start: engine: "):
                await start(cri, sandbox_id, config)
        else:
            async with refused("FAILED_PRECONDITION", f"CDI_devices[{KIND}=0]: ", *mentions):
                await create(cri, sandbox_id, config)
            assert await containers(cri) == {}


@pytest.mark.every_engine
async def test_hooks_need_an_engine_with_cdi(cri: CRI, engine_api: DockerClient, write: Write, tmp_path: Path) -> None:
    made = tmp_path / "made by the hook"
    hook = {"hookName": "createRuntime", "path": "/usr/bin/touch", "args": ["touch", str(made)]}
    write(ETC / "tests.json", spec(device(hooks=[hook]), device("1")))
    if ENGINE_HAS_CDI:
        async with container(cri, asking("0")):
            assert made.exists()
    else:
        async with pod(cri) as sandbox_id:
            async with refused("INVALID_ARGUMENT", "hooks['createRuntime' '/usr/bin/touch']", "/etc/cdi", "Docker 25"):
                await create(cri, sandbox_id, asking("0"))
            assert await containers(cri) == {}
    # The other device of the specification can be had.
    assert await output(cri, engine_api, asking("1", command="echo $DEVICE_1")) == "there\n"


async def test_a_name_that_is_none_is_refused(cri: CRI) -> None:
    async with pod(cri) as sandbox_id:
        async with refused("INVALID_ARGUMENT", "CDI_devices: 'gpu' must be vendor.com/class=name"):
            await create(cri, sandbox_id, container_config(CDI_devices=[api.CDIDevice(name="gpu")]))
        assert await containers(cri) == {}
