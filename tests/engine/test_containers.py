"""The container calls of the RuntimeService as api.proto describes them."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from docker import DockerClient

from dockershim.api.cri.v1 import api_pb2 as api
from tests.cri_client import CRI
from tests.engine.pods import (
    BUSYBOX,
    arrived,
    cgroup_file,
    container_config,
    containers,
    create,
    ended,
    linux_container,
    linux_sandbox,
    pod,
    process,
    process_status,
    refused,
    remove,
    run,
    sandbox_config,
    sh,
    start,
    status,
    stop,
)
from tests.engine.pods import container as container_and_pod
from tests.node.server import Server
from tests.waiting import answer, eventually, until

ENGINE = os.environ.get("TEST_NODE_ENGINE")
#: Seconds in which CreateContainer comes a little further.
MOMENT = 0.002
PRIVILEGED = linux_sandbox(privileged=True)
MIB = 1024 * 1024


@pytest.fixture(autouse=True, scope="module")
def image(engine_api: DockerClient) -> str:
    found = engine_api.images.pull(BUSYBOX)
    return str(found.id)


#: The pod of `everybodys`, while it is there.
_shared: list[tuple[str, api.PodSandboxConfig]] = []


@pytest_asyncio.fixture(scope="module", loop_scope="module", autouse=True)
async def everybodys(server: Server, image: str) -> AsyncIterator[None]:
    """A pod for the containers of all tests that need none of their own: making a pod takes as long as a container."""
    async with CRI(server.target) as cri, pod(cri, config := sandbox_config()) as sandbox_id:
        _shared.append((sandbox_id, config))
        yield
        _shared.clear()


@asynccontextmanager
async def container(
    cri: CRI, config: api.ContainerConfig | None = None, sandbox: api.PodSandboxConfig | None = None
) -> AsyncIterator[str]:
    """A started container for the length of a block, in a pod of its own if there is a configuration of one; its id."""
    if sandbox is not None:
        async with container_and_pod(cri, config, sandbox) as container_id:
            yield container_id
        return
    ((sandbox_id, of_pod),) = _shared
    container_id = await create(cri, sandbox_id, config or container_config(), of_pod)
    try:
        await cri.runtime.StartContainer(api.StartContainerRequest(container_id=container_id))
        yield container_id
    finally:
        await remove(cri, container_id)


async def output(cri: CRI, engine_api: DockerClient, config: api.ContainerConfig) -> str:
    """What a container prints until its end."""
    async with container(cri, config) as container_id:
        await ended(cri, container_id)
        logs: bytes = engine_api.api.logs(container_id)
        return logs.decode()


def security(**context: Any) -> api.ContainerConfig:
    return container_config(linux=linux_container(**context))


# The process


@pytest.mark.every_engine
@pytest.mark.parametrize(
    ("command", "args", "expected"),
    [
        pytest.param(["echo", "a b"], [], "a b\n", id="command alone"),
        pytest.param(["echo"], ["a", "", "$HOME"], "a  $HOME\n", id="command and args, no shell in between"),
        pytest.param([], ["echo", "of the args"], "of the args\n", id="args alone, an image without an entrypoint"),
    ],
)
async def test_command_and_args(
    cri: CRI, engine_api: DockerClient, command: list[str], args: list[str], expected: str
) -> None:
    config = container_config()
    config.command[:], config.args[:] = command, args
    assert await output(cri, engine_api, config) == expected


@pytest.mark.every_engine
async def test_args_replace_the_images_command_and_keep_its_entrypoint(cri: CRI, engine_api: DockerClient) -> None:
    name = "with-entrypoint:1"
    made = engine_api.containers.create(BUSYBOX)
    made.commit("with-entrypoint", "1", changes='ENTRYPOINT ["echo", "entry"]\nCMD ["cmd"]')
    made.remove()
    try:
        config = container_config(image=api.ImageSpec(image=name))
        for command, args, expected in (
            ([], [], "entry cmd\n"),
            ([], ["args"], "entry args\n"),
            (["echo", "command"], [], "command\n"),
            (["echo", "command"], ["args"], "command args\n"),
        ):
            config.command[:], config.args[:] = command, args
            assert await output(cri, engine_api, config) == expected
    finally:
        engine_api.images.remove(name)


@pytest.mark.every_engine
async def test_environment_and_working_directory(cri: CRI, engine_api: DockerClient) -> None:
    envs = [api.KeyValue(key="A", value=b"1=2 \n\xe2\x9c\x93"), api.KeyValue(key="EMPTY", value=b"")]
    config = container_config('printf "%s|%s|%s" "$A" "${EMPTY-unset}" "$PWD"', envs=envs, working_dir="/var/run")
    assert await output(cri, engine_api, config) == "1=2 \n✓||/var/run"


@pytest.mark.every_engine
async def test_tty(cri: CRI) -> None:
    for wanted in (True, False):
        async with container(cri, container_config("tty >/tmp/tty; exec sleep 1000", tty=wanted)) as container_id:
            name = await answer(lambda: sh(cri, container_id, "cat /tmp/tty || true"), bool)
            assert name.startswith("/dev/") is wanted


@pytest.mark.every_engine
async def test_without_stdin_a_reader_sees_the_end_at_once(cri: CRI) -> None:
    async with container(cri, container_config("cat; echo done")) as container_id:
        assert (await ended(cri, container_id)).exit_code == 0


@pytest.mark.every_engine
async def test_stdin_stays_open_without_an_attached_client(cri: CRI, engine_api: DockerClient) -> None:
    async with container(cri, container_config("exec cat", stdin=True)) as container_id:
        first = process(engine_api, container_id)
        # It sleeps only in a read: at the end of its input it would have ended.
        await until(lambda: process_status(first)["Name"] == "cat" and process_status(first)["State"].startswith("S"))
        assert (await status(cri, container_id)).state == api.CONTAINER_RUNNING


@pytest.mark.every_engine
@pytest.mark.parametrize("once", [True, False])
async def test_stdin_once_ends_with_the_first_client(cri: CRI, engine_api: DockerClient, once: bool) -> None:
    async with container(cri, container_config("exec cat", stdin=True, stdin_once=once)) as container_id:
        with attached(container_id):
            pass
        if once:
            assert (await ended(cri, container_id)).exit_code == 0
        else:
            for number in range(3):
                with attached(container_id) as client:
                    client.sendall(b"%d\n" % number)
                    await until(lambda: engine_api.api.logs(container_id, tail=1) == b"%d\n" % number)  # noqa: B023
            assert (await status(cri, container_id)).state == api.CONTAINER_RUNNING


@contextmanager
def attached(container_id: str) -> Iterator[socket.socket]:
    """A client of the engine that gives a container its input."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect("/run/docker.sock")
        client.sendall(
            f"POST /containers/{container_id}/attach?stdin=1&stream=1 HTTP/1.1\r\n"
            "Host: engine\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n".encode()
        )
        assert client.recv(64).startswith(b"HTTP/1.1 101")
        yield client


# Users and rights


@pytest.mark.every_engine
@pytest.mark.parametrize(
    ("context", "expected"),
    [
        pytest.param({}, "uid=0(root) gid=0(root)", id="the image's own"),
        pytest.param({"run_as_user": 1000}, "uid=1000(default-user) gid=1000(default-user)", id="user by id"),
        pytest.param({"run_as_username": "www-data"}, "uid=33(www-data) gid=33(www-data)", id="user by name"),
        pytest.param({"run_as_user": 12345, "run_as_group": 54321}, "uid=12345 gid=54321", id="ids nobody knows"),
        pytest.param({"run_as_username": "www-data", "run_as_group": 7}, "uid=33(www-data) gid=7", id="name and group"),
        pytest.param({"run_as_user": 0, "run_as_group": 0}, "uid=0(root) gid=0(root)", id="root, explicitly"),
    ],
)
async def test_user_and_group(cri: CRI, context: dict[str, Any], expected: str) -> None:
    values = {name: api.Int64Value(value=value) if isinstance(value, int) else value for name, value in context.items()}
    async with container(cri, security(**values)) as container_id:
        assert (await sh(cri, container_id, "id")).startswith(expected)


@pytest.mark.every_engine
async def test_supplemental_groups(cri: CRI, engine_api: DockerClient) -> None:
    context = {"run_as_user": api.Int64Value(value=1000), "supplemental_groups": [4000, 5000]}
    async with container(cri, security(**context)) as container_id:
        assert {"4000", "5000"} <= set(process_status(process(engine_api, container_id))["Groups"].split())


@pytest.fixture
def make_image(engine_api: DockerClient) -> Iterator[Callable[..., str]]:
    """`make_image(command, user)`: an image in which a shell command has run, with this USER; its name."""
    names: list[str] = []

    def make(command: str, user: str = "") -> str:
        made = engine_api.containers.run(BUSYBOX, ["sh", "-ec", command], detach=True)
        try:
            assert made.wait()["StatusCode"] == 0
            names.append(f"changed:{len(names)}")
            made.commit(*names[-1].split(":"), changes=[f'USER "{user}"'] if user else None)
        finally:
            made.remove()
        return names[-1]

    yield make
    for name in names:
        engine_api.images.remove(name)


async def ids(cri: CRI, engine_api: DockerClient, image: str, **context: Any) -> tuple[int, int, set[int]]:
    """The user, the group and the other groups of a container's process, which are those of its status."""
    config = container_config(image=api.ImageSpec(image=image), linux=linux_container(**context))
    async with container(cri, config) as container_id:
        found = process_status(process(engine_api, container_id))
        user, group = (int(found[name].split()[0]) for name in ("Uid", "Gid"))
        groups = set(map(int, found["Groups"].split()))

        async def shown() -> tuple[int, int, list[int]]:
            linux = (await status(cri, container_id)).user.linux
            return linux.uid, linux.gid, sorted(linux.supplemental_groups)

        # A status does not wait for long until the image's users are read; a later one tells them.
        await eventually(shown, (user, group, sorted(groups)))
    return user, group, groups - {group}


ADD_ALICE = "echo alice:x:1234:1235::/: >>/etc/passwd; echo extra:x:50000:alice >>/etc/group"
ALICE, NOBODY, GROUP = (api.Int64Value(value=value) for value in (1234, 7777, 3000))


@pytest.mark.every_engine
async def test_groups_of_the_image_are_merged_or_not_as_the_policy_says(
    cri: CRI, engine_api: DockerClient, make_image: Callable[..., str]
) -> None:
    """The engine merges them if no group is asked for beside the user, and else not."""
    image, with_group = make_image(ADD_ALICE), make_image(ADD_ALICE, "alice:3000")
    named_group = make_image(ADD_ALICE, "alice:extra")
    before = len(engine_api.api.containers(all=True))
    cases: list[tuple[str, dict[str, Any], int, tuple[int, int, set[int]]]] = [
        (image, {"run_as_username": "alice"}, api.Merge, (1234, 1235, {50000})),
        (named_group, {}, api.Strict, (1234, 50000, set())),
        (image, {"run_as_user": ALICE, "run_as_group": GROUP}, api.Merge, (1234, 3000, {50000})),
        (with_group, {}, api.Merge, (1234, 3000, {50000})),
        (image, {"run_as_user": ALICE}, api.Strict, (1234, 1235, set())),
        (image, {"run_as_user": ALICE, "run_as_group": GROUP}, api.Strict, (1234, 3000, set())),
        (with_group, {}, api.Strict, (1234, 3000, set())),
        (image, {"run_as_user": NOBODY}, api.Strict, (7777, 0, set())),
    ]
    for name, context, policy, (user, group, others) in cases:
        asked = {**context, "supplemental_groups": [4000], "supplemental_groups_policy": policy}
        assert await ids(cri, engine_api, name, **asked) == (user, group, others | {4000}), (name, asked)
    assert len(engine_api.api.containers(all=True)) == before


async def test_groups_of_images_with_odd_files(
    cri: CRI, engine_api: DockerClient, make_image: Callable[..., str]
) -> None:
    asked = {"run_as_user": ALICE, "run_as_group": GROUP}
    linked = make_image(f"{ADD_ALICE}; mv /etc/passwd /home/users; ln -s ../home/users /etc/passwd")
    assert await ids(cri, engine_api, linked, **asked) == (1234, 3000, {50000})
    neither = make_image("rm /etc/passwd /etc/group")
    assert await ids(cri, engine_api, neither, **asked) == (1234, 3000, set())
    outside = make_image("rm /etc/passwd; ln -s ../../../../../../proc/self/environ /etc/passwd")
    assert await ids(cri, engine_api, outside, **asked) == (1234, 3000, set())
    before = len(engine_api.api.containers(all=True))
    large = make_image("head -c 2000000 /dev/zero >>/etc/passwd")
    async with refused("FAILED_PRECONDITION", "/etc/passwd"):
        await ids(cri, engine_api, large, **asked)
    endless = make_image("ln -sf passwd /etc/passwd")
    async with refused("INTERNAL", "/etc/passwd"):
        await ids(cri, engine_api, endless, **asked)
    assert len(engine_api.api.containers(all=True)) == before


def capabilities(process: Path) -> int:
    return int(process_status(process)["CapBnd"], 16)


_CHOWN, _NET_ADMIN, _SYS_ADMIN = 0, 12, 21


@pytest.mark.every_engine
@pytest.mark.parametrize(
    ("asked", "there", "absent"),
    [
        pytest.param(api.Capability(), {_CHOWN}, {_NET_ADMIN, _SYS_ADMIN}, id="the engine's own"),
        pytest.param(api.Capability(add_capabilities=["NET_ADMIN"]), {_NET_ADMIN}, {_SYS_ADMIN}, id="add"),
        pytest.param(api.Capability(add_capabilities=["CAP_NET_ADMIN"]), {_NET_ADMIN}, set(), id="with the prefix"),
        pytest.param(api.Capability(drop_capabilities=["CHOWN"]), set(), {_CHOWN}, id="drop"),
        pytest.param(api.Capability(drop_capabilities=["ALL"]), set(), set(range(41)), id="drop all"),
        pytest.param(
            api.Capability(add_capabilities=["ALL"]),
            {_CHOWN, _NET_ADMIN, _SYS_ADMIN},
            set(),
            id="add all",
        ),
        pytest.param(
            api.Capability(add_capabilities=["NET_ADMIN"], drop_capabilities=["ALL"]),
            {_NET_ADMIN},
            set(range(41)) - {_NET_ADMIN},
            id="all but one",
        ),
        pytest.param(
            api.Capability(add_capabilities=["NET_ADMIN"], drop_capabilities=["cap_net_admin"]),
            {_CHOWN},
            {_NET_ADMIN},
            id="what is dropped is not added",
        ),
        pytest.param(
            api.Capability(add_capabilities=["ALL", "NET_ADMIN"], drop_capabilities=["ALL"]),
            {_NET_ADMIN},
            set(range(41)) - {_NET_ADMIN},
            id="all added and all dropped",
        ),
    ],
)
async def test_capabilities(
    cri: CRI, engine_api: DockerClient, asked: api.Capability, there: set[int], absent: set[int]
) -> None:
    async with container(cri, security(capabilities=asked)) as container_id:
        found = capabilities(process(engine_api, container_id))
    assert {number for number in there | absent if found >> number & 1} == there


@pytest.mark.every_engine
async def test_privileged(cri: CRI, engine_api: DockerClient) -> None:
    async with container(cri, security(privileged=True), sandbox_config(linux=PRIVILEGED)) as container_id:
        found = process(engine_api, container_id)
        assert capabilities(found) >> _SYS_ADMIN & 1
        assert process_status(found)["Seccomp"] == "0"
        assert await sh(cri, container_id, "test -w /proc/sys/net && test -e /dev/kmsg && echo yes") == "yes"


async def test_privileged_needs_a_privileged_sandbox(cri: CRI) -> None:
    async with refused("INVALID_ARGUMENT", "privileged"), container(cri, security(privileged=True)):
        pass


@pytest.fixture
def no_chmod(tmp_path: Path) -> str:
    """A seccomp profile that allows everything except changing a file's mode."""
    profile = {
        "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [{"names": ["chmod", "fchmod", "fchmodat", "fchmodat2"], "action": "SCMP_ACT_ERRNO"}],
    }
    path = tmp_path / "no-chmod.json"
    path.write_text(json.dumps(profile))
    return str(path)


@pytest.mark.parametrize(
    ("context", "mode"),
    [
        pytest.param({}, "0", id="nothing asked", marks=pytest.mark.every_engine),
        pytest.param({"seccomp": "RuntimeDefault"}, "2", id="RuntimeDefault", marks=pytest.mark.every_engine),
        pytest.param({"seccomp": "Unconfined"}, "0", id="Unconfined", marks=pytest.mark.every_engine),
        pytest.param({"seccomp_profile_path": "runtime/default"}, "2", id="deprecated field, default"),
        pytest.param({"seccomp_profile_path": "unconfined"}, "0", id="deprecated field, unconfined"),
        pytest.param(
            {"seccomp": "RuntimeDefault", "seccomp_profile_path": "unconfined"}, "2", id="the newer field counts"
        ),
    ],
)
async def test_seccomp(cri: CRI, engine_api: DockerClient, context: dict[str, str], mode: str) -> None:
    fields: dict[str, Any] = dict(context)
    if "seccomp" in context:
        fields["seccomp"] = api.SecurityProfile(profile_type=context["seccomp"])
    async with container(cri, security(**fields)) as container_id:
        assert process_status(process(engine_api, container_id))["Seccomp"] == mode


@pytest.mark.every_engine
@pytest.mark.parametrize("deprecated", [False, True])
async def test_seccomp_profile_of_a_file(cri: CRI, no_chmod: str, deprecated: bool) -> None:
    profile = api.SecurityProfile(profile_type=api.SecurityProfile.Localhost, localhost_ref=no_chmod)
    context = {"seccomp_profile_path": f"localhost/{no_chmod}"} if deprecated else {"seccomp": profile}
    async with container(cri, security(**context)) as container_id:
        refusal = await run(cri, container_id, "sh", "-c", "touch /tmp/f && chmod 700 /tmp/f")
    assert refusal.exit_code != 0
    assert b"not permitted" in refusal.stderr


@pytest.mark.every_engine
@pytest.mark.parametrize("wanted", [True, False])
async def test_no_new_privs(cri: CRI, engine_api: DockerClient, wanted: bool) -> None:
    async with container(cri, security(no_new_privs=wanted)) as container_id:
        assert process_status(process(engine_api, container_id))["NoNewPrivs"] == str(int(wanted))


@pytest.mark.every_engine
async def test_masked_and_readonly_paths_are_exactly_those_asked_for(cri: CRI) -> None:
    context = {"masked_paths": ["/proc/version", "/home"], "readonly_paths": ["/tmp", "/proc/sys"]}
    async with container(cri, security(**context)) as container_id:
        assert await sh(cri, container_id, "cat /proc/version; ls /home") == ""
        assert (await run(cri, container_id, "touch", "/tmp/file")).exit_code != 0
        # One of the engine's default masked paths, which the request does not have.
        assert await sh(cri, container_id, "grep -c /proc/timer_list /proc/mounts || true") == "0"


@pytest.mark.every_engine
async def test_no_masked_path_is_asked_for_by_an_empty_list(cri: CRI) -> None:
    async with container(cri, security()) as container_id:
        assert await sh(cri, container_id, "grep -c -E ' /proc/(kcore|keys|sys) ' /proc/mounts || true") == "0"


@pytest.mark.every_engine
@pytest.mark.parametrize("wanted", [True, False])
async def test_read_only_root(cri: CRI, wanted: bool) -> None:
    async with container(cri, security(readonly_rootfs=wanted)) as container_id:
        assert ((await run(cri, container_id, "touch", "/file")).exit_code != 0) is wanted


# Mounts and devices


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder of the host to be mounted, with a file and a folder `below` in it."""
    made = tmp_path / "folder"
    (made / "below").mkdir(parents=True)
    (made / "file").write_text("of the host")
    yield made
    subprocess.run(["umount", "-q", "-R", "-l", made / "below"], check=False)


def mount(host_path: Path, **fields: Any) -> api.ContainerConfig:
    return container_config(
        mounts=[api.Mount(**{"host_path": str(host_path), "container_path": "/mounted", **fields})],
        linux=linux_container(capabilities=api.Capability(add_capabilities=["SYS_ADMIN"])),
    )


@pytest.mark.every_engine
async def test_mount(cri: CRI, folder: Path) -> None:
    async with container(cri, mount(folder)) as container_id:
        assert await sh(cri, container_id, "cat /mounted/file; echo written >/mounted/new") == "of the host"
        assert (folder / "new").read_text() == "written\n"


@pytest.mark.every_engine
async def test_mounted_single_file_and_relative_container_path(cri: CRI, folder: Path) -> None:
    async with container(cri, mount(folder / "file", container_path="mounted/./x")) as container_id:
        assert await sh(cri, container_id, "cat /mounted/x") == "of the host"


@pytest.mark.every_engine
async def test_read_only_mount(cri: CRI, folder: Path) -> None:
    async with container(cri, mount(folder, readonly=True)) as container_id:
        assert (await run(cri, container_id, "touch", "/mounted/new")).exit_code != 0


@pytest.mark.every_engine
async def test_a_missing_host_path_is_made_as_a_folder(cri: CRI, tmp_path: Path) -> None:
    async with container(cri, mount(tmp_path / "a" / "b")) as container_id:
        await sh(cri, container_id, "touch /mounted/new")
        assert (tmp_path / "a" / "b" / "new").exists()


async def test_a_host_path_that_is_a_symlink_mounts_what_it_points_to(cri: CRI, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    async with container(cri, mount(tmp_path / "link")) as container_id:
        assert await sh(cri, container_id, "cat /mounted/file") == "of the host"


image_volumes = pytest.mark.skipif(ENGINE == "20", reason="engines before 28 have no image volumes")


def image_volume(image: str, **fields: Any) -> api.ContainerConfig:
    volume = api.Mount(image=api.ImageSpec(image=image), container_path="/volume", readonly=True, **fields)
    return container_config(mounts=[volume])


@image_volumes
async def test_an_image_volume_shows_the_image_and_cannot_be_written(cri: CRI, engine_api: DockerClient) -> None:
    image = engine_api.images.get(BUSYBOX)
    async with container(cri, image_volume(BUSYBOX)) as container_id:
        assert await sh(cri, container_id, "/volume/bin/cat /volume/etc/passwd") == await sh(
            cri, container_id, "cat /etc/passwd"
        )
        assert (await run(cri, container_id, "touch", "/volume/new")).exit_code != 0
        (told,) = (await status(cri, container_id)).mounts
        assert (told.container_path, told.readonly, told.host_path) == ("/volume", True, "")
        assert (told.image.image, told.image.image_ref, told.image_sub_path) == (image.id, image.id, "")


@image_volumes
async def test_an_image_volume_of_one_folder(cri: CRI) -> None:
    async with container(cri, image_volume(BUSYBOX, image_sub_path="etc")) as container_id:
        assert await sh(cri, container_id, "test -s /volume/passwd && ls -d /volume/etc 2>/dev/null || true") == ""
        (told,) = (await status(cri, container_id)).mounts
        assert told.image_sub_path == "etc"


@image_volumes
async def test_an_image_volume_of_a_folder_that_the_image_lacks_is_refused(cri: CRI, engine_api: DockerClient) -> None:
    """Kubernetes' suite wants CreateContainer to fail, not StartContainer."""
    async with pod(cri) as sandbox_id:
        before = engine_api.api.containers(all=True)
        config = image_volume(BUSYBOX, image_sub_path="etc")
        config.mounts.append(image_volume(BUSYBOX, image_sub_path="usr/nothing").mounts[0])
        config.mounts[1].container_path = "/other"
        async with refused("NOT_FOUND", "mounts[/other].image_sub_path: 'usr/nothing' is not in the image"):
            await create(cri, sandbox_id, config)
        assert len(engine_api.api.containers(all=True)) == len(before)


@image_volumes
async def test_one_image_is_mounted_several_times(cri: CRI, engine_api: DockerClient) -> None:
    image = engine_api.images.get(BUSYBOX)
    config = container_config()
    for number in range(3):
        volume = image_volume(BUSYBOX, image_sub_path="etc" if number else "").mounts[0]
        volume.container_path = f"/volume-{number}"
        config.mounts.append(volume)
    async with container(cri, config) as container_id:
        paths = "/volume-0/etc/passwd /volume-1/passwd /volume-2/passwd"
        assert (await sh(cri, container_id, f"ls {paths}")).split() == paths.split()
        assert [mount.image.image_ref for mount in (await status(cri, container_id)).mounts] == [image.id] * 3


@image_volumes
async def test_an_image_volume_of_an_image_that_is_not_there(cri: CRI) -> None:
    async with pod(cri) as sandbox_id:
        with pytest.raises(grpc.aio.AioRpcError, match=r"mounts\[/volume\]\.image: 'nowhere:1'") as raised:
            await create(cri, sandbox_id, image_volume("nowhere:1"))
        assert raised.value.code() == grpc.StatusCode.NOT_FOUND


async def test_status_tells_the_mounts(cri: CRI, folder: Path) -> None:
    config = mount(folder, readonly=True, propagation=api.PROPAGATION_HOST_TO_CONTAINER)
    async with container(cri, config) as container_id:
        assert list((await status(cri, container_id)).mounts) == list(config.mounts)


@pytest.mark.every_engine
@pytest.mark.parametrize(
    ("propagation", "into_container", "to_host"),
    [
        pytest.param(api.PROPAGATION_PRIVATE, False, False, id="private"),
        pytest.param(api.PROPAGATION_HOST_TO_CONTAINER, True, False, id="host to container"),
        pytest.param(api.PROPAGATION_BIDIRECTIONAL, True, True, id="bidirectional"),
    ],
)
async def test_mount_propagation(cri: CRI, folder: Path, propagation: int, into_container: bool, to_host: bool) -> None:
    (folder / "above").mkdir()
    async with container(cri, mount(folder, propagation=propagation)) as container_id:
        subprocess.run(["mount", "-t", "tmpfs", "none", folder / "below"], check=True)
        (folder / "below" / "mark").touch()
        seen = await sh(cri, container_id, "test -e /mounted/below/mark && echo yes || echo no")
        assert seen == ("yes" if into_container else "no")
        await sh(cri, container_id, "mount -t tmpfs none /mounted/above && touch /mounted/above/mark")
        assert (folder / "above" / "mark").exists() is to_host
        await sh(cri, container_id, "umount /mounted/above")


async def _write_below(cri: CRI, folder: Path, **fields: Any) -> int:
    """The exit code of a write below a mount that itself lies below a read-only one."""
    subprocess.run(["mount", "-t", "tmpfs", "none", folder / "below"], check=True)
    async with container(cri, mount(folder, readonly=True, **fields)) as container_id:
        return int((await run(cri, container_id, "touch", "/mounted/below/file")).exit_code)


@pytest.mark.every_engine
async def test_read_only_is_not_recursive_unless_asked_for(cri: CRI, folder: Path) -> None:
    assert await _write_below(cri, folder) == 0


@pytest.mark.every_engine
async def test_recursive_read_only_is_honoured_and_advertised_from_docker_25_on(cri: CRI, folder: Path) -> None:
    able = ENGINE != "20"
    handlers = (await cri.runtime.Status(api.StatusRequest())).runtime_handlers
    advertised = {handler.name: handler.features.recursive_read_only_mounts for handler in handlers}
    assert {advertised[name] for name in ("", "docker", "runc")} == {able}
    if able:
        assert await _write_below(cri, folder, recursive_read_only=True) != 0
    else:
        async with refused("INVALID_ARGUMENT", "recursive_read_only", "Docker 25"):
            await _write_below(cri, folder, recursive_read_only=True)


@pytest.mark.every_engine
async def test_host_paths_around_the_engines_data_root(cri: CRI, engine_api: DockerClient, tmp_path: Path) -> None:
    """Engines refuse private propagation there, and log agents and node agents mount folders from there."""
    root = Path(engine_api.info()["DockerRootDir"])
    (tmp_path / "link").symlink_to(root)
    names = [
        f"{root}/containers",
        f"{root}/containers/",
        f"{tmp_path}/link/containers",
        f"{root}/../{root.name}/containers",
    ]
    # Each of the others holds the containers' own mounts, so in one container they would multiply.
    groups = [names, *([str(folder)] for folder in root.parents), [f"{root}/"]]
    async with pod(cri) as sandbox_id:
        for number, group in enumerate(groups):
            await _check_mounts_of_the_data_root(cri, sandbox_id, root, f"agent-{number}", group)


async def _check_mounts_of_the_data_root(
    cri: CRI, sandbox_id: str, root: Path, container: str, names: Sequence[str]
) -> None:
    """A container with each of ``names``, which hold its own folder in the engine's data root, in each way."""
    ways: list[dict[str, Any]] = [{}, {"readonly": True}, {"readonly": True, "recursive_read_only": True}][
        : 2 if ENGINE == "20" else 3
    ]
    asked = list(itertools.product(names, ways))
    mounts = [api.Mount(host_path=name, container_path=f"/mounts/{n}", **way) for n, (name, way) in enumerate(asked)]
    admin = linux_container(capabilities=api.Capability(add_capabilities=["SYS_ADMIN"]))
    container_id = await start(cri, sandbox_id, container_config(name=container, mounts=mounts, linux=admin))
    assert list((await status(cri, container_id)).mounts) == mounts
    own = root / "containers" / container_id
    for n, (name, way) in enumerate(asked):
        inside = f"/mounts/{n}/{os.path.relpath(own, Path(name).resolve())}"
        assert await sh(cri, container_id, f"ls -d {inside}") == inside
        # Not recursively read-only: what is mounted below stays writable.
        below = f"/mounts/{n}" if way == {"readonly": True} else inside
        assert ((await run(cri, container_id, "touch", f"{below}/{n}")).exit_code == 0) is (not way)
        await sh(cri, container_id, f"mount -t tmpfs none {inside}")
        assert (own / "config.v2.json").exists(), f"{name}: a mount of the container is the host's"
    await remove(cri, container_id)


@pytest.mark.every_engine
@pytest.mark.parametrize(
    ("permissions", "writes"), [pytest.param("rwm", True, id="rwm"), pytest.param("r", False, id="read only")]
)
async def test_devices(cri: CRI, permissions: str, writes: bool) -> None:
    device = api.Device(host_path="/dev/loop-control", container_path="/dev/mine", permissions=permissions)
    async with container(cri, container_config(devices=[device])) as container_id:
        assert (await run(cri, container_id, "sh", "-c", ": </dev/mine")).exit_code == 0
        assert ((await run(cri, container_id, "sh", "-c", ": >/dev/mine")).exit_code == 0) is writes


# Resources


def with_resources(**fields: Any) -> api.ContainerConfig:
    return container_config(linux=api.LinuxContainerConfig(resources=api.LinuxContainerResources(**fields)))


def limits(process: Path) -> dict[str, str]:
    """A container's limits in the kernel, by their CRI names, in the units of cgroup v1."""
    files = {
        "cpu_period": "cpu.cfs_period_us",
        "cpu_quota": "cpu.cfs_quota_us",
        "cpu_shares": "cpu.shares",
        "memory_limit_in_bytes": "memory.limit_in_bytes",
        "memory_swap_limit_in_bytes": "memory.memsw.limit_in_bytes",
        "cpuset_cpus": "cpuset.cpus",
        "cpuset_mems": "cpuset.mems",
    }
    found = {name: cgroup_file(process, file).replace(UNLIMITED, "-1") for name, file in files.items()}
    return found | {"oom_score_adj": (process / "oom_score_adj").read_text().strip()}


#: What the kernel shows for no limit: all pages that it could count.
UNLIMITED = str((2**63 - 1) // 4096 * 4096)
ALL_RESOURCES: dict[str, Any] = {
    "cpu_period": 50000,
    "cpu_quota": 25000,
    "cpu_shares": 512,
    "memory_limit_in_bytes": 64 * MIB,
    "memory_swap_limit_in_bytes": 96 * MIB,
    "cpuset_cpus": "0",
    "cpuset_mems": "0",
    "oom_score_adj": 500,
}


@pytest.mark.every_engine
async def test_all_resources_reach_the_kernel_and_the_status(cri: CRI, engine_api: DockerClient) -> None:
    async with container(cri, with_resources(**ALL_RESOURCES)) as container_id:
        found = limits(process(engine_api, container_id))
        assert found == {name: str(value) for name, value in ALL_RESOURCES.items()}
        assert (await status(cri, container_id)).resources.linux == api.LinuxContainerResources(**ALL_RESOURCES)


@pytest.mark.every_engine
async def test_a_memory_limit_alone_leaves_no_swap(cri: CRI, engine_api: DockerClient) -> None:
    async with container(cri, with_resources(memory_limit_in_bytes=64 * MIB)) as container_id:
        assert limits(process(engine_api, container_id))["memory_swap_limit_in_bytes"] == str(64 * MIB)


async def update(cri: CRI, container_id: str, **fields: Any) -> None:
    request = api.UpdateContainerResourcesRequest(
        container_id=container_id, linux=api.LinuxContainerResources(**fields)
    )
    await cri.runtime.UpdateContainerResources(request)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"cpu_quota": 10000}, id="CPU quota"),
        pytest.param({"cpu_quota": -1}, id="no CPU quota any more", marks=pytest.mark.every_engine),
        pytest.param({"cpu_period": 100000, "cpu_quota": 30000}, id="CPU period and quota"),
        pytest.param({"cpu_shares": 1024}, id="CPU shares"),
        pytest.param({"cpuset_cpus": "1"}, id="CPU set", marks=pytest.mark.every_engine),
        pytest.param({"memory_limit_in_bytes": 80 * MIB, "memory_swap_limit_in_bytes": 96 * MIB}, id="more memory"),
        pytest.param({"memory_limit_in_bytes": 128 * MIB, "memory_swap_limit_in_bytes": 128 * MIB}, id="both higher"),
        pytest.param(
            {"memory_limit_in_bytes": 32 * MIB, "memory_swap_limit_in_bytes": 32 * MIB},
            id="both lower",
            marks=pytest.mark.every_engine,
        ),
        pytest.param({"memory_swap_limit_in_bytes": 160 * MIB}, id="more swap", marks=pytest.mark.every_engine),
        pytest.param({"memory_swap_limit_in_bytes": 64 * MIB}, id="no swap any more", marks=pytest.mark.every_engine),
        pytest.param({"memory_swap_limit_in_bytes": -1}, id="all swap", marks=pytest.mark.every_engine),
        pytest.param({"oom_score_adj": 700}, id="OOM score", marks=pytest.mark.every_engine),
        pytest.param({"oom_score_adj": 300}, id="a lower OOM score", marks=pytest.mark.every_engine),
        pytest.param({"cpuset_mems": "0"}, id="memory nodes"),
    ],
)
async def test_update_changes_what_is_given_and_leaves_the_rest(
    cri: CRI, engine_api: DockerClient, change: dict[str, Any]
) -> None:
    async with container(cri, with_resources(**ALL_RESOURCES)) as container_id:
        await update(cri, container_id, **change)
        expected = ALL_RESOURCES | change
        assert limits(process(engine_api, container_id)) == {name: str(value) for name, value in expected.items()}
        sandbox_id = (await containers(cri))[container_id].pod_sandbox_id
        of_pod = await cri.runtime.PodSandboxStatus(api.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id))
        for found in (*of_pod.containers_statuses, await status(cri, container_id)):
            assert found.resources.linux == api.LinuxContainerResources(**expected)


@pytest.mark.every_engine
async def test_a_swap_limit_that_was_taken_away_stays_away(cri: CRI, engine_api: DockerClient) -> None:
    async with container(cri, with_resources(**ALL_RESOURCES)) as container_id:
        for change in ({"memory_swap_limit_in_bytes": -1}, {"cpu_shares": 7}, {"memory_limit_in_bytes": 128 * MIB}):
            await update(cri, container_id, **change)
            swap = limits(process(engine_api, container_id))["memory_swap_limit_in_bytes"]
            assert (swap, (await status(cri, container_id)).resources.linux.memory_swap_limit_in_bytes) == ("-1", -1)
        back = {"memory_limit_in_bytes": 32 * MIB, "memory_swap_limit_in_bytes": 48 * MIB}
        await update(cri, container_id, **back)
        found = limits(process(engine_api, container_id))
        assert {name: found[name] for name in back} == {name: str(value) for name, value in back.items()}


@pytest.mark.every_engine
async def test_the_first_memory_limit_leaves_the_swap(cri: CRI, engine_api: DockerClient) -> None:
    async with container(cri) as container_id:
        unlimited = limits(process(engine_api, container_id))["memory_swap_limit_in_bytes"]
        for size in (64 * MIB, 32 * MIB):
            await update(cri, container_id, memory_limit_in_bytes=size)
            found = limits(process(engine_api, container_id))
            assert (found["memory_limit_in_bytes"], found["memory_swap_limit_in_bytes"]) == (str(size), unlimited)


@pytest.mark.every_engine
async def test_update_before_the_start_counts_from_the_start_on(cri: CRI, engine_api: DockerClient) -> None:
    async with pod(cri) as sandbox_id:
        container_id = await create(cri, sandbox_id, with_resources(cpu_shares=100))
        await update(cri, container_id, cpu_shares=200)
        await cri.runtime.StartContainer(api.StartContainerRequest(container_id=container_id))
        assert limits(process(engine_api, container_id))["cpu_shares"] == "200"


async def test_update_before_the_start_refuses_what_the_engine_does_not_keep(cri: CRI) -> None:
    async with pod(cri) as sandbox_id:
        container_id = await create(cri, sandbox_id, with_resources(oom_score_adj=100))
        async with refused("FAILED_PRECONDITION", "oom_score_adj"):
            await update(cri, container_id, cpu_shares=200, oom_score_adj=300)
        huge = [api.HugepageLimit(page_size="2MB", limit=0)]
        await update(cri, container_id, oom_score_adj=100, hugepage_limits=huge)


async def test_update_of_an_ended_or_unknown_container(cri: CRI) -> None:
    async with container(cri, container_config("true")) as container_id:
        await ended(cri, container_id)
        async with refused("FAILED_PRECONDITION", container_id):
            await update(cri, container_id, cpu_shares=200)
    async with refused("NOT_FOUND", "f" * 64):
        await update(cri, "f" * 64, cpu_shares=200)


@pytest.mark.every_engine
async def test_an_update_with_huge_pages_of_zero_changes_nothing(cri: CRI, engine_api: DockerClient) -> None:
    """A kubelet names every page size of the node, with 0 for a container that asked for none."""
    async with container(cri) as container_id:
        before = limits(process(engine_api, container_id))
        huge = [api.HugepageLimit(page_size="2MB", limit=0)]
        await update(cri, container_id, hugepage_limits=huge)
        assert limits(process(engine_api, container_id)) == before
        assert list((await status(cri, container_id)).resources.linux.hugepage_limits) == huge


# Life and end


@pytest.mark.every_engine
async def test_states_and_times_of_a_life(cri: CRI) -> None:
    async with pod(cri) as sandbox_id:
        moments = [time.time_ns()]
        container_id = await create(cri, sandbox_id, container_config())
        created = await status(cri, container_id)
        moments.append(time.time_ns())
        await cri.runtime.StartContainer(api.StartContainerRequest(container_id=container_id))
        running = await status(cri, container_id)
        moments.append(time.time_ns())
        await stop(cri, container_id)
        exited = await status(cri, container_id)
        moments.append(time.time_ns())
    assert created.state == api.CONTAINER_CREATED
    assert (created.started_at, created.finished_at, created.reason) == (0, 0, "")
    assert running.state == api.CONTAINER_RUNNING
    assert (running.finished_at, running.reason, running.exit_code) == (0, "", 0)
    assert exited.state == api.CONTAINER_EXITED
    assert {created.created_at, running.created_at, exited.created_at} == {created.created_at}
    assert exited.started_at == running.started_at
    times = [exited.created_at, exited.started_at, exited.finished_at]
    assert moments[0] <= times[0] <= moments[1] <= times[1] <= moments[2] <= times[2] <= moments[3]


@pytest.mark.every_engine
@pytest.mark.parametrize(
    ("command", "code", "reason"),
    [
        pytest.param("exit 0", 0, "Completed", id="success"),
        pytest.param("exit 3", 3, "Error", id="failure"),
        pytest.param("kill -SEGV $$", 139, "Error", id="a signal"),
    ],
)
async def test_exit_code_and_reason(cri: CRI, command: str, code: int, reason: str) -> None:
    async with container(cri, container_config(command)) as container_id:
        found = await ended(cri, container_id)
    assert (found.exit_code, found.reason) == (code, reason)


@pytest.mark.every_engine
async def test_a_container_that_takes_too_much_memory_is_oom_killed(cri: CRI) -> None:
    config = with_resources(memory_limit_in_bytes=16 * MIB)
    config.command[:] = ["sh", "-c", "x=aaaaaaaa; while true; do x=$x$x; done"]
    async with container(cri, config) as container_id:
        found = await ended(cri, container_id)
    assert (found.exit_code, found.reason) == (137, "OOMKilled")


@pytest.mark.alone
@pytest.mark.every_engine
async def test_no_oom_kill_is_missed(cri: CRI) -> None:
    """Where four come at once, engine 20 misses one of twenty. The kernel, all nodes', logs ten in five seconds."""
    config = with_resources(memory_limit_in_bytes=16 * MIB)
    config.command[:] = ["sh", "-c", "x=aaaaaaaa; while true; do x=$x$x; done"]
    turns = asyncio.Semaphore(4)

    async def reason() -> str:
        async with turns, container_and_pod(cri, config) as container_id:
            return (await ended(cri, container_id)).reason

    assert await asyncio.gather(*(reason() for _ in range(8))) == ["OOMKilled"] * 8


@pytest.mark.every_engine
async def test_a_container_that_cannot_start(cri: CRI) -> None:
    async with pod(cri) as sandbox_id:
        config = container_config()
        config.command[:] = ["no-such-command"]
        container_id = await create(cri, sandbox_id, config)
        async with refused("INVALID_ARGUMENT", "no-such-command"):
            await cri.runtime.StartContainer(api.StartContainerRequest(container_id=container_id))
        found = await status(cri, container_id)
        assert (found.state, found.reason) == (api.CONTAINER_EXITED, "ContainerCannotRun")
        assert found.exit_code in (127, 128)
        assert "no-such-command" in found.message
        assert found.started_at == 0
        assert found.finished_at > 0
        assert (await containers(cri))[container_id].state == api.CONTAINER_EXITED


@pytest.mark.every_engine
async def test_start_of_a_running_container_succeeds_and_of_an_ended_one_does_not(cri: CRI) -> None:
    async with container(cri) as container_id:
        await cri.runtime.StartContainer(api.StartContainerRequest(container_id=container_id))
        await stop(cri, container_id)
        async with refused("FAILED_PRECONDITION", container_id):
            await cri.runtime.StartContainer(api.StartContainerRequest(container_id=container_id))


TRAPS = "trap 'echo TERM; exit 5' TERM; trap 'echo USR1; exit 6' USR1; echo up; while true; do sleep 0.05; done"


async def up(engine_api: DockerClient, container_id: str) -> None:
    await until(lambda: b"up" in engine_api.api.logs(container_id))


@pytest.mark.every_engine
@pytest.mark.parametrize(
    ("signal", "code"),
    [
        pytest.param(api.SIGNAL_RUNTIME_DEFAULT, 5, id="SIGTERM unless said otherwise"),
        pytest.param(api.SIGNAL_SIGUSR1, 6, id="the one asked for"),
    ],
)
async def test_stop_signal(cri: CRI, engine_api: DockerClient, signal: int, code: int) -> None:
    async with container(cri, container_config(TRAPS, stop_signal=signal)) as container_id:
        await up(engine_api, container_id)
        await stop(cri, container_id, grace=10)
        found = await status(cri, container_id)
    assert found.exit_code == code
    assert found.stop_signal == (signal or api.SIGNAL_SIGTERM)


@pytest.mark.every_engine
async def test_stop_kills_when_the_grace_is_over(cri: CRI, engine_api: DockerClient) -> None:
    config = container_config("trap '' TERM; echo up; while true; do sleep 0.05; done")
    async with container(cri, config) as container_id:
        await up(engine_api, container_id)
        begun = time.monotonic()
        await stop(cri, container_id, grace=1)
        assert 0.9 <= time.monotonic() - begun < 5
        assert (await status(cri, container_id)).exit_code == 137


@pytest.mark.every_engine
async def test_stop_without_grace_kills_at_once(cri: CRI, engine_api: DockerClient) -> None:
    # A shell runs traps between two commands: this one would handle the signal at once.
    config = container_config("echo up; exec sleep 1000", stop_signal=api.SIGNAL_SIGINT)
    async with container(cri, config) as container_id:
        await up(engine_api, container_id)
        await stop(cri, container_id, grace=0)
        assert (await status(cri, container_id)).exit_code == 137


@pytest.mark.every_engine
async def test_a_stop_whose_caller_has_gone_still_kills(cri: CRI, engine_api: DockerClient) -> None:
    config = container_config("trap '' TERM; echo up; while true; do sleep 0.05; done")
    async with container(cri, config) as container_id:
        await up(engine_api, container_id)
        with pytest.raises(grpc.aio.AioRpcError, match="DEADLINE_EXCEEDED"):
            await cri.runtime.StopContainer(api.StopContainerRequest(container_id=container_id, timeout=1), timeout=0.2)
        assert (await ended(cri, container_id)).exit_code == 137


async def test_stop_and_remove_can_be_repeated_and_are_fine_for_the_unknown(cri: CRI) -> None:
    async with container(cri) as container_id:
        for call in (stop, stop, remove, remove):
            await call(cri, container_id)
        await stop(cri, "f" * 64)
        await remove(cri, "f" * 64)
        async with refused("NOT_FOUND", container_id):
            await status(cri, container_id)


@pytest.mark.every_engine
async def test_stop_of_a_container_that_was_never_started(cri: CRI) -> None:
    async with pod(cri) as sandbox_id:
        container_id = await create(cri, sandbox_id, container_config())
        await stop(cri, container_id, grace=10)
        await remove(cri, container_id)


@pytest.mark.every_engine
async def test_remove_is_forcible(cri: CRI) -> None:
    async with container(cri) as container_id:
        await remove(cri, container_id)
        assert container_id not in await containers(cri)


@pytest.mark.every_engine
async def test_removes_at_the_same_time_all_succeed(cri: CRI) -> None:
    async with container(cri) as container_id:
        await asyncio.gather(
            *(remove(cri, container_id) for _ in range(4)), *(stop(cri, container_id) for _ in range(2))
        )
        assert container_id not in await containers(cri)


async def test_calls_of_containers_do_not_reach_sandboxes_or_strangers(cri: CRI, engine_api: DockerClient) -> None:
    stranger = engine_api.containers.create(BUSYBOX, name="stranger")
    try:
        async with pod(cri) as sandbox_id:
            for other in (sandbox_id, str(stranger.id), "stranger", "../images/json"):
                await stop(cri, other)
                await remove(cri, other)
                async with refused("NOT_FOUND"):
                    await status(cri, other)
                async with refused("NOT_FOUND"):
                    await run(cri, other, "true")
            assert engine_api.api.inspect_container(sandbox_id)["State"]["Running"]
            stranger.reload()
    finally:
        stranger.remove(force=True)


# Names and reading


async def test_metadata_labels_annotations_and_log_path_come_back(cri: CRI) -> None:
    sandbox = sandbox_config()
    config = container_config(
        metadata=api.ContainerMetadata(name="under_score", attempt=3),
        labels={"app": "web", "annotation.of": "a label", "io.kubernetes.container.name": "under_score"},
        annotations={"io.kubernetes.container.hash": "abc", "text": "two\nlines"},
        log_path="under_score/3.log",
    )
    async with container(cri, config, sandbox) as container_id:
        found = await status(cri, container_id)
        assert found.log_path == f"{sandbox.log_directory}/under_score/3.log"
        for one in (found, (await containers(cri))[container_id]):
            assert one.metadata == config.metadata
            assert dict(one.labels) == dict(config.labels)
            assert dict(one.annotations) == dict(config.annotations)


@pytest.mark.every_engine
async def test_image_is_told_alike_everywhere(cri: CRI, image: str) -> None:
    pulled = await cri.images.PullImage(api.PullImageRequest(image=api.ImageSpec(image=BUSYBOX)))
    for name in (BUSYBOX, image):
        config = container_config(image=api.ImageSpec(image=name, user_specified_image=BUSYBOX))
        async with container(cri, config) as container_id:
            of_status, of_list = await status(cri, container_id), (await containers(cri))[container_id]
            assert of_status.image == of_list.image
            assert of_status.image.user_specified_image == BUSYBOX
            assert {of_status.image_id, of_list.image_id} == {image}
            assert of_list.image_ref == pulled.image_ref
            assert of_status.image_ref.startswith(f"{BUSYBOX.rpartition(':')[0]}@sha256:")


async def test_list_filters(cri: CRI) -> None:
    async with pod(cri) as one, pod(cri) as two:
        web = await start(cri, one, container_config(name="web", labels={"app": "web"}))
        db = await create(cri, one, container_config(name="db", labels={"app": "db"}))
        job = await start(cri, two, container_config("exit 0", name="job", labels={"app": "web", "tier": "batch"}))
        await ended(cri, job)
        states = {
            state: api.ContainerStateValue(state=state)
            for state in (api.CONTAINER_CREATED, api.CONTAINER_RUNNING, api.CONTAINER_EXITED)
        }
        assert set(await containers(cri)) == {web, db, job}
        assert set(await containers(cri, id=web)) == {web}
        assert set(await containers(cri, id=web[:12])) == {web}
        assert set(await containers(cri, pod_sandbox_id=one)) == {web, db}
        assert set(await containers(cri, pod_sandbox_id=one[:12])) == {web, db}
        assert set(await containers(cri, state=states[api.CONTAINER_CREATED])) == {db}
        assert set(await containers(cri, state=states[api.CONTAINER_RUNNING])) == {web}
        assert set(await containers(cri, state=states[api.CONTAINER_EXITED])) == {job}
        assert set(await containers(cri, label_selector={"app": "web"})) == {web, job}
        assert set(await containers(cri, label_selector={"app": "web", "tier": "batch"})) == {job}
        assert set(await containers(cri, label_selector={"app": "web"}, pod_sandbox_id=one)) == {web}
        assert set(await containers(cri, id=db, state=states[api.CONTAINER_RUNNING])) == set()


async def test_metadata_of_a_container_that_was_started_is_refused(cri: CRI) -> None:
    async with container(cri) as container_id:
        sandbox_id = (await containers(cri))[container_id].pod_sandbox_id
        async with refused("ALREADY_EXISTS", container_id):
            await create(cri, sandbox_id, container_config())
        assert (await status(cri, container_id)).state == api.CONTAINER_RUNNING


async def test_metadata_of_a_half_made_container_can_be_used_again(cri: CRI) -> None:
    async with pod(cri) as sandbox_id:
        await create(cri, sandbox_id, container_config())
        again = await create(cri, sandbox_id, container_config())
        assert set(await containers(cri)) == {again}


async def test_the_next_attempt_lives_beside_the_last_one(cri: CRI) -> None:
    async with pod(cri) as sandbox_id:
        first = await start(cri, sandbox_id, container_config("exit 1"))
        metadata = api.ContainerMetadata(name="main", attempt=1)
        second = await start(cri, sandbox_id, container_config(metadata=metadata))
        assert set(await containers(cri)) == {first, second}


@pytest.mark.every_engine
async def test_a_create_whose_caller_has_gone_leaves_nothing(start_server: Callable[..., Server]) -> None:
    server = start_server("--log-level=debug")
    async with CRI(server.target) as cri, pod(cri) as sandbox_id:
        request = api.CreateContainerRequest(pod_sandbox_id=sandbox_id, config=container_config())
        for turn in range(12):
            answered, ended = server.answered("CreateContainer"), server.ended("CreateContainer")
            call = cri.runtime.CreateContainer(request)
            await arrived(cri)
            await asyncio.sleep(MOMENT * turn)
            call.cancel()
            await until(lambda: server.ended("CreateContainer") > ended)  # noqa: B023
            # The answer may have been sent just before the caller left: then the container exists as answered.
            left = await containers(cri)
            assert len(left) == server.answered("CreateContainer") - answered
            for container_id in left:
                await remove(cri, container_id)
            assert await containers(cri) == {}


async def test_verbose_status(cri: CRI, engine_api: DockerClient) -> None:
    async with container(cri) as container_id:
        request = api.ContainerStatusRequest(container_id=container_id, verbose=True)
        info = json.loads((await cri.runtime.ContainerStatus(request)).info["info"])
        assert info["pid"] == int(process(engine_api, container_id).name)
        assert info["sandboxID"] == (await containers(cri))[container_id].pod_sandbox_id
