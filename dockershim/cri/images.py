"""The ImageService: pulls, lists, describes and removes the node's images.

An image's id is the engine's, ``sha256:…``, and the same wherever the CRI names an image: Image.id,
PullImageResponse.image_ref, ContainerStatus.image_id and Container.image_id.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

import tenacity

from dockershim.api.cri.v1 import api_pb2
from dockershim.common.own_files import with_own_thread
from dockershim.common.single_flight import SingleFlight
from dockershim.common.steps import step
from dockershim.common.timed import Kind, timed
from dockershim.common.wire import Encoded
from dockershim.cri.infra_image import BUILTIN_INFRA_IMAGE, docker_archive
from dockershim.engine.client import Engine
from dockershim.engine.credentials import Credentials, NodeCredentials, from_cri
from dockershim.engine.pull_progress import MessageStream, refine
from dockershim.engine_files.containerd import blob_bytes
from dockershim.engine_files.image_layers import read_size, used_inodes
from dockershim.errors import DeadlineExceeded, EngineFailure, FailedPrecondition, NotFound, ShimError
from dockershim.state.image_records import ImageRecords
from dockershim.stats.disk import DiskUsage
from dockershim.stats.to_cri import to_cri_file_system, to_cri_layer
from dockershim.translate.capabilities import Capabilities
from dockershim.translate.checks import require
from dockershim.translate.image import ImageRecord, is_named, to_cri_image, to_cri_image_info
from dockershim.translate.reference import Reference, parse_reference

logger = logging.getLogger(__name__)

# The first API version that reports the disk usage of images alone; older ones walk every container and volume.
_DISK_USAGE_BY_TYPE: Final = (1, 42)
_FS_INFO_LIFETIME: Final = 30.0
_DISK_USAGE_LIFETIME: Final = 600.0
_REMOVE_ATTEMPTS: Final = 5


@dataclass(frozen=True, slots=True)
class _ImageUsage:
    """``measured_at`` is in seconds of the monotonic clock, ``timestamp`` in nanoseconds since 1970, ``size`` in bytes.

    ``inodes`` are those in use on the whole file system; None if this process does not see it.
    """

    folder: str
    measured_at: float
    timestamp: int
    size: int
    inodes: int | None


class ImageService:
    """One method for each RPC of runtime.v1.ImageService.

    ``records`` are the images of the engine in memory; the engine is asked only for what they lack.
    ``infra_image`` is the reference of the pods' infra image, which is pinned. ``pull_progress_deadline`` returns the
    seconds that a pull may go without progress. ``received`` is called with the bytes that came from registries.
    """

    def __init__(
        self,
        engine: Engine,
        records: ImageRecords,
        infra_image: str,
        disk: DiskUsage,
        *,
        capabilities: Callable[[], Awaitable[Capabilities]],
        pull_progress_deadline: Callable[[], float],
        node_credentials: NodeCredentials,
        received: Callable[[int], None] | None = None,
    ) -> None:
        self._engine = engine
        self._records = records
        self._infra_image = parse_reference(infra_image)
        self._disk = disk
        self._capabilities = capabilities
        self._pull_progress_deadline = pull_progress_deadline
        self._node_credentials = node_credentials
        self._received = received
        self._pulls: SingleFlight[tuple[str, Credentials | None], str] = SingleFlight("pull")
        self._removals: SingleFlight[str, None] = SingleFlight("remove image")
        self._usages: SingleFlight[None, _ImageUsage] = SingleFlight("image filesystem")
        self._usage: _ImageUsage | None = None
        #: The size of all layers that the engine reported last: seconds of the monotonic clock, the count of changes
        #: of ``records``, and bytes.
        self._reported: tuple[float, int, int] | None = None
        self._encoded: dict[ImageRecord, bytes] = {}

    async def pull_image(self, request: api_pb2.PullImageRequest) -> api_pb2.PullImageResponse:
        """PullImage. Raises NotFound, Unauthenticated, DeadlineExceeded if the pull stalls, Unavailable, EngineFailure.

        Overlapping calls for one image with the same credentials share one pull. It is cancelled if all of them are.
        """
        reference = parse_reference(_image_name(request.image))
        credentials = from_cri(request.auth, reference.domain)
        await self._records.available()
        (await self._capabilities()).check_handler(request.image.runtime_handler, "image.runtime_handler")
        return api_pb2.PullImageResponse(image_ref=await self._pull_once(reference, credentials))

    async def list_images(self, request: api_pb2.ListImagesRequest) -> Encoded[api_pb2.ListImagesResponse]:
        """ListImages: all images, or the one that the filter names in any form."""
        return Encoded(b"".join(await self.listed(request)))

    async def listed(self, request: api_pb2.ListImagesRequest | api_pb2.StreamImagesRequest) -> list[bytes]:
        """The images that match the request's filter, each encoded as a response with one item."""
        if request.filter.image.image:
            record = await self._records.look_up(request.filter.image.image)
            return [] if record is None else [self._encode(record)]
        self._encoded = {record: self._encode(record) for record in await self._records.all()}
        return list(self._encoded.values())

    async def image_status(self, request: api_pb2.ImageStatusRequest) -> api_pb2.ImageStatusResponse:
        """ImageStatus: empty if there is no such image (api.proto, ImageService.ImageStatus)."""
        name = _image_name(request.image)
        await self._records.available()
        # Verbose or not: in containerd's image store an inspect has the size of one platform, and a list that of all.
        record = await self._records.look_up(name)
        if record is None:
            return api_pb2.ImageStatusResponse()
        inspected = await self._records.inspect(name) if request.verbose else None
        return api_pb2.ImageStatusResponse(
            image=to_cri_image(record, is_named(record, self._infra_image)),
            info=to_cri_image_info(inspected) if inspected is not None else None,
        )

    async def remove_image(self, request: api_pb2.RemoveImageRequest) -> api_pb2.RemoveImageResponse:
        """RemoveImage: removes the image with all its names. The request may have any of them.

        Succeeds if there is no such image (api.proto, ImageService.RemoveImage). Raises FailedPrecondition if a
        container uses or mounts it, running or not.
        """
        name = _image_name(request.image)
        await self._records.available()
        inspected = await self._records.inspect(name)
        if inspected is not None:
            image_id: str = inspected["Id"]
            names = [*(inspected.get("RepoTags") or ()), *(inspected.get("RepoDigests") or ())]
            await self._removals.run(image_id, lambda: self._remove(image_id, names))
        return api_pb2.RemoveImageResponse()

    async def image_fs_info(self, request: api_pb2.ImageFsInfoRequest) -> api_pb2.ImageFsInfoResponse:
        """ImageFsInfo. Images: at most 30 seconds old, and newer than the last pull or removal by this server.

        Their inodes are those of the whole file system, as the kubelet and cri-dockerd count them. Containers: the sum
        of their writable layers.
        """
        usage = self._usage
        if usage is None or time.monotonic() - usage.measured_at > _FS_INFO_LIFETIME:
            await self._records.available()
            usage = await self._usages.run(None, self._measure)
        layers = self._disk.writable_layers()
        return api_pb2.ImageFsInfoResponse(
            image_filesystems=[to_cri_file_system(usage.folder, usage.timestamp, usage.size, usage.inodes)],
            container_filesystems=[
                to_cri_layer(layers, usage.folder)
                if layers is not None
                else to_cri_file_system(usage.folder, usage.timestamp, None, None)
            ],
        )

    async def ensure_infra_image(self) -> str:
        """The id of the infra image, which is loaded or pulled if it is missing. Raises the errors of pull_image."""
        reference = self._infra_image
        inspected = await self._records.inspect(reference.lookup)
        if inspected is not None:
            return str(inspected["Id"])
        if reference == parse_reference(BUILTIN_INFRA_IMAGE):
            return await self._pulls.run((reference.lookup, None), lambda: self._load_builtin(reference))
        return await self._pull_once(reference, None)

    # -- pulling

    async def _pull_once(self, reference: Reference, credentials: Credentials | None) -> str:
        return await self._pulls.run((reference.lookup, credentials), lambda: self._pull(reference, credentials))

    async def _pull(self, reference: Reference, credentials: Credentials | None) -> str:
        started = time.monotonic()
        with timed(Kind.PULL):
            credentials = credentials or await self._node_credentials.find(reference.domain)
            headers = {"X-Registry-Auth": credentials.header()} if credentials else {}
            parameters = {"fromImage": reference.name, "tag": reference.version}
            with step("pull the image"):
                messages = await self._follow(f"pull of {reference.normalized}", "/images/create", parameters, headers)
            with step("inspect the image"):
                image_id = await self._arrived(reference)
            if self._received is not None and messages.unmeasured:
                self._received(await self._size_of(messages.unmeasured))
        logger.info("pulled %s as %s in %.1f s", reference.normalized, image_id, time.monotonic() - started)
        return image_id

    async def _load_builtin(self, reference: Reference) -> str:
        version = await self._engine.get("/version")
        archive = docker_archive(version["Arch"])
        headers = {"Content-Type": "application/x-tar"}
        await self._follow("load of the infra image", "/images/load", {"quiet": "1"}, headers, archive)
        return await self._arrived(reference)

    async def _follow(
        self,
        what: str,
        path: str,
        parameters: Mapping[str, str],
        headers: Mapping[str, str],
        data: bytes | None = None,
    ) -> MessageStream:
        """Read the engine's progress to its end, and return it.

        If this is cancelled, the connection closes, and the engine stops.
        """
        seconds = self._pull_progress_deadline()
        messages = MessageStream(what)
        try:
            async with (
                asyncio.timeout(seconds) as stalled,
                self._engine.stream("POST", path, params=parameters, headers=headers, data=data) as response,
            ):
                async for chunk in response.content.iter_any():
                    known = messages.news
                    messages.receive(chunk)
                    if messages.news != known:
                        # No deadline while a layer is unpacked: that may take long without messages, and needs no
                        # registry.
                        stalled.reschedule(None if messages.extracting else asyncio.get_running_loop().time() + seconds)
            return messages
        except TimeoutError as error:
            raise DeadlineExceeded(f"{what}: no progress for {seconds:g} s") from error
        except ShimError as error:
            # An error before the first message names only the engine's call.
            text = str(error) if str(error).startswith(what) else f"{what}: {error}"
            raise refine(type(error)(text)) from error
        finally:
            if self._received is not None:
                self._received(messages.downloaded)

    async def _size_of(self, layers: AbstractSet[str]) -> int:
        """The bytes of layers that came at once, by their short ids; 0 where only the engine sees them.

        With containerd's image store the engine tells of a download ten times a second.
        """
        try:
            features = await self._capabilities()
        except ShimError:
            return 0
        if not features.containerd_store:
            return 0
        return await with_own_thread(blob_bytes, await self._disk.folder(features), layers)

    async def _arrived(self, reference: Reference) -> str:
        self.note_change()
        inspected = await self._records.inspect(reference.lookup)
        if inspected is None:
            raise NotFound(f"{reference.normalized} was removed immediately after it was pulled; try again")
        return str(inspected["Id"])

    def note_change(self) -> None:
        """Note that images or their names were added or removed."""
        self._usage = None
        self._records.changed()

    # -- removing

    async def _remove(self, image_id: str, names: list[str]) -> None:
        # By force, the engine removes all names at once, and ignores containers that do not run or that mount the
        # image; without force, it refuses an image with names in several repositories. So we use force, and check the
        # containers ourselves.
        await self._check_unused(image_id, "used", {"ancestor": [image_id]})
        # The filter for volumes finds mounts of images too, by the text that asked for the image.
        await self._check_unused(image_id, "mounted", {"volume": [image_id, *names]})
        retry = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type((NotFound, EngineFailure)),
            stop=tenacity.stop_after_attempt(_REMOVE_ATTEMPTS),
            wait=tenacity.wait_random_exponential(multiplier=0.02, max=0.2),
            reraise=True,
        )
        try:
            await retry(self._delete, image_id)
        finally:
            self.note_change()

    async def _check_unused(self, image_id: str, how: str, filters: Mapping[str, list[str]]) -> None:
        params = {"all": "1", "filters": json.dumps(filters)}
        users = await self._engine.get("/containers/json", params=params)
        if users:
            raise FailedPrecondition(f"image {image_id} is {how} by container {users[0]['Id']}")

    async def _delete(self, image_id: str) -> None:
        try:
            await self._engine.delete(f"/images/{quote(image_id, safe=':')}", params={"force": "1"})
        except (NotFound, EngineFailure):
            # If two clients remove one image at the same time, the engine may answer either of them that a name or an
            # id does not exist, whether the image is gone by then or not.
            if await self._records.inspect(image_id) is not None:
                raise

    # -- reading

    def _encode(self, record: ImageRecord) -> bytes:
        """A ListImagesResponse with one item; StreamImagesResponse has the same fields."""
        known = self._encoded.get(record)
        if known is not None:
            return known
        image = to_cri_image(record, is_named(record, self._infra_image))
        return api_pb2.ListImagesResponse(images=[image]).SerializeToString()

    async def _measure(self) -> _ImageUsage:
        features = await self._capabilities()
        folder = await self._disk.folder(features)
        size = None
        if not features.containerd_store:
            size = await with_own_thread(read_size, Path(features.root_dir), features.storage_driver)
        usage = _ImageUsage(
            folder=folder,
            measured_at=time.monotonic(),
            timestamp=time.time_ns(),
            size=await self._ask_size() if size is None else size,
            inodes=await with_own_thread(used_inodes, folder),
        )
        self._usage = usage
        return usage

    async def _ask_size(self) -> int:
        """The bytes of all layers as the engine reports them.

        With containerd's image store it takes two seconds for 80 images, so we ask only after a change. An old engine
        walks all containers and volumes for it, so we ask seldom.
        """
        by_type = await self._engine.api_version() >= _DISK_USAGE_BY_TYPE
        change = self._records.change
        if self._reported is not None and time.monotonic() - self._reported[0] <= _DISK_USAGE_LIFETIME:
            _, last_change, size = self._reported
            if last_change == change or not by_type:
                return size
        usage = await self._engine.get("/system/df", params={"type": "image"} if by_type else None)
        # ImageUsage replaces LayersSize, since API 1.52.
        size = int((usage.get("ImageUsage") or {}).get("TotalSize") or usage.get("LayersSize") or 0)
        self._reported = (time.monotonic(), change, size)
        return size


def _image_name(image: api_pb2.ImageSpec) -> str:
    require(image.image, "image.image")
    return image.image
