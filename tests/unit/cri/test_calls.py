"""Every call of the CRI is built, once, or known not to be."""

from __future__ import annotations

import pytest

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.cri import GROUPS
from dockershim.cri.images import ImageService
from dockershim.server.grpc_server import snake_case

#: docs/architecture.md has the reasons.
NOT_BUILT = {"CheckpointPod", "RestorePod"}


@pytest.mark.parametrize(("service", "groups"), [("RuntimeService", GROUPS), ("ImageService", (ImageService,))])
def test_each_call_is_built_in_one_place(service: str, groups: tuple[type, ...]) -> None:
    for method in cri.DESCRIPTOR.services_by_name[service].methods:
        found = [group.__name__ for group in groups if hasattr(group, snake_case(method.name))]
        assert len(found) == (method.name not in NOT_BUILT), f"{method.name} is built in {found}"
