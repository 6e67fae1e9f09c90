"""A running guest: booted by qemu, reached by ssh, rebooted, and cut off from its power."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shlex
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.node.packages import run
from tests.vm.image import Image

BOOT_TIME = 600.0  # seconds; without KVM a boot takes 100, and three times as long on a busy machine
PR_SET_PDEATHSIG = 1
# A kernel that panics starts anew, which shows as a boot that takes too long, and in the console's log.
KERNEL = "root=/dev/vda rw console=ttyS0 quiet panic=5 systemd.show_status=0"
CRI_SOCKET = "/run/dockershim.sock"

_libc = ctypes.CDLL(None, use_errno=True)


class GuestError(Exception):
    """The guest did not do what it was told; the text holds what it said."""


@dataclass(slots=True)
class Guest:
    """One guest of `image`. What it writes is in `folder`, and is there again after a reboot or a power cut."""

    image: Image
    folder: Path
    port: int = 0
    _qemu: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def console(self) -> Path:
        """What the guest's kernel and systemd wrote to the serial console."""
        return self.folder / "console.log"

    @property
    def cri(self) -> str:
        """The gRPC target of the server in the guest; ssh carries it."""
        return f"unix://{self._cri_socket}"

    @property
    def entrance(self) -> str:
        """What runs a command in the guest from another terminal, before the words of the command."""
        return f"ssh -F none -S {self._control} guest"

    @property
    def _cri_socket(self) -> Path:
        return self.folder / "cri.sock"

    @property
    def _control(self) -> Path:
        return self.folder / "ssh"

    def boot(self) -> float:
        """Switch the guest on and wait until all its units are up; the seconds that it took."""
        began = time.monotonic()
        disk = self.folder / "disk.qcow2"
        if not disk.exists():
            run("qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", self.image.disk, disk)
        self.port = _free_port()
        with self.console.open("ab") as console:
            self._qemu = subprocess.Popen(
                self._command(disk),
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,  # a Ctrl-C at the terminal is for the tests
                preexec_fn=lambda: _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
            )
        self._wait_up(began + BOOT_TIME)
        return time.monotonic() - began

    def reboot(self) -> float:
        """Let systemd restart the machine; the seconds until all units are up again."""
        began = time.monotonic()
        before = self.boot_id()
        self.run("systemctl", "reboot", check=False)
        self._disconnect()
        self._wait_up(began + BOOT_TIME)
        if self.boot_id() == before:
            raise GuestError("the guest did not restart")
        return time.monotonic() - began

    def cut_power(self) -> None:
        """End the guest as a power cut does: what it has not written to its disk is lost."""
        if self._qemu is not None:
            self._qemu.kill()
            self._qemu.wait()
            self._qemu = None
        self._disconnect()

    def run(self, *command: str, check: bool = True, timeout: float = 120.0, input: str = "") -> str:
        """Run a program in the guest as root; its standard output, GuestError if it fails and `check` is set."""
        return self.sh(shlex.join(command), check=check, timeout=timeout, input=input)

    def sh(self, script: str, check: bool = True, timeout: float = 120.0, input: str = "") -> str:
        """Run a shell script in the guest as root; its standard output."""
        words = self._ssh(script)
        try:
            done = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=timeout, input=input)
        except subprocess.TimeoutExpired as error:
            raise GuestError(f"`{script}` did not end within {timeout:.0f} s: {error.stdout!r}") from None
        if check and done.returncode:
            raise GuestError(f"`{script}` ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def copy(self, file: Path, path: str) -> None:
        """Put a file of this machine into the guest."""
        with file.open("rb") as content:
            subprocess.run(self._ssh(f"cat > {shlex.quote(path)}"), stdin=content, check=True, timeout=300)

    def shell(self) -> int:
        """Give the terminal to a shell in the guest; its exit code."""
        return subprocess.run(self._ssh("exec bash -l", "-t")).returncode

    def read(self, path: str) -> str:
        """What a file of the guest holds, without the last line's end."""
        return self.run("cat", path).rstrip("\n")

    def boot_id(self) -> str:
        return self.read("/proc/sys/kernel/random/boot_id")

    def journal(self, unit: str = "dockershim", *options: str, check: bool = True) -> str:
        """The unit's messages of this boot."""
        words = ("journalctl", "--boot", "--no-pager", "--output=cat", f"--unit={unit}", *options)
        return self.run(*words, check=check)

    def console_end(self, lines: int = 40) -> str:
        return "\n".join(self.console.read_text(errors="replace").splitlines()[-lines:])

    def _command(self, disk: Path) -> list[str | Path]:
        processors = min(os.cpu_count() or 1, 4)
        virtual = ("-accel", "kvm", "-cpu", "host") if _has_kvm() else _EMULATED
        network = f"user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:{self.port}-:22"
        return [
            "qemu-system-x86_64",
            *("-machine", "q35", *virtual, "-smp", str(processors), "-m", "4G"),
            *("-kernel", self.image.kernel, "-initrd", self.image.initrd, "-append", KERNEL),
            *("-drive", f"file={disk},if=virtio,format=qcow2", "-device", "virtio-rng-pci"),
            *("-netdev", network, "-device", "virtio-net-pci,netdev=net,romfile="),
            *("-display", "none", "-serial", "stdio", "-monitor", "none"),
        ]

    def _wait_up(self, deadline: float) -> None:
        while not self._connect():
            self._check_time(deadline)
            time.sleep(1)
        state = "starting"
        while state in ("starting", "initializing", ""):
            self._check_time(deadline)
            state = self.run("timeout", "60", "systemctl", "is-system-running", "--wait", check=False).strip()
        if state != "running":
            raise GuestError(f"the guest is {state}: {self.run('systemctl', '--failed', '--no-legend')}")

    def _check_time(self, deadline: float) -> None:
        ended = self._qemu is None or self._qemu.poll() is not None
        if ended or time.monotonic() > deadline:
            what = "has ended" if ended else "does not come up"
            raise GuestError(f"the guest {what}; the end of its console:\n{self.console_end()}")

    def _connect(self) -> bool:
        """Open the one connection that all commands share. ssh calculates long, without KVM."""
        master = self._ssh("true", "-o", "ControlMaster=yes", "-o", "ControlPersist=yes")
        forward = f"-L{self._cri_socket}:{CRI_SOCKET}"
        self._disconnect()
        with contextlib.suppress(subprocess.TimeoutExpired):
            options = (*master[:-1], forward, "true")
            done = subprocess.run(options, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
            return done.returncode == 0
        return False

    def _disconnect(self) -> None:
        if self._control.exists():
            end = ["ssh", "-S", str(self._control), "-O", "exit", "guest"]
            subprocess.run(end, capture_output=True, timeout=20)
        for path in (self._control, self._cri_socket):
            path.unlink(missing_ok=True)

    def _ssh(self, script: str, *options: str) -> list[str]:
        settings = {
            "ControlPath": self._control,
            "ConnectTimeout": 30,
            "ServerAliveInterval": 20,
            "ServerAliveCountMax": 6,
            "IdentityFile": self.image.key,
            "IdentitiesOnly": "yes",
            "StrictHostKeyChecking": "no",
            "UserKnownHostsFile": "/dev/null",
            "LogLevel": "ERROR",
            "BatchMode": "yes",
        }
        set_options = (word for name, value in settings.items() for word in ("-o", f"{name}={value}"))
        return ["ssh", "-F", "none", *set_options, *options, "-p", str(self.port), "root@127.0.0.1", script]


# Without -cx16, QEMU 7.2 makes the guest's kernel panic.
_EMULATED = ("-accel", "tcg,thread=multi,tb-size=1024", "-cpu", "max,-cx16")


def _has_kvm() -> bool:
    """Whether KVM is the processor's own. Where it is not, /dev/kvm may open all the same, and guests die."""
    return any(Path("/sys/module", module).is_dir() for module in ("kvm_intel", "kvm_amd")) and os.access(
        "/dev/kvm", os.R_OK | os.W_OK
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
