"""A guest: booted, reached by ssh, rebooted, and cut off from its power, whichever machine runs it."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.vm.image import Image
from tests.vm.machines import Machine, Parts
from tests.vm.network import Network, Port, end_with_parent

CRI_SOCKET = "/run/dockershim.sock"
LOGIN_TIME = 60.0  # seconds for ssh, which calculates long in a guest without KVM
# The first process of its own process IDs: when it is killed, the kernel has killed all others before it is gone.
_FIRST = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--", "sh", "-c", '"$@" & wait $!', "sh")


class GuestError(Exception):
    """The guest did not do what it should; the text holds what it wrote."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command in the guest ended."""

    code: int
    output: str
    errors: str


@dataclass(slots=True)
class Guest:
    """One guest of `image`. What it writes is in `folder`, and is there again after a reboot or a power cut."""

    machine: Machine
    image: Image
    folder: Path
    network: Network
    name: str
    port: Port = field(init=False)
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False, repr=False)
    _connection: subprocess.Popen[bytes] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self.port = self.network.port(self.machine.plug)

    @property
    def console(self) -> Path:
        """What the guest's kernel and systemd wrote to the console."""
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
        self.switch_on()
        self.wait_up()
        return time.monotonic() - began

    def switch_on(self) -> None:
        """Begin to boot."""
        command = self.machine.command(Parts(self.name, self.image, self.folder, self.port))
        with self.console.open("ab") as console:
            self._process = subprocess.Popen(
                self.network.inside(*_FIRST, *command),
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,  # a Ctrl-C at the terminal is for the tests
                preexec_fn=end_with_parent,
            )

    def wait_up(self, previous_boot: str = "") -> None:
        """Wait until all units are up, of another boot than the previous one."""
        deadline = time.monotonic() + self.machine.boot_time
        while not self._connect() or self.boot_id(check=False) in ("", previous_boot):
            self._check_time(deadline)
            time.sleep(0.2)
        state = "starting"
        while state in ("starting", "initializing", ""):
            self._check_time(deadline)
            state = self.run("timeout", "60", "systemctl", "is-system-running", "--wait", check=False).strip()
        if state != "running":
            raise GuestError(f"the guest is {state}: {self.run('systemctl', '--failed', '--no-legend')}")

    def reboot(self) -> float:
        """Let systemd restart the machine; the seconds until all units are up again."""
        began = time.monotonic()
        before = self.boot_id()
        self.run("systemctl", "reboot", check=False)
        self.wait_up(before)
        return time.monotonic() - began

    def cut_power(self) -> None:
        """End the guest as a power cut does: what it has not written to its disk is lost."""
        if self._process is not None:
            _kill(self._process)
            self._process = None
        self._disconnect()

    def run(self, *command: str, check: bool = True, timeout: float = 120.0, input: str = "") -> str:
        """Run a program in the guest as root; its standard output, GuestError if it fails and `check` is set."""
        return self.sh(shlex.join(command), check=check, timeout=timeout, input=input)

    def sh(self, script: str, check: bool = True, timeout: float = 120.0, input: str = "") -> str:
        """Run a shell script in the guest as root; its standard output."""
        ended = self.ended(script, timeout=timeout, input=input)
        if check and ended.code:
            raise GuestError(f"`{script}` ended with {ended.code}:\n{ended.output}{ended.errors}")
        return ended.output

    def ended(self, script: str, timeout: float = 120.0, input: str = "") -> Ended:
        """Run a shell script in the guest as root; its exit code and what it wrote. 255 is also that of no guest."""
        words = self._ssh(script)
        try:
            done = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=timeout, input=input)
        except subprocess.TimeoutExpired as error:
            raise GuestError(f"`{script}` did not end within {timeout:.0f} s: {error.stdout!r}") from None
        return Ended(done.returncode, done.stdout, done.stderr)

    def copy(self, file: Path, path: str) -> None:
        """Put a file of this machine into the guest."""
        with file.open("rb") as content:
            subprocess.run(self._ssh(f"cat > {shlex.quote(path)}"), stdin=content, check=True, timeout=300)

    def fetch(self, path: str, file: Path) -> None:
        """Put a file of the guest onto this machine."""
        with file.open("wb") as content:
            words = self._ssh(f"cat {shlex.quote(path)}")
            subprocess.run(words, stdin=subprocess.DEVNULL, stdout=content, check=True, timeout=300)

    def shell(self) -> int:
        """Give the terminal to a shell in the guest; its exit code."""
        return subprocess.run(self._ssh("exec bash -l", "-t")).returncode

    def read(self, path: str) -> str:
        """What a file of the guest holds, without the last line's end."""
        return self.run("cat", path).rstrip("\n")

    def boot_id(self, check: bool = True) -> str:
        """Another one for each boot."""
        return self.run("cat", "/proc/sys/kernel/random/boot_id", check=check).strip()

    def journal(self, unit: str = "dockershim", *options: str, check: bool = True) -> str:
        """The unit's messages of this boot."""
        words = ("journalctl", "--boot", "--no-pager", "--output=cat", f"--unit={unit}", *options)
        return self.run(*words, check=check)

    def console_end(self, lines: int = 40) -> str:
        """The last lines of its console; empty before its first boot."""
        if not self.console.exists():
            return ""
        return "\n".join(self.console.read_text(errors="replace").splitlines()[-lines:])

    def _check_time(self, deadline: float) -> None:
        ended = self._process is None or self._process.poll() is not None
        if ended or time.monotonic() > deadline:
            what = "has ended" if ended else "does not come up"
            raise GuestError(f"the guest {what}; the end of its console:\n{self.console_end()}")

    def _connect(self) -> bool:
        """Open the one connection that all commands share, and that carries the CRI socket; whether it is there."""
        self._disconnect()
        options = ("-N", "-o", "ControlMaster=yes", f"-L{self._cri_socket}:{CRI_SOCKET}")
        with (self.folder / "ssh.log").open("wb") as log:
            self._connection = subprocess.Popen(
                self._ssh("", *options)[:-1],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
        deadline = time.monotonic() + LOGIN_TIME
        while self._connection.poll() is None and time.monotonic() < deadline:
            if self._control.exists() and self._cri_socket.exists():
                return True
            time.sleep(0.05)
        return False

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.kill()
            self._connection.wait()
            self._connection = None
        for path in (self._control, self._cri_socket):
            path.unlink(missing_ok=True)

    def _ssh(self, script: str, *options: str) -> list[str | Path]:
        """The words that run a script in the guest. Without the shared connection they reach it as well."""
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
        ssh = ("ssh", "-F", "none", *set_options, *options, f"root@{self.port.address}", script)
        return self.network.inside(*ssh)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a guest's processes, and wait until the kernel has ended all of them."""
    if process.poll() is None:
        # `unshare` waits for the first of them, its only child, and ends with it.
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            os.kill(int(child), signal.SIGKILL)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()
