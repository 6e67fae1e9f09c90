"""What the engine is asked for, by a kubelet's request."""

from __future__ import annotations

import json
from typing import Any

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.translate.capabilities import Capabilities
from dockershim.translate.cdi import NO_EDITS
from dockershim.translate.container import check_container, to_engine_container
from dockershim.translate.labels import EXTRA_LABEL
from dockershim.translate.names import SandboxName
from dockershim.translate.sandbox import check_sandbox, to_infra_container
from tests.unit.translate.kubelet import IMAGE_ID, SANDBOX_ID, UID, sandbox_config

POD = SandboxName("web-0", "default", UID, 0)


def to_infra(config: cri.PodSandboxConfig, features: Capabilities, **fields: Any) -> dict[str, Any]:
    check_sandbox(config, "node-1")
    given: dict[str, Any] = {
        "image": "infra:1",
        "runtime_handler": "",
        "network_mode": "none",
        "publish_ports": False,
        "profiles": {},
        "lowest_oom_score": -1000,
        **fields,
    }
    return to_infra_container(config, features=features, **given)


def to_engine(config: cri.ContainerConfig, features: Capabilities, **fields: Any) -> dict[str, Any]:
    sandbox = fields.pop("sandbox", sandbox_config())
    check_container(config, sandbox, features)
    given: dict[str, Any] = {
        "sandbox_id": SANDBOX_ID,
        "pod": POD,
        "image": IMAGE_ID,
        "runtime": "",
        "profiles": {},
        "volumes": {},
        "account": None,
        "cdi_edits": NO_EDITS,
        "lowest_oom_score": -1000,
        "engine_log": None,
        **fields,
    }
    return to_engine_container(config, sandbox, features=features, **given)


def split_extra(body: dict[str, Any]) -> dict[str, Any]:
    extra: dict[str, Any] = json.loads(body["Labels"].pop(EXTRA_LABEL))
    return extra
