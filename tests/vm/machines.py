"""The two ways to run a guest: qemu, a whole computer, and User Mode Linux, a kernel that is a process.

Both boot the same disk into an overlay in the guest's folder. Without KVM, User Mode Linux is several times as fast:
its programs run on the processor itself, and only their system calls cost more. It has one processor, no hugepages and
no SELinux, and its own documentation calls the mode that makes it fast insecure: what runs in it is trusted.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from tests.node.packages import run
from tests.vm import kernel
from tests.vm.image import Image
from tests.vm.network import HOST, NETMASK, Plug, Port

# A kernel that panics starts again, which shows as a boot that takes too long, and in the console's log.
_ARGUMENTS: Final = ("rw", "quiet", "panic=5", "systemd.show_status=0", "net.ifnames=0")


@dataclass(frozen=True, slots=True)
class Parts:
    """What one guest is made of: it writes into `folder`, and its console is what the command prints."""

    name: str
    image: Image
    folder: Path
    port: Port

    @property
    def arguments(self) -> tuple[str, ...]:
        """The kernel's arguments that make a guest of its own of a disk that it shares: systemd takes them."""
        address = f"{self.port.address}::{HOST}:{NETMASK}:{self.name}::off"
        machine_id = self.port.mac.replace(":", "").rjust(32, "a")
        return (*_ARGUMENTS, f"ip={address}", f"systemd.hostname={self.name}", f"systemd.machine_id={machine_id}")


class Machine(Protocol):
    """A way to run a guest."""

    @property
    def name(self) -> str: ...

    @property
    def plug(self) -> Plug: ...

    @property
    def boot_time(self) -> float:
        """The seconds after which a boot has failed."""

    def command(self, parts: Parts) -> Sequence[str | Path]:
        """What runs the guest until it is switched off; it makes the overlay the first time."""


class Qemu:
    """qemu with two to four processors, without KVM where that is not the processor's own."""

    name: Final = "qemu"
    plug: Final = "tap"
    boot_time: Final = 600.0  # without KVM it takes 100, and three times as long on a busy machine

    def command(self, parts: Parts) -> Sequence[str | Path]:
        image, port = parts.image, parts.port
        overlay = parts.folder / "disk.qcow2"
        if not overlay.exists():
            run("qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", image.disk, overlay)
        processors = min(os.cpu_count() or 1, 4)
        virtual = ("-accel", "kvm", "-cpu", "host") if _has_kvm() else _EMULATED
        arguments = " ".join(("root=/dev/vda", "console=ttyS0", *parts.arguments))
        return [
            "qemu-system-x86_64",
            *("-machine", "q35", *virtual, "-smp", str(processors), "-m", "4G"),
            *("-kernel", image.kernel, "-initrd", image.initrd, "-append", arguments),
            *("-drive", f"file={overlay},if=virtio,format=qcow2", "-device", "virtio-rng-pci"),
            *("-netdev", f"tap,id=net,ifname={port.device},script=no,downscript=no"),
            *("-device", f"virtio-net-pci,netdev=net,mac={port.mac},romfile="),
            *("-display", "none", "-serial", "stdio", "-monitor", "none"),
        ]


class Uml:
    """User Mode Linux, by the kernel that this project builds."""

    name: Final = "uml"
    plug: Final = "veth"
    boot_time: Final = 180.0

    def command(self, parts: Parts) -> Sequence[str | Path]:
        # More than one processor (ncpus=) makes it twice as slow. The depth of the card's queue is what makes a packet
        # socket work. The memory is a file without a name in TMPDIR, which is to be in memory itself.
        return [
            *("env", "TMPDIR=/dev/shm"),
            *(kernel.provide(), "seccomp=on", "mem=3G"),
            *(f"ubd0={parts.folder / 'disk.cow'},{parts.image.disk}", "root=/dev/ubda"),
            f"vec0:transport=raw,ifname={parts.port.device},depth=64,mac={parts.port.mac}",
            *("con=null", "con0=null,fd:1", "ssl=null"),
            *(f"uml_dir={parts.folder / 'uml'}/", "umid=guest"),
            *parts.arguments,
        ]


QEMU: Final[Machine] = Qemu()
UML: Final[Machine] = Uml()
#: By the names that options give them.
MACHINES: Final[Mapping[str, Machine]] = {machine.name: machine for machine in (UML, QEMU)}

# Without -cx16, QEMU 7.2 makes the guest's kernel panic.
_EMULATED: Final = ("-accel", "tcg,thread=multi,tb-size=1024", "-cpu", "max,-cx16")


def _has_kvm() -> bool:
    """Whether KVM is the processor's own. Where it is not, /dev/kvm may open all the same, and guests die."""
    return any(Path("/sys/module", module).is_dir() for module in ("kvm_intel", "kvm_amd")) and os.access(
        "/dev/kvm", os.R_OK | os.W_OK
    )
