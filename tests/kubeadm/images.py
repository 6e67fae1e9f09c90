"""The images of a control plane that kubeadm asks for, made of Kubernetes' own programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from tests.kubernetes import programs, registry
from tests.node.image_files import Entry, Image, Layers, folders, libraries, program
from tests.node.packages import run
from tests.node.supplies import BOOKWORM

# kube-proxy's. Of the same release as the machine's, so that each reads the rules of the other.
PACKAGES: Final = ("conntrack", "iptables", "nftables")
TOOLS: Final = ("usr/sbin/conntrack", "usr/sbin/nft", "usr/sbin/xtables-nft-multi")
IPTABLES: Final = tuple(
    f"usr/sbin/{family}tables{suffix}" for family in ("ip", "ip6") for suffix in ("", "-restore", "-save")
)
OF_RELEASE: Final = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler")


def provide(release: programs.Release) -> Path:
    """The storage folder of a registry that has a release's images, made once."""
    built = {**{name: release.provide(name) for name in OF_RELEASE}, "coredns": programs.provide("coredns")}
    return registry.provide(
        "kubeadm", __file__, _images(release), _layers, suite=BOOKWORM, packages=PACKAGES, built=built
    )


def _layers(source: Path, built: Mapping[str, Path]) -> Layers:
    return {
        "iptables": partial(iptables, source),
        **{name: partial(_program, name, path) for name, path in built.items()},
    }


def _program(name: str, path: Path) -> Iterator[Entry]:
    yield from folders("etc", "tmp", "usr/local/bin", "var/run")
    yield Entry(f"usr/local/bin/{name}", path.read_bytes(), 0o755)


def iptables(source: Path) -> Iterator[Entry]:
    """What PACKAGES have to make rules with."""
    extensions = [str(path.relative_to(source)) for path in sorted(source.glob("usr/lib/*/xtables/*.so"))]
    yield from (program(source, path) for path in TOOLS)
    yield from (Entry(path, same_as="usr/sbin/xtables-nft-multi") for path in IPTABLES)
    yield from (program(source, path) for path in extensions)
    yield from libraries(source, *TOOLS, *extensions)


def _images(release: programs.Release) -> tuple[Image, ...]:
    """Those that kubeadm asks for, of which a test node has the pause image from elsewhere."""
    listed = run(release.provide("kubeadm"), "config", "images", "list", f"--kubernetes-version={release.version}")
    names = (line.partition("/")[2] for line in listed.split())
    return tuple(_image(name) for name in names if not name.startswith("pause:"))


def _image(name: str) -> Image:
    holds = name.partition(":")[0].rpartition("/")[2]
    layers = ("iptables", holds) if holds == "kube-proxy" else (holds,)
    # kubeadm gives all others their command.
    config = {"Entrypoint": [f"/usr/local/bin/{holds}"]} if holds == "coredns" else {}
    return Image((name,), layers, config)
