"""CreateContainer, StartContainer, StopContainer, RemoveContainer, ContainerStatus, ListContainers,
UpdateContainerResources."""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.cgroups import apply_files, read_files, set_oom_score
from dockershim.common.own_files import with_own_thread
from dockershim.common.rollback import Rollback, rollback, run_to_completion
from dockershim.common.steps import step
from dockershim.common.wire import Encoded, in_chunks
from dockershim.cri.accounts import ImageAccounts
from dockershim.cri.cdi import CdiSpecs
from dockershim.cri.drafts import Drafts
from dockershim.cri.engine_containers import EngineContainers, remove_application
from dockershim.cri.limits import Limits
from dockershim.cri.logs import LAST_LINES_AT_A_READ, LogKeeper
from dockershim.cri.profiles import read_profiles
from dockershim.cri.user_namespaces import has_ids
from dockershim.errors import (
    AlreadyExists,
    EngineFailure,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ShimError,
    disk_error,
)
from dockershim.hooks.folder import HooksInForce
from dockershim.host_paths.operations import MadeFolder
from dockershim.host_paths.service import HostPaths
from dockershim.nri.in_force import NRIInForce
from dockershim.state.engine_info import EngineInfo
from dockershim.state.image_records import ImageRecords
from dockershim.state.pods import Pods
from dockershim.translate.accounts import Account, has_user, unsettled_user
from dockershim.translate.capabilities import Capabilities
from dockershim.translate.cdi import NO_EDITS, cdi_names
from dockershim.translate.cgroup_files import reset_files, to_write
from dockershim.translate.checks import check_enums, reject, require
from dockershim.translate.container import EngineLog, check_container, to_engine_container
from dockershim.translate.image import ImageRecord, check_added
from dockershim.translate.names import container_name
from dockershim.translate.records import (
    ContainerRecord,
    SandboxRecord,
    has_labels,
    to_cri_container,
    to_cri_container_status,
    to_current_resources,
    to_verbose_info,
)
from dockershim.translate.reference import lookup_name
from dockershim.translate.resources import (
    check_resources,
    to_cgroup_files,
    to_engine_resources,
    to_oom_score,
    value_at_start,
)
from dockershim.translate.user_namespace import asked_user_namespace

if TYPE_CHECKING:
    from dockershim.api.nri.v1alpha1 import api_pb2 as api
    from dockershim.hooks.points import Hooks
    from dockershim.nri.events import Creation, Events

logger = logging.getLogger(__name__)

_UNDO_DEADLINE = 60.0
_LONGEST_GRACE = 10**9
#: Seconds that a container has which an NRI plugin evicts; a kubelet's default is 30.
_EVICTION_GRACE = 30
#: Errors of making a folder that are the fault of the requested path, not of the node or its disks.
_WRONG_PATH = {errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL, errno.ENOENT}


class Containers:
    """The container calls of the RuntimeService."""

    def __init__(
        self,
        pods: Pods,
        containers: EngineContainers,
        logs: LogKeeper,
        info: EngineInfo,
        hooks: HooksInForce,
        nri: NRIInForce,
        host_paths: HostPaths,
        images: ImageRecords,
        accounts: ImageAccounts,
        limits: Limits,
        drafts: Drafts,
        engine_log: EngineLog | None,
    ) -> None:
        """``engine_log`` is for new containers; None if their log path is to be a link to the engine's json-file."""
        self._pods = pods
        self._inventory = pods.inventory
        self._containers = containers
        self._logs = logs
        self._info = info
        self._hooks = hooks
        self._nri = nri
        self._host_paths = host_paths
        self._cdi = CdiSpecs(host_paths)
        self._images = images
        self._accounts = accounts
        self._limits = limits
        self._drafts = drafts
        self._engine_log = engine_log

    async def create_container(self, request: cri.CreateContainerRequest) -> cri.CreateContainerResponse:
        """CreateContainer: when this returns, the container exists. If it fails, nothing of the container is left."""
        config = request.config
        features = await self._info.capabilities()
        check_container(config, request.sandbox_config, features)
        require(request.pod_sandbox_id, "pod_sandbox_id")
        sandbox = (await self._pods.find(request.pod_sandbox_id)).running()
        await self._check_namespaces(config, sandbox)
        name = container_name(config.metadata.name, config.metadata.attempt, sandbox.name)
        async with self._pods.locked_name(name), rollback("CreateContainer", _UNDO_DEADLINE) as undo:
            if self._hooks.current is not None:
                request = await self._hooked(self._hooks.current, request, sandbox, features)
            body = await self._engine_container(request, sandbox, features)
            if config.devices:
                await self._check_devices(config.devices)
            if host_mounts := [mount for mount in config.mounts if mount.host_path]:
                with step("make the host paths"):
                    await self._make_host_paths(host_mounts, undo)
            creation = None
            if self._nri.current is not None and self._nri.current.asks:
                with step("ask NRI plugins"):
                    creation = await self._ask_plugins(self._nri.current, request.config, sandbox, body, features, undo)
            # Locked only now: a hook or a host path that hangs must not keep the sandbox from being stopped.
            async with self._pods.locked(sandbox.id) as pod:
                pod.running()
                draft = creation.container_id if creation is not None and not creation.is_adjusted else ""
                container_id = await self._create_in(name, body, draft, _folders_of_images(request.config.mounts))
        if self._nri.current is not None:
            if creation is not None and creation.is_adjusted:
                await self._drafts.remove(creation.container_id)
            await self._nri.current.created(creation, self._inventory.peek(container_id))
        return cri.CreateContainerResponse(container_id=container_id)

    async def _create_in(self, name: str, body: dict[str, Any], draft: str, folders: Mapping[str, str]) -> str:
        """Create the container; if that fails, undo it before the caller releases the sandbox's lock.

        ``draft`` is the id of the container if it exists already under another name; ``folders`` are those of image
        volumes, by container path.
        """
        async with rollback("CreateContainer", _UNDO_DEADLINE) as undo:
            with step("create the container"):
                container_id = draft or await self._create(name, body, undo)
                if draft:
                    await self._rename(draft, name, undo)
            if folders:
                with step("check the image volumes"):
                    await self._containers.check_image_volumes(container_id, folders)
            with step("inspect the container"):
                await self._inventory.refresh_container(container_id, until=lambda _: True)
        return container_id

    async def _hooked(
        self, hooks: Hooks, request: cri.CreateContainerRequest, sandbox: SandboxRecord, features: Capabilities
    ) -> cri.CreateContainerRequest:
        async def check(changed: cri.CreateContainerRequest) -> None:
            check_container(changed.config, changed.sandbox_config, features)
            await self._engine_container(changed, sandbox, features)

        return await hooks.pre_create_container(request, sandbox, features.cgroup_driver, check)

    async def _ask_plugins(
        self,
        nri: Events,
        config: cri.ContainerConfig,
        sandbox: SandboxRecord,
        body: dict[str, Any],
        features: Capabilities,
        undo: Rollback,
    ) -> Creation:
        """Tell NRI plugins of a new container, and make what they want to its body. Raises ShimError."""
        from dockershim.cri.nri import adjust_container

        draft = await self._drafts.create(body, undo)
        creation = await nri.begin_container(draft, self._pods.peek(sandbox.id), config, body)
        undo.push("tell NRI plugins that the container is gone", lambda: nri.undo_container(creation))
        await nri.create_container(creation)
        if creation.is_adjusted:
            await adjust_container(
                creation,
                body,
                host_paths=self._host_paths,
                cdi=self._cdi,
                lowest_oom_score=self._info.lowest_oom_score(),
                features=features,
            )
        return creation

    async def _check_namespaces(self, config: cri.ContainerConfig, sandbox: SandboxRecord) -> None:
        options = config.linux.security_context.namespace_options
        if asked_user_namespace(options) != sandbox.user_namespace:
            raise InvalidArgument("namespace_options.userns_options: has to be the same as the sandbox's")
        if options.network == cri.NODE and not sandbox.host_network:
            raise InvalidArgument("namespace_options.network: NODE, but the sandbox has a network of its own")
        if options.pid != cri.TARGET or not options.target_id:
            return
        target = await self._inventory.find_container(options.target_id)
        if target is None or target.sandbox_id != sandbox.id:
            raise InvalidArgument(f"namespace_options.target_id: {options.target_id!r} is no container of this sandbox")

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
            profiles=await read_profiles(self._host_paths, request.config.linux.security_context),
            volumes=await self._image_ids(request.config.mounts),
            account=await self._account(request.config),
            cdi_edits=NO_EDITS if features.cdi else await self._cdi.edits(cdi_names(request.config)),
            lowest_oom_score=self._info.lowest_oom_score(),
            features=features,
            engine_log=self._engine_log,
        )

    async def _account(self, config: cri.ContainerConfig) -> Account | None:
        """What the image says of the container's user, where the engine would not do with it what the CRI says.

        Raises InvalidArgument for an image of which no container can be made.
        """
        context = config.linux.security_context
        image = await self._images.look_up(config.image.image)
        if image is None:  # as the engine will say
            return None
        check_added(image, config.image.image)
        if has_user(context) and not unsettled_user(context, ""):
            return None
        user = unsettled_user(context, image.user)
        return await self._accounts.find(image, user) if user else None

    async def _image_ids(self, mounts: Iterable[cri.Mount]) -> dict[str, str]:
        """The ids of the images that mounts name. Raises NotFound."""
        ids: dict[str, str] = {}
        for mount in mounts:
            if mount.HasField("image"):
                image = await self._images.look_up(mount.image.image)
                if image is None:
                    raise NotFound(
                        f"mounts[{mount.container_path}].image: {mount.image.image!r} is not on the node, pull it first"
                    )
                ids[mount.image.image] = image.id
        return ids

    async def _check_devices(self, devices: Iterable[cri.Device]) -> None:
        """Check that they are devices of the node: the engine would notice only at the start. Raises ShimError."""
        try:
            missing = await self._host_paths.without_device([device.host_path for device in devices])
        except OSError as error:
            raise disk_error(f"devices: {error}", error) from error
        if missing:
            raise InvalidArgument(f"devices: the node has no device {missing[0]!r}")

    async def _make_host_paths(self, mounts: Iterable[cri.Mount], undo: Rollback) -> None:
        """Make the missing folders of the mounts, as other runtimes do. Raises ShimError.

        It also checks that every path answers: the engine loses a thread for each use of a path that hangs.
        """
        host_paths = self._host_paths
        by_path = {mount.host_path: mount for mount in mounts}
        made: list[MadeFolder] = []

        async def make() -> None:
            made.extend(await host_paths.make_folders(list(by_path)))

        async def remove() -> None:
            if made:
                await host_paths.remove_folders(made)

        undo.push("remove the host paths", remove)
        try:
            await run_to_completion(make(), "make the host paths")
        except OSError as error:
            where = f"mounts[{by_path[error.filename].container_path}].host_path"
            if error.errno in _WRONG_PATH:
                raise InvalidArgument(f"{where}: {error}") from error
            raise disk_error(f"{where}: {error}", error) from error

    async def _create(self, name: str, body: dict[str, Any], undo: Rollback) -> str:
        return await self._containers.create_in_place(
            name, self._containers.creator(name, body, undo), self._clear_half_made
        )

    async def _rename(self, container_id: str, name: str, undo: Rollback) -> None:
        undo.push(f"remove {name}", lambda: self._containers.remove(container_id))

        async def rename() -> str:
            await self._containers.rename(container_id, name)
            return container_id

        await self._containers.create_in_place(name, rename, self._clear_half_made)

    async def _clear_half_made(self, container_id: str) -> None:
        """Remove a container of the same name if it was never started: no caller has its id. Else AlreadyExists."""
        record = await self._inventory.refresh_container(container_id)
        if record is None or record.state != cri.CONTAINER_CREATED:
            raise AlreadyExists(f"container {container_id} with the same metadata exists")
        logger.warning("container %s of an unfinished attempt has the same metadata; removing it", record.id)
        await self._containers.remove(record.id)

    async def start_container(self, request: cri.StartContainerRequest) -> cri.StartContainerResponse:
        """StartContainer.

        Raises FailedPrecondition if the container has ended, as it runs only once, or if its sandbox does not run.
        """
        require(request.container_id, "container_id")
        record = await self._inventory.container(request.container_id)
        if _runs(record):
            await self._limits.write(record)
            return cri.StartContainerResponse()
        if self._hooks.current is not None:
            await self._hooks.current.pre_start_container(record)
        await run_to_completion(self._start_and_call_hook(record), f"start container {record.id}")
        return cri.StartContainerResponse()

    async def _start_and_call_hook(self, created: ContainerRecord) -> None:
        try:
            await self._start(created)
        finally:
            if self._hooks.current is not None:
                await self._hooks.current.post_start_container(created)

    async def _start(self, created: ContainerRecord) -> None:
        with step("begin the log"):
            await self._logs.prepare(created)
        features = await self._info.capabilities()
        async with self._pods.locked(created.sandbox_id) as pod:
            pod.running()
            # Another call may have started it, and it may have ended since.
            record = await self._inventory.container(created.id)
            if not _runs(record):
                if self._nri.current is not None:
                    # With the pod's lock: plugins are told of one start, and of no start after the pod's end.
                    with step("ask NRI plugins"):
                        await self._nri.current.start_container(record)
                with self._limits.starting(record, to_write(record.extra.cgroup_files, record.host_config, features)):
                    record = await self._start_once(record.id)
                    await self._limits.write(record)
                if self._nri.current is not None:
                    await self._nri.current.post_start_container(record)
            else:
                await self._limits.write(record)
        await self._logs.begin(record)

    async def _start_once(self, container_id: str) -> ContainerRecord:
        try:
            with step("start the container"):
                await self._containers.start(container_id)
        except ShimError:
            # The engine records that the start failed, but sends no event.
            await self._inventory.refresh_container(container_id)
            raise
        started = await self._inventory.refresh_container(container_id, until=_was_started)
        if started is None:
            raise NotFound(f"container {container_id} was removed as soon as it was started")
        # The pod's, and not what the container's own annotation says: that may be what was lost.
        sandbox = await self._inventory.sandbox(started.sandbox_id)
        if not has_ids(started.pid, sandbox.user_namespace):
            await self._containers.kill(container_id)
            raise EngineFailure(f"container {container_id} ran without its user namespace; check --oci-runtime")
        return started

    async def stop_container(self, request: cri.StopContainerRequest) -> cri.StopContainerResponse:
        """StopContainer: ``timeout`` seconds of grace, 0 for none. Succeeds if it does not run or does not exist."""
        if not 0 <= request.timeout <= _LONGEST_GRACE:
            raise InvalidArgument(f"timeout: {request.timeout} s is no grace period")
        require(request.container_id, "container_id")
        record = await self._inventory.find_container(request.container_id)
        if record is not None and record.state == cri.CONTAINER_CREATED:
            # An inspect waits for a start that is under way in the engine.
            record = await self._inventory.refresh_container(record.id)
        if record is None:
            return cri.StopContainerResponse()
        if record.state != cri.CONTAINER_RUNNING:
            if self._hooks.current is not None:
                await self._hooks.current.post_stop_container(record)
            return cri.StopContainerResponse()
        with contextlib.suppress(NotFound):
            await run_to_completion(self._stop(record, request.timeout), f"stop container {record.id}")
        return cri.StopContainerResponse()

    async def _stop(self, record: ContainerRecord, grace: int) -> None:
        try:
            await self._containers.stop(record.id, grace)
            await self._logs.finish(record)
            if self._nri.current is not None and (ended := await self._inventory.find_container(record.id)) is not None:
                await self._nri.current.stop_container(ended)
        finally:
            if self._hooks.current is not None:
                await self._hooks.current.post_stop_container(record)

    async def remove_container(self, request: cri.RemoveContainerRequest) -> cri.RemoveContainerResponse:
        """RemoveContainer, by force. Succeeds if the container does not exist, as api.proto asks."""
        require(request.container_id, "container_id")
        record = await self._inventory.find_container(request.container_id)
        if record is not None:
            await run_to_completion(self._remove(record), f"remove container {record.id}")
        return cri.RemoveContainerResponse()

    async def _remove(self, record: ContainerRecord) -> None:
        if self._nri.current is not None:
            if record.state == cri.CONTAINER_RUNNING:
                # Plugins are told of the end before they are told of the removal.
                await self._containers.kill(record.id)
            await self._nri.current.remove_container(record)
        await remove_application(self._containers, self._logs, record)

    async def container_status(self, request: cri.ContainerStatusRequest) -> Encoded:
        """ContainerStatus. Raises NotFound."""
        inventory = self._inventory
        require(request.container_id, "container_id")
        record = await inventory.container(request.container_id)
        if record.state == cri.CONTAINER_EXITED:
            # Clients that see the end read the log next, and only once: so it has to be complete now.
            await self._logs.finish(record, LAST_LINES_AT_A_READ)
        image, account = await self._accounts.used_by(record)
        encode = functools.partial(_encoded_status, image=image, account=account)
        wire = inventory.ready_made(record, ("ContainerStatus", image, account), encode)
        if request.verbose:
            wire += cri.ContainerStatusResponse(info=_verbose(record)).SerializeToString()
        return Encoded(wire)

    async def list_containers(self, request: cri.ListContainersRequest) -> Encoded:
        """ListContainers."""
        return Encoded(b"".join(await self._listed(request)))

    async def stream_containers(self, request: cri.StreamContainersRequest) -> AsyncIterator[Encoded]:
        """StreamContainers: the answer of ListContainers at the begin of the call, in several messages."""
        for chunk in in_chunks(await self._listed(request)):
            yield chunk

    async def _listed(self, request: cri.ListContainersRequest | cri.StreamContainersRequest) -> list[bytes]:
        """The containers that match the request's filter, each encoded as a response with one item."""
        check_enums(request, "request")
        inventory, wanted = self._inventory, request.filter
        records: Iterable[ContainerRecord] = await inventory.containers()
        if wanted.ListFields():
            records = (record for record in records if _matches(record, wanted))
        return [inventory.ready_made(record, "ListContainers", _encoded_item) for record in records]

    async def update_container_resources(
        self, request: cri.UpdateContainerResourcesRequest
    ) -> cri.UpdateContainerResourcesResponse:
        """UpdateContainerResources: changes the limits that are set in the request, and leaves the others.

        Raises NotFound, and FailedPrecondition if the container has ended, or if it was not started yet and the request
        has a limit for which the engine has no field.
        """
        resources = request.linux
        reject(request.HasField("windows"), "windows", "this is a Linux runtime")
        reject(dict(request.annotations), "annotations", "nothing here reads them")
        check_resources(resources, "linux")
        features = await self._info.capabilities()
        files = to_cgroup_files(resources, features.cgroup_version)
        require(request.container_id, "container_id")
        record = await self._inventory.container(request.container_id)
        _check_state(record, resources, files)
        if self._hooks.current is not None:
            resources = await self._hooked_update(self._hooks.current, record, resources, features)
            files = to_cgroup_files(resources, features.cgroup_version)
        fields = to_engine_resources(resources, swap_limit=features.swap_limit, before=to_current_resources(record))
        if self._nri.current is not None:
            with step("ask NRI plugins"):
                fields, files = await self._ask_of_update(self._nri.current, record, resources, fields, files, features)
        update = self._update(record, fields, files, resources.oom_score_adj, features)
        await run_to_completion(update, f"update container {record.id}")
        if self._nri.current is not None:
            await self._nri.current.post_update_container(self._inventory.peek(record.id))
        return cri.UpdateContainerResourcesResponse()

    async def _ask_of_update(
        self,
        nri: Events,
        record: ContainerRecord,
        resources: cri.LinuxContainerResources,
        fields: dict[str, Any],
        files: dict[str, str],
        features: Capabilities,
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """The fields and cgroup files of an update as NRI plugins want it. Raises ShimError."""
        from dockershim.cri.nri import to_update

        result = await nri.update_container(record, resources)
        changed = to_update(record, result, features) if result is not None else None
        if changed is None:
            return fields, files
        _check_state(record, resources, changed[1])
        return changed

    async def update_for_plugin(self, record: ContainerRecord, resources: api.LinuxResources, plugin: str) -> None:
        """What an NRI plugin asks for at any time; ``plugin`` is its name if it is known. Raises ShimError."""
        from dockershim.cri.nri import to_plugins_update

        features = await self._info.capabilities()
        record = await self._inventory.container(record.id)
        fields, files = to_plugins_update(record, resources, plugin, features)
        _check_state(record, cri.LinuxContainerResources(), files)
        update = self._update(record, fields, files, 0, features)
        await run_to_completion(update, f"update container {record.id}")

    async def evict(self, record: ContainerRecord) -> None:
        """Stop a container that an NRI plugin wants to be gone. Raises ShimError."""
        await self.stop_container(cri.StopContainerRequest(container_id=record.id, timeout=_EVICTION_GRACE))

    async def _hooked_update(
        self, hooks: Hooks, record: ContainerRecord, resources: cri.LinuxContainerResources, features: Capabilities
    ) -> cri.LinuxContainerResources:
        async def check(changed: cri.LinuxContainerResources) -> None:
            check_resources(changed, "linux")
            _check_state(record, changed, to_cgroup_files(changed, features.cgroup_version))

        return await hooks.pre_update_container_resources(record, resources, check)

    async def _update(
        self,
        record: ContainerRecord,
        fields: Mapping[str, Any],
        files: dict[str, str],
        oom_score: int,
        features: Capabilities,
    ) -> None:
        asked_files = files
        if fields:
            kept: dict[str, str] = {}
            if record.pid and (names := reset_files(fields, features)):
                kept = await with_own_thread(read_files, record.pid, record.id, names)
            await self._containers.update(record.id, fields)
            files = {**kept, **files}
        if record.pid and files:
            await with_own_thread(apply_files, record.pid, record.id, files)
        if record.pid and oom_score:
            score = to_oom_score(oom_score, self._info.lowest_oom_score())
            await with_own_thread(set_oom_score, record.pid, record.id, score)
        await self._limits.keep(record, asked_files)
        await self._inventory.refresh_container(record.id)


def _check_state(record: ContainerRecord, resources: cri.LinuxContainerResources, files: Mapping[str, str]) -> None:
    """Refuse an update that comes too late or too early. Raises FailedPrecondition."""
    if record.state == cri.CONTAINER_CREATED:
        _check_before_start(record, resources, files)
    elif record.state != cri.CONTAINER_RUNNING:
        raise FailedPrecondition(f"container {record.id} has ended")


def _check_before_start(
    record: ContainerRecord, resources: cri.LinuxContainerResources, files: Mapping[str, str]
) -> None:
    """Refuse new values that the engine would not apply at the start. Raises FailedPrecondition."""
    asked, current = record.extra.cgroup_files, to_current_resources(record)
    late = [name for name, value in files.items() if value != asked.get(name, value_at_start(name, current))]
    if resources.oom_score_adj and resources.oom_score_adj != record.host_config.get("OomScoreAdj"):
        late.append("oom_score_adj")
    if late:
        raise FailedPrecondition(f"linux: {', '.join(late)} of container {record.id} can change only after its start")


def _folders_of_images(mounts: Iterable[cri.Mount]) -> dict[str, str]:
    """The image volumes that show one folder of their image, by container path."""
    return {mount.container_path: mount.image_sub_path for mount in mounts if mount.image_sub_path}


def _runs(record: ContainerRecord) -> bool:
    """Whether it runs. If not, it can be started. Raises FailedPrecondition if it has ended."""
    if record.state not in (cri.CONTAINER_RUNNING, cri.CONTAINER_CREATED):
        raise FailedPrecondition(f"container {record.id} was started before; a new one is needed")
    return record.state == cri.CONTAINER_RUNNING


def _was_started(record: ContainerRecord) -> bool:
    return record.state != cri.CONTAINER_CREATED


def _encoded_item(record: ContainerRecord) -> bytes:
    """A ListContainersResponse with one item; StreamContainersResponse has the same fields."""
    return cri.ListContainersResponse(containers=[to_cri_container(record)]).SerializeToString()


def _encoded_status(record: ContainerRecord, image: ImageRecord | None, account: Account | None) -> bytes:
    return cri.ContainerStatusResponse(status=to_cri_container_status(record, image, account)).SerializeToString()


def _matches(record: ContainerRecord, wanted: cri.ContainerFilter) -> bool:
    return (
        record.id.startswith(wanted.id)
        and record.sandbox_id.startswith(wanted.pod_sandbox_id)
        and (not wanted.HasField("state") or record.state == wanted.state.state)
        and has_labels(record, wanted.label_selector)
    )


def _verbose(record: ContainerRecord) -> dict[str, str]:
    return to_verbose_info(
        {
            "sandboxID": record.sandbox_id,
            "pid": record.pid,
            "runtime": record.host_config.get("Runtime", ""),
            "engineLogPath": record.engine_log_path,
            "privileged": bool(record.host_config.get("Privileged")),
        }
    )
