"""The ImageService in cases that a real engine rarely shows, with a fake engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dockershim.api.cri.v1 import api_pb2
from dockershim.cri import image_handlers
from dockershim.cri import images as module
from dockershim.cri.images import ImageService
from dockershim.cri.infra_image import BUILTIN_INFRA_IMAGE
from dockershim.engine.client import Engine, Shortened
from dockershim.engine.credentials import NodeCredentials
from dockershim.errors import (
    DeadlineExceeded,
    EngineFailure,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    Unauthenticated,
    Unavailable,
)
from dockershim.state.follower import EngineFollower
from dockershim.state.image_records import ImageRecords
from dockershim.stats.disk import DiskUsage
from dockershim.stats.layers import LayerUsage
from dockershim.translate.capabilities import Capabilities, read_capabilities
from tests.unit.state.fake_engine import AlwaysCurrent

ID = "sha256:" + "0123456789abcdef" * 4
DEADLINE = 0.6


class FakeEngine:
    """Answers GET from a table. A stream is a list of bytes to send, seconds to wait, and errors to raise."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {"/images/docker.io/library/app:1/json": {"Id": ID}}
        self.script: list[bytes | float | Exception] = []
        self.delay = 0.0
        self.asked: list[str] = []
        self.streams: list[tuple[str, Mapping[str, str]]] = []
        self.deletions: list[Exception | None] = []
        self.api = (1, 41)

    async def api_version(self) -> tuple[int, int]:
        return self.api

    async def get(self, path: str, *, params: Mapping[str, str] | None = None) -> Any:
        self.asked.append(path)
        await asyncio.sleep(0)
        answer = self.answers.get(f"{path}?{params['filters']}" if params and "filters" in params else path)
        if answer is None:
            raise NotFound(path)
        return answer

    async def get_shortened(self, path: str) -> Shortened:
        return Shortened(await self.get(path))

    async def get_list(self, path: str, kind: object) -> Any:
        return await self.get(path)

    async def delete(self, path: str, *, params: Mapping[str, str]) -> None:
        self.asked.append(f"DELETE {path}")
        if failure := self.deletions.pop(0):
            raise failure

    @asynccontextmanager
    async def stream(
        self, method: str, path: str, *, params: Mapping[str, str], headers: Mapping[str, str], data: bytes | None
    ) -> AsyncIterator[Any]:
        await asyncio.sleep(self.delay)
        self.streams.append((path, params))
        yield SimpleNamespace(content=SimpleNamespace(iter_any=self._play))

    async def _play(self) -> AsyncIterator[bytes]:
        for step in self.script:
            if isinstance(step, Exception):
                raise step
            elif isinstance(step, bytes):
                yield step
            else:
                await asyncio.sleep(step)


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


class FakeDisk:
    """Knows the writable layers of some containers."""

    layers: LayerUsage | None = None

    async def folder(self, can: Capabilities) -> str:
        return can.root_dir

    def writable_layers(self) -> LayerUsage | None:
        return self.layers


@pytest.fixture
def disk() -> FakeDisk:
    return FakeDisk()


def capabilities(root: Path) -> Callable[[], Awaitable[Capabilities]]:
    async def read() -> Capabilities:
        return read_capabilities((1, 41), {"DockerRootDir": str(root), "Driver": "overlay2"})

    return read


def make_service(
    engine: FakeEngine, disk: FakeDisk, root: Path, infra_image: str = BUILTIN_INFRA_IMAGE
) -> ImageService:
    return ImageService(
        cast(Engine, engine),
        ImageRecords(cast(Engine, engine), cast(EngineFollower, AlwaysCurrent())),
        infra_image,
        cast(DiskUsage, disk),
        capabilities=capabilities(root),
        pull_progress_deadline=lambda: DEADLINE,
        node_credentials=NodeCredentials([]),
    )


@pytest.fixture
def service(engine: FakeEngine, disk: FakeDisk, tmp_path: Path) -> ImageService:
    return make_service(engine, disk, tmp_path)


def message(text: str, layer: str = "a", current: int = 0) -> bytes:
    return json.dumps({"status": text, "id": layer, "progressDetail": {"current": current}}).encode() + b"\r\n"


async def pull(service: ImageService, image: str = "app:1") -> str:
    request = api_pb2.PullImageRequest(image=api_pb2.ImageSpec(image=image))
    return (await service.pull_image(request)).image_ref


@pytest.mark.parametrize(
    "script",
    [
        pytest.param([], id="nothing-new"),
        pytest.param(
            [step for byte in range(5) for step in (message("Downloading", current=byte), 0.15)], id="slow-but-steady"
        ),
        pytest.param([message("Extracting"), 0.8, message("Pull complete")], id="long-extraction"),
        pytest.param(
            [message("Extracting"), message("Downloading", "b"), 0.8, message("Pull complete")],
            id="extraction-of-one-layer-while-another-stalls",
        ),
    ],
)
async def test_a_pull_that_goes_on_is_left_alone(
    service: ImageService, engine: FakeEngine, script: list[bytes | float | Exception]
) -> None:
    engine.script = script
    assert await pull(service) == ID
    assert engine.streams == [("/images/create", {"fromImage": "docker.io/library/app", "tag": "1"})]


@pytest.mark.parametrize(
    ("delay", "script"),
    [
        pytest.param(5.0, [], id="no-answer-at-all"),
        pytest.param(0.0, [5.0], id="no-first-message"),
        pytest.param(0.0, [message("Downloading"), 5.0], id="download-stalls"),
        pytest.param(0.0, [message("Downloading"), 0.02] * 200, id="download-stalls-and-the-engine-repeats-itself"),
        pytest.param(
            0.0, [message("Extracting"), 0.8, message("Pull complete"), 5.0], id="download-stalls-after-an-extraction"
        ),
    ],
)
async def test_a_pull_without_progress_is_given_up(
    service: ImageService, engine: FakeEngine, delay: float, script: list[bytes | float | Exception]
) -> None:
    engine.delay, engine.script = delay, script
    async with asyncio.timeout(3):
        with pytest.raises(DeadlineExceeded, match=f"no progress for {DEADLINE} s"):
            await pull(service)


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        pytest.param(Unavailable("connection lost"), Unavailable, id="engine-died"),
        pytest.param(EngineFailure("POST: engine: unauthorized: x"), Unauthenticated, id="refused-without-a-code"),
        pytest.param(EngineFailure("POST: engine: broken"), EngineFailure, id="anything-else"),
    ],
)
async def test_a_pull_fails_by_the_type_of_its_failure(
    service: ImageService, engine: FakeEngine, failure: Exception, expected: type[Exception]
) -> None:
    engine.script = [message("Downloading"), failure]
    with pytest.raises(expected) as raised:
        await pull(service)
    assert type(raised.value) is expected
    assert str(raised.value) == f"pull of docker.io/library/app:1: {failure}"


async def test_what_was_removed_right_after_its_pull_is_not_found(service: ImageService, engine: FakeEngine) -> None:
    engine.answers.clear()
    with pytest.raises(NotFound, match="removed immediately after it was pulled"):
        await pull(service)


async def test_the_tag_beside_a_digest_is_not_pulled(service: ImageService, engine: FakeEngine) -> None:
    engine.answers[f"/images/docker.io/library/app@{ID}/json"] = {"Id": ID}
    assert await pull(service, f"app:1@{ID}") == ID
    assert engine.streams == [("/images/create", {"fromImage": "docker.io/library/app", "tag": ID})]


async def test_an_image_without_a_name_is_refused(service: ImageService) -> None:
    with pytest.raises(InvalidArgument, match=r"image\.image"):
        await pull(service, "")


# -- the infra image


async def test_the_built_in_infra_image_is_loaded_once_and_only_if_it_is_missing(
    service: ImageService, engine: FakeEngine
) -> None:
    engine.answers["/version"] = {"Arch": "amd64"}
    name = f"/images/docker.io/{BUILTIN_INFRA_IMAGE}/json"
    engine.script = [0.05]
    first, second = (asyncio.create_task(service.ensure_infra_image()) for _ in range(2))
    await asyncio.sleep(0.02)
    engine.answers[name] = {"Id": ID}
    assert [await first, await second, await service.ensure_infra_image()] == [ID] * 3
    assert [path for path, _ in engine.streams] == ["/images/load"]


async def test_an_infra_image_of_ones_own_is_pulled(engine: FakeEngine, disk: FakeDisk, tmp_path: Path) -> None:
    service = make_service(engine, disk, tmp_path, "app:1")
    name = "/images/docker.io/library/app:1/json"
    present = engine.answers.pop(name)
    engine.script = [0.05]
    task = asyncio.create_task(service.ensure_infra_image())
    await asyncio.sleep(0.02)
    engine.answers[name] = present
    assert await task == ID
    assert [path for path, _ in engine.streams] == ["/images/create"]


# -- removal


USED = f'/containers/json?{{"ancestor": ["{ID}"]}}'
#: Other clients may have mounted the image by one of its names.
MOUNTED = f'/containers/json?{{"volume": ["{ID}", "app:1", "app@sha256:1"]}}'


def removal(engine: FakeEngine, *failures: Exception | None) -> api_pb2.RemoveImageRequest:
    engine.answers |= {
        f"/images/{ID}/json": {"Id": ID, "RepoTags": ["app:1"], "RepoDigests": ["app@sha256:1"]},
        USED: [],
        MOUNTED: [],
    }
    engine.deletions = list(failures)
    return api_pb2.RemoveImageRequest(image=api_pb2.ImageSpec(image=ID))


async def test_a_removal_that_another_one_disturbs_is_tried_again(service: ImageService, engine: FakeEngine) -> None:
    await service.remove_image(removal(engine, NotFound("a name"), EngineFailure("an id"), None))
    assert engine.deletions == []


@pytest.mark.parametrize(("users", "how"), [(USED, "used"), (MOUNTED, "mounted")])
async def test_an_image_that_a_container_needs_stays(
    service: ImageService, engine: FakeEngine, users: str, how: str
) -> None:
    request = removal(engine, None)
    engine.answers[users] = [{"Id": "c1"}]
    with pytest.raises(FailedPrecondition, match=f"{ID} is {how} by container c1"):
        await service.remove_image(request)
    assert len(engine.deletions) == 1


async def test_a_removal_that_keeps_failing_says_so(service: ImageService, engine: FakeEngine) -> None:
    with pytest.raises(EngineFailure, match="disk"):
        await service.remove_image(removal(engine, *[EngineFailure("disk")] * 5))


async def test_a_refusal_is_not_tried_again(service: ImageService, engine: FakeEngine) -> None:
    with pytest.raises(FailedPrecondition, match="children"):
        await service.remove_image(removal(engine, FailedPrecondition("it has children")))


# -- list and disk usage


async def listed(service: ImageService) -> api_pb2.ListImagesResponse:
    return api_pb2.ListImagesResponse.FromString((await service.list_images(api_pb2.ListImagesRequest())).wire)


async def status(service: ImageService, name: str) -> api_pb2.Image:
    request = api_pb2.ImageStatusRequest(image=api_pb2.ImageSpec(image=name))
    return (await service.image_status(request)).image


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("app:1", id="name"),
        pytest.param("docker.io/library/app:1", id="whole name"),
        pytest.param(f"app:2@{ID}", id="digest, with a tag beside it"),
        pytest.param(ID, id="id"),
        pytest.param(ID.removeprefix("sha256:"), id="id without its kind"),
    ],
)
async def test_what_memory_knows_is_not_asked_for(service: ImageService, engine: FakeEngine, name: str) -> None:
    engine.answers["/images/json"] = [{"Id": ID, "RepoTags": ["app:1"], "RepoDigests": [f"app@{ID}"], "Size": 5}]
    engine.answers[f"/images/{ID}/json"] = {"Id": ID, "Config": {"User": "7"}}
    (image,) = (await listed(service)).images
    engine.asked.clear()
    assert await status(service, name) == image
    assert (image.size, image.uid.value, list(image.repo_tags)) == (5, 7, ["app:1"])
    assert engine.asked == []


async def test_what_memory_does_not_know_the_engine_is_asked_for(service: ImageService, engine: FakeEngine) -> None:
    engine.answers["/images/json"] = []
    assert not (await listed(service)).images
    assert (await status(service, "app:1")).id == ID, "short ids, and what is built upon, are in no list"
    assert not (await status(service, "none:1")).id


async def test_a_streamed_list_is_the_list(service: ImageService, engine: FakeEngine) -> None:
    ids = [f"sha256:{number:064}" for number in range(20)]
    engine.answers["/images/json"] = [{"Id": one} for one in ids]
    engine.answers |= {f"/images/{one}/json": {"Id": one} for one in ids}
    (streams,) = (handler for handler in image_handlers(service) if handler.streams)
    chunks = [chunk.wire async for chunk in streams.serve(api_pb2.StreamImagesRequest())]
    assert b"".join(chunks) == (await service.list_images(api_pb2.ListImagesRequest())).wire
    assert [one.id for one in api_pb2.StreamImagesResponse.FromString(chunks[0]).images] == ids


async def test_an_images_user_is_asked_for_once(service: ImageService, engine: FakeEngine) -> None:
    gone = "sha256:" + "f" * 64
    engine.answers["/images/json"] = [{"Id": ID, "Size": 1}, {"Id": gone}]
    engine.answers[f"/images/{ID}/json"] = {"Id": ID, "Config": {"User": "7"}}
    for _ in range(2):
        (image,) = (await listed(service)).images
        assert image.uid.value == 7
        engine.answers["/images/json"] = [{"Id": ID, "Size": 1}]
        service.note_change()
    assert engine.asked.count(f"/images/{ID}/json") == 1


async def usage_of(service: ImageService) -> tuple[api_pb2.FilesystemUsage, api_pb2.FilesystemUsage]:
    response = await service.image_fs_info(api_pb2.ImageFsInfoRequest())
    (images,), (containers,) = response.image_filesystems, response.container_filesystems
    return images, containers


async def test_disk_usage_is_read_from_the_engines_store_without_a_call(
    service: ImageService, engine: FakeEngine, disk: FakeDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "used_inodes", {str(tmp_path): 20}.get)
    for number, size in enumerate((400, 500)):
        layer = tmp_path / f"image/overlay2/layerdb/sha256/{number:064x}"
        layer.mkdir(parents=True)
        (layer / "size").write_text(f"{size}")
    disk.layers = LayerUsage(5, 4096, 3)
    images, containers = await usage_of(service)
    assert (images.fs_id.mountpoint, images.used_bytes.value, images.inodes_used.value) == (str(tmp_path), 900, 20)
    assert (containers.fs_id, containers.timestamp) == (images.fs_id, 5)
    assert (containers.used_bytes.value, containers.inodes_used.value) == (4096, 3)
    (tmp_path / f"image/overlay2/layerdb/sha256/{0:064x}/size").write_text("800")
    assert (await usage_of(service))[0] == images
    service.note_change()
    assert (await usage_of(service))[0].used_bytes.value == 1300
    assert engine.asked == []


@pytest.mark.parametrize(
    ("api", "asked_again"),
    [
        pytest.param((1, 42), True, id="an-engine-that-counts-images-alone"),
        pytest.param((1, 41), False, id="an-old-one-that-walks-over-everything"),
    ],
)
async def test_disk_usage_of_a_store_that_cannot_be_seen_is_asked_for_once_for_all(
    engine: FakeEngine, disk: FakeDisk, tmp_path: Path, api: tuple[int, int], asked_again: bool
) -> None:
    service = make_service(engine, disk, tmp_path / "elsewhere")
    engine.api = api
    engine.answers["/system/df"] = {"LayersSize": 500}
    request = api_pb2.ImageFsInfoRequest()
    first, second = await asyncio.gather(service.image_fs_info(request), service.image_fs_info(request))
    assert first == second == await service.image_fs_info(request)
    images, containers = await usage_of(service)
    assert images.used_bytes.value == 500
    assert not images.HasField("inodes_used")
    assert not containers.HasField("used_bytes")
    assert engine.asked.count("/system/df") == 1
    service.note_change()
    await usage_of(service)
    assert engine.asked.count("/system/df") == 1 + asked_again


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param({"LayersSize": 500}, id="before-1.52"),
        pytest.param({"LayersSize": 500, "ImageUsage": {"TotalSize": 500}}, id="1.52"),
        pytest.param({"ImageUsage": {"TotalSize": 500, "Reclaimable": 100, "TotalCount": 2}}, id="later"),
    ],
)
async def test_disk_usage_is_read_from_every_form_of_the_answer(
    service: ImageService, engine: FakeEngine, answer: dict[str, Any]
) -> None:
    engine.answers["/system/df"] = answer
    images, _ = await usage_of(service)
    assert images.used_bytes.value == 500


async def test_disk_usage_is_asked_for_again_only_after_a_change(
    service: ImageService, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Docker 29 takes 2.2 s for 80 images, and a kubelet asks every 10 s."""
    monkeypatch.setattr(module, "_FS_INFO_LIFETIME", 0.0)
    engine.api = (1, 51)
    engine.answers["/system/df"] = {"LayersSize": 500}
    for _ in range(3):
        await usage_of(service)
    assert engine.asked.count("/system/df") == 1
    service.note_change()
    await usage_of(service)
    assert engine.asked.count("/system/df") == 2
    monkeypatch.setattr(module, "_DISK_USAGE_LIFETIME", 0.0)
    await usage_of(service)
    assert engine.asked.count("/system/df") == 3
