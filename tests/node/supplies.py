"""What a node is put together from, brought into the cache: engines, registry, CNI plugins, runc, criu, Prometheus.

Debian has no Docker 29. Go builds its dockerd from the module in the folder `moby`, for some four minutes once. From
the folder `runc` it builds a runc with id-mapped mounts, for half a minute: Debian 12's is older, and a later Debian's
needs a newer C library.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tests.conformance import tools
from tests.node import images
from tests.node.cache import appearing, entry, locked, used
from tests.node.packages import SetupError, Suite, install

BOOKWORM = Suite("bookworm")
FORKY = Suite("forky")

# What the unpacked programs need from the machine: the shared libraries of dockerd and runc, the firewall tool that
# dockerd and the CNI plugins call, and the programs that the conformance specs run on the host (ipcmk, pgrep).
MACHINE = ("iptables", "iproute2", "libdevmapper1.02.1", "libseccomp2", "libsystemd0", "procps", "util-linux")
# What builds runc, and the libraries that it is linked with.
COMPILER = ("gcc", "libc6-dev", "pkg-config")
LIBRARIES = ("libseccomp-dev",)
RUNC = Path(__file__).parent / "runc"
# Docker 29 makes its rules with it, if asked to.
MACHINE_OF_29 = ("nftables",)
BASE = ("docker-registry", "runc", "containernetworking-plugins")
# Prometheus reads the metrics and the dashboard's queries; promtool is in its package.
MONITORING = ("prometheus",)
# Debian 12's criu (3.17) cannot dump on a kernel of today. This one has its own libraries beside it.
CRIU = ("criu",)
CRIU_STARTER = """\
#!/bin/sh
root=${0%/*}/..
exec $root/usr/lib64/ld-linux-x86-64.so.2 --library-path $root/usr/lib/x86_64-linux-gnu $root/usr/sbin/criu "$@"
"""
BESIDE_29 = (FORKY, ("docker-cli", "containerd", "tini-static"))
ENGINES = {
    "20": (BOOKWORM, ("docker.io", "containerd", "tini")),
    "28": (FORKY, ("docker.io", "docker-cli", "containerd", "tini-static")),
    # With its default, containerd's image store, and with the store that the engines before it have.
    "29": BESIDE_29,
    "29-overlay2": BESIDE_29,
}
# The engines whose dockerd is built.
BUILT = ("29", "29-overlay2")
MOBY = Path(__file__).parent / "moby"
MOBY_MODULE = "github.com/moby/moby/v2"
# What comes out of the module has no version of its own; tests look at the first number.
MOBY_VERSION = "29.0.0-moby.2.0.0-beta.24"


@dataclass(frozen=True, slots=True)
class Supplies:
    """The cache folders that one node is started from: unpacked packages, `own` programs, the registry's storage."""

    own: tuple[Path, ...]
    engine: Path
    base: Path
    monitoring: Path
    registry: Path

    @property
    def path(self) -> tuple[Path, ...]:
        """The folders of programs, in the order in which they are searched, before the machine's own."""
        packages = (self.engine, self.base, self.monitoring)
        unpacked = (package / folder for package in packages for folder in ("usr/sbin", "usr/bin"))
        return (*self.own, *unpacked)


def provide(engine: str) -> Supplies:
    """Bring everything for a node of `engine`, a key of ENGINES, into the cache. Quick when it is there already."""
    if os.geteuid() != 0:
        raise SetupError("a test node needs root: namespaces, mounts and a Docker Engine of its own")
    suite, packages = ENGINES[engine]
    built = (build_moby(),) if engine in BUILT else ()
    with locked("supplies"):
        install((*MACHINE, *MACHINE_OF_29) if engine in BUILT else MACHINE)
        base = BOOKWORM.unpack(BASE, _folder("base", BASE))
        monitoring = BOOKWORM.unpack(MONITORING, _folder("monitoring", MONITORING))
        unpacked = suite.unpack(packages, _folder(f"engine-{engine.partition('-')[0]}", packages))
        source = BOOKWORM.unpack(images.PACKAGES, _folder("image-source", images.PACKAGES), with_dependencies=True)
        own = (*built, _unpack_criu())
        return Supplies(own=own, engine=unpacked, base=base, monitoring=monitoring, registry=images.build(source))


def _unpack_criu() -> Path:
    """The folder with a program `criu` that finds its libraries."""
    root = FORKY.unpack(CRIU, _folder("criu", CRIU), with_dependencies=True)
    starter = root / "bin"
    if not used(starter):
        with appearing(starter) as made:
            (made / "criu").write_text(CRIU_STARTER)
            (made / "criu").chmod(0o755)
    return starter


def build_moby() -> Path:
    """The folder with dockerd and docker-proxy, without btrfs, whose driver needs cgo."""
    tags = "netgo osusergo static_build exclude_graphdriver_btrfs"
    version = f"-X {MOBY_MODULE}/dockerversion.Version={MOBY_VERSION}"
    dockerd = ("build", "-tags", tags, "-ldflags", version, "-o", "dockerd", f"{MOBY_MODULE}/cmd/dockerd")
    proxy = ("build", "-o", "docker-proxy", f"{MOBY_MODULE}/cmd/docker-proxy")
    return tools.built("moby", MOBY, dockerd, proxy)


def provide_runc() -> Path:
    """The program `runc`, of a version that has id-mapped mounts. Quick when it is there already."""
    with locked("supplies"):
        install(COMPILER)
        libraries = BOOKWORM.unpack(LIBRARIES, _folder("libraries", LIBRARIES))
    [archive] = libraries.glob("usr/lib/*/libseccomp.a")
    environment = {
        "CGO_CFLAGS": f"-I{libraries / 'usr/include'}",
        "CGO_LDFLAGS": f"-L{archive.parent}",
        # That file names the folders of an installed library; the options above come first.
        "PKG_CONFIG_PATH": str(archive.parent / "pkgconfig"),
    }
    flags = ("-tags", "seccomp,netgo,osusergo", "-ldflags", "-extldflags -static")
    build = ("build", *flags, "-o", "runc", "github.com/opencontainers/runc")
    return tools.built("runc", RUNC, build, c=environment) / "runc"


def _folder(name: str, packages: tuple[str, ...]) -> Path:
    """The cache's entry with these packages."""
    return entry(name, " ".join(packages))
