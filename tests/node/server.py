"""`dockershim serve` as a process of the node, for tests, critest and the node's shell."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import grpc


class ServerError(Exception):
    """The server did not start or did not end in time; the text holds the end of its log."""


@dataclass(slots=True)
class Server:
    """One server and its files. `name` keeps servers apart; the first one has all the defaults."""

    name: str = "dockershim"
    flags: tuple[str, ...] = ()
    program: tuple[str, ...] = ("-m", "dockershim")
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def socket(self) -> Path:
        return Path(f"/run/{self.name}.sock")

    @property
    def target(self) -> str:
        """The gRPC target of the server's socket."""
        return f"unix://{self.socket}"

    @property
    def log(self) -> Path:
        return Path(f"/var/log/{self.name}.log")

    @property
    def pid(self) -> int:
        if self.process is None:
            raise ServerError(f"{self.name} is not running")
        return self.process.pid

    @property
    def runs(self) -> bool:
        """Whether its process, if it was started, has not ended."""
        return self.process is not None and self.process.poll() is None

    def start(self, *flags: str, program: tuple[str, ...] = (), timeout: float = 30.0) -> None:
        """Start the server and wait until it answers Version.

        `flags` and `program` (the interpreter's arguments before `serve`) replace its own, if given.

        ServerError after `timeout` s, or as soon as the process has ended.
        """
        self.flags = flags or self.flags
        self.program = program or self.program
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C at the terminal is for the test, not for the server
            )
        self.wait_ready(timeout)

    def wait_ready(self, timeout: float = 30.0) -> None:
        """Wait until the server answers Version; ServerError after `timeout` s."""
        deadline = time.monotonic() + timeout
        while not self._answers():
            ended = self.process is not None and self.process.poll() is not None
            if ended or time.monotonic() > deadline:
                self.kill()
                raise ServerError(f"{self.name} does not answer; the end of {self.log}:\n{self.log_end()}")
            time.sleep(0.05)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self, timeout: float = 40.0) -> int:
        """End the server with SIGTERM and give its exit code; ServerError when it is still there after `timeout` s."""
        if self.process is None:
            return 0
        self.process.terminate()
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ServerError(
                f"{self.name} is still there {timeout:.0f} s after SIGTERM; its log:\n{self.log_end()}"
            ) from None
        finally:
            self.process = None

    def kill(self) -> None:
        """End the server as a crash does, with SIGKILL."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None

    def restart(self, *flags: str) -> None:
        self.stop()
        self.start(*flags)

    def log_end(self, lines: int = 60) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:]) if self.log.exists() else ""

    def answered(self, rpc: str) -> int:
        """How many calls were answered without an error, those too whose callers had gone; --log-level=debug tells."""
        return self._ended(rpc, "done in")

    def ended(self, rpc: str) -> int:
        """How many calls have ended in any way, with all that they had to undo; --log-level=debug tells."""
        return self._ended(rpc, "done in", "cancelled by the client", "failed")

    def _ended(self, rpc: str, *ways: str) -> int:
        ends = tuple(f"dockershim.server.grpc_server {way} " for way in ways)
        lines = self.log.read_text(errors="replace").splitlines()
        return sum(f"rpc={rpc}" in line and any(end in line for end in ends) for line in lines)

    def command(self) -> list[str]:
        """What starts the server."""
        return [sys.executable, *self.program, "serve", *self._paths(), *self.flags]

    def _paths(self) -> list[str]:
        if self.name == "dockershim":
            return []
        return [
            f"--container-runtime-endpoint=unix://{self.socket}",
            f"--root-directory=/var/lib/{self.name}",
            f"--state-directory=/run/{self.name}",
        ]

    def _answers(self) -> bool:
        if not self.socket.exists():
            return False
        with grpc.insecure_channel(self.target) as channel:
            # An empty message on the wire is a valid VersionRequest.
            version: grpc.UnaryUnaryMultiCallable[bytes, bytes]
            version = channel.unary_unary("/runtime.v1.RuntimeService/Version")
            try:
                version(b"", timeout=2)
            except grpc.RpcError:
                return False
        return True


@dataclass(slots=True)
class DropIn(Server):
    """The program under the name cri-dockerd. `flags` are cri-dockerd's."""

    name: str = "cri-dockerd"

    def command(self) -> list[str]:
        # A name for the command of the environment that the tests run in.
        program = Path("/run", self.name, self.name)
        program.parent.mkdir(exist_ok=True)
        program.unlink(missing_ok=True)
        program.symlink_to(Path(sys.executable).with_name("dockershim"))
        return [str(program), *self.flags]
