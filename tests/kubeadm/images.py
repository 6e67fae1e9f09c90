"""The images of a control plane that kubeadm asks for, made of Kubernetes' own programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from tests.kubernetes import programs, registry
from tests.node.image_files import Entry, Image, Layers, folders, libraries, program
from tests.node.supplies import BOOKWORM

# kube-proxy's. Of the same release as the machine's, so that each reads the rules of the other.
PACKAGES: Final = ("conntrack", "iptables", "nftables")
TOOLS: Final = ("usr/sbin/conntrack", "usr/sbin/nft", "usr/sbin/xtables-nft-multi")
IPTABLES: Final = tuple(
    f"usr/sbin/{family}tables{suffix}" for family in ("ip", "ip6") for suffix in ("", "-restore", "-save")
)
COMMANDS: Final = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
BUILT: Final = (*COMMANDS, "coredns", "etcd", "kube-proxy")


def provide() -> Path:
    """The storage folder of a registry that has the images, made once."""
    return registry.provide("kubeadm", __file__, IMAGES, _layers, suite=BOOKWORM, packages=PACKAGES, built=BUILT)


def _layers(source: Path, built: Mapping[str, Path]) -> Layers:
    return {
        "iptables": partial(_iptables, source),
        **{name: partial(_program, name, path) for name, path in built.items()},
    }


def _program(name: str, path: Path) -> Iterator[Entry]:
    yield from folders("etc", "tmp", "usr/local/bin", "var/run")
    yield Entry(f"usr/local/bin/{name}", path.read_bytes(), 0o755)


def _iptables(source: Path) -> Iterator[Entry]:
    extensions = [str(path.relative_to(source)) for path in sorted(source.glob("usr/lib/*/xtables/*.so"))]
    yield from (program(source, path) for path in TOOLS)
    yield from (Entry(path, same_as="usr/sbin/xtables-nft-multi") for path in IPTABLES)
    yield from (program(source, path) for path in extensions)
    yield from libraries(source, *TOOLS, *extensions)


def _image(repository: str, tag: str, *layers: str, command: str = "") -> Image:
    return Image((f"{repository}:{tag}",), layers, {"Entrypoint": [command]} if command else {})


# The names are those that `kubeadm config images list` prints. kubeadm gives all but CoreDNS their command.
IMAGES: Final = (
    *(_image(name, programs.VERSION, name) for name in COMMANDS),
    _image("kube-proxy", programs.VERSION, "iptables", "kube-proxy"),
    _image("etcd", "3.6.8-0", "etcd"),
    _image("coredns/coredns", "v1.14.2", "coredns", command="/usr/local/bin/coredns"),
)
