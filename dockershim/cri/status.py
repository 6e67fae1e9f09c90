"""Version, Status, RuntimeConfig, UpdateRuntimeConfig."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dockershim import __version__
from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.cgroups import limited_huge_pages
from dockershim.errors import FailedPrecondition, ShimError, Unavailable, failure_of
from dockershim.host_paths.server_side import HostPaths
from dockershim.interceptors import Chain
from dockershim.logs.container_logs import ContainerLogs, Statistics
from dockershim.network.pod_network import NodeNetwork
from dockershim.state.engine_info import EngineInfo
from dockershim.state.failed_calls import FailedCalls
from dockershim.state.follower import EngineFollower
from dockershim.translate.capabilities import Capabilities
from dockershim.translate.checks import require
from dockershim.translate.node_facts import to_node_facts, to_runtime_handlers

#: The name that kubelets have always seen for Docker: it is the scheme of container ids in a pod's status.
_RUNTIME_NAME = "docker"
_VERSION_OF_REQUESTS = "0.1.0"
_FIRST_LOOK_DEADLINE = 2.0
#: The log process answers between two batches.
_LOG_DEADLINE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NodeStatus:
    """The calls about the runtime itself."""

    info: EngineInfo
    follower: EngineFollower
    network: NodeNetwork
    host_paths: HostPaths
    logs: ContainerLogs
    failed_calls: FailedCalls
    chain: Chain
    infra_image: str

    async def version(self, request: cri.VersionRequest) -> cri.VersionResponse:
        """Version: the engine's version as last read, so that callers do not wait for an engine that hangs.

        Raises Unavailable if it was never read.
        """
        features = self.info.last
        if features is None:
            features = await self._first_look()
        return cri.VersionResponse(
            version=_VERSION_OF_REQUESTS,
            runtime_name=_RUNTIME_NAME,
            runtime_version=features.version,
            runtime_api_version="v1",
        )

    async def status(self, request: cri.StatusRequest) -> cri.StatusResponse:
        """Status: never fails. The conditions say what does not work, and why."""
        features = self.info.last
        response = cri.StatusResponse(
            status=cri.RuntimeStatus(
                conditions=[
                    _condition("RuntimeReady", "EngineUnavailable", self.follower.engine_failure),
                    _condition("NetworkReady", "NetworkPluginNotReady", await failure_of(self.network.check())),
                ]
            ),
            features=cri.RuntimeFeatures(supplemental_groups_policy=True),
        )
        if cgroup_problem := self.info.cgroup_problem:
            # A condition of its own, which kubelets ignore, so that pods whose cgroups are right go on.
            response.status.conditions.append(_condition("CgroupDriverMatches", "CgroupDriverMismatch", cgroup_problem))
        if features is not None:
            response.runtime_handlers.extend(to_runtime_handlers(features))
        if request.verbose:
            response.info.update(self._verbose(features, await self._log_statistics()))
        return response

    async def _first_look(self) -> Capabilities:
        try:
            async with asyncio.timeout(_FIRST_LOOK_DEADLINE):
                return await self.info.capabilities()
        except TimeoutError:
            raise Unavailable(f"the engine did not respond within {_FIRST_LOOK_DEADLINE:g} s") from None

    async def _log_statistics(self) -> Statistics | None:
        try:
            return await self.logs.statistics(_LOG_DEADLINE)
        except ShimError:
            return None

    def _verbose(self, features: Capabilities | None, logs: Statistics | None) -> dict[str, str]:
        """What only this server tells, as JSON. docs/status.md names what programs may read."""
        config = {
            "sandboxImage": self.infra_image,
            "networkPlugin": self.network.kind,
            "dockershim": __version__,
        }
        # Each is an object: crictl shows other JSON as a text.
        told: dict[str, Mapping[str, Any]] = {
            "config": config,
            "failedCalls": {"last": [dataclasses.asdict(call) for call in self.failed_calls.newest_first()]},
            "hostPaths": {"hanging": self.host_paths.hanging},
            "inventory": _in_camel_case(dataclasses.asdict(self.follower.counters)),
        }
        if logs is not None:
            told["logs"] = dataclasses.asdict(logs)
        if (outage := self.follower.outage.last) is not None:
            told["outage"] = dataclasses.asdict(outage)
        told.update(self.chain.snapshot().shown())
        info = {key: json.dumps(value, sort_keys=True) for key, value in told.items()}
        if features is not None:
            info["capabilities"] = json.dumps(to_node_facts(features, limited_huge_pages()), sort_keys=True)
        return info

    async def runtime_config(self, request: cri.RuntimeConfigRequest) -> cri.RuntimeConfigResponse:
        """RuntimeConfig: the cgroup driver, which the kubelet has to use, too.

        Raises FailedPrecondition if the configured driver is not the engine's: a kubelet that calls this at its start
        then exits with that message, instead of making cgroups that the engine does not use.
        """
        if problem := self.info.cgroup_problem:
            raise FailedPrecondition(problem)
        driver = self.info.cgroup_driver or (await self.info.capabilities()).cgroup_driver
        number = cri.SYSTEMD if driver == "systemd" else cri.CGROUPFS
        return cri.RuntimeConfigResponse(linux=cri.LinuxRuntimeConfiguration(cgroup_driver=number))

    async def update_runtime_config(self, request: cri.UpdateRuntimeConfigRequest) -> cri.UpdateRuntimeConfigResponse:
        """UpdateRuntimeConfig: the node's pod CIDRs, of one or both IP families."""
        require(request.HasField("runtime_config"), "runtime_config")
        pod_cidr = request.runtime_config.network_config.pod_cidr
        if pod_cidr:
            self.network.set_pod_cidr(pod_cidr)
        return cri.UpdateRuntimeConfigResponse()


def _in_camel_case(fields: Mapping[str, Any]) -> dict[str, Any]:
    """With the keys as Kubernetes writes them in JSON."""
    words = ((key.split("_"), value) for key, value in fields.items())
    return {first + "".join(map(str.capitalize, rest)): value for (first, *rest), value in words}


def _condition(kind: str, reason: str, problem: ShimError | str | None) -> cri.RuntimeCondition:
    if problem is None:
        return cri.RuntimeCondition(type=kind, status=True)
    return cri.RuntimeCondition(type=kind, status=False, reason=reason, message=str(problem))
