"""Runs a plugin (SPEC.md, section 2 "Execution Protocol").

The rest of the package uses one method, :meth:`Executor.run`. The real executor starts a process; tests replace it by
a recorder.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import shlex
import signal
import subprocess
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from cni.errors import PluginStartError, PluginTimeout, ResultError, quote_stderr
from cni.result import MAX_RESULT_BYTES

log = logging.getLogger(__name__)

_STDERR_LIMIT: Final = 32 << 10
# A file that is being written cannot be executed (ETXTBSY). An installer writes a plugin within seconds.
_BUSY_TRIES: Final = 6
_BUSY_DELAY: Final = 0.5
# Seconds to wait for the end of the output after the plugin has ended: a child that it left in the background may
# keep the pipe open for ever.
_PIPE_GRACE: Final = 0.5
_KILL_GRACE: Final = 5.0
_SHELL_LINE_LIMIT: Final = 32 << 10


@dataclass(frozen=True, slots=True)
class Invocation:
    """One execution of a plugin. ``environment`` has the CNI_* variables, ``timeout`` is in seconds."""

    plugin: Path
    environment: Mapping[str, str]
    config: bytes
    timeout: float
    pass_fds: tuple[int, ...] = ()

    @property
    def command(self) -> str:
        return self.environment["CNI_COMMAND"]

    def shell_line(self) -> str:
        """The same execution as a line for a shell."""
        config = self.config.decode(errors="replace")
        if len(config) > _SHELL_LINE_LIMIT:
            config = f"(a configuration of {len(self.config)} bytes)"
        variables = " ".join(f"{key}={shlex.quote(value)}" for key, value in self.environment.items())
        return f"printf %s {shlex.quote(config)} | env {variables} {shlex.quote(str(self.plugin))}"


@dataclass(frozen=True, slots=True)
class Completion:
    """How a plugin ended. ``exit_status`` is negative for a signal; ``stderr`` is the end of its output there."""

    exit_status: int
    stdout: bytes
    stderr: bytes


class Executor(Protocol):
    async def run(self, invocation: Invocation) -> Completion:
        """Run a plugin to its end.

        Raises :class:`PluginStartError`, :class:`PluginTimeout`, and :class:`ResultError` for too much output.
        After any exception, also a cancellation, the plugin does not run any more.
        """
        ...


class SubprocessExecutor:
    """Runs each plugin in a session of its own, with this process's environment and the CNI_* variables."""

    def __init__(self, *, stdout_limit: int = MAX_RESULT_BYTES, busy_delay: float = _BUSY_DELAY) -> None:
        self._stdout_limit = stdout_limit
        self._busy_delay = busy_delay

    async def run(self, invocation: Invocation) -> Completion:
        process = _Process(invocation, self._stdout_limit)
        try:
            async with asyncio.timeout(invocation.timeout), self._running(process):
                return await process.completion()
        except TimeoutError as error:
            raise PluginTimeout(
                f"plugin {invocation.plugin.name} did not end {invocation.command} in {invocation.timeout:.1f} s"
                f"{quote_stderr(process.stderr)}"
            ) from error

    @contextlib.asynccontextmanager
    async def _running(self, process: _Process) -> AsyncIterator[None]:
        transport = await self._start(process)
        try:
            yield
        finally:
            if transport.get_returncode() is None:
                await _kill(transport, process)
            transport.close()

    async def _start(self, process: _Process) -> asyncio.SubprocessTransport:
        plugin = process.invocation.plugin
        busy: OSError | None = None
        for _ in range(_BUSY_TRIES):
            try:
                return await _spawn(process)
            except OSError as error:
                if error.errno != errno.ETXTBSY:
                    raise PluginStartError(f"cannot execute {plugin}: {error}") from error
                busy = error
            await asyncio.sleep(self._busy_delay)
        raise PluginStartError(f"cannot execute {plugin}: it is still being written") from busy


async def _spawn(process: _Process) -> asyncio.SubprocessTransport:
    invocation = process.invocation
    stdin = _config_file(invocation.config)
    try:
        transport, _ = await asyncio.get_running_loop().subprocess_exec(
            lambda: process,
            str(invocation.plugin),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **invocation.environment},
            start_new_session=True,
            pass_fds=invocation.pass_fds,
        )
    finally:
        os.close(stdin)
    return transport


def _config_file(config: bytes) -> int:
    """A file in memory for standard input.

    asyncio's pipe is a socket in Python 3.11, which a shell plugin cannot open as /dev/stdin. And with a file nothing
    must be written while the plugin runs.
    """
    descriptor = os.memfd_create("cni-config")
    try:
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(config)
        os.lseek(descriptor, 0, os.SEEK_SET)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


class _Process(asyncio.SubprocessProtocol):
    """Collects a plugin's output, up to a limit, and waits for its end."""

    def __init__(self, invocation: Invocation, stdout_limit: int) -> None:
        self.invocation = invocation
        self._stdout_limit = stdout_limit
        self._stdout = bytearray()
        self.stderr = bytearray()
        self._open_pipes = {1, 2}
        self._silent = asyncio.Event()
        self._settled = asyncio.Event()
        self.exited = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.SubprocessTransport)
        self._transport = transport

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            self.stderr += data
            del self.stderr[:-_STDERR_LIMIT]
        elif not self._flooded():
            self._stdout += data
            if self._flooded():
                self._settled.set()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._open_pipes.discard(fd)
        if not self._open_pipes:
            self._silent.set()

    def process_exited(self) -> None:
        self.exited.set()
        self._settled.set()

    async def completion(self) -> Completion:
        await self._settled.wait()
        if not self._flooded():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PIPE_GRACE):
                    await self._silent.wait()
        if self._flooded():
            raise ResultError(
                f"plugin {self.invocation.plugin.name} wrote more than {self._stdout_limit} bytes"
                f"{quote_stderr(self.stderr)}"
            )
        status = self._transport.get_returncode()
        assert status is not None
        return Completion(status, bytes(self._stdout), bytes(self.stderr))

    def _flooded(self) -> bool:
        return len(self._stdout) > self._stdout_limit


async def _kill(transport: asyncio.SubprocessTransport, process: _Process) -> None:
    """Kill the plugin and its children, and wait for its end, which may take long if it is blocked in the kernel."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(transport.get_pid(), signal.SIGKILL)
    try:
        async with asyncio.timeout(_KILL_GRACE):
            await process.exited.wait()
    except TimeoutError:
        log.warning("plugin process %d was killed but has not ended after %.0f s", transport.get_pid(), _KILL_GRACE)
