"""What a node is put together from, brought into the cache: engines, registry, CNI plugins, runc, Prometheus."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from tests.node import images
from tests.node.cache import CACHE, locked
from tests.node.packages import SetupError, Suite, install

BOOKWORM = Suite("bookworm")
FORKY = Suite("forky")

# What the unpacked programs need from the machine: the shared libraries of dockerd and runc, the firewall tool that
# dockerd and the CNI plugins call, and the programs that the conformance specs run on the host (ipcmk, pgrep).
MACHINE = ("iptables", "iproute2", "libdevmapper1.02.1", "libseccomp2", "libsystemd0", "procps", "util-linux")
BASE = ("docker-registry", "runc", "containernetworking-plugins")
# Prometheus reads the metrics and the dashboard's queries; promtool is in its package.
MONITORING = ("prometheus",)
ENGINES = {
    "20": (BOOKWORM, ("docker.io", "containerd", "tini")),
    "28": (FORKY, ("docker.io", "docker-cli", "containerd", "tini-static")),
}


@dataclass(frozen=True, slots=True)
class Supplies:
    """The cache folders that one node is started from. All but `registry` hold unpacked packages."""

    engine: Path
    base: Path
    monitoring: Path
    registry: Path

    @property
    def path(self) -> tuple[Path, ...]:
        """The folders of programs, in the order in which they are searched, before the machine's own."""
        packages = (self.engine, self.base, self.monitoring)
        return tuple(package / folder for package in packages for folder in ("usr/sbin", "usr/bin"))


def provide(engine: str) -> Supplies:
    """Bring everything for a node of `engine` ("20" or "28") into the cache. Quick when it is there already."""
    if os.geteuid() != 0:
        raise SetupError("a test node needs root: namespaces, mounts and a Docker Engine of its own")
    suite, packages = ENGINES[engine]
    with locked("supplies"):
        install(MACHINE)
        base = BOOKWORM.unpack(BASE, _folder("base", BASE))
        monitoring = BOOKWORM.unpack(MONITORING, _folder("monitoring", MONITORING))
        unpacked = suite.unpack(packages, _folder(f"engine-{engine}", packages))
        source = BOOKWORM.unpack(images.PACKAGES, _folder("image-source", images.PACKAGES), with_dependencies=True)
        return Supplies(engine=unpacked, base=base, monitoring=monitoring, registry=images.build(source))


def _folder(name: str, packages: tuple[str, ...]) -> Path:
    """A folder of the cache that changes its name when the list of packages changes."""
    return CACHE / f"{name}-{hashlib.sha256(' '.join(packages).encode()).hexdigest()[:8]}"
