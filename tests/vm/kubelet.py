"""A kubelet of the newest Kubernetes in a guest, as a unit of systemd: it runs the static pods of its folder.

It has the default configuration, apart from where things are and who may use its API.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from tests.kubernetes import programs
from tests.kubernetes.kubelet_api import PORT, StaticPods
from tests.vm.guest import Guest

PODS: Final = "/etc/kubernetes/manifests"
ROOT: Final = "/var/lib/kubelet"
UNIT: Final = "/etc/systemd/system/kubelet.service"
_CONFIGURATION: Final[Mapping[str, Any]] = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "staticPodPath": PODS,
    "fileCheckFrequency": "1s",
    "containerRuntimeEndpoint": "unix:///run/dockershim.sock",
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
}
_UNIT: Final = f"""\
[Unit]
After=dockershim.service
Wants=dockershim.service
[Service]
ExecStart=/usr/local/bin/kubelet --config={ROOT}/config.yaml --root-dir={ROOT}
Restart=always
RestartSec=5
[Install]
WantedBy=multi-user.target
"""
_INSTALL: Final = f"""\
mkdir -p {PODS} {ROOT}
chmod 755 /usr/local/bin/kubelet
systemctl daemon-reload
systemctl enable --quiet --now kubelet
"""
# Reads an URL whose certificate nobody has signed.
_GET: Final = """
import ssl, sys, urllib.request
with urllib.request.urlopen(sys.argv[1], timeout=20, context=ssl._create_unverified_context()) as answer:
    sys.stdout.buffer.write(answer.read())
"""


@dataclass(frozen=True, slots=True)
class GuestKubelet(StaticPods):
    """The kubelet of a guest."""

    guest: Guest

    @property
    def node(self) -> str:
        return self.guest.name

    def install(self) -> None:
        """Build it if need be, put it into the guest, and start it."""
        self.guest.copy(programs.NEWEST.provide("kubelet"), "/usr/local/bin/kubelet")
        for path, content in ((f"{ROOT}/config.yaml", json.dumps(_CONFIGURATION)), (UNIT, _UNIT)):
            self.guest.sh(f"mkdir -p $(dirname {path}); cat >{path}", input=content)
        self.guest.sh(_INSTALL, timeout=240)

    def uninstall(self) -> None:
        """Stop it, and remove what it has made."""
        self.guest.sh(
            f"systemctl disable --quiet --now kubelet; rm -rf {UNIT} {PODS} /usr/local/bin/kubelet; "
            f"awk '$2 ~ \"^{ROOT}/\" {{ print $2 }}' /proc/mounts | xargs -r umount; rm -rf {ROOT}; "
            "systemctl daemon-reload"
        )

    @property
    def has_ended(self) -> bool:
        return False  # systemd starts it again

    def end_of_log(self) -> str:
        return self.guest.journal("kubelet", "--lines=40", check=False)

    def get(self, path: str, query: Mapping[str, Any] | None = None) -> str:
        url = f"https://{self.guest.port.address}:{PORT}{path}?{urlencode(query or {}, doseq=True)}"
        words = self.guest.network.inside(sys.executable, "-c", _GET, url)
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise OSError(done.stderr.strip().rpartition("\n")[2])
        return done.stdout

    def run(self, manifest: Mapping[str, Any]) -> None:
        """Run a static pod, or change it."""
        # The kubelet looks at each file of the folder, unless its name begins with a dot.
        name = manifest["metadata"]["name"]
        self.guest.sh(f"cat >{PODS}/.{name} && mv {PODS}/.{name} {PODS}/{name}.json", input=json.dumps(manifest))

    def remove(self, name: str) -> None:
        """Let it stop and remove a static pod."""
        self.guest.run("rm", f"{PODS}/{name}.json")
