"""One run of the simulation: the server, a kubelet, faults and their end, and whether all invariants hold."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import logging
import os
import re
import shutil
import signal
import warnings
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, Final

from google.protobuf.message import Message

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.cri.calls import code_of
from dockershim.nri.events import Events
from dockershim.nri.plugin import Timeouts
from dockershim.server.config import Config
from tests.sim import engine as engine_model
from tests.sim import plugins as plugin_models
from tests.sim.disk import memory_folder
from tests.sim.engine import EngineFaults, EngineModel
from tests.sim.invariants import Call, Inside, Invariants, kind_of
from tests.sim.kubelet import CallError, Habits, Kubelet
from tests.sim.loop import Died, Simulation, across
from tests.sim.plugins import (
    CNI_PLUGINS,
    HOOK_SERVER,
    HOOK_SOCKET,
    NETWORK,
    CNIPlugins,
    HookServers,
    NRIPlugins,
    PluginFaults,
    join,
)
from tests.sim.server import SimServer, sim_config, write_network
from tests.sim.world import SimWorld

#: Lines of the trace that are kept; the last ones are shown.
_KEPT: Final = 4000
#: Virtual seconds after the last fault: a comparison with the engine's lists is due each minute.
_QUIET: Final = 75.0
#: Virtual seconds after the last fault in which each call must have its end: plugins may still hang in what they began.
_LONGEST_CALL: Final = 500.0
#: Virtual seconds in which the kubelet must get rid of everything, once nothing fails any more.
_CLEARING: Final = 400.0
#: The kernel chooses the port for exec.
_PORT: Final = re.compile(r"127\.0\.0\.1:\d+")
_MOST_STEPS: Final = 1_500_000
#: Virtual seconds of a run, which has rarely more than 1,000.
_MOST_SECONDS: Final = 10_000.0
#: Real seconds of a run, which takes one at most on an idle machine.
_PATIENCE: Final = 120
_NRI_TIMEOUTS: Final = Timeouts(5.0, 2.0)


@dataclass(frozen=True, slots=True)
class Profile:
    """What a run is like. Drawn from the seed, so that some runs are calm and others are a storm."""

    habits: Habits
    engine: EngineFaults
    cni: PluginFaults
    hooks: PluginFaults | None
    nri: PluginFaults | None
    #: Whether one of the NRI plugins is a program that the server starts.
    nri_installed: bool
    live_restore: bool
    #: Shares of seconds in which the engine hangs, is restarted, or loses its data; the server is killed or stopped.
    hangs: float
    restarts: float
    losses: float
    kills: float
    #: The same of power cuts of the whole node, and of a disk that is full for some seconds.
    power_cuts: float
    full_disks: float
    #: The shares of kills right after something that the engine or a plugin was told.
    sharp: float

    @property
    def undo_works(self) -> bool:
        """Whether nothing can keep a call that fails from undoing what it did, so that nothing of it is left."""
        engine, cni = self.engine, self.cni
        of_node = (self.hangs, self.restarts, self.losses, self.power_cuts, self.full_disks)
        of_calls = (engine.lost, engine.unanswered, engine.failing, engine.late_ends, engine.hanging_removals)
        return not any((*of_node, *of_calls, cni.fails, cni.hangs)) and engine.seconds * engine.slow < 1

    @classmethod
    def drawn(cls, random: Random) -> Profile:
        def share(*shares: float) -> float:
            return random.choice(shares)

        habits = Habits(
            pods=random.choice((1, 2, 3, 4)),
            seconds=random.choice((10.0, 20.0, 40.0)),
            short_deadlines=share(0.0, 0.05, 0.3),
            doubled=share(0.0, 0.1, 0.4),
            others=share(0.0, 0.3, 2.0),
        )
        is_calm = random.random() < 0.15
        engine = EngineFaults(
            slow=share(0.0, 0.02, 0.2),
            seconds=share(0.5, 3.0, 20.0),
            lost=share(0.0, 0.0, 0.02, 0.1),
            unanswered=share(0.0, 0.0, 0.02, 0.1),
            failing=share(0.0, 0.0, 0.02, 0.1),
            late_ends=share(0.0, 0.0, 0.2),
            failing_starts=share(0.0, 0.05, 0.3),
            slow_starts=share(0.0, 0.2, 0.5),
            ends=share(0.0, 0.3),
            lost_events=share(0.0, 0.0, 0.2),
            repeated_events=share(0.0, 0.2),
            late_events=share(0.0, 0.0, 0.1),
            failing_pulls=share(0.0, 0.0, 0.1),
            stalling_pulls=share(0.0, 0.0, 0.02),
        )

        def plugin() -> PluginFaults:
            return PluginFaults(
                slow=share(0.0, 0.1),
                seconds=share(0.5, 3.0),
                hangs=share(0.0, 0.0, 0.02),
                fails=share(0.0, 0.03, 0.2),
                lost=share(0.0, 0.02),
            )

        drawn = cls(
            habits=habits,
            engine=engine,
            cni=plugin(),
            hooks=plugin() if random.random() < 0.4 else None,
            nri=plugin() if random.random() < 0.5 else None,
            nri_installed=False,
            live_restore=random.random() < 0.5,
            hangs=share(0.0, 0.0, 0.05),
            restarts=share(0.0, 0.0, 0.05),
            losses=share(0.0, 0.0, 0.0, 0.02),
            kills=share(0.0, 0.0, 0.1),
            power_cuts=share(0.0, 0.0, 0.0, 0.03),
            full_disks=share(0.0, 0.0, 0.0, 0.1),
            sharp=share(0.0, 1.0),
        )
        engine = replace(engine, hanging_removals=share(0.0, 0.0, 0.0, 0.1))
        drawn = replace(drawn, engine=engine, nri_installed=drawn.nri is not None and random.random() < 0.5)
        if not is_calm:
            return drawn
        calm = PluginFaults()
        return replace(
            drawn,
            engine=EngineFaults(),
            cni=calm,
            hooks=calm if drawn.hooks else None,
            nri=calm if drawn.nri else None,
            hangs=0.0,
            restarts=0.0,
            losses=0.0,
            kills=0.0,
            power_cuts=0.0,
            full_disks=0.0,
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a seed: the violations, none if all is well, and the last lines of the trace.

    ``digest`` is that of the whole trace: equal ones are the same run.
    """

    seed: int
    problems: tuple[str, ...]
    trace: tuple[str, ...]
    steps: int
    calls: Counter[str]
    digest: str


class _OutOfPatience(SystemExit):
    """A run takes too long. asyncio lets it through, and so does a handler of ``Exception``."""


@contextlib.contextmanager
def _patience(seconds: float) -> Iterator[None]:
    """Bound the real time of a block, wherever it is stuck. Raises _OutOfPatience."""

    def lose_it(*_: object) -> None:
        raise _OutOfPatience(f"more than {seconds} s of real time")

    before = signal.signal(signal.SIGALRM, lose_it)
    signal.setitimer(signal.ITIMER_REAL, seconds, 5)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def be_quiet() -> None:
    """To be called once in each process that runs seeds."""
    # What a killed server had begun is dropped.
    warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
    logging.basicConfig(level=logging.INFO, handlers=[logging.NullHandler()])


def run_seed(seed: int, *, lines: int = 80) -> Outcome:
    """Run a seed to its end."""
    simulation = Simulation(seed, most_steps=_MOST_STEPS, most_seconds=_MOST_SECONDS)
    logger = logging.getLogger()
    with _folder(seed) as folder:
        run = _Run(simulation, folder)
        watch = _Watch(run)
        logger.addHandler(watch)
        try:
            with _patience(_PATIENCE):
                simulation.run(run.play)
        except (Exception, _OutOfPatience) as error:
            run.invariants.fail(f"{type(error).__name__}: {str(error)[:2000]}")
        finally:
            logger.removeHandler(watch)
    for mistake in run.engine.errors:
        run.invariants.fail(f"the model of the engine is wrong: {mistake!r}")
    for complaint in simulation.complaints:
        run.invariants.fail(f"asyncio: {complaint.get('message')}: {complaint.get('exception')!r}")
    problems = tuple(run.invariants.problems)
    return Outcome(
        seed, problems, tuple(run.trace)[-lines:], simulation.steps, run.invariants.calls, run.digest.hexdigest()[:16]
    )


@contextlib.contextmanager
def _folder(seed: int) -> Iterator[Path]:
    """A folder in memory for the disk of a run. Its path is the same each time, as other names are made of it.

    So two processes run one seed one after the other.
    """
    folder = memory_folder() / f"dockershim-sim-{seed}"
    descriptor = _lock(folder)
    try:
        for left in folder.iterdir():  # of a process that was killed
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left)
            else:
                left.unlink()
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _lock(folder: Path) -> int:
    """Make the folder, and wait for its lock. Returns the descriptor that has it."""
    while True:
        # The one who has it removes the folder.
        with contextlib.suppress(FileNotFoundError):
            folder.mkdir(exist_ok=True)
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_nlink:
                return descriptor
            os.close(descriptor)


class _Watch(logging.Handler):
    """Whatever the server logs is in the trace; failures that nobody foresaw are violations."""

    def __init__(self, run: _Run) -> None:
        super().__init__(logging.INFO)
        self._run = run

    def emit(self, record: logging.LogRecord) -> None:
        if self._run.is_done:
            return  # what was killed ends now
        text = _PORT.sub("127.0.0.1:…", record.getMessage()[:300])
        self._run.record("log", f"{record.levelname} {text}")
        if record.exc_info and record.levelno >= logging.ERROR and record.exc_info[1] is not None:
            self._run.invariants.fail(f"{record.name}: {record.getMessage()[:200]}: {record.exc_info[1]!r}")


class _Run:
    def __init__(self, simulation: Simulation, folder: Path) -> None:
        self.simulation = simulation
        self.random = simulation.random
        self.profile = Profile.drawn(self.random)
        self.trace: deque[str] = deque(maxlen=_KEPT)
        self.digest = hashlib.sha256()
        # The files of the engine are not on the disk that servers write, which is full at times, or loses something.
        self.folder = folder / "node"
        self.folder.mkdir()
        self.engine = EngineModel(
            simulation, folder / "docker", record=self.record, live_restore=self.profile.live_restore
        )
        self.cni = CNIPlugins(self.random, record=self.record)
        self.world = self.engine.world = SimWorld(simulation, self.folder, self.engine, self.cni)
        self.cni.kernel = self.world.kernel
        self.hooks = self.world.hook_servers[HOOK_SOCKET] = HookServers(self.random, record=self.record)
        #: What is drawn from it changes nothing else that is drawn.
        self._apart = Random(f"apart {simulation.seed}")
        self.nri = NRIPlugins(self.random, apart=self._apart, record=self.record)
        self.invariants = Invariants(self.engine, self.cni, self.nri, self.record)
        self.nri.on_told = self.invariants.nri_was_told
        self.config = self._config()
        #: Whether no NRI plugin connects beside the one that the server starts.
        self._is_alone = self.profile.nri_installed and self._apart.random() < 0.5
        self.server: SimServer | None = None
        self.servers = 0
        #: The calls on which the server works now.
        self._working: list[Call] = []
        self._kill_after = 0
        self._is_over = False
        self.is_done = False

    def record(self, kind: str, text: str) -> None:
        """Keep a line of the trace."""
        line = f"{self.simulation.now - 100:10.4f} {kind:8} {text}"
        self.trace.append(line)
        self.digest.update(f"{line}\n".encode(errors="surrogateescape"))
        if self._kill_after and kind in ("engine", "cni", "event", "nri", "hook"):
            self._kill_after -= 1
            if not self._kill_after:
                self.simulation.world.call_soon(self._kill)

    def _config(self) -> Config:
        folder = self.folder
        config = sim_config(folder, nri=self.profile.nri is not None, nri_disable_connections=True)
        for path in (config.runtime_hooks_dir, config.nri_plugin_dir):
            path.mkdir()
        write_network(config, NETWORK, *CNI_PLUGINS)
        if self.profile.nri_installed:
            program = config.nri_plugin_dir / "10-own"
            program.touch(0o755)
            self.simulation.programs[str(program)] = self.nri.program
        if self.profile.hooks is not None:
            (config.runtime_hooks_dir / "sim.json").write_text(HOOK_SERVER)
        return config

    # -- the course of a run -----------------------------------------------------------------------------------

    async def play(self) -> None:
        kubelet = Kubelet(self.random, self, self.profile.habits, self.record, self._seen)
        await self._start_server()
        usual = await self._usual_tasks()
        self._set_faults()
        chaos = asyncio.ensure_future(self._make_trouble())
        await kubelet.run()
        self._is_over = True
        await chaos
        self._kill_after = 0
        self._end_faults()
        self.record("run", "the faults have ended")
        await self._have_server()
        await self._wait_for_calls()
        self.engine.end_removals()
        await asyncio.sleep(_QUIET)
        await self._check_lists()
        for failure in await kubelet.remove_all(_CLEARING):
            self.invariants.fail(f"it cannot be removed: {failure}")
        self.record("run", "everything is removed")
        # What a create that was given up may have left is looked for once a minute.
        await asyncio.sleep(90)
        await self._check_end(usual)
        self.is_done = True

    def _seen(self) -> list[str]:
        return [one.id for one in self.engine.pods_containers() if not one.sandbox_id]

    async def _wait_for_calls(self) -> None:
        """Wait until the server works on no call, whose caller may have gone long ago."""
        end = self.simulation.now + _LONGEST_CALL
        while self._working:
            if self.simulation.now > end:
                names = ", ".join(sorted({call.method for call in self._working}))
                self.invariants.fail(f"{_LONGEST_CALL:.0f} s after the last fault the server still works on {names}")
                return
            await asyncio.sleep(1)

    async def _usual_tasks(self) -> list[str]:
        """The names of the tasks of a server that nobody calls."""
        await asyncio.sleep(5)
        assert self.server is not None
        return [kind_of(task) for task in asyncio.all_tasks(self.server.loop)]

    async def _check_lists(self) -> None:
        try:
            sandboxes = (await self.call("ListPodSandbox", cri.ListPodSandboxRequest(), 60)).items
            containers = (await self.call("ListContainers", cri.ListContainersRequest(), 60)).containers
            images = (await self.call("ListImages", cri.ListImagesRequest(), 60)).images
        except CallError as error:
            self.invariants.fail(f"nothing fails any more, and lists do: {error}")
            return
        self.invariants.check_lists(sandboxes, containers)
        assert self.server is not None
        self.invariants.check_kept_limits(self.server._services, is_first=self.servers == 1)
        self.invariants.check_images(images)

    async def _check_end(self, usual: list[str]) -> None:
        invariants, config = self.invariants, self.config
        folders = [config.root_directory, config.state_directory, config.cni_cache_dir]
        pins = [str(path) for path in self.world.kernel.mounts]
        invariants.check_nothing_left(folders, pins)
        assert self.server is not None
        invariants.check_server(self.server._services)
        invariants.check_tasks(asyncio.all_tasks(self.server.loop), usual)
        invariants.check_nri(self.servers)
        invariants.check_hooks(self.hooks)

    # -- faults ------------------------------------------------------------------------------------------------

    def _set_faults(self) -> None:
        profile = self.profile
        self.engine.faults = self.engine.faults_of_run = profile.engine
        self.cni.faults = profile.cni
        self.cni.can_lock = not profile.full_disks
        self.invariants.undo_works = profile.undo_works
        self.invariants.disk_is_full_at_times = bool(profile.full_disks)
        self.hooks.faults = profile.hooks or plugin_models.CALM
        self.nri.faults = profile.nri or plugin_models.CALM
        self.nri.adjusts = 0.3

    def _end_faults(self) -> None:
        self.engine.faults = engine_model.CALM
        self.engine.hang(0)
        self.world.disk.is_full = False
        # The machine is quick now, too; its order stays what it was.
        self.simulation.temper = replace(self.simulation.temper, stalls=0.0)
        for one in (self.cni, self.hooks, self.nri):
            one.faults = plugin_models.CALM

    async def _make_trouble(self) -> None:
        """Each second something may happen to the engine or to the server."""
        profile, random = self.profile, self.random
        while not self._is_over:
            await asyncio.sleep(random.uniform(0.5, 1.5))
            if random.random() < profile.hangs:
                self.engine.hang(random.choice((1.0, 4.0, 15.0, 40.0)))
            if random.random() < profile.restarts:
                self.invariants.disturb()
                await self.engine.restart(random.choice((0.1, 2.0, 15.0)))
                self.invariants.disturb()
            if random.random() < profile.losses:
                self.invariants.disturb()
                await self.engine.restart(random.choice((0.1, 2.0)), lose_data=True)
                self.invariants.disturb()
            if profile.power_cuts and random.random() < 0.2:
                self.world.disk.sync_all()  # kernels write what is dirty by and by
            if random.random() < profile.power_cuts:
                self._cut_power()
            if random.random() < profile.full_disks:
                self.record("fault", "the disk is full" if not self.world.disk.is_full else "the disk has room again")
                self.world.disk.is_full = not self.world.disk.is_full
            if random.random() < profile.kills:
                if random.random() < profile.sharp:
                    self._kill_after = random.randrange(1, 30)
                else:
                    self._kill()
            if self.server is not None and self.server.loop.is_dead:
                await asyncio.sleep(random.choice((0.0, 0.1, 5.0)))
                await self._start_server()

    # -- the server --------------------------------------------------------------------------------------------

    async def _start_server(self) -> None:
        """Start the next server, and have plugins connect to it; it may be killed meanwhile."""
        self.servers += 1
        self.hooks.server = self.nri.server = self.servers
        self.record("run", f"server {self.servers} starts")
        for namespace in self.world.kernel.mounts.values():
            # That of a killed server is to the next one the pod's own, until its tear-down succeeds.
            namespace.is_stand_in = False
        server = self.server = SimServer(self.world, self.config)
        began = self.simulation.now
        if self.profile.hangs and not self._is_over and self._apart.random() < 0.5:
            # They may start together. In the longer one the server serves before its plugins know what runs.
            self.engine.hang(15.0 if self._is_alone else self._apart.choice((2.0, 15.0)))
        with contextlib.suppress(Died):
            await server.start()
            self.invariants.check_installed(self.servers, self.simulation.now - began)
            await across(server.loop, lambda: self._connect_plugins(server), "connect plugins")

    async def _connect_plugins(self, server: SimServer) -> None:
        """In the server: put the models where NRI plugins connect."""
        for events in Inside(server._services).of(Events):
            for name in () if self._is_alone else ("00-one", "50-two"):
                joining = join(events, self.nri, name, self.servers, lambda: _NRI_TIMEOUTS)
                server.loop.create_task(joining, name="NRI plugin")

    async def _have_server(self) -> None:
        while self.server is None or not self.server.is_alive:
            await self._start_server()

    def _cut_power(self) -> None:
        self.record("fault", "the node loses its power")
        if self.server is not None and not self.server.loop.is_dead:
            self.server.kill()
        self._give_up_calls()
        self.world.power_cut()
        self.engine.reboot()
        self.cni.reboot()
        self.nri.reboot()
        self.invariants.power_was_cut()

    def _kill(self) -> None:
        if self.server is not None and not self.server.loop.is_dead and not self._is_over:
            self.record("fault", f"server {self.servers} is killed")
            self._give_up_calls()
            self.server.kill()

    def _give_up_calls(self) -> None:
        """The server has gone, and with it what it worked on."""
        for call in self._working:
            call.is_done = True
        self._working.clear()

    # -- calls (kubelet.Client) --------------------------------------------------------------------------------

    async def call(self, method: str, request: Message, deadline: float | None = None) -> Any:
        """Call the server. Raises CallError."""
        call = self.invariants.begin(method, request, deadline, self.servers)
        about = " ".join(
            value[:12] for name in ("pod_sandbox_id", "container_id") if (value := getattr(request, name, ""))
        )
        self.record("call", f"{method} {about}".rstrip())
        code, response, text = "UNAVAILABLE", None, "the server does not run"
        server = self.server
        try:
            if server is not None and server.is_alive and server._services is not None:
                async with asyncio.timeout(deadline):
                    response = await across(server.loop, lambda: self._handle(server, method, request, call), method)
                    code = "OK"
        except TimeoutError:
            code, text = "DEADLINE_EXCEEDED", "the caller's deadline"
        except Died:
            text = "the server was killed"
        except asyncio.CancelledError:
            code, text = "CANCELLED", ""
            raise
        except _Answer as error:
            code, text = error.code, str(error)
        finally:
            self.record("answer", f"{method} {about} {code} {'' if code == 'OK' else text[:200]}".rstrip())
            self.invariants.end(call, code, response if code == "OK" else text)
        if code != "OK":
            raise CallError(code, text)
        return response

    async def _handle(self, server: SimServer, method: str, request: Message, call: Call) -> Message:
        """In the server: what its gRPC part does."""
        self._working.append(call)
        failed, cancelled = True, False
        try:
            answer = await server._handler(method)(request)
            response: Message = _RESPONSES[method].FromString(answer.SerializeToString())
            failed = False
            return response
        except asyncio.CancelledError:
            cancelled = True
            raise
        except Exception as error:
            code = code_of(error)
            unforeseen = code == "INTERNAL" and type(error).__module__ != "dockershim.errors"
            raise _Answer(code, f"internal error: {error!r}" if unforeseen else str(error)) from error
        finally:
            self._working.remove(call)
            self.invariants.handler_ended(call, failed=failed, cancelled=cancelled)


class _Answer(Exception):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


_RESPONSES: Final = {
    name.removesuffix("Response"): getattr(cri, name) for name in dir(cri) if name.endswith("Response")
}
