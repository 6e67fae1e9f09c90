"""The first process of a node: sets the namespaces up, starts registry and engine, runs the command.

It is PID 1 of the node: when it ends, the kernel ends everything in it.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from pyroute2 import IPRoute

from deploy.runc import MACHINES, program
from tests.node import cgroups
from tests.node.engine import REGISTRIES, Engine, EngineError
from tests.node.mounts import MS_PRIVATE, MS_SHARED, bind, mount, own_copy, own_entries, propagate

NAME = "node"
# Tests and critest ask images by the names of REGISTRIES. Docker takes plain HTTP for what resolves to 127.0.0.0/8.
HOSTS = f"""\
127.0.0.1 localhost {" ".join(REGISTRIES)}
127.0.1.1 {NAME}
::1 localhost ip6-localhost
"""
REGISTRY = Path("/var/lib/docker-registry")
RESOLV_CONF = "nameserver 127.0.0.1\nsearch node.test\n"
REGISTRY_CONFIG = f"""\
version: 0.1
log: {{level: warn}}
storage: {{filesystem: {{rootdirectory: {REGISTRY}}}, delete: {{enabled: true}}}}
http: {{addr: "127.0.0.1:80"}}
"""
# Docker sets the FORWARD chain's policy to DROP: without the firewall plugin a pod reaches nobody.
#: Where the machine may have the plugins of Debian's containernetworking-plugins.
DEBIANS_PLUGINS = Path("/usr/lib/cni")
CNI_CONFIG = {
    "cniVersion": "0.4.0",
    "name": "test",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            "ipMasq": True,
            "hairpinMode": True,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": "10.88.0.0/16"}], [{"subnet": "fd00:88::/64"}]],
                "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
            },
        },
        {"type": "portmap", "capabilities": {"portMappings": True}},
        {"type": "firewall", "backend": "iptables"},
        {"type": "bandwidth", "capabilities": {"bandwidth": True}},
    ],
}
# The plugins make these chains with the first pod. Those of two first pods at the same time both make them, and one
# fails: "Chain already exists".
CHAINS = """\
*filter
:CNI-ADMIN -
:CNI-FORWARD -
COMMIT
*nat
:CNI-HOSTPORT-DNAT -
:CNI-HOSTPORT-MASQ -
:CNI-HOSTPORT-SETMARK -
COMMIT
"""
# A machine may keep CAP_SYS_RESOURCE (capabilities(7), number 24) from root. A privileged container asks for every
# capability, and runc refuses what it cannot give: so it is asked for all but this one, and privileged containers
# run on every machine alike.
CAP_SYS_RESOURCE = 1 << 24
MODEST_RUNC = """\
#!/bin/sh
option= file=
for word; do
  case $option in
    --bundle) file=$word/config.json ;;
    --process) file=$word ;;
  esac
  option=$word
done
if [ -n "$file" ]; then
  sed -i -e 's/"CAP_SYS_RESOURCE",//g' -e 's/,"CAP_SYS_RESOURCE"//g' "$file"
fi
exec {runc} "$@"
"""


# The engine has Debian's runc, this one a newer one.
DOCKERSHIM_RUNC = """\
#!/bin/sh
PATH={folder}:$PATH exec {program} "$@"
"""


@dataclass(frozen=True, slots=True)
class Orders:
    """What the outside tells the first process, in one JSON word. `engines` has the folders of each one's programs.

    `runc` is a program with id-mapped mounts, which the engine does not use by itself.
    """

    engine: str
    engines: dict[str, str]
    path: str
    cni: str
    registry: str
    runc: str
    command: tuple[str, ...]

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> Self:
        given = json.loads(text)
        return cls(**given | {"command": tuple(given["command"])})


def main(folder: Path, orders: Orders) -> int:
    """Set the node up in `folder`, run the command, give its exit code (128 + n for signal n)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the command; the node ends when the command does
    _isolate(folder, Path(orders.registry), Path(orders.cni))
    with IPRoute() as routes:
        routes.link("set", index=routes.link_lookup(ifname="lo")[0], state="up")
    # The kernel copies the machine's settings to a new netns. Docker sets the FORWARD policy to DROP only if it is
    # the one that enables forwarding.
    for setting in ("ipv4/ip_forward", "ipv6/conf/all/forwarding"):
        Path("/proc/sys/net", setting).write_text("0")
    _configure()
    programs = f"{_own_programs(folder, orders)}:{orders.path}:{os.environ['PATH']}"
    environment = _environment(orders, programs, _storage_driver(folder))
    os.environ.clear()
    os.environ.update(environment)
    _start_registry()
    try:
        Engine().start()
    except EngineError as error:
        sys.exit(f"node: {error}")
    for family in ("iptables", "ip6tables"):
        subprocess.run([f"{family}-restore", "--noflush"], input=CHAINS, text=True, check=True)
    return _run(orders.command)


def _isolate(folder: Path, registry: Path, cni: Path) -> None:
    """Give the node file systems of its own, kept in `folder`, and make / shared (mount propagation to containers)."""
    propagate(Path("/"), MS_PRIVATE)
    socket.sethostname(NAME)
    cgroups.mount_own()
    mount("tmpfs", Path("/run"), "tmpfs", data="mode=755")
    own_copy(Path("/etc"), folder)
    own = ("docker", "containerd", "cni", "cri-dockerd", "dockershim", "docker-registry", "etcd", "kubelet")
    own_entries(Path("/var/lib"), folder, own)
    own_entries(Path("/opt"), folder, ("cni/bin",))
    (folder / "log").mkdir()
    bind(folder / "log", Path("/var/log"))
    if DEBIANS_PLUGINS.is_dir():
        # doctor looks there for plugins that are missing.
        (folder / "no-plugins").mkdir()
        bind(folder / "no-plugins", DEBIANS_PLUGINS)
    shutil.copytree(cni, "/opt/cni/bin", dirs_exist_ok=True)
    shutil.copytree(registry, REGISTRY, dirs_exist_ok=True)
    propagate(Path("/"), MS_SHARED)


def _configure() -> None:
    etc = Path("/etc")
    for name, content in (("hosts", HOSTS), ("resolv.conf", RESOLV_CONF), ("hostname", f"{NAME}\n")):
        with contextlib.suppress(FileNotFoundError):
            (etc / name).unlink()
        (etc / name).write_text(content)
    for folder in ("docker", "cni", "cdi", "nri"):
        shutil.rmtree(etc / folder, ignore_errors=True)
    (etc / "docker").mkdir()
    (etc / "cni/net.d").mkdir(parents=True)
    (etc / "cni/net.d/10-test.conflist").write_text(json.dumps(CNI_CONFIG, indent=2))
    (etc / "crictl.yaml").write_text("runtime-endpoint: unix:///run/dockershim.sock\ntimeout: 30\n")


def _storage_driver(folder: Path) -> str:
    """overlay2 where the kernel takes an overlay on the node's file system, else vfs."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        layers = {name: Path(scratch) / name for name in ("lowerdir", "upperdir", "workdir", "merged")}
        for layer in layers.values():
            layer.mkdir()
        merged = layers.pop("merged")
        try:
            mount("overlay", merged, "overlay", data=",".join(f"{name}={path}" for name, path in layers.items()))
        except OSError:
            return "vfs"
        subprocess.run(["umount", str(merged)], check=True)
        return "overlay2"


def _own_programs(folder: Path, orders: Orders) -> Path:
    """The folder of programs that stand before all others in the node: dockershim-runc, and, where root does not have
    all capabilities, runc."""
    programs, newer = folder / "bin", folder / "newer-runc"
    programs.mkdir()
    newer.mkdir()
    own = program(next(name for name, machine in MACHINES.items() if machine == platform.machine()))
    _script(programs / "dockershim-runc", DOCKERSHIM_RUNC.format(folder=newer, program=own))
    status = Path("/proc/self/status").read_text()
    bounding = next(line.split()[1] for line in status.splitlines() if line.startswith("CapBnd:"))
    if int(bounding, 16) & CAP_SYS_RESOURCE:
        (newer / "runc").symlink_to(orders.runc)
    else:
        _script(newer / "runc", MODEST_RUNC.format(runc=orders.runc))
        _script(programs / "runc", MODEST_RUNC.format(runc=shutil.which("runc", path=orders.path)))
    return programs


def _script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def _environment(orders: Orders, path: str, storage: str) -> dict[str, str]:
    """The command's environment: the machine's without its proxies (there is no way out of a node) plus the node's.

    The node's own variables do not begin with DOCKERSHIM_: the server takes those for options, and refuses these.
    """
    kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    return kept | {
        "PATH": path,
        "DOCKER_HOST": f"unix://{Engine().socket}",
        "TEST_NODE": "1",
        "TEST_NODE_ENGINE": orders.engine,
        "TEST_NODE_ENGINES": json.dumps(orders.engines),
        "TEST_NODE_STORAGE": storage,
    }


def _start_registry() -> None:
    config = Path("/etc/docker-registry.yml")
    config.write_text(REGISTRY_CONFIG)
    with Path("/var/log/docker-registry.log").open("wb") as log:
        subprocess.Popen(
            ["docker-registry", "serve", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _run(command: tuple[str, ...]) -> int:
    try:
        child = subprocess.Popen(command, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    except OSError as error:
        sys.stderr.write(f"node: {command[0]}: {error.strerror}\n")
        return 127
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    # The first process inherits every orphan of the node and must take note of their ends.
    while (ended := os.wait())[0] != child.pid:
        pass
    return exit_code(ended[1])


def exit_code(status: int) -> int:
    """The exit code that a shell gives for a wait status: 128 + n for an end by signal n."""
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Orders.decode(sys.argv[2])))
