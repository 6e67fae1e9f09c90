"""Pods with user namespaces: what dockershim-runc adds to the engine, seen from within and from the node."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from docker import DockerClient

from dockershim.api.cri.v1 import api_pb2 as api
from dockershim.api.nri.v1alpha1 import api_pb2 as nri
from tests.cri_client import CRI
from tests.engine.measured import measured, stats
from tests.engine.noticed import NoticedEngine
from tests.engine.nri_plugins import adjusting, plugin
from tests.engine.pods import (
    BUSYBOX,
    create,
    ended,
    pod,
    process,
    process_status,
    refused,
    run,
    sandbox_status,
    sh,
    start,
    status,
)
from tests.engine.user_namespaces import A, B, mapping, of, pod_of, users
from tests.hostile_mounts import bound
from tests.node.server import Server
from tests.node.state import Snapshot

ENGINE = os.environ.get("TEST_NODE_ENGINE")
RUNTIME = "dockershim-runc"
FIELD = "userns_options"

pytestmark = pytest.mark.every_engine
able = pytest.mark.skipif(ENGINE == "20", reason="Docker 25 is the first that passes annotations to a runtime")


def runtime() -> str:
    """The program as the node has it, with a runc that has id-mapped mounts."""
    found = shutil.which(RUNTIME)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def server(engine_api: DockerClient, start_lasting_server: Callable[..., Server]) -> Iterator[Server]:
    """A server with the option, on an engine that has the runtime."""
    engine_api.images.pull(BUSYBOX)
    NoticedEngine().restart(f"--add-runtime={RUNTIME}={runtime()}")
    yield start_lasting_server(f"--oci-runtime={RUNTIME}", "--disk-usage-interval=1s")
    NoticedEngine().restart()


@pytest.fixture
async def cri(server: Server) -> AsyncIterator[CRI]:
    async with CRI(server.target) as connection:
        yield connection


def volume(path: Path, target: str, ids: api.IDMapping | None) -> api.Mount:
    mapped = [ids] if ids is not None else []
    return api.Mount(host_path=str(path), container_path=target, uidMappings=mapped, gidMappings=mapped)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A volume of root, with a file that nobody else may read."""
    (tmp_path / "secret").write_text("words")
    (tmp_path / "secret").chmod(0o600)
    return tmp_path


@pytest.fixture
def volumes(tmp_path: Path) -> Iterator[Path]:
    """A folder that is a mount, as that of a volume, with a folder for another mount."""
    subprocess.run(["mount", "--bind", tmp_path, tmp_path], check=True)
    subprocess.run(["mount", "--make-shared", tmp_path], check=True)
    (tmp_path / "below").mkdir()
    yield tmp_path
    subprocess.run(["umount", "--recursive", tmp_path], check=True)


@able
async def test_names_of_other_pods_volumes_do_not_matter(cri: CRI, tmp_path: Path) -> None:
    """dockershim-runc finds the root file system among all mounts of the node."""
    options = users([A])
    with bound(tmp_path):
        async with pod(cri, config := pod_of(options)) as sandbox_id:
            container_id = await start(cri, sandbox_id, of(options), config)
            assert await sh(cri, container_id, "tr -s ' ' </proc/self/uid_map") == " 0 200000 65536"


@able
async def test_a_pod_in_full(
    cri: CRI, engine_api: DockerClient, folder: Path, snapshot: Callable[[], Snapshot]
) -> None:
    before = snapshot()
    options = users([A], [B])
    config = pod_of(options, sysctls={"kernel.shm_rmid_forced": "1", "net.ipv4.ip_unprivileged_port_start": "80"})
    config.dns_config.servers.append("10.0.0.9")
    mount = volume(folder, "/volume", A)
    del mount.gidMappings[:]
    mount.gidMappings.append(B)
    async with pod(cri, config) as sandbox_id:
        found = await sandbox_status(cri, sandbox_id)
        assert found.linux.namespaces.options.userns_options == options.userns_options
        container_id = await start(
            cri, sandbox_id, of(options, "echo said >/dev/stdout; exec sleep 1000", mounts=[mount]), config
        )
        assert list((await status(cri, container_id)).mounts) == [mount]

        # The node sees other users than the container, which may do in its files and network what root may.
        for one, ids in ((sandbox_id, ("265535", str(B.host_id + 65535))), (container_id, ("200000", str(B.host_id)))):
            fields = process_status(process(engine_api, one))
            assert (fields["Uid"].split()[0], fields["Gid"].split()[0]) == ids
        assert await sh(cri, container_id, "id -u; id -g; tr -s ' ' </proc/self/uid_map") == "0\n0\n 0 200000 65536"
        assert await sh(cri, container_id, "cat /volume/secret; touch /volume/new; stat -c %u:%g /volume/new") == (
            "words0:0"
        )
        assert ((folder / "new").stat().st_uid, (folder / "new").stat().st_gid) == (0, 0)
        owned = "/ /bin /etc/passwd /etc/hosts /etc/resolv.conf /etc/hostname"
        assert await sh(cri, container_id, f"stat -c %u:%g {owned} | uniq") == "0:0"
        changes = "touch /own && chown 1000:1000 /own && rm /bin/ping && mv /bin/sync /tmp && stat -c %u:%g /own"
        assert await sh(cri, container_id, changes) == "1000:1000"
        assert "nameserver 10.0.0.9" in await sh(cri, container_id, "cat /etc/resolv.conf")
        assert f" {found.network.ip}/" in await sh(cri, container_id, "ip -4 addr show eth0")
        assert await sh(cri, container_id, "ls /sys/class/net | xargs; cat /proc/sys/net/ipv4/ping_group_range") == (
            "eth0 lo\n0\t65535"
        )
        assert await sh(cri, container_id, "cat /proc/sys/kernel/shm_rmid_forced") == "1"
        assert await sh(cri, container_id, "echo x >/dev/shm/x; stat -c %u /dev/shm/x") == "0"
        response = await run(cri, container_id, "sh", "-c", "echo out >/dev/stdout; echo err >/dev/stderr")
        assert (response.stdout, response.stderr) == (b"out\n", b"err\n")
        assert (await run(cri, container_id, "mknod", "/tmp/disk", "b", "8", "0")).exit_code == 1

        log = Path((await status(cri, container_id)).log_path).read_text()
        assert log.endswith("stdout F said\n")
        await sh(cri, container_id, "dd if=/dev/zero of=/large bs=1M count=3 2>/dev/null")
        await measured(cri, container_id, 3 << 20)
        assert (await stats(cri, container_id)).memory.usage_bytes.value > 0
        async with refused("FAILED_PRECONDITION", "user namespace"):
            wanted = api.CheckpointContainerRequest(container_id=container_id, location=f"{folder}/archive.tar")
            await cri.runtime.CheckpointContainer(wanted)
    assert snapshot().gained(before) == {}


@able
async def test_pods_cannot_see_each_others_ids(cri: CRI, engine_api: DockerClient, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    shared = volume(tmp_path, "/shared", None)
    one, other = users([A]), users([B])
    async with pod(cri, pod_of(one)) as first, pod(cri, pod_of(other)) as second:
        mine = await start(cri, first, of(one, mounts=[shared]), pod_of(one))
        theirs = await start(cri, second, of(other, mounts=[shared]), pod_of(other))
        await sh(cri, mine, "umask 077; echo secret >/shared/file")
        assert (tmp_path / "file").stat().st_uid == 200_000
        assert await sh(cri, theirs, "stat -c %u:%g /shared/file") == "65534:65534"
        for attempt in ("cat /shared/file", "chown 0 /shared/file", "chmod 777 /shared/file"):
            assert (await run(cri, theirs, "sh", "-c", attempt)).exit_code != 0
        # A program that runs as its owner does not in another pod, where nobody has that id.
        await sh(cri, mine, "cp /bin/busybox /shared/id; chmod 4755 /shared/id")
        assert "uid=0(root)" in await sh(cri, theirs, "/shared/id")
        uids = {process_status(process(engine_api, id_))["Uid"].split()[0] for id_ in (mine, theirs)}
        assert uids == {"200000", str(B.host_id)}


@able
async def test_mounts_that_come_later_reach_a_volume_with_mapped_ids(cri: CRI, volumes: Path) -> None:
    options = users([A])
    config = pod_of(options)
    mount = volume(volumes, "/volume", A)
    mount.propagation = api.PROPAGATION_HOST_TO_CONTAINER
    async with pod(cri, config) as sandbox_id:
        container_id = await start(cri, sandbox_id, of(options, mounts=[mount]), config)
        subprocess.run(["mount", "-t", "tmpfs", "none", volumes / "below"], check=True)
        (volumes / "below/mark").touch()
        assert await sh(cri, container_id, "ls /volume/below") == "mark"
        mount.propagation = api.PROPAGATION_BIDIRECTIONAL
        async with refused("INVALID_ARGUMENT", "uidMappings", "bidirectional propagation"):
            await create(cri, sandbox_id, of(options, name="both", mounts=[mount]), config)


@able
async def test_the_engines_own_network(start_server: Callable[..., Server], server: Server) -> None:
    options = users([A])
    config = pod_of(options)
    own = start_server("--network-plugin=docker", f"--oci-runtime={RUNTIME}")
    async with CRI(own.target) as cri, pod(cri, config) as sandbox_id:
        address = (await sandbox_status(cri, sandbox_id)).network.ip
        container_id = await start(cri, sandbox_id, of(options), config)
        assert f" {address}/" in await sh(cri, container_id, "ip -4 addr show eth0")
        assert await sh(cri, container_id, "stat -c %u /etc/hosts /etc/resolv.conf | uniq") == "0"


@able
async def test_nri_plugins_change_a_container_of_such_a_pod(
    start_server: Callable[..., Server], server: Server, engine_api: DockerClient, volumes: Path
) -> None:
    """Annotations and mounts of a plugin leave the container in its pod's user namespace."""
    options, socket = users([A]), Path("/run/nri-users/nri.sock")
    config, mounts = pod_of(options), [volume(volumes, "/one", A), volume(volumes, "/other", A)]
    own = start_server(f"--oci-runtime={RUNTIME}", "--nri", f"--nri-socket={socket}")
    change = adjusting(annotations={"by": "plugin"}, mounts=[nri.Mount(destination="-/one")])
    async with CRI(own.target) as cri, plugin(socket, change), pod(cri, config) as sandbox_id:
        container_id = await start(cri, sandbox_id, of(options, mounts=mounts), config)
        assert process_status(process(engine_api, container_id))["Uid"].split()[0] == str(A.host_id)
        assert (await status(cri, container_id)).annotations["by"] == "plugin"
        assert await sh(cri, container_id, "ls -d /one /other; stat -c %u /other") == "/other\n0"


@able
async def test_users_and_privileges_within(cri: CRI) -> None:
    options, user = users([A]), api.Int64Value(value=1000)
    config = pod_of(options)
    async with pod(cri, config) as sandbox_id:
        plain = of(options, name="plain", run_as_user=user, run_as_group=api.Int64Value(value=33))
        container_id = await start(cri, sandbox_id, plain, config)
        assert await sh(cri, container_id, "id -u; id -g; echo x >/tmp/x; stat -c %u:%g /tmp/x") == "1000\n33\n1000:33"
        response = await run(cri, container_id, "sh", "-c", "echo err >/dev/stderr")
        assert response.stderr == b"err\n"
        strong = await start(cri, sandbox_id, of(options, name="strong", privileged=True), config)
        assert await sh(cri, strong, "mount -t tmpfs none /mnt && stat -f -c %T /mnt") == "tmpfs"
        assert (await run(cri, strong, "sh", "-c", "echo 1 >/proc/sys/vm/drop_caches")).exit_code != 0
        terminal = await start(
            cri, sandbox_id, of(options, "test -t 0 && ls -l /dev/console", name="tty", tty=True), config
        )
        assert (await ended(cri, terminal)).exit_code == 0


@able
async def test_a_pod_outlives_server_and_engine(server: Server, engine_api: DockerClient, folder: Path) -> None:
    options = users([A])
    config = pod_of(options)
    flags = (f"--add-runtime={RUNTIME}={runtime()}", "--live-restore")
    NoticedEngine().restart(*flags)
    async with CRI(server.target) as cri, pod(cri, config) as sandbox_id:
        container_id = await start(cri, sandbox_id, of(options, name="first"), config)
        server.restart()
        NoticedEngine().restart(*flags)
        assert (await sandbox_status(cri, sandbox_id)).linux.namespaces.options.userns_options.uids == [A]
        assert await sh(cri, container_id, "touch /new && stat -c %u /new") == "0"
        again = await start(cri, sandbox_id, of(options, name="second", mounts=[volume(folder, "/v", A)]), config)
        assert await sh(cri, again, "cat /v/secret") == "words"
    NoticedEngine().restart(flags[0])


@able
async def test_status_tells_the_handlers_that_can(cri: CRI) -> None:
    handlers = (await cri.runtime.Status(api.StatusRequest())).runtime_handlers
    assert {one.name: one.features.user_namespaces for one in handlers} == dict.fromkeys(
        ("", "docker", "runc", "io.containerd.runc.v2", RUNTIME), True
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        pytest.param(users([]), "one mapping", id="no mapping"),
        pytest.param(users([A, B]), "one mapping", id="two mappings"),
        pytest.param(users([mapping(1, container_id=1)]), "container_id 0", id="root is not mapped"),
        pytest.param(users([A], [mapping(1, 2)]), "same length", id="two lengths"),
        pytest.param(users([mapping(0)]), "must be between", id="the node's root"),
        pytest.param(users([mapping(1, 0)]), "must be between", id="no ids"),
        pytest.param(users([mapping(2**32 - 1, 2**32 - 1)]), "must be between", id="more ids than there are"),
        pytest.param(users([A], network=api.NODE), "network", id="the node's network"),
        pytest.param(users([A], pid=api.NODE), "pid", id="the node's processes"),
        pytest.param(users([A], ipc=api.NODE), "ipc", id="the node's IPC"),
    ],
)
async def test_namespaces_that_cannot_be(cri: CRI, options: api.NamespaceOption, words: str) -> None:
    async with refused("INVALID_ARGUMENT", FIELD, words), pod(cri, pod_of(options)):
        pass


@able
async def test_containers_that_do_not_fit_their_pod(cri: CRI, folder: Path) -> None:
    options = users([A])
    config = pod_of(options)
    async with pod(cri, config) as mapped, pod(cri) as plain:
        for sandbox_id, asked in ((mapped, users([B])), (mapped, api.NamespaceOption()), (plain, options)):
            async with refused("INVALID_ARGUMENT", FIELD, "the sandbox's"):
                await create(cri, sandbox_id, of(asked), config)
        for mount, words in (
            (volume(folder, "/v", B), "the mappings of the pod's"),
            (volume(folder, "/a\\b", A), "backslash"),
            (api.Mount(host_path="/etc", container_path="/v", uidMappings=[A]), "the mappings of the pod's"),
        ):
            async with refused("INVALID_ARGUMENT", "uidMappings", words):
                await create(cri, mapped, of(options, mounts=[mount]), config)
        # The runtime reads a path in each line: this one would map the two others.
        plain_ones = [volume(folder, "/a", None), volume(folder, "/b", None)]
        async with refused("INVALID_ARGUMENT", "mounts.container_path", "control characters"):
            await create(cri, mapped, of(options, mounts=[volume(folder, "/a\n/b", A), *plain_ones]), config)
        async with refused("INVALID_ARGUMENT", "uidMappings", "with a user namespace"):
            await create(cri, plain, of(api.NamespaceOption(), mounts=[volume(folder, "/v", A)]))


@able
async def test_a_volume_without_id_mapped_mounts_fails_the_start(cri: CRI) -> None:
    """sysfs stands for file systems whose ids cannot be mapped, such as NFS."""
    options = users([A])
    config = pod_of(options)
    async with pod(cri, config) as sandbox_id:
        container_id = await create(cri, sandbox_id, of(options, mounts=[volume(Path("/sys/class"), "/v", A)]), config)
        async with refused("INTERNAL", "/sys/class", "invalid argument"):
            await cri.runtime.StartContainer(api.StartContainerRequest(container_id=container_id))
        assert (await status(cri, container_id)).state == api.CONTAINER_EXITED


@pytest.mark.parametrize(
    ("option", "words"),
    [
        pytest.param(None, "--oci-runtime is not set", id="not set"),
        pytest.param("runc", "no runtime 'runc' with a path", id="runc"),
        pytest.param("none-such", "no runtime 'none-such'", id="unknown"),
        pytest.param("other", "is not dockershim-runc", id="another program"),
        pytest.param("old", "runc 1.2 or newer", id="with an old runc"),
    ],
)
async def test_without_the_right_runtime_it_is_refused(
    option: str | None, words: str, engine_api: DockerClient, start_server: Callable[..., Server], tmp_path: Path
) -> None:
    programs = Path(runtime()).parent
    other = tmp_path / "other"
    other.write_text(f'#!/bin/sh\nPATH={programs.parent}/newer-runc:$PATH exec runc "$@"\n')
    old = tmp_path / "old"
    old.write_text(f'#!/bin/sh\ntest "$1" = --dockershim-probe && exec {runtime()} "$@"\nexec runc "$@"\n')
    for one in (other, old):
        one.chmod(0o755)
    NoticedEngine().restart(
        f"--add-runtime=other={other}", f"--add-runtime=old={old}", f"--add-runtime={RUNTIME}={runtime()}"
    )
    server = start_server(*([f"--oci-runtime={option}"] if option else []))
    async with CRI(server.target) as cri:
        handlers = (await cri.runtime.Status(api.StatusRequest())).runtime_handlers
        assert [one.name for one in handlers if one.features.user_namespaces] == []
        told = words if ENGINE != "20" or option is None else "Docker 25"
        async with refused("INVALID_ARGUMENT", FIELD, told), pod(cri, pod_of(users([A]))):
            pass
    assert option is None or "user namespaces of pods are not supported" in server.log.read_text()


@able
async def test_a_runtime_that_was_replaced_is_noticed(
    start_server: Callable[..., Server], engine_api: DockerClient, tmp_path: Path, snapshot: Callable[[], Snapshot]
) -> None:
    """An infra container that runs with the node's users is no pod."""
    before = snapshot()
    program = tmp_path / "program"
    program.write_text(f'#!/bin/sh\nexec {runtime()} "$@"\n')
    program.chmod(0o755)
    NoticedEngine().restart(f"--add-runtime=replaced={program}", f"--add-runtime={RUNTIME}={runtime()}")
    server = start_server("--oci-runtime=replaced")
    options = users([A])
    config = pod_of(options)
    async with CRI(server.target) as cri:
        async with pod(cri, config) as sandbox_id:
            container_id = await create(cri, sandbox_id, of(options), config)
            program.write_text('#!/bin/sh\nexec runc "$@"\n')
            async with refused("INTERNAL", "without its user namespace"):
                await cri.runtime.StartContainer(api.StartContainerRequest(container_id=container_id))
            assert (await status(cri, container_id)).state == api.CONTAINER_EXITED
        async with refused("INTERNAL", "without its user namespace"), pod(cri, pod_of(options)):
            pass
    assert snapshot().gained(before) == {}
