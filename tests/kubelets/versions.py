"""What the kubelets of the list need, and what they cannot do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.kubernetes import programs

#: The whole version of each, by its minor version.
VERSIONS: Final[Mapping[str, str]] = {minor: release.version for minor, release in programs.RELEASES.items()}
#: The first that refuses a node with cgroup v1 unless it is told not to.
FAILS_ON_CGROUP_V1: Final = "1.35"
#: The first that resizes static pods.
RESIZES: Final = "1.36"


def settings(minor: str) -> dict[str, object]:
    """What this kubelet's configuration has in addition to that of the others."""
    return {"failCgroupV1": False} if since(FAILS_ON_CGROUP_V1, minor) else {}


def since(first: str, minor: str) -> bool:
    """Whether a minor version is ``first`` or later."""
    return programs.numbers(minor) >= programs.numbers(first)
