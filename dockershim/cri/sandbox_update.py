"""UpdatePodSandboxResources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.common.rollback import run_to_completion
from dockershim.common.steps import step
from dockershim.errors import NotFound
from dockershim.interceptors import Chain
from dockershim.state.pods import Phase, Pod, Pods
from dockershim.translate.checks import require
from dockershim.translate.sandbox import to_new_limits


class SandboxUpdate:
    """The call that tells the new resources of a whole pod."""

    def __init__(self, pods: Pods, chain: Chain) -> None:
        self._pods = pods
        self._chain = chain

    async def update_pod_sandbox_resources(
        self, request: cri.UpdatePodSandboxResourcesRequest
    ) -> cri.UpdatePodSandboxResourcesResponse:
        """UpdatePodSandboxResources: keeps the overhead and resources that are set in the request, and no others.

        The pod's cgroup belongs to the kubelet, which writes it right after this call (before it until 1.35); a second
        writer would only undo that. So a runtime just takes note, in whatever state the pod is, as containerd does.
        Kubelets give up the resize if this fails, except with UNIMPLEMENTED; until 1.35 they go on. Raises NotFound,
        InvalidArgument, HookFailure if an interceptor refuses, and ResourceExhausted or FailedPrecondition if the disk
        does not take the checkpoint.
        """
        require(request.pod_sandbox_id, "pod_sandbox_id")
        limits = to_new_limits(request)
        chain = self._chain.snapshot()
        pod = await self._pods.find(request.pod_sandbox_id)
        _check_exists(pod)
        await chain.before_update_pod(pod, request.overhead, request.resources)
        await run_to_completion(self._keep(pod.id, limits), f"resources of {pod.id}")
        await chain.after_update_pod(self._pods.peek(pod.id))
        return cri.UpdatePodSandboxResourcesResponse()

    async def _keep(self, sandbox_id: str, limits: Mapping[str, Mapping[str, Any]]) -> None:
        async with self._pods.locked(sandbox_id) as pod:
            _check_exists(pod)
            with step("write the checkpoint"):
                await pod.keep_limits(limits)


def _check_exists(pod: Pod) -> None:
    if pod.phase is Phase.REMOVED:
        raise NotFound(f"sandbox {pod.id!r} does not exist")
