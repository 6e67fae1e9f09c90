"""``dockershim setup`` on a clean Debian 13 with Docker: to a pod, and back to the same machine.

It has a guest of its own: the one of the other tests is set up already.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from dockershim.api.cri.v1 import api_pb2 as api
from tests.conformance import tools as cri_tools
from tests.cri_client import CRI
from tests.engine import pods
from tests.kubernetes import units
from tests.node import supplies
from tests.vm.guest import Ended, Guest
from tests.vm.image import FILES, Kind, provided
from tests.vm.machines import Machine
from tests.vm.running import running

COMMAND = "/opt/dockershim/bin/dockershim"
#: What the tests' own guests have in addition, and setup is to make.
MADE_BY_SETUP = ("etc/cni/net.d/10-test.conflist", "etc/dockershim/config.toml", "etc/crictl.yaml")
#: The kubelet's package before anything is configured; its program is not run here.
KUBELET = {"etc/systemd/system/kubelet.service": units.KUBELET, "usr/bin/kubelet": "#!/bin/sh\n"}
#: Of all that setup may change: names, modes, owners, and what is in it or where it leads.
FILES_OF_THE_MACHINE = r"""
find /etc /usr/local /run/systemd/system /root -xdev \( -type f -o -type l -o -type d \) ! -path '*/__pycache__*' \
  -printf '%p %y %m %U %G %l\n' | sort
find /etc /usr/local -xdev -type f -exec sha256sum {} + | sort -k 2
sysctl net.ipv4.ip_forward net.bridge.bridge-nf-call-iptables fs.inotify.max_user_instances 2>/dev/null
systemctl is-enabled dockershim.service dockershim.socket kubelet.service
systemctl is-active dockershim.service dockershim.socket kubelet.service
findmnt -n -o PROPAGATION /
"""
SECONDS = 600.0


@pytest.fixture(scope="module")
def clean(machine: Machine, request: pytest.FixtureRequest) -> Iterator[Guest]:
    """A guest with Docker, CNI plugins, crictl, the server's wheel and units, and nothing configured or started."""
    kind = Kind(
        files={path: text for path, text in FILES.items() if path not in MADE_BY_SETUP} | KUBELET,
        registries=(supplies.provide("28").registry,),
        programs={f"usr/local/bin/{path.name}": path for path in sorted(cri_tools.provide().iterdir())},
        enabled=("systemd-networkd", "ssh", "docker-registry"),
    )
    with running(machine, provided(kind, engine=request.config.getoption("--guest-engine"))) as booted:
        yield booted


def setup(guest: Guest, *flags: str) -> Ended:
    return guest.ended(f"{COMMAND} setup {' '.join(flags)}", timeout=SECONDS)


def complaints(guest: Guest) -> dict[str, str]:
    """What doctor still complains about, with its fixes."""
    ended = guest.ended(f"{COMMAND} doctor --json", timeout=SECONDS)
    return {one["title"]: one["fix"] for one in json.loads(ended.output)["findings"] if one["level"] != "ok"}


def container(guest: Guest) -> str:
    """The one that is of no pod: its id, and when it was started."""
    return guest.sh("docker inspect --format '{{.Id}} {{.State.Running}} {{.State.StartedAt}}' other")


async def test_setup_makes_a_node_of_a_clean_machine_and_undo_gives_it_back(clean: Guest) -> None:
    clean.sh(f"docker run --detach --name other {pods.BUSYBOX} sleep 100000", timeout=SECONDS)
    machine, other = clean.sh(FILES_OF_THE_MACHINE, check=False), container(clean)

    planned = setup(clean, "--network=bridge")
    assert (planned.code, planned.errors) == (0, "")
    assert "/etc/docker/daemon.json" in planned.output
    assert clean.sh(FILES_OF_THE_MACHINE, check=False) == machine

    done = setup(clean, "--network=bridge", "--yes")
    assert (done.code, done.errors) == (0, ""), done.output
    assert container(clean) == other, "a restart of the engine with live-restore"
    again = setup(clean, "--network=bridge", "--yes")
    assert (again.code, again.output.splitlines()[-1]) == (0, "nothing to do"), again.output
    resolved = {
        *("live-restore", "container logs", "server", "start at boot", "crictl", "kubelet's endpoint"),
        *("CNI configuration", "CNI plugins", "IPv4 forwarding", "bridge netfilter", "mount propagation"),
        *("NetworkReady", "RuntimeReady", "FORWARD policy", "OCI runtimes"),
    }
    assert complaints(clean).keys() & resolved == set()
    await _run_a_pod(clean)

    features = setup(clean, "--with=early-network", "--with=user-namespaces", "--yes")
    assert (features.code, features.errors) == (0, ""), features.output
    info = clean.run(COMMAND, "info")
    assert "by dockershim-runc" in next(line for line in info.splitlines() if "early network" in line), info
    assert "by dockershim-runc" in next(line for line in info.splitlines() if "user namespaces" in line), info
    await _run_a_pod(clean, users=True)

    undone = setup(clean, "--undo")
    assert (undone.code, undone.errors) == (0, ""), undone.output
    assert "Docker is not restarted, as its containers would stop" in undone.output
    assert container(clean) == other
    assert clean.sh(FILES_OF_THE_MACHINE, check=False) == machine
    assert setup(clean, "--undo").output == "nothing to undo\n"


async def _run_a_pod(guest: Guest, *, users: bool = False) -> None:
    guest.run("crictl", "pull", pods.BUSYBOX, timeout=SECONDS)
    ids = api.IDMapping(host_id=3_000_000_000, length=65536)
    own = api.UserNamespace(mode=api.POD, uids=[ids], gids=[ids])
    options = api.NamespaceOption(userns_options=own) if users else api.NamespaceOption()
    linux = api.LinuxPodSandboxConfig(security_context=api.LinuxSandboxSecurityContext(namespace_options=options))
    main = api.LinuxContainerConfig(security_context=api.LinuxContainerSecurityContext(namespace_options=options))
    config = pods.sandbox_config(linux=linux)
    async with CRI(guest.cri) as cri, pods.pod(cri, config) as sandbox_id:
        container_id = await pods.start(cri, sandbox_id, pods.container_config(linux=main), config)
        assert "inet 10.88." in await pods.sh(cri, container_id, "ip -4 addr show eth0")
        mapped = await pods.sh(cri, container_id, "tr -s ' ' </proc/self/uid_map")
        assert mapped.split()[1] == (str(ids.host_id) if users else "0")
        assert sandbox_id[:13] in guest.run("crictl", "pods", "--state=ready")
