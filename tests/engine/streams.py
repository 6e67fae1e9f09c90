"""URLs of streams, and what listens at the other end of a forward."""

from __future__ import annotations

from dockershim.api.cri.v1 import api_pb2 as api
from tests.cri_client import CRI
from tests.engine.pods import sh
from tests.waiting import answer


async def exec_url(cri: CRI, container_id: str, *command: str, **streams: bool) -> str:
    request = api.ExecRequest(container_id=container_id, cmd=command, **{"stdout": True, "stderr": True, **streams})
    return str((await cri.runtime.Exec(request)).url)


async def attach_url(cri: CRI, container_id: str, **streams: bool) -> str:
    request = api.AttachRequest(container_id=container_id, **{"stdout": True, "stderr": True, **streams})
    return str((await cri.runtime.Attach(request)).url)


async def forward_url(cri: CRI, sandbox_id: str, *ports: int) -> str:
    request = api.PortForwardRequest(pod_sandbox_id=sandbox_id, port=ports)
    return str((await cri.runtime.PortForward(request)).url)


async def listens(cri: CRI, container_id: str, port: int) -> None:
    """Wait until somebody listens on a port."""
    await answer(
        lambda: sh(cri, container_id, "grep ' 0A ' /proc/net/tcp /proc/net/tcp6; true"),
        lambda listening: f":{port:04X} " in listening,
        f"a listener on port {port}",
    )
