"""The seven points in CRI calls at which hook servers are called."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.api.hooks.v1alpha1 import api_pb2 as hooks
from dockershim.common.steps import step
from dockershim.errors import HookFailure, ShimError
from dockershim.hooks import messages
from dockershim.hooks.client import HookClients
from dockershim.hooks.config import FailurePolicy, Hook, HookServer
from dockershim.state.pods import Pod, Pods
from dockershim.translate.records import ContainerRecord, SandboxRecord

logger = logging.getLogger(__name__)

Q = TypeVar("Q", hooks.PodSandboxHookRequest, hooks.ContainerResourceHookRequest)
CRIRequest = TypeVar("CRIRequest")

#: Raises ShimError if a CRI request that a hook server has changed cannot be carried out.
Check = Callable[[CRIRequest], Awaitable[object]]


class Hooks:
    """Calls ``servers`` in their order; each sees what those before it changed.

    A Pre hook raises HookFailure if a server with the policy Fail fails. A Post hook never raises.
    """

    def __init__(self, pods: Pods, clients: HookClients) -> None:
        self.servers: Sequence[HookServer] = ()
        self._pods = pods
        self._clients = clients

    # -- pods ------------------------------------------------------------------------------------------------

    async def pre_run_pod_sandbox(
        self, request: cri.RunPodSandboxRequest, cgroup_driver: str, check: Check[cri.RunPodSandboxRequest]
    ) -> cri.RunPodSandboxRequest:
        """The request as hook servers change it."""
        hook = Hook.PRE_RUN_POD_SANDBOX
        config = request.config
        if not self._serve(hook) or messages.skips_hooks(config.labels, config.annotations):
            return request
        query = messages.to_new_pod_request(request)

        def change(merged: hooks.PodSandboxHookRequest) -> cri.RunPodSandboxRequest:
            return messages.change_run_pod_sandbox(request, query, merged)

        async def check_merged(merged: hooks.PodSandboxHookRequest) -> None:
            messages.check_pod(query, merged, cgroup_driver)
            await check(change(merged))

        return change(await self._ask_about_pod(hook, query, check_merged))

    async def post_stop_pod_sandbox(self, stopped: Pod) -> None:
        """After StopPodSandbox, whether it succeeded or not. A repeated stop does not call hook servers again."""
        hook = Hook.POST_STOP_POD_SANDBOX
        if not self._serve(hook) or (pod := _to_message(stopped)) is None:
            return
        if not messages.skips_hooks(pod.labels, pod.annotations) and self._pods.note_stop(stopped.id, stopped.id):
            await self._tell(hook, messages.to_pod_request(pod))

    # -- containers ------------------------------------------------------------------------------------------

    async def pre_create_container(
        self,
        request: cri.CreateContainerRequest,
        sandbox: SandboxRecord,
        cgroup_driver: str,
        check: Check[cri.CreateContainerRequest],
    ) -> cri.CreateContainerRequest:
        """The request as hook servers change it, with the cgroup parent that one may have given to the pod."""
        hook = Hook.PRE_CREATE_CONTAINER
        pod = messages.pod_of_record(sandbox, self._pods.checkpoints.by_id.get(sandbox.id))
        if messages.skips_hooks(pod.labels, pod.annotations):
            return request
        query = messages.to_new_container_request(request, pod)

        def change(merged: hooks.ContainerResourceHookRequest) -> cri.CreateContainerRequest:
            return messages.change_create_container(request, query, merged)

        async def check_merged(merged: hooks.ContainerResourceHookRequest) -> None:
            messages.check_container(query, merged, cgroup_driver)
            await check(change(merged))

        return change(await self._ask_about_container(hook, query, check_merged))

    async def pre_start_container(self, record: ContainerRecord) -> None:
        """The container exists already, so an answer changes only the request to the next hook server."""
        hook = Hook.PRE_START_CONTAINER
        if pod := self._served_pod(hook, record):
            await self._ask_about_container(hook, messages.to_container_request(record, pod), _unchecked)

    async def post_start_container(self, record: ContainerRecord) -> None:
        """After StartContainer, whether it succeeded or not."""
        hook = Hook.POST_START_CONTAINER
        if pod := self._served_pod(hook, record):
            current = self._pods.inventory.peek(record.id)
            shown = current if isinstance(current, ContainerRecord) else record
            await self._tell(hook, messages.to_container_request(shown, pod))

    async def pre_update_container_resources(
        self,
        record: ContainerRecord,
        resources: cri.LinuxContainerResources,
        check: Check[cri.LinuxContainerResources],
    ) -> cri.LinuxContainerResources:
        """The new resources as hook servers change them."""
        hook = Hook.PRE_UPDATE_CONTAINER_RESOURCES
        pod = self._served_pod(hook, record)
        if pod is None:
            return resources
        query = messages.to_update_request(record, pod, resources)

        async def check_merged(merged: hooks.ContainerResourceHookRequest) -> None:
            await check(messages.change_update(resources, query, merged))

        merged = await self._ask_about_container(hook, query, check_merged)
        return messages.change_update(resources, query, merged)

    async def post_stop_container(self, record: ContainerRecord) -> None:
        """After StopContainer, whether it succeeded or not, and whether or not the container had ended before."""
        hook = Hook.POST_STOP_CONTAINER
        if (pod := self._served_pod(hook, record)) and self._pods.note_stop(record.sandbox_id, record.id):
            await self._tell(hook, messages.to_container_request(record, pod))

    # -- asking ----------------------------------------------------------------------------------------------

    def _serve(self, hook: Hook) -> bool:
        return any(hook in server.hooks for server in self.servers)

    def _served_pod(self, hook: Hook, record: ContainerRecord) -> messages.Pod | None:
        """The pod of a container; None if no hook server is to be called."""
        if not self._serve(hook):
            return None
        pod = _to_message(self._pods.peek(record.sandbox_id)) or messages.Pod(record.name.pod)
        return None if messages.skips_hooks(pod.labels, pod.annotations) else pod

    async def _ask_about_pod(
        self, hook: Hook, query: hooks.PodSandboxHookRequest, check: Check[hooks.PodSandboxHookRequest]
    ) -> hooks.PodSandboxHookRequest:
        return await self._ask(hook, query, hooks.PodSandboxHookResponse, messages.merge_pod, check)

    async def _ask_about_container(
        self, hook: Hook, query: hooks.ContainerResourceHookRequest, check: Check[hooks.ContainerResourceHookRequest]
    ) -> hooks.ContainerResourceHookRequest:
        return await self._ask(hook, query, hooks.ContainerResourceHookResponse, messages.merge_container, check)

    async def _ask(
        self, hook: Hook, query: Q, response: type[Message], merge: Callable[[Q, Any], Q], check: Check[Q]
    ) -> Q:
        """The request ``query`` with the changes of all answers."""
        for server in self.servers:
            if hook not in server.hooks:
                continue
            try:
                query = await self._ask_one(server, hook, query, response, merge, check)
            except HookFailure as failure:
                if server.policy is FailurePolicy.FAIL:
                    raise HookFailure(f"hook server err: {server.name}: {hook}: {failure}") from failure
                logger.warning("hook server %s: %s goes on without its answer: %s", server.name, hook, failure)
        return query

    async def _ask_one(
        self,
        server: HookServer,
        hook: Hook,
        query: Q,
        response: type[Message],
        merge: Callable[[Q, Any], Q],
        check: Check[Q],
    ) -> Q:
        with step("ask a hook server"):
            answer = await self._clients.call(server, hook, query.SerializeToString())
        try:
            merged = merge(query, response.FromString(answer))
            if merged != query:
                await check(merged)
        except DecodeError as error:
            raise HookFailure(f"the answer is not a {response.DESCRIPTOR.name}") from error
        except ShimError as error:
            raise HookFailure(f"the answer cannot be used: {error}") from error
        return merged

    async def _tell(self, hook: Hook, query: hooks.PodSandboxHookRequest | hooks.ContainerResourceHookRequest) -> None:
        for server in self.servers:
            if hook not in server.hooks:
                continue
            try:
                with step("tell a hook server"):
                    await self._clients.call(server, hook, query.SerializeToString())
            except HookFailure as failure:
                logger.warning("hook server %s: %s: %s", server.name, hook, failure)


async def _unchecked(_: object) -> None:
    """For hooks whose answer changes nothing."""


def _to_message(pod: Pod) -> messages.Pod | None:
    """A pod as hook servers see it; None if the engine and the checkpoints do not have it."""
    if pod.record is not None:
        return messages.pod_of_record(pod.record, pod.checkpoint)
    return messages.pod_of_checkpoint(pod.checkpoint) if pod.checkpoint is not None else None
