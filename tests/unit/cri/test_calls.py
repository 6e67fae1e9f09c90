"""Every call of the CRI is built, once, or known not to be."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.cri import Handler
from dockershim.server.grpc_server import OpenStreams, make_server
from tests.unit.cri.handlers import IMAGES, RUNTIME

#: docs/architecture.md has the reasons.
NOT_BUILT = {"CheckpointPod", "RestorePod"}


@pytest.mark.parametrize(("service", "handlers"), [("RuntimeService", RUNTIME), ("ImageService", IMAGES)])
def test_each_call_is_built_once_with_its_messages(service: str, handlers: Sequence[Handler]) -> None:
    calls = {
        method.name: (method.input_type.name, method.output_type.name, method.server_streaming)
        for method in cri.DESCRIPTOR.services_by_name[service].methods
        if method.name not in NOT_BUILT
    }
    built = [(one.request.DESCRIPTOR.name, one.response.DESCRIPTOR.name, one.streams) for one in handlers]
    assert sorted(built) == sorted(calls.values())


async def test_a_handler_of_no_call_is_refused() -> None:
    with pytest.raises(TypeError, match="ImageService has no call with VersionRequest"):
        make_server({"ImageService": RUNTIME[:1]}, OpenStreams())
