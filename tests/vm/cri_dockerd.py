"""A guest with a real cri-dockerd, kubelet and kubeadm, each as its packages install it, and dockershim not started."""

from __future__ import annotations

from typing import Final

from tests.conformance import tools as cri_tools
from tests.kubeadm import images
from tests.kubernetes import programs, units
from tests.kubernetes.programs import NEWEST
from tests.node import supplies
from tests.vm import image
from tests.vm.network import HOST

UNIT: Final = "cri-docker.service"
SOCKET_UNIT: Final = "cri-docker.socket"
ENDPOINT: Final = "unix:///run/cri-dockerd.sock"
#: What its packages have: https://github.com/Mirantis/cri-dockerd, packaging/systemd.
_SERVICE: Final = """\
[Unit]
After=network-online.target firewalld.service docker.service
Wants=network-online.target
Requires=cri-docker.socket

[Service]
Type=notify
ExecStart=/usr/bin/cri-dockerd --container-runtime-endpoint fd://
ExecReload=/bin/kill -s HUP $MAINPID
TimeoutSec=0
RestartSec=2
Restart=always
StartLimitBurst=3
StartLimitInterval=60s
LimitNOFILE=infinity
LimitNPROC=infinity
LimitCORE=infinity
TasksMax=infinity
Delegate=yes
KillMode=process

[Install]
WantedBy=multi-user.target
"""
_SOCKET: Final = """\
[Unit]
PartOf=cri-docker.service

[Socket]
ListenStream=%t/cri-dockerd.sock
SocketMode=0660
SocketUser=root
SocketGroup=docker

[Install]
WantedBy=sockets.target
"""
#: As an administrator adds flags: Debian has the CNI plugins elsewhere.
_DROP_IN: Final = """\
[Service]
ExecStart=
ExecStart=/usr/bin/cri-dockerd --container-runtime-endpoint fd:// --cni-bin-dir=/opt/cni/bin,/usr/lib/cni
"""
_UNITS: Final = "usr/lib/systemd/system"
_FILES: Final = {path: text for path, text in image.FILES.items() if path != "etc/dockershim/config.toml"} | {
    f"{_UNITS}/{UNIT}": _SERVICE,
    f"{_UNITS}/{SOCKET_UNIT}": _SOCKET,
    f"etc/systemd/system/{UNIT}.d/10-cni.conf": _DROP_IN,
    f"{_UNITS}/kubelet.service": units.KUBELET,
    f"{_UNITS}/kubelet.service.d/10-kubeadm.conf": units.KUBEADM,
    "etc/crictl.yaml": "runtime-endpoint: unix:///var/run/cri-dockerd.sock\ntimeout: 60\n",
    # CoreDNS asks the servers in it what it does not know, and ends if that is itself, as 127.0.0.1 is. There is none.
    "etc/resolv.conf": f"nameserver {HOST}\n",
}


def kind() -> image.Kind:
    """What is on the disk. SetupError if something cannot be built."""
    return image.Kind(
        files=_FILES,
        registries=(supplies.provide("28").registry, images.provide(NEWEST)),
        programs={
            **{f"usr/bin/{name}": NEWEST.provide(name) for name in ("kubeadm", "kubelet", "kubectl")},
            "usr/bin/cri-dockerd": programs.provide("cri-dockerd"),
            "usr/bin/crictl": cri_tools.provide() / "crictl",
        },
        enabled=("systemd-networkd", "ssh", "docker-registry", UNIT, SOCKET_UNIT, "kubelet"),
    )


if __name__ == "__main__":
    kind()
