"""flannel, a network of pods over several nodes: its programs, their images and its manifest.

flannel's own CNI plugin is in a repository that not every module proxy has. The one in the project of CNI plugins is
older, of before it moved there: it knows the CNI specification up to 0.4.0, so the manifest asks for that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from tests.conformance import tools
from tests.kubeadm.images import PACKAGES, iptables
from tests.kubernetes import programs, registry
from tests.node.image_files import Entry, Image, Layers, folders
from tests.node.images import busybox
from tests.node.packages import SetupError, install
from tests.node.supplies import BOOKWORM, COMPILER

#: Where its images are pulled from.
REGISTRY: Final = "ghcr.io"
MODULE: Final = Path(__file__).parent / "flannel"
FLANNEL: Final = "github.com/flannel-io/flannel"
NEW: Final = '"cniVersion": "1.0.0"'
OLD: Final = '"cniVersion": "0.4.0"'


def manifest() -> str:
    """Its manifest as the release has it, apart from the version of the CNI specification."""
    text = (tools.sources(FLANNEL, MODULE) / "Documentation/kube-flannel.yml").read_text()
    if text.count(NEW) != 1:
        raise SetupError(f"flannel's manifest does not hold {NEW} once")
    return text.replace(NEW, OLD)


def provide() -> Path:
    """The storage folder of a registry that has the images of the manifest, made once."""
    plugin = programs.provide("flannel-cni-plugin")
    flanneld = _built() / "flanneld"
    return registry.provide(
        "flannel",
        __file__,
        [_image(name) for name in _names()],
        _layers,
        suite=BOOKWORM,
        packages=(*PACKAGES, "busybox"),
        built={"flanneld": flanneld, "plugin": plugin},
    )


def _names() -> list[str]:
    """Of its images, without the registry."""
    return sorted(set(re.findall(rf"image: {REGISTRY}/(\S+)", manifest())))


def _image(name: str) -> Image:
    if "cni-plugin" in name:
        return Image((name,), ("busybox", "plugin"))
    return Image((name,), ("iptables", "flannel"), {"Entrypoint": ["/opt/bin/flanneld"]})


def _built() -> Path:
    """The folder with flanneld and install-conf. One of flanneld's backends is in C."""
    install(COMPILER)
    [version] = re.findall(rf"{FLANNEL} (v\S+)", (MODULE / "go.mod").read_text())
    ldflags = f"-s -w -extldflags -static -X {FLANNEL}/pkg/version.Version={version}"
    options = ("build", "-tags", "netgo,osusergo", "-ldflags", ldflags, "-o")
    return tools.built(
        "kubernetes-flannel",
        MODULE,
        (*options, "flanneld", FLANNEL),
        (*options, "install-conf", f"{FLANNEL}/cmd/install_conf"),
        c={},
    )


def _layers(source: Path, built: Mapping[str, Path]) -> Layers:
    return {
        "busybox": partial(busybox, source),
        "iptables": partial(iptables, source),
        "flannel": partial(_flannel, built["flanneld"].parent),
        "plugin": lambda: [Entry("flannel", built["plugin"].read_bytes(), 0o755)],
    }


def _flannel(built: Path) -> Iterator[Entry]:
    yield from folders("etc", "run", "tmp", "opt/bin")
    for name in ("flanneld", "install-conf"):
        yield Entry(f"opt/bin/{name}", (built / name).read_bytes(), 0o755)
