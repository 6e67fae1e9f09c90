"""A kubelet without an API server inside a test node: it runs the pods of a folder, and is asked by its own API."""

from __future__ import annotations

import json
import ssl
import subprocess
import urllib.request
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlencode

from tests.kubernetes.client import end
from tests.kubernetes.interface import ADDRESS, interface
from tests.kubernetes.kubelet_api import PORT, StaticPods
from tests.node.cache import REPOSITORY

#: The variables with the kubelet's program, and with its minor version.
PROGRAM: Final = "KUBELET_PROGRAM"
MINOR: Final = "KUBELET_MINOR"
#: The folder of the tests' reports and logs.
REPORTS: Final = REPOSITORY / "build/kubelets"
NODE: Final = "node1"
FOLDER: Final = Path("/run/kubelets")
#: Kubelets before 1.30 have no other.
LOGS: Final = Path("/var/log/pods")
#: A kubelet links to each log from here.
LINKS: Final = Path("/var/log/containers")
ROOT: Final = Path("/var/lib/kubelet")
LOG: Final = Path("/var/log/kubelet.log")
_CONFIGURATION: Final[Mapping[str, Any]] = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "staticPodPath": str(FOLDER / "pods"),
    "volumePluginDir": str(FOLDER / "plugins"),
    "resolvConf": str(FOLDER / "resolv.conf"),
    "cgroupDriver": "cgroupfs",
    "syncFrequency": "5s",
    "fileCheckFrequency": "1s",
    # A test node's machine may have any of these.
    "failSwapOn": False,
    "enforceNodeAllocatable": [],
    "evictionHard": {"memory.available": "0%"},
    "imageGCHighThresholdPercent": 100,
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
}


@dataclass(slots=True)
class Kubelet(StaticPods):
    """``runtime`` is the address of the CRI socket, ``settings`` are added to the configuration. A context manager."""

    program: Path
    runtime: str
    settings: Mapping[str, Any]
    tls: ssl.SSLContext = field(init=False)
    node: str = NODE
    _started: ExitStack = field(default_factory=ExitStack)
    _process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        # It makes itself a certificate that nobody has signed.
        self.tls = ssl.create_default_context()
        self.tls.check_hostname = False
        self.tls.verify_mode = ssl.CERT_NONE

    def __enter__(self) -> Self:
        (FOLDER / "pods").mkdir(parents=True)
        (FOLDER / "resolv.conf").write_text("nameserver 127.0.0.1\n")
        config = FOLDER / "kubelet.json"
        config.write_text(
            json.dumps({**_CONFIGURATION, "containerRuntimeEndpoint": self.runtime, **self.settings}, indent=1)
        )
        with ExitStack() as undo:
            undo.enter_context(self._started)
            self._started.enter_context(interface())
            with LOG.open("wb") as log:
                self._process = subprocess.Popen(
                    [
                        self.program,
                        f"--config={config}",
                        f"--root-dir={ROOT}",
                        f"--cert-dir={FOLDER / 'pki'}",
                        f"--hostname-override={NODE}",
                        f"--node-ip={ADDRESS}",
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            self._started.callback(end, self._process)
            self.wait(lambda: self.get("/healthz") == "ok", 60, "the kubelet")
            self._started = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._started.close()

    def url(self, path: str, query: Mapping[str, Any] | None = None, scheme: str = "https") -> str:
        """The address of a path of its API; a value of the query may be a list."""
        return f"{scheme}://127.0.0.1:{PORT}{path}?{urlencode(query or {}, doseq=True)}"

    def run(self, manifest: Mapping[str, Any]) -> None:
        """Run a static pod, or change it."""
        # The kubelet looks at each file of the folder, unless its name begins with a dot.
        scratch = FOLDER / "pods/.scratch"
        scratch.write_text(json.dumps(manifest))
        scratch.rename(self._file(manifest))

    def remove(self, manifest: Mapping[str, Any]) -> None:
        """Let it stop and remove a static pod."""
        self._file(manifest).unlink()

    @property
    def has_ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def end_of_log(self) -> str:
        return "\n".join(LOG.read_text(errors="replace").splitlines()[-40:])

    def get(self, path: str, query: Mapping[str, Any] | None = None) -> str:
        with urllib.request.urlopen(self.url(path, query), timeout=20, context=self.tls) as answer:
            return str(answer.read().decode())

    @staticmethod
    def _file(manifest: Mapping[str, Any]) -> Path:
        return FOLDER / "pods" / f"{manifest['metadata']['name']}.json"
