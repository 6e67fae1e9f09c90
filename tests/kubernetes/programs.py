"""The programs of Kubernetes, its test suites and its neighbours, each built by Go when it is asked for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from tests.conformance import tools

MODULE: Final = Path(__file__).parent
#: The newest release, apart from the one whose suites are run: its lists of expected failures are not made yet.
NEWEST: Final = MODULE / "newest"
#: Kubelets of the releases before it, each in a folder that has the name of its minor version.
OLDER: Final = MODULE / "kubelets"
KUBERNETES: Final = "k8s.io/kubernetes"


def _version_of(module: Path) -> str:
    """The version of Kubernetes that a module pins, as v1.36.1."""
    return str(re.findall(rf"{KUBERNETES} (v\S+)", (module / "go.mod").read_text())[0])


def _with_version(version: str) -> str:
    return f"-X k8s.io/component-base/version.gitVersion={version}"


# What is built from sources alone says "v0.0.0": kubeadm compares its version with the kubelet's.
VERSION: Final = _version_of(MODULE)
_BUILD: Final = ("build",)
_BUILD_SMALL: Final = ("build", "-ldflags", "-s -w")
_COMMAND: Final = ("build", "-ldflags", f"-s -w {_with_version(VERSION)}")
_SUITE: Final = ("test", "-c", "-ldflags", _with_version(VERSION))
_COMMANDS: Final = (
    *("kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler"),
    *("kubeadm", "kubectl", "kubelet"),
)
# How each program is built, and its package.
_PROGRAMS: Final = {
    **{name: (_COMMAND, f"{KUBERNETES}/cmd/{name}") for name in _COMMANDS},
    "e2e.test": (_SUITE, f"{KUBERNETES}/test/e2e"),
    "e2e_node.test": (_SUITE, f"{KUBERNETES}/test/e2e_node"),
    "ginkgo": (_BUILD, f"{tools.GINKGO}/ginkgo"),
    "agnhost": (_BUILD_SMALL, f"{KUBERNETES}/test/images/agnhost"),
    "nonewprivs": (_BUILD_SMALL, f"{KUBERNETES}/test/images/nonewprivs"),
    "nmeter": (_BUILD_SMALL, "./nmeter"),
    "pause": (_BUILD_SMALL, "./pause"),
    "etcd": (_BUILD_SMALL, "go.etcd.io/etcd/server/v3"),
    "coredns": (_BUILD_SMALL, "github.com/coredns/coredns"),
    "cri-dockerd": (_BUILD_SMALL, "github.com/Mirantis/cri-dockerd"),
}
# Those that want other versions of the same modules than Kubernetes stand in a module of their own, a folder here.
_OWN_MODULES: Final = ("coredns", "cri-dockerd")


def provide(name: str) -> Path:
    """The program `name`, alone in a folder of the cache. SetupError if it cannot be built."""
    how, package = _PROGRAMS[name]
    module = MODULE / name if name in _OWN_MODULES else MODULE
    return tools.built(f"kubernetes-{name}", module, (*how, "-o", name, package)) / name


def provide_newest(name: str) -> Path:
    """The command `name` of the newest Kubernetes, alone in a folder of the cache. SetupError if it cannot be built."""
    return _command(f"kubernetes-newest-{name}", NEWEST, name)


def kubelets() -> dict[str, str]:
    """The version of each kubelet that there is, by its minor version, the oldest first: 1.29 has 1.29.15."""
    versions = [_version_of(module).removeprefix("v") for module in (*OLDER.iterdir(), NEWEST)]
    return {_minor(version): version for version in sorted(versions, key=_numbers)}


def provide_kubelet(minor: str) -> Path:
    """The kubelet of a key of `kubelets`, alone in a folder of the cache. SetupError if it cannot be built."""
    if (module := OLDER / minor).is_dir():
        return _command(f"kubernetes-kubelet-{minor}", module, "kubelet")
    return provide_newest("kubelet")


def _command(name: str, module: Path, command: str) -> Path:
    flags = ("-ldflags", f"-s -w {_with_version(_version_of(module))}")
    return tools.built(name, module, ("build", *flags, "-o", command, f"{KUBERNETES}/cmd/{command}")) / command


def _minor(version: str) -> str:
    return version.rpartition(".")[0]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def sources() -> Path:
    """The folder with the sources of Kubernetes, which images take files from."""
    return tools.sources(KUBERNETES, MODULE)
