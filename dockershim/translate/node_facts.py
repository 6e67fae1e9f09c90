"""What kernel, engine and runtimes of a node can do, as Status and ``dockershim info`` tell it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.translate.capabilities import Capabilities


def to_runtime_handlers(features: Capabilities) -> list[cri.RuntimeHandler]:
    """StatusResponse.runtime_handlers: the empty one stands for the engine's default runtime."""
    return [
        cri.RuntimeHandler(
            name=name,
            features=cri.RuntimeHandlerFeatures(
                recursive_read_only_mounts=features.has_recursive_read_only(name),
                user_namespaces=features.has_user_namespaces(name),
            ),
        )
        for name in features.handlers
    ]


def to_node_facts(features: Capabilities, huge_pages: Iterable[str]) -> dict[str, Any]:
    """A JSON object, ``capabilities`` in the info of a verbose Status. ``huge_pages`` are sizes that can be limited."""
    return {
        "kernel": {
            "release": features.kernel_release,
            "operatingSystem": features.operating_system,
            "architecture": features.architecture,
        },
        "engine": {
            "version": features.version,
            "api": ".".join(map(str, features.api)),
            "rootDirectory": features.root_dir,
            "liveRestore": features.live_restore,
            "rootless": features.rootless,
            "userNamespaceRemap": features.user_namespace_remap,
            "imageVolumes": features.image_volumes,
            "cdi": features.cdi,
        },
        "userNamespaces": {
            "runtime": features.user_namespaces.runtime,
            "problem": features.user_namespaces.problem,
        },
        "earlyNetwork": {"runtime": features.early_network.runtime, "problem": features.early_network.problem},
        "images": {
            "store": "containerd" if features.containerd_store else "engine",
            "storageDriver": features.storage_driver,
        },
        "cgroups": {
            "version": features.cgroup_version,
            "driver": features.cgroup_driver,
            "hugePages": list(huge_pages),
            "missingLimits": list(features.missing_limits),
        },
        "security": {"seccomp": features.seccomp, "appArmor": features.apparmor, "seLinux": features.selinux},
        "runtimeHandlers": [
            {
                "name": handler.name,
                "runtime": features.runtime_of(handler.name) or features.default_runtime,
                "recursiveReadOnlyMounts": handler.features.recursive_read_only_mounts,
                "userNamespaces": handler.features.user_namespaces,
            }
            for handler in to_runtime_handlers(features)
        ],
    }
