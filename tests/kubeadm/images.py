"""The images of a control plane that kubeadm asks for, made of Kubernetes' own programs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from tests.kubernetes import programs
from tests.node import image_files
from tests.node.cache import CACHE, appearing, locked
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
    built = {name: programs.provide(name) for name in BUILT}
    content = b"".join(Path(path).read_bytes() for path in (__file__, image_files.__file__))
    made_of = (*PACKAGES, *(path.parent.name for path in built.values()))
    key = hashlib.sha256(content + " ".join(made_of).encode()).hexdigest()[:8]
    target = CACHE / f"kubeadm-registry-{key}"
    with locked("kubeadm-registry"):
        packages = hashlib.sha256(" ".join(PACKAGES).encode()).hexdigest()[:8]
        source = BOOKWORM.unpack(PACKAGES, CACHE / f"kubeadm-source-{packages}", with_dependencies=True)
        if not target.is_dir():
            layers: Layers = {
                "iptables": partial(_iptables, source),
                **{name: partial(_program, name, path) for name, path in built.items()},
            }
            with appearing(target) as storage:
                image_files.write(storage, IMAGES, layers)
    return target


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
