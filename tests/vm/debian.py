"""The guest's operating system: Debian 13 from packages, with the Docker Engine of the next release.

mmdebstrap makes it for some two minutes, once for each content of this file.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path

from tests.node.cache import appearing, entry, locked, used
from tests.node.packages import SetupError, Suite, install, run

TRIXIE = Suite("trixie")
FORKY = Suite("forky")

# What the machine needs to make and to run a guest.
MACHINE = ("mmdebstrap", "e2fsprogs", "qemu-system-x86", "qemu-utils", "openssh-client")

# Debian 13 has Docker 26. Only these packages come from the suite after it, and what they need stays Debian 13's.
ENGINE = ("docker.io", "docker-cli", "containerd", "runc", "tini-static")
SYSTEM = (
    "linux-image-cloud-amd64",
    "initramfs-tools",
    "systemd-sysv",
    "udev",
    "dbus",
    "kmod",
    "openssh-server",
    "sudo",
    "apparmor",
    "python3",
    "python3-venv",
    "procps",
    "iproute2",
    "iputils-ping",
    "iptables",
    "docker-registry",
    "containernetworking-plugins",
)
PREFERENCES = f"""\
Package: *
Pin: release n={FORKY.name}
Pin-Priority: 100

Package: {" ".join(ENGINE)}
Pin: release n={FORKY.name}
Pin-Priority: 990
"""
# A small initrd is read sooner: it has the drivers of the one disk that there is.
INITRAMFS = "MODULES=list\n"
INITRAMFS_MODULES = "virtio_pci\nvirtio_blk\next4\n"


def provide() -> Path:
    """The archive of the guest's root file system, as the packages leave it."""
    if os.geteuid() != 0:
        raise SetupError("the virtual machine's file system is made as root")
    if platform.machine() != "x86_64":
        raise SetupError(f"the virtual machine is an x86_64, this machine is {platform.machine()}")
    target = entry("vm-debian", Path(__file__).read_bytes())
    with locked("vm-debian"):
        install(MACHINE)
        if not used(target):
            with appearing(target) as made:
                _bootstrap(made / "root.tar")
    return target / "root.tar"


def _bootstrap(archive: Path) -> None:
    settings = {
        "forky": ("etc/apt/preferences.d/forky", PREFERENCES),
        "initramfs": ("etc/initramfs-tools/conf.d/vm", INITRAMFS),
        "modules": ("etc/initramfs-tools/modules", INITRAMFS_MODULES),
    }
    hooks = []
    for name, (path, content) in settings.items():
        file = archive.with_name(f"{name}.conf")
        file.write_text(content)
        hooks.append(f'--setup-hook=mkdir -p "$1/{Path(path).parent}" && cp {file} "$1/{path}"')
    run(
        "mmdebstrap",
        "--mode=root",
        "--variant=minbase",
        # A mirror may be a snapshot of some day: its signature is checked, its age is not.
        '--aptopt=Acquire::Check-Valid-Until "false"',
        '--aptopt=APT::Install-Recommends "false"',
        *hooks,
        f"--include={','.join((*SYSTEM, *ENGINE))}",
        TRIXIE.name,
        archive,
        TRIXIE.source,
        FORKY.source,
    )
