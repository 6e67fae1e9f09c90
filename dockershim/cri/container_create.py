"""CreateContainer."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.common.rollback import Rollback, rollback, run_to_completion
from dockershim.common.steps import step
from dockershim.cri.accounts import ImageAccounts
from dockershim.cri.cdi import CdiSpecs
from dockershim.cri.drafts import Drafts
from dockershim.cri.engine_containers import EngineContainers
from dockershim.cri.profiles import read_profiles
from dockershim.errors import AlreadyExists, InvalidArgument, NotFound, disk_error
from dockershim.host_paths.operations import MadeFolder
from dockershim.host_paths.server_side import HostPaths
from dockershim.interceptors import Chain, NewContainer, Snapshot
from dockershim.state.engine_info import EngineInfo
from dockershim.state.image_records import ImageRecords
from dockershim.state.inventory import Inventory
from dockershim.state.pods import Pods
from dockershim.translate.accounts import Account, has_user, unsettled_user
from dockershim.translate.capabilities import Capabilities
from dockershim.translate.cdi import NO_EDITS, cdi_names
from dockershim.translate.checks import require
from dockershim.translate.container import EngineLog, check_container, to_engine_container
from dockershim.translate.image import check_added
from dockershim.translate.names import container_name
from dockershim.translate.records import SandboxRecord
from dockershim.translate.reference import lookup_name
from dockershim.translate.user_namespace import asked_user_namespace

logger = logging.getLogger(__name__)

_UNDO_DEADLINE: Final = 60.0
#: Errors of making a folder that are the fault of the requested path, not of the node or its disks.
_WRONG_PATH: Final = {errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL, errno.ENOENT}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ContainerCreate:
    """CreateContainer.

    ``engine_log`` is for new containers; None if their log path is to be a link to the engine's json-file.
    """

    pods: Pods
    inventory: Inventory
    containers: EngineContainers
    info: EngineInfo
    chain: Chain
    host_paths: HostPaths
    cdi: CdiSpecs
    images: ImageRecords
    accounts: ImageAccounts
    drafts: Drafts
    engine_log: EngineLog | None

    async def create_container(self, request: cri.CreateContainerRequest) -> cri.CreateContainerResponse:
        """CreateContainer: when this returns, the container exists. If it fails, nothing of the container is left."""
        chain = self.chain.snapshot()
        config = request.config
        features = await self.info.capabilities()
        check_container(config, request.sandbox_config, features)
        require(request.pod_sandbox_id, "pod_sandbox_id")
        sandbox = (await self.pods.find(request.pod_sandbox_id)).running()
        await self._check_namespaces(config, sandbox)
        name = container_name(config.metadata.name, config.metadata.attempt, sandbox.name)
        async with self.pods.locked_name(name), rollback("CreateContainer", _UNDO_DEADLINE) as undo:
            check = partial(self._check, sandbox, features)
            request = await chain.before_create(request, sandbox, features, check)
            body = await self._engine_container(request, sandbox, features)
            if config.devices:
                await self._check_devices(config.devices)
            if host_mounts := [mount for mount in config.mounts if mount.host_path]:
                with step("create the host paths"):
                    await self._make_host_paths(host_mounts, undo)
            new = NewContainer(request.config, sandbox, features, body, undo, self.drafts.create)
            await chain.before_engine_create(new)
            # Locked only now: a hook or a host path that hangs must not keep the sandbox from being stopped.
            async with self.pods.locked(sandbox.id) as pod:
                pod.running()
                container_id = await self._create_in(name, new)
        if chain.members:
            # The container is there, even if the caller goes now.
            await run_to_completion(self._finish(chain, new, container_id), f"finish the create of {container_id}")
        return cri.CreateContainerResponse(container_id=container_id)

    async def _finish(self, chain: Snapshot, new: NewContainer, container_id: str) -> None:
        if new.has_useless_draft:
            await self.drafts.remove(new.draft_id)
        await chain.after_create(new, self.inventory.peek(container_id))

    async def _create_in(self, name: str, new: NewContainer) -> str:
        """Create the container; if that fails, undo it before the caller releases the sandbox's lock."""
        async with rollback("CreateContainer", _UNDO_DEADLINE) as undo:
            with step("create the container"):
                if new.draft_id and not new.has_useless_draft:
                    container_id = await self._rename(new.draft_id, name, undo)
                else:
                    container_id = await self._create(name, new.body, undo)
            if folders := _folders_of_images(new.config.mounts):
                with step("check the image volumes"):
                    await self.containers.check_image_volumes(container_id, folders)
            with step("inspect the container"):
                await self.inventory.refresh_container(container_id, until=lambda _: True)
        return container_id

    async def _check(self, sandbox: SandboxRecord, features: Capabilities, request: cri.CreateContainerRequest) -> None:
        """Check a request that was changed. Raises ShimError."""
        check_container(request.config, request.sandbox_config, features)
        await self._engine_container(request, sandbox, features)

    async def _check_namespaces(self, config: cri.ContainerConfig, sandbox: SandboxRecord) -> None:
        options = config.linux.security_context.namespace_options
        if asked_user_namespace(options) != sandbox.user_namespace:
            raise InvalidArgument("namespace_options.userns_options: must be the same as the sandbox's")
        if options.network == cri.NODE and not sandbox.host_network:
            raise InvalidArgument(
                "namespace_options.network: must not be NODE, as the sandbox has its own network namespace"
            )
        if options.pid != cri.TARGET or not options.target_id:
            return
        target = await self.inventory.find_container(options.target_id)
        if target is None or target.sandbox_id != sandbox.id:
            raise InvalidArgument(
                f"namespace_options.target_id: {options.target_id!r} is not a container of this sandbox"
            )

    async def _engine_container(
        self, request: cri.CreateContainerRequest, sandbox: SandboxRecord, features: Capabilities
    ) -> dict[str, Any]:
        return to_engine_container(
            request.config,
            request.sandbox_config,
            sandbox_id=sandbox.id,
            pod=sandbox.name,
            image=lookup_name(request.config.image.image),
            runtime=sandbox.runtime_handler,
            profiles=await read_profiles(self.host_paths, request.config.linux.security_context),
            volumes=await self._image_ids(request.config.mounts),
            account=await self._account(request.config),
            cdi_edits=NO_EDITS if features.cdi else await self.cdi.edits(cdi_names(request.config)),
            lowest_oom_score=self.info.lowest_oom_score(),
            features=features,
            engine_log=self.engine_log,
        )

    async def _account(self, config: cri.ContainerConfig) -> Account | None:
        """What the image says of the container's user, where the engine would not do with it what the CRI says.

        Raises InvalidArgument for an image of which no container can be made.
        """
        context = config.linux.security_context
        image = await self.images.look_up(config.image.image)
        if image is None:  # as the engine will say
            return None
        check_added(image, config.image.image)
        if has_user(context) and not unsettled_user(context, ""):
            return None
        user = unsettled_user(context, image.user)
        return await self.accounts.find(image, user) if user else None

    async def _image_ids(self, mounts: Iterable[cri.Mount]) -> dict[str, str]:
        """The ids of the images that mounts name. Raises NotFound."""
        ids: dict[str, str] = {}
        for mount in mounts:
            if mount.HasField("image"):
                image = await self.images.look_up(mount.image.image)
                if image is None:
                    raise NotFound(
                        f"mounts[{mount.container_path}].image: {mount.image.image!r} is not on the node; pull it first"
                    )
                ids[mount.image.image] = image.id
        return ids

    async def _check_devices(self, devices: Iterable[cri.Device]) -> None:
        """Check that they are devices of the node: the engine would notice only at the start. Raises ShimError."""
        try:
            missing = await self.host_paths.without_device([device.host_path for device in devices])
        except OSError as error:
            raise disk_error(f"devices: {error}", error) from error
        if missing:
            raise InvalidArgument(f"devices: {missing[0]!r} does not exist on the node")

    async def _make_host_paths(self, mounts: Iterable[cri.Mount], undo: Rollback) -> None:
        """Make the missing folders of the mounts, as other runtimes do. Raises ShimError.

        It also checks that every path answers: the engine loses a thread for each use of a path that hangs.
        """
        host_paths = self.host_paths
        by_path = {mount.host_path: mount for mount in mounts}
        made: list[MadeFolder] = []

        async def make() -> None:
            made.extend(await host_paths.make_folders(list(by_path)))

        async def remove() -> None:
            if made:
                await host_paths.remove_folders(made)

        undo.push("remove the host paths", remove)
        try:
            await run_to_completion(make(), "create the host paths")
        except OSError as error:
            where = f"mounts[{by_path[error.filename].container_path}].host_path"
            if error.errno in _WRONG_PATH:
                raise InvalidArgument(f"{where}: {error}") from error
            raise disk_error(f"{where}: {error}", error) from error

    async def _create(self, name: str, body: dict[str, Any], undo: Rollback) -> str:
        return await self.containers.create_in_place(
            name, self.containers.creator(name, body, undo), self._clear_half_made
        )

    async def _rename(self, container_id: str, name: str, undo: Rollback) -> str:
        undo.push(f"remove {name}", lambda: self.containers.remove(container_id))

        async def rename() -> str:
            await self.containers.rename(container_id, name)
            return container_id

        return await self.containers.create_in_place(name, rename, self._clear_half_made)

    async def _clear_half_made(self, container_id: str) -> None:
        """Remove a container of the same name if it was never started: no caller has its id. Else AlreadyExists."""
        record = await self.inventory.refresh_container(container_id)
        if record is None or record.state != cri.CONTAINER_CREATED:
            raise AlreadyExists(f"container {container_id} with the same metadata already exists")
        logger.warning("container %s of an unfinished attempt has the same metadata; removing it", record.id)
        await self.containers.remove(record.id)


def _folders_of_images(mounts: Iterable[cri.Mount]) -> dict[str, str]:
    """The image volumes that show one folder of their image, by container path."""
    return {mount.container_path: mount.image_sub_path for mount in mounts if mount.image_sub_path}
