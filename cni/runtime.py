"""The operations of the specification on whole networks (SPEC.md, section 3 "Execution of Network Configurations").

ADD runs the plugins forward, each with the result of the previous one, and each result replaces the previous one in the
cache. DEL runs them backward, each with the cached result. :class:`_Operation` is their common part: it runs one plugin
with the right parameters in the time that is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

from cni import _json, names, versions
from cni.cache import Attachment, CachedAttachment, ResultCache
from cni.config import NetworkList, PluginConfig
from cni.errors import (
    AttachmentError,
    CacheError,
    CNIError,
    ErrorCode,
    NotSupported,
    OperationFailed,
    OperationTimeout,
    PluginError,
    PluginNotFound,
    ResultError,
    quote_stderr,
)
from cni.execute import Completion, Executor, Invocation, SubprocessExecutor
from cni.fence import Fence, fenced
from cni.result import Result
from cni.turns import Turns

log = logging.getLogger(__name__)

_Value = TypeVar("_Value")
_Parameters = ParamSpec("_Parameters")

DEFAULT_TIMEOUT: Final = 220.0
# The part of the time in which to wait for a plugin of a killed process; the rest is for the operation itself.
_FENCE_SHARE: Final = 0.5
_CACHE_THREADS: Final = 2
_NOT_ATTACHED: Final = {"CNI_CONTAINERID": "", "CNI_NETNS": "", "CNI_IFNAME": "", "CNI_ARGS": ""}


class Runtime:
    """Attaches containers to networks by running plugins.

    ``bin_dirs`` are searched for plugins in their order, and passed to them as CNI_PATH. ``timeout``, in seconds,
    limits each call of a method, including the wait for other operations; in garbage collection it limits each DEL.
    A process should have one Runtime for a ``cache_dir``: operations on one container take turns, and garbage
    collection runs alone.

    Operations raise subclasses of :class:`CNIError`. A failed plugin is also logged, with a line that repeats the
    execution in a shell.
    """

    def __init__(
        self,
        bin_dirs: Sequence[Path],
        cache_dir: Path,
        timeout: float = DEFAULT_TIMEOUT,
        executor: Executor | None = None,
    ) -> None:
        self._bin_dirs = tuple(bin_dirs)
        self._cache = ResultCache(cache_dir)
        self._timeout = timeout
        self._executor: Executor = executor or SubprocessExecutor()
        self._turns = Turns()
        # Held by a garbage collection and its plugins. libcni reads only a folder below.
        self._gc_lock = cache_dir / ".lock"
        self._may_be_collected = True
        # Own threads, as other work of this process may block all default threads for long.
        self._threads = ThreadPoolExecutor(_CACHE_THREADS, thread_name_prefix="CNI cache")

    async def add(self, network: NetworkList, attachment: Attachment) -> Result:
        """ADD: attach a container. The first failure ends it.

        After a failure the work of the earlier plugins is still there, and the caller must call ``delete``. For that
        the last result is cached, marked as unfinished: some plugins need it to find what they made.
        Raises :class:`PluginError`, :class:`PluginNotFound`, :class:`PluginStartError`, :class:`OperationTimeout`,
        :class:`ResultError`, :class:`CacheError`, :class:`AttachmentError`.
        """
        _require_namespace(attachment)
        async with self._on(attachment) as operation:
            result: Result | None = None
            for left in range(len(network.plugins), 0, -1):
                plugin = network.plugins[-left]
                previous = None if result is None else result.as_json(network.version)
                request = _request(network, plugin, attachment, previous)
                result = await operation.run("ADD", plugin, request, _reader(network, plugin))
                await self._in_thread(self._cache.write, network, attachment, result, finished=left == 1)
            assert result is not None, "a network has at least one plugin"
        return result

    async def delete(self, network: NetworkList, attachment: Attachment, level: int = logging.WARNING) -> None:
        """DEL: detach a container. It need not be attached, or no longer; plugins must accept that.

        Unlike the specification, which stops at the first error, this tries every plugin, so that a broken one leaks
        only its own part. Failures are raised together as :class:`OperationFailed`, and the cache entry stays for
        another try. A caller that has another try at hand gives the ``level`` at which each failure is logged.
        """
        async with self._on(attachment, level) as operation:
            await self._delete(network, attachment, operation)

    async def status(self, network: NetworkList) -> None:
        """STATUS: ask each plugin whether it could serve an ADD now. Returns at once before version 1.1.0.

        The first failure ends it, so that its code reaches the caller.
        """
        if not versions.at_least(network.version, "1.1.0"):
            return
        operation = self._operation(_NOT_ATTACHED)
        for plugin in network.plugins:
            await operation.run("STATUS", plugin, plugin.request(network), _no_output)

    async def gc(
        self, network: NetworkList, valid: Callable[[Sequence[CachedAttachment]], Iterable[tuple[str, str]]]
    ) -> None:
        """GC: remove what belongs to attachments that are not valid.

        Waits until no other operation runs, and blocks new ones. Only then it calls ``valid`` with all cached
        attachments, as an earlier decision could miss newer ones; that returns pairs of container id and interface
        name. First comes a DEL for each cached attachment of the network that is not valid, with the configuration of
        its ADD, in every version. Then, since 1.1.0, GC for each plugin. Everything is tried; all failures
        raise one :class:`OperationFailed`. If the cache is unreadable, raises :class:`CacheError` and removes nothing.
        """
        if network.disable_gc:
            return
        operation = self._operation(_NOT_ATTACHED)
        with contextlib.suppress(OSError):
            self._gc_lock.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        async with (
            operation.in_time(self._turns.alone()),
            fenced(self._gc_lock, operation.time_left() * _FENCE_SHARE) as operation.fence,
        ):
            cached = await self._in_thread(self.cached_attachments)
            keep = set(valid(cached))
            failures = await self._delete_stale(network, cached, keep, operation.fence)
            if has_gc(network):
                failures += await self._collect(network, keep, operation.fence)
        if failures:
            raise OperationFailed(f"GC of network {network.name}", failures)

    async def version(self, plugin_type: str) -> tuple[str, ...]:
        """VERSION: the versions of the specification that a plugin supports."""
        try:
            names.check_plugin_type(plugin_type)
        except ValueError as error:
            raise PluginNotFound(str(error)) from error
        plugin = PluginConfig(plugin_type, frozenset(), {})
        # Plugins that are built with an early library refuse every command without these.
        operation = self._operation({**_NOT_ATTACHED, "CNI_NETNS": "dummy", "CNI_IFNAME": "dummy"})
        request = _json.encode({"cniVersion": versions.NEWEST})
        try:
            return await operation.run("VERSION", plugin, request, _supported_versions)
        except PluginError as error:
            # VERSION exists since 0.2.0. Only this text shows that a plugin is older.
            if error.msg == "unknown CNI_COMMAND: VERSION":
                return (versions.OLDEST,)
            raise

    def find_plugins(self, network: NetworkList) -> None:
        """Check that each plugin of a network exists. Runs none of them, so it is cheap enough for each request.

        Raises :class:`PluginNotFound` for the first missing one.
        """
        for plugin in network.plugins:
            _find_plugin(plugin.type, self._bin_dirs)

    async def validate(self, network: NetworkList) -> None:
        """Check that each plugin of a network exists and supports its version.

        Runs every plugin, so it is for the start and for a changed configuration, not for each request. Failures are
        raised together as :class:`OperationFailed`.
        """
        failures: list[CNIError] = []
        for plugin_type in dict.fromkeys(plugin.type for plugin in network.plugins):
            try:
                supported = await self.version(plugin_type)
                if network.version not in supported:
                    raise NotSupported(
                        f"plugin {plugin_type} supports {', '.join(supported)}; the network requires {network.version}"
                    )
            except CNIError as error:
                failures.append(error)
        if failures:
            raise OperationFailed(f"validation of network {network.name}", failures)

    def cached_attachments(self, container_id: str | None = None) -> list[CachedAttachment]:
        """The cached attachments of a container, or all; also those that other runtimes made.

        Blocks on the file system. Entries that cannot be used are logged and stay where they are. Raises
        :class:`CacheError` if the folder exists but cannot be listed.
        """
        found, skipped = self._cache.attachments(container_id)
        for error in skipped:
            log.warning("ignoring cached attachment: %s", error)
        return found

    async def _in_thread(
        self, call: Callable[_Parameters, _Value], *args: _Parameters.args, **kwargs: _Parameters.kwargs
    ) -> _Value:
        """Run a blocking call in a thread. A cancelled caller waits for its end, so that it writes nothing later."""
        work = partial(copy_context().run, call, *args, **kwargs)
        future = asyncio.get_running_loop().run_in_executor(self._threads, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait({future})
            raise

    @asynccontextmanager
    async def _on(self, attachment: Attachment, level: int = logging.WARNING) -> AsyncIterator[_Operation]:
        operation = self._operation(_environment(attachment), level)
        async with operation.in_time(self._turns.container(attachment.container_id)):
            await self._wait_for_earlier_gc(operation.time_left() * _FENCE_SHARE)
            async with fenced(attachment.lock_path, operation.time_left() * _FENCE_SHARE) as operation.fence:
                yield operation

    async def _wait_for_earlier_gc(self, patience: float) -> None:
        """Wait for plugins of a killed process's garbage collection: to them, each new attachment is not valid."""
        if self._may_be_collected and self._gc_lock.exists():
            async with fenced(self._gc_lock, patience):
                pass
        self._may_be_collected = False

    def _operation(self, environment: Mapping[str, str], level: int = logging.WARNING) -> _Operation:
        return _Operation(self._executor, self._bin_dirs, environment, self._timeout, level)

    async def _delete(self, network: NetworkList, attachment: Attachment, operation: _Operation) -> None:
        previous = await self._in_thread(self._begin_removal, network, attachment)
        failures: list[CNIError] = []
        for left in range(len(network.plugins), 0, -1):
            plugin = network.plugins[left - 1]
            # An equal share of the time left: one plugin that hangs must not use up the time of the next ones.
            share = operation.time_left() / left
            request = _request(network, plugin, attachment, previous)
            try:
                await operation.run("DEL", plugin, request, _no_output, budget=share)
            except PluginError as error:
                # The code says that there is nothing to clean up (SPEC.md, section 5 "Error").
                if error.code != ErrorCode.UNKNOWN_CONTAINER:
                    failures.append(error)
            except CNIError as error:
                failures.append(error)
        if failures:
            raise OperationFailed(f"DEL of {attachment.container_id} from network {network.name}", failures)
        try:
            await self._in_thread(self._cache.remove, network.name, attachment)
        except CacheError as error:
            log.warning("network %s: %s", network.name, error)

    def _begin_removal(self, network: NetworkList, attachment: Attachment) -> Mapping[str, Any] | None:
        """Note in the cache that a DEL begins. Returns its prevResult. Blocks on the file system.

        Plugins get a prevResult since 0.4.0, and must work without it if there is none.
        """
        try:
            self._cache.begin_removal(network.name, attachment)
        except CacheError as error:
            log.warning("network %s: cannot note that a DEL has begun: %s", network.name, error)
        if not versions.at_least(network.version, "0.4.0"):
            return None
        try:
            result = self._cache.result(network, attachment)
        except CacheError as error:
            log.warning("calling DEL without the cached result: %s", error)
            return None
        return None if result is None else result.as_json(network.version)

    async def _delete_stale(
        self, network: NetworkList, cached: Sequence[CachedAttachment], keep: set[tuple[str, str]], fence: Fence
    ) -> list[CNIError]:
        failures: list[CNIError] = []
        for item in cached:
            attachment = item.attachment
            if item.network.name != network.name or (attachment.container_id, attachment.ifname) in keep:
                continue
            # The attachment is not valid, so its process has ended, and another process may have the pid now.
            if attachment.netns and attachment.netns.startswith("/proc/"):
                attachment = dataclasses.replace(attachment, netns=None)
            operation = self._operation(_environment(attachment))
            operation.fence = fence
            try:
                await self._delete(item.network, attachment, operation)
            except CNIError as error:
                failures.append(error)
        return failures

    async def _collect(self, network: NetworkList, keep: set[tuple[str, str]], fence: Fence) -> list[CNIError]:
        attachments = [{"containerID": container_id, "ifname": ifname} for container_id, ifname in sorted(keep)]
        # The second key is the one in the first edition of version 1.1.0; libcni sends both.
        keys = {"cni.dev/valid-attachments": attachments, "cni.dev/attachments": attachments}
        operation = self._operation(_NOT_ATTACHED)
        operation.fence = fence
        failures: list[CNIError] = []
        for plugin in network.plugins:
            try:
                await operation.run("GC", plugin, plugin.request(network, operation_keys=keys), _no_output)
            except CNIError as error:
                failures.append(error)
        return failures


def has_gc(network: NetworkList) -> bool:
    """Whether GC is to be run for the plugins of a network (SPEC.md, section 1, "disableGC")."""
    return versions.at_least(network.version, "1.1.0") and not network.disable_gc


class _Operation:
    """What all plugin runs of an operation share: parameters, the time that is left, the fence.

    Their failures are logged at ``level``.
    """

    def __init__(
        self,
        executor: Executor,
        bin_dirs: tuple[Path, ...],
        environment: Mapping[str, str],
        timeout: float,
        level: int,
    ) -> None:
        self._executor = executor
        self._bin_dirs = bin_dirs
        self._environment = environment
        self._deadline = asyncio.get_running_loop().time() + timeout
        self._level = level
        self.fence = Fence()

    def time_left(self) -> float:
        return max(0.0, self._deadline - asyncio.get_running_loop().time())

    @asynccontextmanager
    async def in_time(self, turn: AbstractAsyncContextManager[None]) -> AsyncIterator[None]:
        """Enter ``turn`` before the deadline, or raise :class:`OperationTimeout`."""
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout_at(self._deadline):
                    await stack.enter_async_context(turn)
            except TimeoutError as error:
                raise OperationTimeout("timed out waiting for other operations") from error
            yield

    async def run(
        self,
        command: str,
        plugin: PluginConfig,
        config: bytes,
        read: Callable[[Completion], _Value],
        budget: float | None = None,
    ) -> _Value:
        """Run a plugin and ``read`` its output. A failure is logged with a shell command that repeats the run.

        ``budget``, in seconds, limits the run to less than the time that is left.
        """
        left = self.time_left()
        if not left:
            raise OperationTimeout(f"deadline exceeded before {command} of plugin {plugin.type}")
        invocation = Invocation(
            plugin=_find_plugin(plugin.type, self._bin_dirs),
            environment={"CNI_COMMAND": command, **self._environment, "CNI_PATH": _search_path(self._bin_dirs)},
            config=config,
            timeout=left if budget is None else min(left, budget),
            pass_fds=self.fence.pass_fds,
        )
        try:
            return read(_successful(invocation, await self._execute(invocation)))
        except CNIError as error:
            if log.isEnabledFor(self._level):
                log.log(self._level, "%s; to repeat it: %s", error, invocation.shell_line())
            raise

    async def _execute(self, invocation: Invocation) -> Completion:
        try:
            return await self._executor.run(invocation)
        except BaseException:
            self.fence.abandoned = True
            raise


def _successful(invocation: Invocation, completion: Completion) -> Completion:
    name, command = invocation.plugin.name, invocation.command
    if completion.exit_status:
        raise PluginError.parse(name, command, completion.exit_status, completion.stdout, completion.stderr)
    if completion.stderr:
        log.debug("plugin %s said during %s: %s", name, command, completion.stderr.decode(errors="replace").strip())
    return completion


def _environment(attachment: Attachment) -> dict[str, str]:
    return {
        "CNI_CONTAINERID": attachment.container_id,
        "CNI_NETNS": attachment.netns or "",
        "CNI_IFNAME": attachment.ifname,
        "CNI_ARGS": ";".join(f"{key}={value}" for key, value in attachment.args),
    }


def _search_path(bin_dirs: tuple[Path, ...]) -> str:
    return os.pathsep.join(str(folder) for folder in bin_dirs)


def _find_plugin(plugin_type: str, bin_dirs: tuple[Path, ...]) -> Path:
    not_executable: list[str] = []
    for folder in bin_dirs:
        path = folder / plugin_type
        if path.is_file():
            if os.access(path, os.X_OK):
                return path
            not_executable.append(str(path))
    if not_executable:
        raise PluginNotFound(f"plugin {plugin_type}: {', '.join(not_executable)} is not executable")
    raise PluginNotFound(f"plugin {plugin_type} not found in {_search_path(bin_dirs)}")


def _request(
    network: NetworkList, plugin: PluginConfig, attachment: Attachment, previous: Mapping[str, Any] | None
) -> bytes:
    return plugin.request(network, prev_result=previous, capability_args=attachment.capability_args)


def _require_namespace(attachment: Attachment) -> None:
    if not attachment.netns:
        raise AttachmentError(f"attachment {attachment.ifname} of {attachment.container_id} has no network namespace")


def _reader(network: NetworkList, plugin: PluginConfig) -> Callable[[Completion], Result]:
    def read(completion: Completion) -> Result:
        try:
            return Result.parse(completion.stdout, network.version)
        except ResultError as error:
            noise = quote_stderr(completion.stderr)
            raise ResultError(f"plugin {plugin.type} of network {network.name}: {error}{noise}") from error

    return read


def _no_output(_: Completion) -> None:
    """For DEL, STATUS and GC, whose only answer is their exit status."""


def _supported_versions(completion: Completion) -> tuple[str, ...]:
    try:
        answer = _json.decode_object(completion.stdout)
        supported = _json.texts(answer, "supportedVersions")
        # Version 0.2.0 had the command, but not yet the list.
        if not supported and _json.text(answer, "cniVersion") == "0.2.0":
            return ("0.1.0", "0.2.0")
    except ValueError as error:
        raise ResultError(f"invalid response to VERSION: {error}") from error
    if not supported:
        raise ResultError("the response to VERSION lists no versions")
    return supported
