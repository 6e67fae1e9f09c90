"""The seven points in CRI calls at which hook servers are called."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.api.hooks.v1alpha1 import api_pb2 as hooks
from dockershim.common.steps import step
from dockershim.errors import HookFailure, ShimError
from dockershim.hooks import requests
from dockershim.hooks.client import HookClients
from dockershim.hooks.config import FailurePolicy, Hook, HookServer
from dockershim.interceptors import Check, Interceptor
from dockershim.state.pods import Pod, Pods
from dockershim.translate.capabilities import Capabilities
from dockershim.translate.records import ContainerRecord, SandboxRecord

logger = logging.getLogger(__name__)

Q = TypeVar("Q", hooks.PodSandboxHookRequest, hooks.ContainerResourceHookRequest)


class Hooks(Interceptor):
    """Calls ``servers`` in their order; each sees what those before it changed.

    A Pre hook raises HookFailure if a server with the policy Fail fails. A Post hook never raises.
    """

    def __init__(self, pods: Pods, clients: HookClients) -> None:
        self.servers: Sequence[HookServer] = ()
        self._pods = pods
        self._clients = clients

    # -- pods ------------------------------------------------------------------------------------------------

    async def before_run_pod(
        self, request: cri.RunPodSandboxRequest, features: Capabilities, check: Check[cri.RunPodSandboxRequest]
    ) -> cri.RunPodSandboxRequest:
        """The request as hook servers change it."""
        hook = Hook.PRE_RUN_POD_SANDBOX
        config = request.config
        if not self._serve(hook) or requests.skips_hooks(config.labels, config.annotations):
            return request
        query = requests.to_new_pod_request(request)

        def change(merged: hooks.PodSandboxHookRequest) -> cri.RunPodSandboxRequest:
            return requests.change_run_pod_sandbox(request, query, merged)

        async def check_merged(merged: hooks.PodSandboxHookRequest) -> None:
            requests.check_pod(query, merged, features.cgroup_driver)
            await check(change(merged))

        return change(await self._ask_about_pod(hook, query, check_merged))

    async def after_stop_pod(self, pod: Pod) -> None:
        """After StopPodSandbox, whether it succeeded or not. A repeated stop does not call hook servers again."""
        hook = Hook.POST_STOP_POD_SANDBOX
        if not self._serve(hook) or (told := _to_message(pod)) is None:
            return
        if not requests.skips_hooks(told.labels, told.annotations) and self._pods.note_stop(pod.id, pod.id):
            await self._tell(hook, requests.to_pod_request(told))

    # -- containers ------------------------------------------------------------------------------------------

    async def before_create(
        self,
        request: cri.CreateContainerRequest,
        sandbox: SandboxRecord,
        features: Capabilities,
        check: Check[cri.CreateContainerRequest],
    ) -> cri.CreateContainerRequest:
        """The request as hook servers change it, with the cgroup parent that one may have given to the pod."""
        hook = Hook.PRE_CREATE_CONTAINER
        pod = requests.to_pod(self._pods.of(sandbox))
        if requests.skips_hooks(pod.labels, pod.annotations):
            return request
        query = requests.to_new_container_request(request, pod)

        def change(merged: hooks.ContainerResourceHookRequest) -> cri.CreateContainerRequest:
            return requests.change_create_container(request, query, merged)

        async def check_merged(merged: hooks.ContainerResourceHookRequest) -> None:
            requests.check_container(query, merged, features.cgroup_driver)
            await check(change(merged))

        return change(await self._ask_about_container(hook, query, check_merged))

    async def before_start(self, record: ContainerRecord) -> None:
        """The container exists already, so an answer changes only the request to the next hook server."""
        hook = Hook.PRE_START_CONTAINER
        if pod := self._served_pod(hook, record):
            await self._ask_about_container(hook, requests.to_container_request(record, pod), _unchecked)

    async def after_start(self, record: ContainerRecord) -> None:
        """After StartContainer, whether it succeeded or not."""
        hook = Hook.POST_START_CONTAINER
        if pod := self._served_pod(hook, record):
            current = self._pods.peek_container(record.id) or record
            await self._tell(hook, requests.to_container_request(current, pod))

    async def before_update(
        self, record: ContainerRecord, resources: cri.LinuxContainerResources, check: Check[cri.LinuxContainerResources]
    ) -> cri.LinuxContainerResources:
        """The new resources as hook servers change them."""
        hook = Hook.PRE_UPDATE_CONTAINER_RESOURCES
        pod = self._served_pod(hook, record)
        if pod is None:
            return resources
        query = requests.to_update_request(record, pod, resources)

        async def check_merged(merged: hooks.ContainerResourceHookRequest) -> None:
            await check(requests.change_update(resources, query, merged))

        merged = await self._ask_about_container(hook, query, check_merged)
        return requests.change_update(resources, query, merged)

    async def after_stop(self, record: ContainerRecord) -> None:
        """After StopContainer, whether it succeeded or not, and whether or not the container had ended before."""
        hook = Hook.POST_STOP_CONTAINER
        if (pod := self._served_pod(hook, record)) and self._pods.note_stop(record.sandbox_id, record.id):
            await self._tell(hook, requests.to_container_request(record, pod))

    # -- asking ----------------------------------------------------------------------------------------------

    def _serve(self, hook: Hook) -> bool:
        return any(hook in server.hooks for server in self.servers)

    def _served_pod(self, hook: Hook, record: ContainerRecord) -> requests.Pod | None:
        """The pod of a container; None if no hook server is to be called."""
        if not self._serve(hook):
            return None
        pod = _to_message(self._pods.peek(record.sandbox_id)) or requests.Pod(record.name.pod)
        return None if requests.skips_hooks(pod.labels, pod.annotations) else pod

    async def _ask_about_pod(
        self, hook: Hook, query: hooks.PodSandboxHookRequest, check: Check[hooks.PodSandboxHookRequest]
    ) -> hooks.PodSandboxHookRequest:
        return await self._ask(hook, query, hooks.PodSandboxHookResponse, requests.merge_pod, check)

    async def _ask_about_container(
        self, hook: Hook, query: hooks.ContainerResourceHookRequest, check: Check[hooks.ContainerResourceHookRequest]
    ) -> hooks.ContainerResourceHookRequest:
        return await self._ask(hook, query, hooks.ContainerResourceHookResponse, requests.merge_container, check)

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
                logger.warning("hook server %s: %s continues without its response: %s", server.name, hook, failure)
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
        with step("call a hook server"):
            answer = await self._clients.call(server, hook, query.SerializeToString())
        try:
            merged = merge(query, response.FromString(answer))
            if merged != query:
                await check(merged)
        except DecodeError as error:
            raise HookFailure(f"the response is not a {response.DESCRIPTOR.name}") from error
        except ShimError as error:
            raise HookFailure(f"the response cannot be used: {error}") from error
        return merged

    async def _tell(self, hook: Hook, query: hooks.PodSandboxHookRequest | hooks.ContainerResourceHookRequest) -> None:
        for server in self.servers:
            if hook not in server.hooks:
                continue
            try:
                with step("notify a hook server"):
                    await self._clients.call(server, hook, query.SerializeToString())
            except HookFailure as failure:
                logger.warning("hook server %s: %s: %s", server.name, hook, failure)


async def _unchecked(_: object) -> None:
    """For hooks whose answer changes nothing."""


def _to_message(pod: Pod) -> requests.Pod | None:
    """A pod as hook servers see it; None if the engine and the checkpoints do not have it."""
    return requests.to_pod(pod) if pod.exists else None
