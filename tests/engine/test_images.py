"""The ImageService with a real engine and a registry that the test controls."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import docker
import grpc
import pytest
from docker import DockerClient
from docker.errors import ImageNotFound

from dockershim.cri.infra_image import BUILTIN_INFRA_IMAGE, docker_archive
from tests.cri_client import CRI
from tests.engine import pods
from tests.engine.pods import arrived
from tests.engine.registry import (
    OTHER_ARCHITECTURE,
    OWN_ARCHITECTURE,
    Registry,
    make_image,
    make_index,
    running_registry,
)
from tests.node.server import Server
from tests.waiting import eventually, until

MIB = 1 << 20
#: Whether the images are in containerd's image store.
OF_CONTAINERD = os.environ["TEST_NODE_ENGINE"] == "29"

#: After some refusals of layers engines ask five times within 75 s, unless containerd asks.
ASKED_AGAIN = pytest.mark.skipif(not OF_CONTAINERD, reason="it takes the engine 75 s")


@pytest.fixture
async def registry(engine_api: DockerClient) -> AsyncIterator[Registry]:
    """Its images are gone from the engine after the test."""
    async with running_registry() as registry:
        yield registry
        for image in {image.id for image in registry.images.values()}:
            await asyncio.to_thread(remove_quietly, engine_api, image)


def remove_quietly(engine_api: DockerClient, image: str) -> None:
    try:
        engine_api.images.remove(image, force=True)
    except ImageNotFound:
        return


def spec(cri: CRI, name: str) -> Any:
    return cri.api.ImageSpec(image=name)


async def pull(cri: CRI, name: str, **auth: str) -> str:
    request = cri.api.PullImageRequest(image=spec(cri, name), auth=cri.api.AuthConfig(**auth) if auth else None)
    return str((await cri.images.PullImage(request, timeout=60)).image_ref)


async def status(cri: CRI, name: str, verbose: bool = False) -> Any:
    return await cri.images.ImageStatus(cri.api.ImageStatusRequest(image=spec(cri, name), verbose=verbose))


async def remove(cri: CRI, name: str) -> None:
    await cri.images.RemoveImage(cri.api.RemoveImageRequest(image=spec(cri, name)))


async def listed(cri: CRI, name: str = "") -> list[Any]:
    filter = cri.api.ImageFilter(image=spec(cri, name)) if name else None
    return list((await cri.images.ListImages(cri.api.ListImagesRequest(filter=filter))).images)


async def code_of(call: Awaitable[object]) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return raised.value.code()


# -- pull, status, list


@pytest.mark.every_engine
async def test_an_image_is_pulled_by_tag_by_digest_and_without_either(cri: CRI, registry: Registry) -> None:
    image = registry.add(make_image(), "app:1", "app:latest")
    assert await pull(cri, registry.name("app:1")) == image.id
    assert await pull(cri, registry.name("app")) == image.id
    assert await pull(cri, registry.name(f"app@{image.digest}")) == image.id
    told = (await status(cri, image.id)).image
    assert sorted(told.repo_tags) == [registry.name("app:1"), registry.name("app:latest")]
    assert list(told.repo_digests) == [registry.name(f"app@{image.digest}")]


@pytest.mark.every_engine
async def test_an_image_pulled_by_digest_has_no_tag(cri: CRI, registry: Registry) -> None:
    image = registry.add(make_image(), "app:1")
    assert await pull(cri, registry.name(f"app:1@{image.digest}")) == image.id
    told = (await status(cri, image.id)).image
    assert list(told.repo_tags) == []
    assert list(told.repo_digests) == [registry.name(f"app@{image.digest}")]


@pytest.mark.every_engine
async def test_the_status_is_the_same_by_every_name(cri: CRI, registry: Registry) -> None:
    image = registry.add(make_image(user="1003:users"), "app:1")
    await pull(cri, registry.name("app:1"))
    told = (await status(cri, registry.name("app:1"))).image
    assert (told.id, told.uid.value, told.username, told.pinned) == (image.id, 1003, "", False)
    assert told.size >= 1000
    assert told.spec.image == registry.name("app:1")
    names = [
        image.id,
        image.id.removeprefix("sha256:"),
        image.id[:19],
        image.id.removeprefix("sha256:")[:12],
        registry.name(f"app@{image.digest}"),
        registry.name(f"app:1@{image.digest}"),
        registry.name(f"app:other@{image.digest}"),
    ]
    for name in names:
        assert (await status(cri, name)).image == told, name


@pytest.mark.skipif(not OF_CONTAINERD, reason="elsewhere an id is of one platform")
async def test_the_user_is_that_of_the_nodes_platform_once_it_is_there(
    cri: CRI, registry: Registry, engine_api: DockerClient
) -> None:
    other = registry.add(make_image(user="1001", architecture=OTHER_ARCHITECTURE), "app:other")
    own = registry.add(make_image(user="1002"), "app:own")
    index = registry.add(make_index({OTHER_ARCHITECTURE: other, OWN_ARCHITECTURE: own}), "app:1")
    await asyncio.to_thread(engine_api.api.pull, registry.name("app"), "1", platform=f"linux/{OTHER_ARCHITECTURE}")
    # The engine knows no user of an image that does not run here.
    await eventually(lambda: users_of(cri, index.id), [0])
    assert await pull(cri, registry.name("app:1")) == index.id
    assert await users_of(cri, index.id) == [1002]
    # Of two platforms the engine's list tells the size of both, its inspect that of one.
    (told,) = [one for one in await listed(cri) if one.id == index.id]
    for name in (index.id, registry.name("app:1"), registry.name(f"app@{index.digest}")):
        for verbose in (False, True):
            assert (await status(cri, name, verbose)).image == told


@pytest.mark.every_engine
async def test_an_index_without_the_nodes_platform_in_the_registry_is_not_found(cri: CRI, registry: Registry) -> None:
    registry.add(make_index({OWN_ARCHITECTURE: make_image()}), "app:1")
    assert await code_of(pull(cri, registry.name("app:1"))) == grpc.StatusCode.NOT_FOUND


async def users_of(cri: CRI, image_id: str) -> list[int]:
    """By ListImages, none or one."""
    return [one.uid.value for one in await listed(cri) if one.id == image_id]


@pytest.mark.every_engine
async def test_verbose_status_has_the_engines_description(cri: CRI, registry: Registry) -> None:
    image = registry.add(make_image(user="www-data"), "app:1")
    await pull(cri, registry.name("app:1"))
    told = await status(cri, image.id, verbose=True)
    assert told.image.username == "www-data"
    assert json.loads(told.info["info"])["Id"] == image.id
    assert not (await status(cri, image.id)).info


@pytest.mark.every_engine
async def test_what_is_not_there_has_an_empty_status(cri: CRI) -> None:
    for name in ("none.example/app:1", "sha256:" + "0" * 64, "0" * 64, f"app@sha256:{'0' * 64}"):
        assert not (await status(cri, name)).HasField("image"), name
        assert await listed(cri, name) == []


@pytest.mark.every_engine
async def test_the_list_has_all_images_and_a_filter_finds_one(cri: CRI, registry: Registry) -> None:
    first = registry.add(make_image(user="7"), "one:1")
    second = registry.add(make_image(), "two:1", "two:2")
    for name in registry.images:
        await pull(cri, registry.name(name))
    by_id = {image.id: image for image in await listed(cri)}
    assert by_id[first.id] == (await status(cri, first.id)).image
    assert by_id[first.id].uid.value == 7
    assert sorted(by_id[second.id].repo_tags) == [registry.name("two:1"), registry.name("two:2")]
    for name in (first.id, registry.name("one:1"), registry.name(f"one@{first.digest}")):
        assert [image.id for image in await listed(cri, name)] == [first.id]


@pytest.mark.every_engine
async def test_an_image_that_lost_its_tag_is_listed_without_names(
    cri: CRI, registry: Registry, engine_api: DockerClient
) -> None:
    image = registry.add(make_image(), "app:1")
    await pull(cri, registry.name("app:1"))
    newer = registry.add(make_image(), "app:1")
    try:
        await pull(cri, registry.name("app:1"))
        by_id = {image.id: image for image in await listed(cri)}
        assert list(by_id[image.id].repo_tags) == []
        assert list(by_id[newer.id].repo_tags) == [registry.name("app:1")]
        assert not [name for found in by_id.values() for name in found.repo_tags if "<none>" in name]
        assert not [name for found in by_id.values() for name in found.repo_digests if "<none>" in name]
    finally:
        remove_quietly(engine_api, image.id)


@pytest.mark.parametrize("name", ["", "App", "app:", "app@sha256:abc", "https://registry.example/app", "../app", "a b"])
async def test_what_is_no_reference_is_refused(cri: CRI, name: str) -> None:
    for call in (pull(cri, name), status(cri, name), remove(cri, name)):
        assert await code_of(call) == grpc.StatusCode.INVALID_ARGUMENT


# -- pulls that fail


@pytest.mark.every_engine
async def test_an_unknown_image_is_not_found(cri: CRI, registry: Registry) -> None:
    assert await code_of(pull(cri, registry.name("none:1"))) == grpc.StatusCode.NOT_FOUND
    assert await code_of(pull(cri, registry.name(f"none@sha256:{'0' * 64}"))) == grpc.StatusCode.NOT_FOUND


@pytest.mark.every_engine
@pytest.mark.parametrize(
    ("kind", "refusal", "expected"),
    [
        pytest.param("manifests", (401, "UNAUTHORIZED", "no"), "UNAUTHENTICATED", id="manifest-unauthorized"),
        pytest.param("manifests", (429, "TOOMANYREQUESTS", "no"), "UNAVAILABLE", id="too-many-requests"),
        pytest.param(
            "blobs",
            # The code's usual message, instead of which engines tell the code.
            (401, "UNAUTHORIZED", "authentication required"),
            "UNAUTHENTICATED",
            id="layer-401",
            marks=ASKED_AGAIN,
        ),
        pytest.param(
            "blobs",
            (401, "UNAUTHORIZED", "words of its own"),
            # There the engine tells only the registry's message, without a code or a status.
            "INTERNAL" if OF_CONTAINERD else "UNAUTHENTICATED",
            id="layer-401-in-other-words",
        ),
        pytest.param("blobs", (401, "", "a page"), "UNAUTHENTICATED", id="layer-401-by-a-proxy"),
        pytest.param("blobs", (404, "BLOB_UNKNOWN", "no"), "NOT_FOUND", id="layer-404"),
        pytest.param("blobs", (403, "", "a page"), "UNAUTHENTICATED", id="layer-403-by-a-proxy"),
        pytest.param("blobs", (503, "", "a page"), "UNAVAILABLE", id="layer-503", marks=ASKED_AGAIN),
    ],
)
async def test_a_registrys_refusal_keeps_its_meaning(
    cri: CRI, registry: Registry, kind: str, refusal: tuple[int, str, str], expected: str
) -> None:
    registry.add(make_image(), "app:1")
    registry.refuse[kind] = refusal
    assert (await code_of(pull(cri, registry.name("app:1")))).name == expected


@pytest.mark.every_engine
async def test_a_registry_that_is_not_there_fails_the_pull(cri: CRI) -> None:
    assert await code_of(pull(cri, "127.0.0.1:9/app:1")) == grpc.StatusCode.INTERNAL


def basic(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


async def test_a_pull_for_a_runtime_that_the_engine_lacks_is_refused(cri: CRI, registry: Registry) -> None:
    """api.proto, ImageSpec.runtime_handler; kubelets send the pod's with the gate RuntimeClassInImageCriApi."""
    image = registry.add(make_image(), "app:1")

    async def pull_for(handler: str) -> str:
        asked = cri.api.ImageSpec(image=registry.name("app:1"), runtime_handler=handler)
        return str((await cri.images.PullImage(cri.api.PullImageRequest(image=asked), timeout=60)).image_ref)

    assert await code_of(pull_for("none")) == grpc.StatusCode.INVALID_ARGUMENT
    assert registry.requests == []
    assert [await pull_for(handler) for handler in ("runc", "docker")] == [image.id] * 2


async def test_the_requests_credentials_are_shown_to_no_other_registry(cri: CRI, registry: Registry) -> None:
    registry.add(make_image(), "app:1")
    auth = {"username": "user", "password": "pass", "server_address": "https://registry.example/v2/"}
    assert await code_of(pull(cri, registry.name("app:1"), **auth)) == grpc.StatusCode.INVALID_ARGUMENT
    assert registry.requests == []


@pytest.mark.every_engine
@pytest.mark.parametrize(
    ("auth", "accepted"),
    [
        pytest.param({"username": "user", "password": "pass"}, True, id="user-and-password"),
        pytest.param({"auth": basic("user:pass")}, True, id="base64"),
        pytest.param({"username": "user", "password": "wrong"}, False, id="wrong-password"),
        pytest.param({}, False, id="none"),
    ],
)
async def test_the_requests_credentials_are_shown_to_the_registry(
    cri: CRI, registry: Registry, auth: dict[str, str], accepted: bool
) -> None:
    image = registry.add(make_image(), "app:1")
    registry.credentials = "user:pass"
    if accepted:
        assert await pull(cri, registry.name("app:1"), **auth) == image.id
    else:
        assert await code_of(pull(cri, registry.name("app:1"), **auth)) == grpc.StatusCode.UNAUTHENTICATED


async def test_the_nodes_credentials_are_used_where_a_request_has_none(
    registry: Registry, start_server: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = registry.add(make_image(), "app:1")
    registry.credentials = "user:pass"
    (tmp_path / "config.json").write_text(json.dumps({"auths": {registry.address: {"auth": basic("user:pass")}}}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    async with CRI(start_server().target) as cri:
        assert await pull(cri, registry.name("app:1")) == image.id


# -- pulls that overlap, stall and are given up


async def test_one_image_asked_for_twice_at_once_is_pulled_once(cri: CRI, registry: Registry) -> None:
    image = registry.add(make_image(), "app:1")
    registry.hold, registry.piece = asyncio.Event(), 1 << 10
    pulls = [asyncio.create_task(pull(cri, registry.name("app:1"))) for _ in range(3)]
    await until(lambda: registry.sending == 1)
    await arrived(cri)
    registry.hold.set()
    assert await asyncio.gather(*pulls) == [image.id] * 3
    assert len([path for path in registry.requests if "/manifests/" in path]) <= 1
    assert len([path for path in registry.requests if "/blobs/" in path]) == 2


@pytest.mark.every_engine
async def test_a_client_that_goes_away_ends_its_pull(cri: CRI, registry: Registry) -> None:
    registry.add(make_image(64 * MIB), "app:1")
    registry.piece, registry.pause = 64 << 10, 0.05
    task = asyncio.create_task(pull(cri, registry.name("app:1")))
    await until(lambda: registry.sending == 1)
    task.cancel()
    await asyncio.wait([task])
    await until(lambda: registry.broken == 1)
    assert registry.sending == 0
    assert not (await status(cri, registry.name("app:1"))).HasField("image")


async def test_one_of_two_waiters_can_go_away(cri: CRI, registry: Registry) -> None:
    image = registry.add(make_image(4 * MIB), "app:1")
    registry.piece, registry.pause = 512 << 10, 0.1
    leaving, staying = (asyncio.create_task(pull(cri, registry.name("app:1"))) for _ in range(2))
    await until(lambda: registry.sending == 1)
    leaving.cancel()
    assert await staying == image.id
    assert registry.broken == 0


@pytest.mark.every_engine
async def test_a_stalled_pull_is_given_up_and_can_be_tried_again(
    registry: Registry, start_server: Callable[..., Server]
) -> None:
    image = registry.add(make_image(4 * MIB), "app:1")
    hold = registry.hold = asyncio.Event()
    async with CRI(start_server("--image-pull-progress-deadline=1s").target) as cri:
        started = time.monotonic()
        assert await code_of(pull(cri, registry.name("app:1"))) == grpc.StatusCode.DEADLINE_EXCEEDED
        assert 1 <= time.monotonic() - started < 3
        # The engine keeps the connection that stalled, and opens another one for the next pull.
        registry.hold = None
        assert await pull(cri, registry.name("app:1")) == image.id
        hold.set()


@pytest.mark.every_engine
async def test_a_slow_pull_is_not_a_stalled_one(registry: Registry, start_server: Callable[..., Server]) -> None:
    image = registry.add(make_image(6 * MIB), "app:1")
    registry.piece, registry.pause = MIB, 0.5
    async with CRI(start_server("--image-pull-progress-deadline=1500ms").target) as cri:
        started = time.monotonic()
        assert await pull(cri, registry.name("app:1")) == image.id
        assert time.monotonic() - started > 2.5


# -- of containers


@pytest.mark.every_engine
async def test_a_containers_image_is_told_by_the_registrys_digest(
    cri: CRI, registry: Registry, engine_api: DockerClient
) -> None:
    """As soon as the container is there, and as the engine knows it now; the id is that of every list."""
    image = registry.add(make_image(), "app:1", "other:1")
    await pull(cri, registry.name("app:1"))
    async with pods.pod(cri, config := pods.sandbox_config()) as sandbox_id:
        of_image = pods.container_config(image=cri.api.ImageSpec(image=registry.name("app:1")))
        container_id = await pods.create(cri, sandbox_id, of_image, config)

        async def refs() -> list[str]:
            response = await cri.runtime.PodSandboxStatus(cri.api.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id))
            told = [*response.containers_statuses, await pods.status(cri, container_id)]
            assert [one.image_id for one in told] == [image.id] * 2
            return [one.image_ref for one in told]

        assert await refs() == [registry.name(f"app@{image.digest}")] * 2
        shown = (await pods.containers(cri))[container_id]
        assert shown.image_ref == shown.image_id == image.id, "by which a kubelet keeps it from being removed"
        await pull(cri, registry.name("other:1"))
        assert await refs() == [registry.name(f"app@{image.digest}")] * 2, "as it was asked for"
        await asyncio.to_thread(engine_api.images.remove, registry.name(f"app@{image.digest}"))
        if not OF_CONTAINERD:  # there the tag goes with the digest
            await asyncio.to_thread(engine_api.images.remove, registry.name("app:1"))
        await eventually(refs, [registry.name(f"other@{image.digest}")] * 2)
        await pods.remove(cri, container_id)


@pytest.mark.every_engine
async def test_an_image_that_no_registry_knows_is_told_by_its_id(cri: CRI, engine_api: DockerClient) -> None:
    await pods.pull(cri)
    made = engine_api.containers.create(pods.BUSYBOX)
    local = made.commit("tests/local", "1")
    made.remove()
    async with pods.pod(cri, config := pods.sandbox_config()) as sandbox_id:
        of_image = pods.container_config(image=cri.api.ImageSpec(image="tests/local:1"))
        container_id = await pods.create(cri, sandbox_id, of_image, config)
        told = await pods.status(cri, container_id)
        assert told.image_id == local.id
        # containerd's image store has such a name for every image.
        assert told.image_ref == (f"tests/local@{local.id}" if OF_CONTAINERD else local.id)
        assert told.image.image == "tests/local:1"
    engine_api.images.remove(local.id, force=True)


# -- removal


@pytest.mark.every_engine
async def test_removing_by_one_name_removes_all(cri: CRI, registry: Registry) -> None:
    image = registry.add(make_image(), "app:1", "app:2", "other/app:1")
    for name in registry.images:
        await pull(cri, registry.name(name))
    await remove(cri, registry.name("app:2"))
    for name in (image.id, *map(registry.name, registry.images), registry.name(f"app@{image.digest}")):
        assert not (await status(cri, name)).HasField("image"), name
    assert image.id not in [found.id for found in await listed(cri)]


@pytest.mark.every_engine
@pytest.mark.parametrize("form", ["id", "bare-id", "tag", "digest", "tag-and-digest"])
async def test_any_name_removes_and_twice_is_fine(cri: CRI, registry: Registry, form: str) -> None:
    image = registry.add(make_image(), "app:1")
    await pull(cri, registry.name("app:1"))
    name = {
        "id": image.id,
        "bare-id": image.id.removeprefix("sha256:"),
        "tag": registry.name("app:1"),
        "digest": registry.name(f"app@{image.digest}"),
        "tag-and-digest": registry.name(f"app:1@{image.digest}"),
    }[form]
    await remove(cri, name)
    assert not (await status(cri, image.id)).HasField("image")
    await remove(cri, name)


@pytest.mark.every_engine
async def test_removals_at_the_same_time_all_succeed(
    cri: CRI, registry: Registry, start_server: Callable[..., Server]
) -> None:
    async with CRI(start_server().target) as other:
        for number in range(5):
            image = registry.add(make_image(), f"app:{number}", f"also:{number}")
            for name in (f"app:{number}", f"also:{number}"):
                await pull(cri, registry.name(name))
            names = (image.id, registry.name(f"app:{number}"), registry.name(f"also:{number}"))
            await asyncio.gather(*(remove(client, name) for name in names for client in (cri, other)))
            assert not (await status(cri, image.id)).HasField("image")


@pytest.mark.every_engine
async def test_an_image_that_a_container_uses_stays_whole(
    cri: CRI, registry: Registry, engine_api: DockerClient
) -> None:
    image = registry.add(make_image(), "app:1", "also:1")
    for name in registry.images:
        await pull(cri, registry.name(name))
    before = (await status(cri, image.id)).image
    container = engine_api.containers.create(image.id)
    try:
        for name in (image.id, registry.name("app:1")):
            assert await code_of(remove(cri, name)) == grpc.StatusCode.FAILED_PRECONDITION
        assert (await status(cri, image.id)).image == before
    finally:
        container.remove()
    await remove(cri, registry.name("app:1"))


@pytest.mark.skipif(os.environ["TEST_NODE_ENGINE"] == "20", reason="engines before 28 have no image volumes")
@pytest.mark.parametrize("name", ["id", "app:1", "also:1"])
async def test_an_image_that_a_container_mounts_stays_whole(
    cri: CRI, registry: Registry, engine_api: DockerClient, name: str
) -> None:
    """The engine itself would remove it by force. Others than us may mount it by a name."""
    await pods.pull(cri)
    image = registry.add(make_image(), "app:1", "also:1")
    for tag in registry.images:
        await pull(cri, registry.name(tag))
    before = (await status(cri, image.id)).image
    source = image.id if name == "id" else registry.name(name)
    # docker.types does not know the kind yet.
    volume = docker.types.Mount("/volume", source, read_only=True) | {"Type": "image"}
    container = engine_api.containers.create(pods.BUSYBOX, mounts=[volume])
    try:
        for asked in (image.id, registry.name("app:1")):
            assert await code_of(remove(cri, asked)) == grpc.StatusCode.FAILED_PRECONDITION
        assert (await status(cri, image.id)).image == before
    finally:
        container.remove()
    await remove(cri, registry.name("app:1"))
    assert await listed(cri, image.id) == []


# -- disk usage


async def usage(cri: CRI) -> tuple[Any, Any]:
    """The file systems of images and of containers."""
    response = await cri.images.ImageFsInfo(cri.api.ImageFsInfoRequest())
    (images,), (containers,) = response.image_filesystems, response.container_filesystems
    return images, containers


@pytest.mark.every_engine
async def test_the_image_filesystem_is_told(cri: CRI, registry: Registry, engine_api: DockerClient) -> None:
    images, containers = before = await usage(cri)
    root = engine_api.info()["DockerRootDir"] + ("/containerd/daemon" if OF_CONTAINERD else "")
    assert images.fs_id.mountpoint == containers.fs_id.mountpoint == root
    assert abs(images.timestamp - time.time_ns()) < 60e9
    assert images.HasField("used_bytes")
    # Those of the whole file system.
    assert images.inodes_used.value > 0
    assert (await usage(cri))[0].used_bytes == before[0].used_bytes
    registry.add(make_image(8 * MIB), "app:1")
    await pull(cri, registry.name("app:1"))
    after, _ = await usage(cri)
    # containerd keeps the archive of a layer beside its files.
    copies = 2 if OF_CONTAINERD else 1
    assert copies * 8 * MIB <= after.used_bytes.value - images.used_bytes.value < copies * 9 * MIB
    await remove(cri, registry.name("app:1"))
    again, _ = await usage(cri)
    assert again.used_bytes.value == images.used_bytes.value


@pytest.mark.every_engine
async def test_layers_that_images_share_count_once_as_the_engine_counts_them(
    cri: CRI, registry: Registry, engine_api: DockerClient
) -> None:
    registry.add(make_image(8 * MIB), "app:1")
    await pull(cri, registry.name("app:1"))
    before, _ = await usage(cri)
    container = engine_api.containers.create(registry.name("app:1"))
    image = container.commit("shares-its-layers")
    container.remove()
    try:
        assert image.attrs["Size"] >= 8 * MIB
        # The answer is never older than the last pull.
        await pull(cri, registry.name("app:1"))
        after, _ = await usage(cri)
        assert after.used_bytes.value == engine_api.df()["LayersSize"]
        assert after.used_bytes.value - before.used_bytes.value < MIB
    finally:
        engine_api.images.remove(image.id)
        await remove(cri, registry.name("app:1"))


# -- the built-in infra image


@pytest.mark.every_engine
async def test_the_built_in_infra_image_loads_runs_and_ends_at_once(cri: CRI, engine_api: DockerClient) -> None:
    engine_api.images.load(docker_archive(engine_api.version()["Arch"]))
    told = (await status(cri, BUILTIN_INFRA_IMAGE)).image
    assert told.pinned
    assert list(told.repo_tags) == [BUILTIN_INFRA_IMAGE]
    container = engine_api.containers.run(BUILTIN_INFRA_IMAGE, detach=True, network_mode="none", oom_score_adj=0)
    try:
        started = time.monotonic()
        container.stop(timeout=10)
        assert time.monotonic() - started < 2
        assert container.wait()["StatusCode"] == 0
    finally:
        container.remove(force=True)
