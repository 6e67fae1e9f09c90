"""The programs of Kubernetes and its test suites, each built by Go when it is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.conformance import tools

MODULE: Final = Path(__file__).parent
KUBERNETES: Final = "k8s.io/kubernetes"
_BUILD: Final = ("build",)
_BUILD_TEST: Final = ("test", "-c")
_BUILD_FOR_IMAGE: Final = ("build", "-ldflags", "-s -w")
# How each program is built, and its package.
_PROGRAMS: Final = {
    **{name: (_BUILD, f"{KUBERNETES}/cmd/{name}") for name in ("kubelet", "kubectl", "kube-apiserver")},
    "e2e_node.test": (_BUILD_TEST, f"{KUBERNETES}/test/e2e_node"),
    "ginkgo": (_BUILD, f"{tools.GINKGO}/ginkgo"),
    "agnhost": (_BUILD_FOR_IMAGE, f"{KUBERNETES}/test/images/agnhost"),
    "nonewprivs": (_BUILD_FOR_IMAGE, f"{KUBERNETES}/test/images/nonewprivs"),
    "nmeter": (_BUILD_FOR_IMAGE, "./nmeter"),
    "pause": (_BUILD_FOR_IMAGE, "./pause"),
}


def provide(name: str) -> Path:
    """The program `name`, alone in a folder of the cache. SetupError if it cannot be built."""
    how, package = _PROGRAMS[name]
    return tools.built(f"kubernetes-{name}", MODULE, (*how, "-o", name, package)) / name


def sources() -> Path:
    """The folder with the sources of Kubernetes, which images take files from."""
    return tools.sources(KUBERNETES, MODULE)
