"""The life of one pod, once by our server and once by the bare calls that this life needs."""

from __future__ import annotations

import time
from typing import Any, Protocol

from bench.engine import BareEngine
from bench.plugins import Attachment, Network
from bench.workload import COMMAND, GRACE, Workload
from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.cri.infra_image import BUILTIN_INFRA_IMAGE
from dockershim.engine.oom import lowest_oom_score
from dockershim.server.config import Config
from dockershim.translate.capabilities import Capabilities
from dockershim.translate.cdi import NO_EDITS
from dockershim.translate.container import EngineLog, to_engine_container
from dockershim.translate.labels import SANDBOX_ID_LABEL, TYPE_LABEL
from dockershim.translate.names import SandboxName, container_name, sandbox_container_name
from dockershim.translate.network import to_capability_args, to_cni_args
from dockershim.translate.sandbox import sandbox_name, to_infra_container
from tests.cri_client import CRI

_ENGINE_LOG = EngineLog(Config().engine_log_max_size, Config().engine_log_max_files)


class Pod(Protocol):
    """A pod with one container. The methods are called once each, in their order here."""

    async def run_pod_sandbox(self) -> None: ...
    async def create_container(self) -> None: ...
    async def start_container(self) -> None: ...
    async def exec_sync(self) -> None: ...
    async def stop_container(self) -> None: ...
    async def remove_container(self) -> None: ...
    async def stop_pod_sandbox(self) -> None: ...
    async def remove_pod_sandbox(self) -> None: ...

    async def discard(self) -> None:
        """Leave nothing behind, however far the pod came."""


class OurPod:
    """A pod by CRI calls. ``image`` is the id of the container's image."""

    def __init__(self, server: CRI, workload: Workload, name: str, image: str) -> None:
        self._runtime = server.runtime
        self._sandbox = workload.sandbox(name)
        self._container = workload.container(name, image)
        self.sandbox_id = ""
        self.container_id = ""

    async def run_pod_sandbox(self) -> None:
        answer = await self._runtime.RunPodSandbox(cri.RunPodSandboxRequest(config=self._sandbox))
        self.sandbox_id = answer.pod_sandbox_id

    async def create_container(self) -> None:
        request = cri.CreateContainerRequest(
            pod_sandbox_id=self.sandbox_id, config=self._container, sandbox_config=self._sandbox
        )
        self.container_id = (await self._runtime.CreateContainer(request)).container_id

    async def start_container(self) -> None:
        await self._runtime.StartContainer(cri.StartContainerRequest(container_id=self.container_id))

    async def bring_up(self) -> None:
        """As far as its container runs."""
        await self.run_pod_sandbox()
        await self.create_container()
        await self.start_container()

    async def exec_sync(self) -> None:
        request = cri.ExecSyncRequest(container_id=self.container_id, cmd=COMMAND, timeout=GRACE)
        answer = await self._runtime.ExecSync(request)
        assert (answer.stdout, answer.exit_code) == (b"hello\n", 0), answer

    async def stop_container(self) -> None:
        request = cri.StopContainerRequest(container_id=self.container_id, timeout=GRACE)
        await self._runtime.StopContainer(request)

    async def remove_container(self) -> None:
        await self._runtime.RemoveContainer(cri.RemoveContainerRequest(container_id=self.container_id))

    async def stop_pod_sandbox(self) -> None:
        await self._runtime.StopPodSandbox(cri.StopPodSandboxRequest(pod_sandbox_id=self.sandbox_id))

    async def remove_pod_sandbox(self) -> None:
        await self._runtime.RemovePodSandbox(cri.RemovePodSandboxRequest(pod_sandbox_id=self.sandbox_id))
        self.sandbox_id = ""

    async def discard(self) -> None:
        if self.sandbox_id:
            await self.remove_pod_sandbox()


class BarePod:
    """A pod by the engine calls and plugin executions that our server cannot do without, one after the other.

    The bodies are those that our server sends, but for the label by which it would take the containers for its own.
    """

    def __init__(self, engine: BareEngine, features: Capabilities, workload: Workload, name: str, image: str) -> None:
        self._engine = engine
        self._can = features
        self._network = Network()
        self._sandbox = workload.sandbox(name)
        self._container = workload.container(name, image)
        self._name: SandboxName = sandbox_name(self._sandbox.metadata)
        self._lowest_oom_score = lowest_oom_score(engine.endpoint)
        self._image = image
        self._sandbox_id = ""
        self._container_id = ""
        self._attachment: Attachment | None = None
        #: Of the two parts of ``stop_pod_sandbox`` the one that took longer, in seconds: what a stop that does both
        #: at once cannot do without.
        self.longer_part_of_stop = 0.0
        self._result: dict[str, Any] | None = None

    async def run_pod_sandbox(self) -> None:
        body = to_infra_container(
            self._sandbox,
            image=BUILTIN_INFRA_IMAGE,
            runtime_handler="",
            network_mode="none",
            publish_ports=False,
            profiles={},
            lowest_oom_score=self._lowest_oom_score,
            features=self._can,
        )
        self._sandbox_id = await self._create(sandbox_container_name(self._name), body)
        await self._engine.call("POST", f"/containers/{self._sandbox_id}/start")
        inspect = await self._engine.call("GET", f"/containers/{self._sandbox_id}/json")
        self._attachment = Attachment(
            container_id=self._sandbox_id,
            netns=inspect["NetworkSettings"]["SandboxKey"],
            args=to_cni_args(self._name, self._sandbox_id),
            capability_args=to_capability_args(self._sandbox, ()),
        )
        self._result = self._network.add(self._attachment)

    async def create_container(self) -> None:
        body = to_engine_container(
            self._container,
            self._sandbox,
            sandbox_id=self._sandbox_id,
            pod=self._name,
            image=self._image,
            runtime="",
            profiles={},
            volumes={},
            account=None,
            cdi_edits=NO_EDITS,
            lowest_oom_score=self._lowest_oom_score,
            features=self._can,
            engine_log=_ENGINE_LOG,
        )
        self._container_id = await self._create(container_name("main", 0, self._name), body)

    async def _create(self, name: str, body: dict[str, Any]) -> str:
        body["Labels"] |= {TYPE_LABEL: "bench", SANDBOX_ID_LABEL: ""}
        answer = await self._engine.call("POST", "/containers/create", body, {"name": name})
        return str(answer["Id"])

    async def start_container(self) -> None:
        await self._engine.call("POST", f"/containers/{self._container_id}/start")

    async def exec_sync(self) -> None:
        body = {"Cmd": COMMAND, "AttachStdout": True, "AttachStderr": True}
        created = await self._engine.call("POST", f"/containers/{self._container_id}/exec", body)
        output = await self._engine.read("POST", f"/exec/{created['Id']}/start", {"Detach": False, "Tty": False})
        assert output.endswith(b"hello\n"), output
        # The end of the output comes a little before the exit code.
        while (await self._engine.call("GET", f"/exec/{created['Id']}/json"))["Running"]:
            pass

    async def stop_container(self) -> None:
        await self._engine.call("POST", f"/containers/{self._container_id}/stop", params={"t": str(GRACE)})

    async def remove_container(self) -> None:
        await self._remove(self._container_id)
        self._container_id = ""

    async def stop_pod_sandbox(self) -> None:
        assert self._attachment is not None, "stop comes after run"
        begun = time.perf_counter()
        self._network.delete(self._attachment, self._result)
        self._attachment = None
        deleted = time.perf_counter()
        await self._engine.call("POST", f"/containers/{self._sandbox_id}/kill", params={"signal": "KILL"})
        self.longer_part_of_stop = max(deleted - begun, time.perf_counter() - deleted)

    async def remove_pod_sandbox(self) -> None:
        await self._remove(self._sandbox_id)
        self._sandbox_id = ""

    async def _remove(self, container_id: str) -> None:
        await self._engine.call("DELETE", f"/containers/{container_id}", params={"force": "1", "v": "1"})

    async def discard(self) -> None:
        if self._container_id:
            await self.remove_container()
        if self._attachment is not None:
            self._network.delete(self._attachment, self._result)
        if self._sandbox_id:
            await self.remove_pod_sandbox()
