"""The trace of a real pod's start, at a real collector."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from dockershim.api.cri.v1 import api_pb2 as api
from dockershim.tracing.environment import Protocol
from tests.collector import Collector
from tests.cri_client import CRI
from tests.engine.pods import pod, remove_pod, sandbox_config
from tests.node.server import Server

PORT = 4317
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SERVICE = "runtime.v1.RuntimeService"
#: What RunPodSandbox does, in order, with the part of which it is a part.
PARTS = {
    f"{SERVICE}/RunPodSandbox": PARENT,
    "create the infra container": f"{SERVICE}/RunPodSandbox",
    "POST /containers/create": "create the infra container",
    "write the checkpoint": f"{SERVICE}/RunPodSandbox",
    "start the infra container": f"{SERVICE}/RunPodSandbox",
    "POST /containers/{id}/start": "start the infra container",
    "inspect the infra container": f"{SERVICE}/RunPodSandbox",
    "pin the network namespace": f"{SERVICE}/RunPodSandbox",
    "set up the network": f"{SERVICE}/RunPodSandbox",
    "CNI ADD bridge": "set up the network",
}


async def test_a_pod_start_is_one_trace_with_all_its_parts(
    start_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{PORT}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    collector = Collector(Protocol.GRPC)
    async with collector.serving(PORT):
        server = start_server()
        async with CRI(server.target) as cri:
            # The first pod of a node also loads the infra image.
            async with pod(cri):
                pass
            config = sandbox_config()
            run = api.RunPodSandboxRequest(config=config)
            parent = (("traceparent", f"00-{TRACE}-{PARENT}-01"),)
            sandbox_id = (await cri.runtime.RunPodSandbox(run, metadata=parent)).pod_sandbox_id
            await remove_pod(cri, sandbox_id)
        # In a thread, as the collector answers meanwhile.
        assert await asyncio.to_thread(server.stop) == 0, server.log_end()
    assert f"traces are sent to http://127.0.0.1:{PORT} by grpc" in server.log.read_text()

    trace = [span for span in collector.spans if span.trace_id.hex() == TRACE]
    names = {span.span_id.hex(): span.name for span in trace}
    parents = {span.name: names.get(span.parent_span_id.hex(), span.parent_span_id.hex()) for span in trace}
    assert {name: parents.get(name) for name in PARTS} == PARTS
    begun = {span.name: span.start_time_unix_nano for span in trace}
    assert sorted(PARTS, key=lambda name: begun[name]) == list(PARTS)
    (whole,) = [span for span in trace if span.name == f"{SERVICE}/RunPodSandbox"]
    for span in trace:
        assert whole.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
        assert span.end_time_unix_nano <= whole.end_time_unix_nano
        assert not span.status.code
    told = {attribute.key: attribute.value.string_value for attribute in whole.attributes}
    assert told["k8s.pod.name"] == config.metadata.name
    assert told["dockershim.sandbox.id"] == sandbox_id
    # What nobody asked for has no trace: signs of life, reads after events.
    assert {span.name for span in collector.spans if not span.parent_span_id} <= {
        f"{SERVICE}/{call}" for call in ("Version", "RunPodSandbox", "StopPodSandbox", "RemovePodSandbox")
    }
