"""UpdatePodSandboxResources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.common.rollback import run_to_completion
from dockershim.common.steps import step
from dockershim.errors import NotFound
from dockershim.nri.in_force import NRIInForce
from dockershim.state.pods import Phase, Pods
from dockershim.translate.checks import require
from dockershim.translate.sandbox import to_new_limits


class SandboxUpdate:
    """The call that tells the new resources of a whole pod."""

    def __init__(self, pods: Pods, nri: NRIInForce) -> None:
        self._pods = pods
        self._nri = nri

    async def update_pod_sandbox_resources(
        self, request: cri.UpdatePodSandboxResourcesRequest
    ) -> cri.UpdatePodSandboxResourcesResponse:
        """UpdatePodSandboxResources: keeps the overhead and resources that are set in the request, and no others.

        The pod's cgroup belongs to the kubelet, which writes it right after this call (before it until 1.35); a second
        writer would only undo that. So a runtime just takes note, in whatever state the pod is, as containerd does.
        Kubelets give up the resize if this fails, except with UNIMPLEMENTED; until 1.35 they go on. Raises NotFound,
        InvalidArgument, HookFailure if an NRI plugin refuses, and ResourceExhausted or FailedPrecondition if the disk
        does not take the checkpoint.
        """
        require(request.pod_sandbox_id, "pod_sandbox_id")
        limits = to_new_limits(request)
        nri = self._nri.current
        if nri is not None and (pod := await self._pods.find(request.pod_sandbox_id)).phase is not Phase.REMOVED:
            await nri.update_pod_sandbox(pod, request.overhead, request.resources)
        await run_to_completion(self._keep(request.pod_sandbox_id, limits), f"resources of {request.pod_sandbox_id}")
        if nri is not None:
            await nri.post_update_pod_sandbox(await self._pods.find(request.pod_sandbox_id))
        return cri.UpdatePodSandboxResourcesResponse()

    async def _keep(self, start_of_id: str, limits: Mapping[str, Mapping[str, Any]]) -> None:
        async with self._pods.locked(start_of_id) as pod:
            if pod.phase is Phase.REMOVED:
                raise NotFound(f"sandbox {start_of_id!r} does not exist")
            with step("write the checkpoint"):
                await pod.keep_limits(limits)
