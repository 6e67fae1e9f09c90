"""cloudcore and edgecore, built by Go from the module of this folder.

edgecore contains the kubelet of KubeEdge's fork of Kubernetes, by which its own module replaces Kubernetes. A main
module's `replace` alone counts, so ours repeats them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from tests.conformance import tools
from tests.node.packages import install
from tests.node.supplies import COMPILER

#: The variable with the folder of the definitions of KubeEdge's resources.
DEFINITIONS: Final = "KUBEEDGE_DEFINITIONS"

_MODULE: Final = Path(__file__).parent
_KUBEEDGE: Final = "github.com/kubeedge/kubeedge"


def version() -> str:
    """As v1.23.0."""
    return str(re.findall(rf"require {_KUBEEDGE} (\S+)", (_MODULE / "go.mod").read_text())[0])


def provide() -> Path:
    """The cache's folder with both. SetupError if they cannot be built."""
    # edgecore keeps what it was sent in SQLite, which is C.
    install(COMPILER)
    flags = ("build", "-ldflags", f"-s -w -X {_KUBEEDGE}/pkg/version.gitVersion={version()}")
    edgecore = (*flags, "-o", "edgecore", f"{_KUBEEDGE}/edge/cmd/edgecore")
    cloudcore = (*flags, "-o", "cloudcore", f"{_KUBEEDGE}/cloud/cmd/cloudcore")
    return tools.built("kubeedge", _MODULE, edgecore, cloudcore, c={})


def definitions() -> Path:
    """The folder with the definitions of its resources, for kubectl."""
    return tools.sources(_KUBEEDGE, _MODULE) / "build/crds"
