"""Models of CNI plugins, hook servers and NRI plugins, which hang, fail, refuse and come back under a seed.

Each keeps what it was told. What they hold outlives every server.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar

import grpc
from google.protobuf.message import Message

from cni import Completion, Invocation, PluginTimeout
from dockershim.api.hooks.v1alpha1 import api_pb2 as hooks
from dockershim.api.nri.v1alpha1 import api_pb2 as api
from dockershim.errors import HookFailure
from dockershim.hooks.config import Hook
from dockershim.nri.connection import CLOSED, Lost, Refused
from dockershim.nri.plugin import Plugin, Rejected, Timeouts, Update
from tests import nri_plugin
from tests.sim.kernel import SimKernel
from tests.sim.world import rpc_error

M = TypeVar("M", bound=Message)

Record = Callable[[str, str], None]

#: The plugins of the network, in their order, and the file names that a server looks for.
CNI_PLUGINS: Final = ("bridge", "portmap")
NETWORK: Final = json.dumps(
    {
        "cniVersion": "1.1.0",
        "name": "sim",
        "plugins": [
            {"type": "bridge", "ipMasq": True},
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }
)
#: Seconds for which an operation waits for a plugin that a killed server has left.
_FENCE: Final = 100.0
_VERSIONS: Final = ["0.4.0", "1.0.0", "1.1.0"]
_UNKNOWN, _TRY_AGAIN_LATER, _NOT_AVAILABLE = 0, 11, 50


@dataclass(frozen=True, slots=True)
class PluginFaults:
    """How much goes wrong, each a share of the runs or calls; none by default."""

    slow: float = 0.0
    seconds: float = 2.0
    hangs: float = 0.0
    fails: float = 0.0
    #: Connections of NRI plugins that end in a call.
    lost: float = 0.0


CALM: Final = PluginFaults()


class CNIPlugins:
    """What runs CNI plugins: an ``Executor`` whose plugins are in memory.

    ``attached`` are the addresses of sandboxes, ``ports`` those sandboxes whose ports are published, ``masqueraded``
    those with rules for their addresses: all are taken until a DEL. ``problems`` are what no runtime may do.
    """

    #: Where the namespaces are; set before the first run.
    kernel: SimKernel

    def __init__(self, random: Random, *, record: Record = lambda kind, text: None) -> None:
        self.faults = CALM
        self.attached: dict[str, str] = {}
        self.ports: set[str] = set()
        self.masqueraded: set[str] = set()
        self.problems: list[str] = []
        #: Whether servers can lock against the plugins of a killed one. They do without on a full disk.
        self.can_lock = True
        #: What was done, in order: command, plugin and sandbox id.
        self.told: list[tuple[str, str, str]] = []
        #: The runs under way, by sandbox id, also those that a killed server has begun.
        self.running: dict[str, tuple[str, float]] = {}
        self._random = random
        self._record = record
        self._next = 2

    async def run(self, invocation: Invocation) -> Completion:
        """Run a plugin, as ``cni.Executor`` says. If the server is killed meanwhile, the plugin goes on."""
        environment = invocation.environment
        command, sandbox_id = invocation.command, environment.get("CNI_CONTAINERID", "")
        kind, faults = invocation.plugin.name, self.faults
        if command == "VERSION":
            return _done({"cniVersion": "1.1.0", "supportedVersions": _VERSIONS})
        self._record("cni", f"{command} {kind} {sandbox_id[:12]}".rstrip())
        work = self._work(command, kind, sandbox_id, json.loads(invocation.config), environment, faults)
        try:
            async with asyncio.timeout(invocation.timeout):
                return await work
        except TimeoutError:
            self._record("fault", f"{command} {kind} {sandbox_id[:12]} was killed after {invocation.timeout:.1f} s")
            raise PluginTimeout(f"plugin {kind} did not end {command} in {invocation.timeout:.1f} s") from None

    async def _work(
        self,
        command: str,
        kind: str,
        sandbox_id: str,
        config: Mapping[str, Any],
        environment: Mapping[str, str],
        faults: PluginFaults,
    ) -> Completion:
        mine = command, asyncio.get_running_loop().time()
        if sandbox_id:
            other, since = self.running.get(sandbox_id, ("", 0.0))
            # A runtime waits for the plugin of a killed server, but not for ever (cni/fence.py).
            if self.can_lock and other and mine[1] - since < _FENCE:
                self.problems.append(f"{command} of {sandbox_id[:12]} runs beside {other}")
            self.running[sandbox_id] = mine
        try:
            await self._pause(faults)
            if sandbox_id and self.running.get(sandbox_id) is not mine:
                # It hung for so long that a runtime waits for it no more. What it would make now, nobody would remove.
                return self._fail(command, kind, sandbox_id, "after others have begun")
            if self._random.random() < faults.fails:
                return self._fail(command, kind, sandbox_id, "before its work")
            answer = self._do(command, kind, sandbox_id, config, environment)
            await self._pause(faults)
            if self._random.random() < faults.fails:
                return self._fail(command, kind, sandbox_id, "after its work")
            return answer
        finally:
            if sandbox_id and self.running.get(sandbox_id) is mine:
                del self.running[sandbox_id]

    async def _pause(self, faults: PluginFaults) -> None:
        await asyncio.sleep(self._random.uniform(0.001, 0.05))
        if self._random.random() < faults.slow:
            await asyncio.sleep(self._random.uniform(0.1, faults.seconds))
        if self._random.random() < faults.hangs:
            await asyncio.sleep(self._random.uniform(30, 400))

    def _fail(self, command: str, kind: str, sandbox_id: str, when: str) -> Completion:
        self._record("fault", f"{command} {kind} {sandbox_id[:12]} fails {when}")
        code = _NOT_AVAILABLE if command == "STATUS" else self._random.choice((_UNKNOWN, _TRY_AGAIN_LATER, 999))
        return _done({"cniVersion": "1.1.0", "code": code or 999, "msg": "it failed, as the seed says"}, 1)

    def _do(
        self, command: str, kind: str, sandbox_id: str, config: Mapping[str, Any], environment: Mapping[str, str]
    ) -> Completion:
        self.told.append((command, kind, sandbox_id))
        match command, kind:
            case "ADD", "bridge":
                if sandbox_id in self.attached:
                    self.problems.append(f"a second ADD of {sandbox_id[:12]} without a DEL")
                if not environment.get("CNI_NETNS"):
                    self.problems.append(f"ADD of {sandbox_id[:12]} without a namespace")
                self.attached[sandbox_id] = address = f"10.88.{self._next >> 8}.{self._next & 255}/16"
                self._next += 1
                interfaces = self._interfaces(environment)
                if interfaces is not None:
                    interfaces[environment["CNI_IFNAME"]] = (address,)
                if config.get("ipMasq"):
                    self.masqueraded.add(sandbox_id)
                return _done(
                    {
                        "cniVersion": "1.1.0",
                        "interfaces": [{"name": environment["CNI_IFNAME"], "sandbox": environment["CNI_NETNS"]}],
                        "ips": [{"address": address, "interface": 0}],
                    }
                )
            case "ADD", "portmap":
                self.ports.add(sandbox_id)
                return _done(config["prevResult"])
            case "DEL", "bridge":
                self.attached.pop(sandbox_id, None)
                # It finds its rules by the addresses of the interface. Without it they stay, and that is no error.
                interfaces = self._interfaces(environment) or {}
                if interfaces.pop(environment["CNI_IFNAME"], None) and config.get("ipMasq"):
                    if sandbox_id not in self.masqueraded:
                        return self._fail(command, kind, sandbox_id, "as its rules are gone")
                    self.masqueraded.discard(sandbox_id)
            case "DEL", "portmap":
                self.ports.discard(sandbox_id)
            case "GC", _:
                valid = {one["containerID"] for one in config.get("cni.dev/valid-attachments") or ()}
                for stale in self.attached.keys() - valid:
                    del self.attached[stale]
                self.ports &= valid
                self.masqueraded &= valid
        return Completion(0, b"", b"")

    def _interfaces(self, environment: Mapping[str, str]) -> dict[str, tuple[str, ...]] | None:
        """Those of the namespace that a plugin was given; None if there is none."""
        namespace = self.kernel.mounts.get(Path(environment.get("CNI_NETNS", "")))
        return None if namespace is None else namespace.interfaces

    def reboot(self) -> None:
        """The node has lost its power: no rule is left. Addresses are, on the plugins' disk."""
        self.ports.clear()
        self.masqueraded.clear()
        self.running.clear()


def _done(answer: Mapping[str, Any], exit_status: int = 0) -> Completion:
    return Completion(exit_status, json.dumps(answer).encode(), b"")


# -- hook servers ----------------------------------------------------------------------------------------------

#: The configuration of the hook server, for the folder of hook servers.
HOOK_SOCKET: Final = "/run/sim-hooks.sock"
HOOK_SERVER: Final = json.dumps(
    {"remote-endpoint": HOOK_SOCKET, "failure-policy": "Ignore", "runtime-hooks": [str(hook) for hook in Hook]}
)


@dataclass(frozen=True, slots=True)
class Told:
    """Something that a hook server or NRI plugin was told: the event, and the ids of pod and container."""

    event: str
    pod: str
    container: str
    at: float
    server: int = 0


class HookServers:
    """A hook server of the world (``world.HookModel``). ``told`` is what it was told, also what it did not take."""

    def __init__(self, random: Random, *, record: Record = lambda kind, text: None) -> None:
        self.faults = CALM
        self.told: list[Told] = []
        #: The number of the server that calls now.
        self.server = 0
        self._random = random
        self._record = record

    async def call(self, hook: str, request: bytes) -> bytes:
        """Answer without changes."""
        faults, now = self.faults, asyncio.get_running_loop().time()
        event = Hook(hook.removesuffix("Hook"))
        pod, container = _named(event, request)
        self.told.append(Told(str(event), pod, container, now, self.server))
        self._record("hook", f"{event} {pod} {container[:12]}".rstrip())
        await asyncio.sleep(self._random.uniform(0.0005, 0.02))
        if self._random.random() < faults.slow:
            await asyncio.sleep(self._random.uniform(0.05, faults.seconds))
        if self._random.random() < faults.hangs:
            await asyncio.sleep(3600)
        if self._random.random() < faults.fails:
            raise rpc_error(grpc.StatusCode.UNAVAILABLE, "it is not there, as the seed says")
        return b""


def _named(hook: Hook, request: bytes) -> tuple[str, str]:
    """The uid of the pod with the attempt, and the name of the container with the attempt, of a request."""
    if hook in (Hook.PRE_RUN_POD_SANDBOX, Hook.POST_STOP_POD_SANDBOX):
        pod = hooks.PodSandboxHookRequest.FromString(request).pod_meta
        return pod.uid, ""
    message = hooks.ContainerResourceHookRequest.FromString(request)
    about = message.container_meta
    return message.pod_meta.uid, about.id or f"{about.name}/{about.attempt}"


# -- NRI plugins -----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Session:
    """One connection of a plugin, from its registration to its end. ``pods`` and ``containers`` are those it knows of.

    ``is_installed`` is true for a program that the server has started.
    """

    plugin: str
    server: int
    is_installed: bool = False
    is_synchronized: bool = False
    pods: set[str] = field(default_factory=set)
    containers: set[str] = field(default_factory=set)
    told: list[Told] = field(default_factory=list)
    #: It is late with an answer. The server may drop it for that, of which a program hears a moment later.
    is_late: bool = False
    end: str | None = None

    def knows(self, pod: str) -> bool:
        """Whether the plugin was told of the pod."""
        return pod in self.pods or any(told.pod == pod for told in self.told)


class _Connection:
    """Stands where ``nri.connection.Connection`` stands, with the plugin at the other end in memory."""

    def __init__(self, model: NRIPlugins, session: Session) -> None:
        self.silent = False
        self._model = model
        self._session = session
        self._ended = asyncio.Event()

    @property
    def end(self) -> str | None:
        return self._session.end

    async def run(self) -> None:
        await self._ended.wait()

    def close(self, reason: str) -> None:
        if self._session.end is None:
            self._session.end = reason
            self._ended.set()

    async def call(self, method: str, request: Message, response: type[M], timeout: float) -> M:
        """As ``Connection.call``."""
        if self._session.end is not None:
            raise Lost(self._session.end)
        ended = asyncio.ensure_future(self._ended.wait())
        answering = asyncio.ensure_future(self._model.answer(self, self._session, method, request))
        try:
            async with asyncio.timeout(0 if self.silent else timeout):
                await asyncio.wait([ended, answering], return_when=asyncio.FIRST_COMPLETED)
                if not answering.done():
                    raise Lost(self._session.end)
                answer: Any = answering.result()
                self.silent = False
                return response.FromString(answer.SerializeToString() if answer is not None else b"")
        except TimeoutError as error:
            self.silent = True
            raise TimeoutError(f"no answer to {method} within {timeout:g} s") from error
        finally:
            for task in (ended, answering):
                task.cancel()


class NRIPlugins:
    """NRI plugins that connect again after each loss. ``sessions`` are all connections that there ever were."""

    def __init__(
        self, random: Random, *, apart: Random | None = None, record: Record = lambda kind, text: None
    ) -> None:
        self.faults = CALM
        self.sessions: list[Session] = []
        #: Whether plugins change what they are asked about: a share of the containers.
        self.adjusts = 0.0
        #: Containers to which a validator has not agreed, by the ids that plugins know.
        self.rejected: set[str] = set()
        #: Containers whose start a plugin has refused.
        self.refused: set[str] = set()
        #: The number of the server that starts programs now.
        self.server = 0
        #: The programs that run.
        self.programs: set[asyncio.Task[Any]] = set()
        #: Called with what a plugin is told, at this very moment.
        self.on_told: Callable[[Told], None] = lambda told: None
        self._random = random
        self._apart = apart
        self._record = record

    def program(self, options: Mapping[str, Any]) -> Callable[[], Coroutine[Any, Any, None]]:
        """The program of a plugin in the folder of plugins, which the server starts (``loop.Program``)."""
        environment = options["env"]
        name, index = environment["NRI_PLUGIN_NAME"], environment["NRI_PLUGIN_IDX"]
        ours = socket.socket(fileno=os.dup(int(environment["NRI_PLUGIN_SOCKET"])))
        ours.setblocking(False)
        session = Session(f"{index}-{name}", self.server, is_installed=True)
        return partial(self._run_program, ours, session, name, index)

    async def _run_program(self, ours: socket.socket, session: Session, name: str, index: str) -> None:
        self.sessions.append(session)
        running = asyncio.current_task()
        assert running is not None
        self.programs.add(running)
        connection = _Connection(self, session)

        async def answer(method: str, payload: bytes) -> Message:
            if method == "Configure":
                return api.ConfigureResponse()
            request = getattr(api, f"{method}Request").FromString(payload)
            try:
                found = await self.answer(connection, session, method, request)
            except Refused as error:
                raise nri_plugin.Error(error.code, str(error)) from error
            return found or (api.SynchronizeResponse(more=request.more) if method == "Synchronize" else api.Empty())

        try:
            async with nri_plugin.over(ours, answer) as plugin:
                with contextlib.suppress(nri_plugin.Error):  # the server may end before its registration
                    await plugin.register(name, index)
                parts = [plugin.closed(), connection.run(), self._ask_for_changes(plugin, session)]
                tasks = [asyncio.ensure_future(part) for part in parts]
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    task.cancel()
        finally:
            connection.close(CLOSED)
            self.programs.discard(running)

    async def _ask_for_changes(self, plugin: nri_plugin.FakePlugin, session: Session) -> None:
        """Ask for new limits of containers, and now and then for an eviction. Ends with the connection."""
        random = self._random
        while True:
            await asyncio.sleep(random.expovariate(0.3))
            told = (one.container for one in session.told if one.container)
            known = list(dict.fromkeys((*sorted(session.containers), *told)))
            if not known:
                continue
            requests = [api.UpdateContainersRequest() for _ in range(2)]
            for request in requests:
                update = request.update.add(container_id=random.choice(known[-2:]), ignore_failure=True)
                update.linux.resources.cpu.shares.value = random.randrange(2, 1000)
                update.linux.resources.unified["memory.high"] = str(random.randrange(1 << 20, 32 << 20, 4096))
                if random.random() < 0.1:
                    request.evict.add(container_id=random.choice(known), reason="the seed says so")
            calls = [plugin.call("UpdateContainers", request) for request in requests]
            for answer in await asyncio.gather(*calls, return_exceptions=True):
                if isinstance(answer, nri_plugin.Error) and not answer.code:
                    return

    def reboot(self) -> None:
        """The node has lost its power."""
        for program in self.programs:
            program.cancel()

    def connect(self, name: str, server: int, timeouts: Callable[[], Timeouts], update: Update) -> Plugin:
        """A plugin that has registered by this name, as ``00-sim``. ``server`` is the number of the server."""
        session = Session(name, server)
        self.sessions.append(session)
        made = Plugin(None, timeouts, update, name)  # type: ignore[arg-type]
        made._connection = _Connection(self, session)  # type: ignore[assignment]
        made._registered.set_result(None)
        made.events = (1 << api.LAST - 1) - 1
        return made

    async def answer(self, connection: _Connection, session: Session, method: str, request: Message) -> Message | None:
        """The answer of a plugin to a call; None for an empty one."""
        faults, random = self.faults, self._random
        self._note(session, method, request)
        await asyncio.sleep(random.uniform(0.0005, 0.01))
        if method == "Synchronize" and self._apart is not None:
            # It looks at all that runs, for nearly as long as it may.
            await asyncio.sleep(self._apart.uniform(0.0, 1.9))
        if random.random() < faults.slow:
            session.is_late = True
            await asyncio.sleep(random.uniform(0.05, faults.seconds))
            session.is_late = False
        if random.random() < faults.hangs:
            self._record("fault", f"the NRI plugin {session.plugin} hangs in {method}")
            session.is_late = True
            self._note_refusal(method, request)
            await asyncio.sleep(3600)
        if random.random() < faults.lost:
            self._note_refusal(method, request)
            self._record("fault", f"the NRI plugin {session.plugin} goes away in {method}")
            connection.close(CLOSED)
            await asyncio.sleep(3600)
        if random.random() < faults.fails and method != "Synchronize":
            self._record("fault", f"the NRI plugin {session.plugin} refuses {method}")
            self._note_refusal(method, request)
            raise Refused(2, "the plugin refuses, as the seed says")
        if method == "CreateContainer" and random.random() < self.adjusts:
            adjust = api.ContainerAdjustment(env=[api.KeyValue(key="SIM", value="1")])
            return api.CreateContainerResponse(adjust=adjust)
        return None

    def _note_refusal(self, method: str, request: Any) -> None:
        if method == "ValidateContainerAdjustment":
            self.rejected.add(request.container.id)
        elif method == "StartContainer":
            self.refused.add(request.container.id)

    def _note(self, session: Session, method: str, request: Any) -> None:
        now = asyncio.get_running_loop().time()
        if method == "Synchronize":
            session.is_synchronized = True
            session.pods |= {pod.id for pod in request.pods}
            session.containers |= {container.id for container in request.containers}
            self._record("nri", f"{session.plugin} {method}: {len(request.pods)}, {len(request.containers)}")
            return
        pod = request.pod.id if "pod" in request.DESCRIPTOR.fields_by_name else ""
        has_container = "container" in request.DESCRIPTOR.fields_by_name and request.HasField("container")
        container = request.container.id if has_container else ""
        session.told.append(told := Told(method, pod, container, now))
        self.on_told(told)
        self._record("nri", f"{session.plugin} {method} {pod[:12]} {container[:12]}".rstrip())


async def join(events: Any, plugins: NRIPlugins, name: str, server: int, timeouts: Callable[[], Timeouts]) -> None:
    """Connect a plugin to the server's ``Events`` again and again, as one that is restarted does. Never ends."""
    while True:
        async with events.joining():
            plugin = plugins.connect(name, server, timeouts, events.update_containers)
            reading = asyncio.ensure_future(plugin.run())
            try:
                await events.add(plugin)
            except (Rejected, HookFailure) as error:
                plugin.close(str(error))
        await reading
        events.remove(plugin)
        await asyncio.sleep(plugins._random.uniform(0.05, 5.0))
