"""The programs of Kubernetes, its test suites and its neighbours, each built by Go when it is asked for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.conformance import tools

MODULE: Final = Path(__file__).parent
#: A Go module for each minor version, in a folder of that name: there is no other list of them.
MODULES: Final = MODULE / "releases"
KUBERNETES: Final = "k8s.io/kubernetes"

_BUILD: Final = ("build",)
_BUILD_SMALL: Final = ("build", "-ldflags", "-s -w")
# What is built from sources alone says "v0.0.0": kubeadm compares its version with the kubelet's.
_WITH_VERSION: Final = "-X k8s.io/component-base/version.gitVersion={version}"
_COMMAND: Final = ("build", "-ldflags", f"-s -w {_WITH_VERSION}")
# Vet would look at all that it is made of, which takes as long as compiling it.
# The suites compare these, too: some have files for each minor version.
_WITH_NUMBERS: Final = " ".join(
    f"-X k8s.io/component-base/version.git{name}={{{name.lower()}}}" for name in ("Major", "Minor")
)
_SUITE: Final = ("test", "-c", "-vet=off", "-ldflags", f"{_WITH_VERSION} {_WITH_NUMBERS}")
_COMMANDS: Final = (
    *("kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler"),
    *("kubeadm", "kubectl", "kubelet"),
)
#: How each program of a release is built, and its package.
PROGRAMS: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    **{name: (_COMMAND, f"{KUBERNETES}/cmd/{name}") for name in _COMMANDS},
    "e2e.test": (_SUITE, f"{KUBERNETES}/test/e2e"),
    "e2e_node.test": (_SUITE, f"{KUBERNETES}/test/e2e_node"),
    "ginkgo": (_BUILD, f"{tools.GINKGO}/ginkgo"),
    "agnhost": (_BUILD_SMALL, f"{KUBERNETES}/test/images/agnhost"),
    "nonewprivs": (_BUILD_SMALL, f"{KUBERNETES}/test/images/nonewprivs"),
    "sample-apiserver": (_BUILD_SMALL, "k8s.io/sample-apiserver"),
    "sample-device-plugin": (_BUILD_SMALL, f"{KUBERNETES}/test/images/sample-device-plugin"),
    "etcd": (_BUILD_SMALL, "go.etcd.io/etcd/server/v3"),
}
# The others, each with its module.
_NEIGHBOURS: Final[Mapping[str, tuple[Path, str]]] = {
    "nmeter": (MODULE, "./nmeter"),
    "pause": (MODULE, "./pause"),
    "coredns": (MODULE / "coredns", "github.com/coredns/coredns"),
    "cri-dockerd": (MODULE / "cri-dockerd", "github.com/Mirantis/cri-dockerd"),
    "flannel-cni-plugin": (
        MODULE / "flannel-cni-plugin",
        "github.com/containernetworking/plugins/plugins/meta/flannel",
    ),
}


@dataclass(frozen=True, slots=True)
class Release:
    """The release of Kubernetes that a Go module pins. The module's folder has the name of the minor version."""

    module: Path

    @property
    def minor(self) -> str:
        """As 1.37."""
        return self.module.name

    @property
    def version(self) -> str:
        """As 1.37.2."""
        return str(re.findall(rf"{KUBERNETES} v(\S+)", (self.module / "go.mod").read_text())[0])

    def provide(self, name: str) -> Path:
        """One of PROGRAMS, alone in a folder of the cache. SetupError if it cannot be built."""
        how, package = PROGRAMS[name]
        major, minor = self.minor.split(".")
        words = (word.format(version=f"v{self.version}", major=major, minor=minor) for word in how)
        return tools.built(f"kubernetes-{self.minor}-{name}", self.module, (*words, "-o", name, package)) / name

    def sources(self) -> Path:
        """The folder with the sources of Kubernetes, which images take files from."""
        return tools.sources(KUBERNETES, self.module)


def numbers(version: str) -> tuple[int, ...]:
    """What versions are compared by."""
    return tuple(map(int, version.split(".")))


#: By the minor version, the oldest first.
RELEASES: Final[Mapping[str, Release]] = {
    module.name: Release(module) for module in sorted(MODULES.iterdir(), key=lambda module: numbers(module.name))
}
NEWEST: Final = list(RELEASES.values())[-1]
#: Those whose suites are run. Of the others there are only kubelets.
SUITES: Final = tuple(RELEASES)[-2:]


def provide(name: str) -> Path:
    """A program that is no part of a release, alone in a folder of the cache. SetupError if it cannot be built."""
    module, package = _NEIGHBOURS[name]
    return tools.built(f"kubernetes-{name}", module, (*_BUILD_SMALL, "-o", name, package)) / name
