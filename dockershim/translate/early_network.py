"""Networks of pods that are set up beside the start of the infra container, in a namespace that is there before it.

The Engine API cannot say that a container joins a network namespace, so an annotation of it tells dockershim-runc.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

#: HostConfig.Annotations, which the engine writes into config.json. Nobody but a client of the engine can set it.
ANNOTATION: Final = "io.dockershim.network-namespace"

#: What the engine sets in each new network namespace, unless the container has a value of its own.
_OF_THE_ENGINE: Final = {"net.ipv4.ping_group_range": "0 2147483647", "net.ipv4.ip_unprivileged_port_start": "0"}
#: Others have a slash in their name, which stands for a dot of an interface's name.
_PLAIN: Final = re.compile(r"net(\.[A-Za-z0-9_-]+)+")
#: dockershim-runc makes so many changes of config.json at most, and some more.
_MOST_SYSCTLS: Final = 1000


@dataclass(frozen=True, slots=True)
class EarlyNetwork:
    """A network namespace that a sandbox's infra container joins.

    ``runtime`` is HostConfig.Runtime of the container; ``sysctls`` are set in the namespace when it is made, so that
    plugins see and may change them as if the engine had made it.
    """

    runtime: str
    sysctls: Mapping[str, str]

    def to_annotation(self, pins: str) -> str:
        """The annotation's value. ``pins`` is what the paths of pinned namespaces begin with; an id is the rest."""
        return "\n".join((pins, *self.sysctls))


def sysctls_of_early_network(sysctls: Mapping[str, str]) -> dict[str, str] | None:
    """Those of the network namespace, of a pod with these sysctls; None if only the runtime can set them."""
    own = {key: value for key, value in sysctls.items() if key.replace("/", ".").startswith("net.")}
    if len(own) > _MOST_SYSCTLS or not all(map(_PLAIN.fullmatch, own)):
        return None
    return _OF_THE_ENGINE | own


def to_changes(early: EarlyNetwork, pins: str) -> dict[str, Any]:
    """What it changes of an infra container's HostConfig."""
    return {"Runtime": early.runtime, "Annotations": {ANNOTATION: early.to_annotation(pins)}}
