"""Runs a plugin (SPEC.md, section 2 "Execution Protocol").

The rest of the package uses one method, :meth:`Executor.run`. The real executor starts a process; tests replace it by
a recorder.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

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
_POLL: Final = 0.01
_READ: Final = 64 << 10
_SHELL_LINE_LIMIT: Final = 32 << 10
# What a plugin's configuration may have beside settings: tokens, passwords, keys. A log is read by more people than the
# folder of configurations. Long values are tokens and keys under other names, but for the paths of network namespaces.
_SECRET: Final = re.compile(r"pass|pwd|psk|secret|token|cred|auth|key|cert|bearer|signature", re.IGNORECASE)
_LONGEST_SETTING: Final = 64
_NETNS: Final = "sandbox"
_LEFT_OUT: Final = "…"


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
        """The same execution as a line for a shell, but for what may be a secret in the configuration: that is "…"."""
        try:
            config = json.dumps(_without_secrets(json.loads(self.config)), ensure_ascii=False)
        except (ValueError, RecursionError):
            config = ""
        if not config or len(config) > _SHELL_LINE_LIMIT:
            config = f"(a configuration of {len(self.config)} bytes)"
        variables = " ".join(f"{key}={shlex.quote(value)}" for key, value in self.environment.items())
        return f"printf %s {shlex.quote(config)} | env {variables} {shlex.quote(str(self.plugin))}"


def _without_secrets(value: Any, key: str = "") -> Any:
    if value and _SECRET.search(key):
        return _LEFT_OUT
    if isinstance(value, dict):
        return {name: _without_secrets(one, name) for name, one in value.items()}
    if isinstance(value, list):
        return [_without_secrets(one, key) for one in value]
    if isinstance(value, str) and key != _NETNS and (len(value) > _LONGEST_SETTING or "@" in value):
        return _LEFT_OUT
    return value


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
            async with asyncio.timeout(invocation.timeout):
                await self._start(process)
                return await process.completion()
        except TimeoutError as error:
            raise PluginTimeout(
                f"plugin {invocation.plugin.name} timed out in {invocation.command} after {invocation.timeout:.1f} s"
                f"{quote_stderr(process.stderr)}"
            ) from error
        finally:
            await process.end()

    async def _start(self, process: _Process) -> None:
        plugin = process.invocation.plugin
        busy: OSError | None = None
        for _ in range(_BUSY_TRIES):
            try:
                process.start()
            except OSError as error:
                if error.errno != errno.ETXTBSY:
                    raise PluginStartError(f"cannot execute {plugin}: {error}") from error
                busy = error
            else:
                return
            await asyncio.sleep(self._busy_delay)
        raise PluginStartError(f"cannot execute {plugin}: it is still being written to") from busy


def _config_file(config: bytes) -> int:
    """A file in memory for standard input.

    With a file nothing must be written while the plugin runs, and a shell plugin can open it as /dev/stdin.
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


class _Process:
    """Runs a plugin, collects its output, up to a limit, and waits for its end.

    A process of asyncio takes half as much CPU again: for tasks, for transports, and in Python 3.11 for a thread.
    """

    def __init__(self, invocation: Invocation, stdout_limit: int) -> None:
        self.invocation = invocation
        self._stdout_limit = stdout_limit
        self._loop = asyncio.get_running_loop()
        self._process: subprocess.Popen[bytes] | None = None
        #: What to close by the descriptors that the loop watches: the pipes, and the pidfd while the plugin runs.
        self._watched: dict[int, Callable[[], None]] = {}
        self._polling: asyncio.TimerHandle | None = None
        self._stdout = bytearray()
        self.stderr = bytearray()
        self._open_pipes = 2
        self._silent = asyncio.Event()
        self._settled = asyncio.Event()
        self._exited = asyncio.Event()

    def start(self) -> None:
        """Start the plugin. Raises OSError."""
        stdin = _config_file(self.invocation.config)
        try:
            self._process = process = subprocess.Popen(
                [str(self.invocation.plugin)],
                bufsize=0,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, **self.invocation.environment},
                start_new_session=True,
                pass_fds=self.invocation.pass_fds,
            )
        finally:
            os.close(stdin)
        assert process.stdout is not None
        assert process.stderr is not None
        for pipe, take in ((process.stdout, self._take_stdout), (process.stderr, self._take_stderr)):
            self._watch(pipe.fileno(), partial(self._read, pipe.fileno(), take), pipe.close)
        try:
            handle = os.pidfd_open(process.pid)
        except OSError:
            self._poll(process)  # before Linux 5.3
        else:
            self._watch(handle, partial(self._reap, process, handle), partial(os.close, handle))

    def _watch(self, descriptor: int, when_ready: Callable[[], None], close: Callable[[], None]) -> None:
        self._watched[descriptor] = close
        self._loop.add_reader(descriptor, when_ready)

    def _unwatch(self, descriptor: int) -> None:
        self._loop.remove_reader(descriptor)
        self._watched.pop(descriptor)()

    def _read(self, pipe: int, take: Callable[[bytes], None]) -> None:
        if data := os.read(pipe, _READ):
            take(data)
            return
        self._unwatch(pipe)
        self._open_pipes -= 1
        if not self._open_pipes:
            self._silent.set()

    def _take_stdout(self, data: bytes) -> None:
        if not self._flooded():
            self._stdout += data
            if self._flooded():
                self._settled.set()

    def _take_stderr(self, data: bytes) -> None:
        self.stderr += data
        del self.stderr[:-_STDERR_LIMIT]

    def _poll(self, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            self._polling = self._loop.call_later(_POLL, self._poll, process)
        else:
            self._has_exited()

    def _reap(self, process: subprocess.Popen[bytes], handle: int) -> None:
        self._unwatch(handle)
        process.wait()
        self._has_exited()

    def _has_exited(self) -> None:
        self._exited.set()
        self._settled.set()

    async def completion(self) -> Completion:
        """How it ended. Raises :class:`ResultError` for too much output."""
        assert self._process is not None, "it was started"
        await self._settled.wait()
        if not self._flooded() and not self._silent.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PIPE_GRACE):
                    await self._silent.wait()
        if self._flooded():
            raise ResultError(
                f"plugin {self.invocation.plugin.name} wrote more than {self._stdout_limit} bytes"
                f"{quote_stderr(self.stderr)}"
            )
        return Completion(self._process.returncode, bytes(self._stdout), bytes(self.stderr))

    def _flooded(self) -> bool:
        return len(self._stdout) > self._stdout_limit

    async def end(self) -> None:
        """Kill the plugin and its children if it still runs, and let go of all descriptors."""
        try:
            if self._process is not None and not self._exited.is_set():
                await self._kill(self._process.pid)
        finally:
            if self._polling is not None:
                self._polling.cancel()
            for descriptor in list(self._watched):
                self._unwatch(descriptor)

    async def _kill(self, pid: int) -> None:
        """Kill it, and wait for its end, which may take long if it is blocked in the kernel."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        try:
            async with asyncio.timeout(_KILL_GRACE):
                await self._exited.wait()
        except TimeoutError:
            log.warning("plugin process %d was killed but did not exit within %.0f s", pid, _KILL_GRACE)
