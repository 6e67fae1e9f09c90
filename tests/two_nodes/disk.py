"""The disk of a node: a guest as it is before `kubeadm init` or `kubeadm join`, with the images that both pull."""

from __future__ import annotations

from typing import Final

from tests.conformance import tools as cri_tools
from tests.kubeadm import images
from tests.kubernetes import flannel, suite_images, units
from tests.kubernetes.programs import NEWEST
from tests.node.engine import REGISTRIES
from tests.vm import image
from tests.vm.network import HOST

_UNIT: Final = "etc/systemd/system/kubelet.service"
# kubeadm waits for pods of flannel, which bring the network.
_NO_NETWORK: Final = "etc/cni/net.d/10-test.conflist"
#: Both nodes begin with the first engine; a test gives one of them the second.
ENGINE, NEXT_ENGINE = reversed(image.ENGINES)
FILES: Final = {path: content for path, content in image.FILES.items() if path != _NO_NETWORK} | {
    "etc/hosts": image.hosts(*REGISTRIES, flannel.REGISTRY),
    "etc/docker/daemon.json": image.daemon(*REGISTRIES, flannel.REGISTRY),
    # CoreDNS asks the servers in it what it does not know, and ends if that is itself, as 127.0.0.1 is. There is none.
    "etc/resolv.conf": f"nameserver {HOST}\n",
    # flannel puts its plugin into the first folder, Debian's package has those that it calls in the second one.
    "etc/dockershim/config.toml": 'cni_bin_dir = ["/opt/cni/bin", "/usr/lib/cni"]\n',
    _UNIT: units.KUBELET,
    f"{_UNIT}.d/10-kubeadm.conf": units.KUBEADM,
}


def kind() -> image.Kind:
    """What is on the disk. SetupError if something cannot be built."""
    return image.Kind(
        files=FILES,
        registries=(images.provide(NEWEST), suite_images.provide(NEWEST), flannel.provide()),
        programs={
            **{f"usr/bin/{name}": NEWEST.provide(name) for name in ("kubeadm", "kubelet", "kubectl")},
            "usr/bin/crictl": cri_tools.provide() / "crictl",
        },
        enabled=(*image.ENABLED, "kubelet"),
    )
