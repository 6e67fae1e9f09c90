"""Event loops with virtual time, whose order of ready callbacks is drawn from a seed.

A simulation has a loop for each process: the server has one, the engine another, and what plays the kubelet a third.
All run in one thread, by one clock. So a process can be killed at any await: its loop never runs again, and nothing of
it does, no ``finally`` either.

What asyncio promises holds: a loop runs callbacks in the order in which they were scheduled, and no step of a task
before a callback that was scheduled earlier. But which of the ready tasks takes the next step is drawn. Time takes a
little from one step to the next, and goes to the next timer when nothing is ready. Work for threads runs in this thread
too, as a whole, a drawn time after it was handed over.

Sockets work as in any loop of asyncio: both ends are in this process, so what the kernel tells of them depends on
nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import heapq
import itertools
import os
import random
import secrets
import socket
import sys
import time
import warnings
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from contextvars import Context
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar, TypeVarTuple

from asyncinotify import Inotify

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

#: What the wall clock shows when a simulation begins: 2026-01-02T03:04:05Z.
BEGIN: Final = 1_767_323_045.0
#: Seconds that a step takes, and between two looks at the sockets, in steps.
_STEP: Final = 2e-5
_LOOK_AT_SOCKETS: Final = 8
#: Threads of asyncio.to_thread: any number serves.
_DEFAULT_THREADS: Final = 8
#: What asyncio has a connection in; it complains of one that nobody closes.
_Transport: Final = asyncio.selector_events._SelectorSocketTransport  # type: ignore[attr-defined]


class Died(Exception):
    """The process that was to answer was killed."""


class Cancelled(Exception):
    """What was to answer was cancelled, and not by its caller."""


class Killed(BaseException):
    """Unwinds a thread of a process that is killed in the middle of its work."""


class Stuck(Exception):
    """Nothing is ready, and no timer runs: what the simulation waits for never comes."""


class TooLong(Exception):
    """The simulation took more steps than it may."""


@dataclass(frozen=True, slots=True)
class Temper:
    """How orderly and how quick the machine is. ``drawn`` gives each run another one, from calm to a storm.

    ``disorder`` is how often another task than the one that waits longest takes the next step. A delay is up to
    ``quick`` seconds, and with a chance of ``stalls`` up to ``slow``.
    """

    disorder: float = 0.5
    quick: float = 0.001
    stalls: float = 0.05
    slow: float = 0.2

    @classmethod
    def drawn(cls, draw: random.Random) -> Temper:
        return cls(
            disorder=draw.choice((0.0, 0.1, 0.5, 1.0)),
            quick=draw.choice((0.0005, 0.005)),
            stalls=draw.choice((0.0, 0.02, 0.1)),
            slow=draw.choice((0.05, 0.5, 3.0)),
        )


#: The monotonic clock at the begin of a run.
_BEGIN_OF_CLOCK: Final = 100.0


#: What a program says on its standard output before it ends; or, of one that goes on, what starts it. That gets the
#: options of ``subprocess_exec``, takes what descriptors it is to have, and returns what it does.
Program = bytes | Callable[[Mapping[str, Any]], Callable[[], Coroutine[Any, Any, None]]]


class Simulation:
    """One run. ``temper`` is drawn from the seed by default."""

    def __init__(
        self, seed: int, *, temper: Temper | None = None, most_steps: int = 2_000_000, most_seconds: float = 1e6
    ) -> None:
        self.seed = seed
        #: For all that is drawn in this run, the models' faults too.
        self.random = random.Random(seed)
        self.temper = temper or Temper.drawn(self.random)
        self.steps = 0
        #: What asyncio complained about: exceptions of callbacks, and of tasks that nobody looked at.
        self.complaints: list[dict[str, Any]] = []
        #: What is entered for the length of the run.
        self.during_run: list[Callable[[], AbstractContextManager[None]]] = []
        #: The loop whose thread runs work now; None while none does.
        self.working: SimLoop | None = None
        self._most_steps = most_steps
        self._now = _BEGIN_OF_CLOCK
        self._end_of_clock = _BEGIN_OF_CLOCK + most_seconds
        self._ready: list[_Ready] = []
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = itertools.count(1)
        self._loops: list[SimLoop] = []
        self._dead_tasks: list[asyncio.Task[Any]] = []
        #: By id: weak references end before a generator is told to.
        self._generators: dict[int, SimLoop] = {}
        #: Who waits until nothing is ready.
        self._settled: list[asyncio.Future[None]] = []
        #: The programs of the machine, by path.
        self.programs: dict[str, Program] = {}
        #: The loop of all that no process of the simulation does.
        self.world = self.process("world")

    @property
    def now(self) -> float:
        """Seconds of the monotonic clock."""
        return self._now

    def wall(self) -> float:
        """Seconds of the wall clock."""
        return BEGIN + self._now

    def process(self, name: str) -> SimLoop:
        """The loop of a new process."""
        made = SimLoop(self, name)
        self._loops.append(made)
        return made

    def delay(self) -> float:
        """How long something outside of a process takes now."""
        temper = self.temper
        longest = temper.slow if self.random.random() < temper.stalls else temper.quick
        return self.random.random() * longest

    def stand_still(self, seconds: float) -> None:
        """The whole machine stands still, as when it is suspended."""
        self._now += seconds

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine in the loop of the world until it ends; whatever goes on then is dropped.

        Raises what it raises, Stuck, and TooLong.
        """
        with _the_only_clock(self), _collected_later(), _generators(self), contextlib.ExitStack() as stack:
            for make in self.during_run:
                stack.enter_context(make())
            try:
                main = self.world.create_task(work(), name="main")
                while not main.done():
                    self._step()
                return main.result()
            finally:
                asyncio._set_running_loop(None)
                self.end()

    def kill_processes(self) -> None:
        """Kill all of them, as a power cut does."""
        for loop in self._loops:
            if loop is not self.world:
                self.kill(loop)

    def kill(self, loop: SimLoop) -> None:
        """End a process at once. Those who wait for an answer of it get Died; its own requests are cancelled."""
        if loop.is_dead:
            return
        loop.is_dead = True
        self._dead_tasks += asyncio.all_tasks(loop)
        self._ready = [one for one in self._ready if one.loop is not loop]
        for answer in list(loop.visitors.values()):
            if not answer.done():
                answer.set_exception(Died(loop.name))
        for request in list(loop.requests):
            request.cancel()
        loop.shut_sockets()

    async def settle(self) -> None:
        """Wait, in the loop of the world, until nothing is ready in any loop, and all wait for time or each other."""
        settled: asyncio.Future[None] = self.world.create_future()
        self._settled.append(settled)
        await settled

    def hand_over(self, loop: SimLoop, job: Job, take: Callable[[], None], *, is_done: bool) -> None:
        """Work goes to a thread of a process, or comes back from it when it is done: a drawn time later."""
        loop.call_later(self.delay(), take)

    # -- the order ---------------------------------------------------------------------------------------------

    def add(self, loop: SimLoop, handle: asyncio.Handle, *, is_free: bool, of_socket: bool = False) -> None:
        """Something is ready. What is not free runs before all that becomes ready later in its loop."""
        if not loop.is_dead:
            self._ready.append(_Ready(loop, handle, is_free, of_socket))

    def add_timer(self, timer: asyncio.TimerHandle) -> None:
        heapq.heappush(self._timers, (timer.when(), next(self._numbers), timer))

    def _step(self) -> None:
        self.steps += 1
        if self.steps > self._most_steps:
            raise TooLong(f"{self.steps} steps")
        if self._now > self._end_of_clock:
            raise TooLong(f"{self._now - _BEGIN_OF_CLOCK:.0f} s of its own clock")
        if self.steps % _LOOK_AT_SOCKETS == 0:
            self._look_at_sockets()
        self._take_due()
        while not self._ready:
            if self._look_at_sockets():
                break
            if self._settled:
                self._settled.pop(0).set_result(None)
                break
            if not self._timers:
                raise Stuck(self._who_waits())
            self._now = max(self._now, self._timers[0][0])
            self._take_due()
        self._now += _STEP
        chosen = self._choose()
        handle = chosen.handle
        chosen.loop.sockets_due -= chosen.of_socket
        if handle.cancelled():
            return
        asyncio._set_running_loop(chosen.loop)
        handle._run()
        asyncio._set_running_loop(None)

    def _choose(self) -> _Ready:
        ready = self._ready
        if len(ready) == 1 or self.random.random() >= self.temper.disorder:
            return ready.pop(0)
        begun: set[SimLoop] = set()
        options = []
        for at, one in enumerate(ready):
            if one.loop not in begun:
                options.append(at)
                if not one.is_free:
                    begun.add(one.loop)
        return ready.pop(options[int(self.random.random() * len(options))])

    def _take_due(self) -> None:
        timers = self._timers
        while timers and timers[0][0] <= self._now:
            _, _, timer = heapq.heappop(timers)
            loop = timer._loop  # type: ignore[attr-defined]
            if not timer.cancelled() and not loop.is_dead:
                self._ready.append(_Ready(loop, timer, is_free=False, of_socket=False))

    def _look_at_sockets(self) -> bool:
        found = [loop.look_at_sockets() for loop in self._loops if not loop.is_dead and loop.has_sockets()]
        return any(found)

    def _who_waits(self) -> str:
        tasks = [task for loop in self._loops if not loop.is_dead for task in asyncio.all_tasks(loop)]
        return "; ".join(sorted(map(repr, tasks)))

    # -- the end -----------------------------------------------------------------------------------------------

    def first_iteration(self, generator: AsyncGenerator[Any, Any]) -> None:
        """An asynchronous generator begins (sys.set_asyncgen_hooks)."""
        if (loop := asyncio._get_running_loop()) is not None:
            assert isinstance(loop, SimLoop)
            self._generators[id(generator)] = loop

    def end_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Nobody has it any more: its loop ends it, unless that was killed."""
        loop = self._generators.pop(id(generator), None)
        if loop is not None and not loop.is_dead:
            loop.create_task(generator.aclose())

    def end(self) -> None:
        """Close what there is of it, also if it never ran. A run ends with this."""
        for loop in self._loops:
            self.kill(loop)
        self._drop_dead_tasks()
        for loop in self._loops:
            loop.close()
        self._loops.clear()

    def _drop_dead_tasks(self) -> None:
        """Let Python run the ``finally`` blocks of what was killed: by now they reach nothing."""
        dead, self._dead_tasks = self._dead_tasks, []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # these blocks await what nobody runs, and nobody has closed what they have
            for task in dead:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                with contextlib.suppress(BaseException):
                    if (work := task.get_coro()) is not None:
                        work.close()
        self._ready.clear()
        self._timers.clear()


@dataclass(slots=True)
class _Ready:
    loop: SimLoop
    handle: asyncio.Handle
    is_free: bool
    of_socket: bool


class SimLoop(asyncio.SelectorEventLoop):
    """The loop of one process of a simulation."""

    def __init__(self, simulation: Simulation, name: str) -> None:
        super().__init__()
        self.simulation = simulation
        self.name = name
        self.is_dead = False
        #: What other processes run here, and the futures of their answers; and what this one runs in others.
        self.visitors: dict[asyncio.Task[Any], asyncio.Future[Any]] = {}
        self.requests: dict[asyncio.Task[Any], None] = {}
        #: What the kernel has told of sockets and has not been taken yet: meanwhile it is not asked again.
        self.sockets_due = 0
        self._pools: dict[Executor | None, _Pool] = {}
        self._own_sockets = len(self._selector.get_map())  # type: ignore[attr-defined]
        self.set_task_factory(_make_task)  # type: ignore[arg-type]
        self.set_exception_handler(lambda _, complaint: self._complain(complaint))

    def __repr__(self) -> str:
        return f"<SimLoop {self.name}>"

    def _complain(self, complaint: dict[str, Any]) -> None:
        if not self.is_dead:
            self.simulation.complaints.append(complaint)

    def time(self) -> float:
        return self.simulation._now

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        # As asyncio itself sees whose step it is (base_events, _format_handle).
        is_step = isinstance(getattr(callback, "__self__", None), asyncio.Task)
        self.simulation.add(self, handle, is_free=is_step)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.simulation._now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self.simulation.add_timer(timer)
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def _add_callback(self, handle: asyncio.Handle) -> None:
        self.sockets_due += 1
        self.simulation.add(self, handle, is_free=False, of_socket=True)

    def create_future(self) -> asyncio.Future[Any]:
        made: _Future[Any] = _Future(loop=self)
        made.number = next(self.simulation._numbers)
        return made

    # -- sockets -----------------------------------------------------------------------------------------------

    def has_sockets(self) -> bool:
        return not self.sockets_due and len(self._selector.get_map()) > self._own_sockets  # type: ignore[attr-defined]

    def look_at_sockets(self) -> bool:
        """Take what the kernel has for this loop. Returns whether it had something."""
        events = self._selector.select(0)  # type: ignore[attr-defined]
        # Descriptors have other numbers in another process.
        order = {fd: number for number, fd in enumerate(self._selector.get_map())}  # type: ignore[attr-defined]
        events.sort(key=lambda event: order[event[0].fd])
        self._process_events(events)  # type: ignore[attr-defined]
        return bool(events)

    def shut_sockets(self) -> None:
        """Shut the sockets of a process that was killed, as the kernel does. Their owners close them at the end."""
        for key in list(self._selector.get_map().values()):  # type: ignore[attr-defined]
            if key.fileobj is not self._ssock:  # type: ignore[attr-defined]
                with contextlib.suppress(OSError):
                    shut = socket.socket(fileno=key.fd)
                    try:
                        shut.shutdown(socket.SHUT_RDWR)
                    finally:
                        shut.detach()

    # -- programs ----------------------------------------------------------------------------------------------

    async def subprocess_exec(self, protocol_factory: Any, program: Any, *_: Any, **options: Any) -> Any:
        """Start a program."""
        if (found := self.simulation.programs.get(str(program))) is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), program)
        protocol = protocol_factory()
        if not isinstance(found, bytes):
            return _Running(self.simulation, found(options), Path(program).name), protocol
        transport = _Program()
        protocol.connection_made(transport)
        protocol.pipe_data_received(1, found)
        for pipe in (1, 2):
            protocol.pipe_connection_lost(pipe, None)
        protocol.process_exited()
        return transport, protocol

    # -- threads -----------------------------------------------------------------------------------------------

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        if getattr(executor, "_shutdown", False):
            raise RuntimeError("cannot schedule new futures after shutdown")
        answer: asyncio.Future[T] = self.create_future()
        pool = self._pools.get(executor)
        if pool is None:
            pool = self._pools[executor] = _Pool(self, getattr(executor, "_max_workers", _DEFAULT_THREADS))
        pool.submit(Job(answer, func, args))
        return answer


class _Program(asyncio.SubprocessTransport):
    """A program that has ended."""

    def get_pid(self) -> int:
        return 0

    def get_pipe_transport(self, fd: int) -> asyncio.BaseTransport | None:
        return self if fd else None

    def get_returncode(self) -> int:
        return 0

    def kill(self) -> None:
        raise ProcessLookupError

    async def _wait(self) -> int:
        return 0

    def close(self) -> None:
        return


class _Running(asyncio.SubprocessTransport):
    """A program that goes on, until its work ends or it is killed. It has no pipes."""

    def __init__(self, simulation: Simulation, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        super().__init__()
        self._task, self._end = begin(simulation.world, work, name, outlives=True)
        self._end.add_done_callback(lambda end: end.exception())

    def get_pid(self) -> int:
        return 0

    def kill(self) -> None:
        if self._end.done():
            raise ProcessLookupError
        self._task.cancel()

    async def _wait(self) -> int:
        await asyncio.wait([self._end])
        return 0


class _Future(asyncio.Future[T]):
    """A future whose place in sets is the same in each run."""

    number = 0

    def __hash__(self) -> int:
        return self.number or id(self)


class _Task(asyncio.Task[T]):
    """A task whose place in sets is the same in each run: tasks that are in a set are cancelled in its order."""

    number = 0

    def __hash__(self) -> int:
        return self.number or id(self)


def _make_task(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], **options: Any) -> asyncio.Task[T]:
    assert isinstance(loop, SimLoop)
    number = next(loop.simulation._numbers)
    made = _Task.__new__(_Task)
    made.number = number
    made.__init__(work, loop=loop, **options)  # type: ignore[misc]
    return made


@dataclass(slots=True)
class Job:
    """Work for a thread."""

    answer: asyncio.Future[Any]
    work: Callable[..., Any]
    arguments: tuple[Any, ...]


@dataclass(slots=True)
class _Pool:
    """Threads of a process. Work begins in the order in which it was handed over."""

    loop: SimLoop
    free: int
    waiting: deque[Job] = field(default_factory=deque)

    def submit(self, job: Job) -> None:
        self.waiting.append(job)
        self._go_on()

    def _go_on(self) -> None:
        while self.free and self.waiting:
            self.free -= 1
            job = self.waiting.popleft()
            self.loop.simulation.hand_over(self.loop, job, partial(self._begin, job), is_done=False)

    def _begin(self, job: Job) -> None:
        """A thread runs the work, beside whatever else is ready."""
        self.loop.simulation.add(self.loop, asyncio.Handle(self._run, (job,), self.loop), is_free=True)

    def _run(self, job: Job) -> None:
        if job.answer.cancelled():
            self._end(job, None, None)
            return
        asyncio._set_running_loop(None)
        self.loop.simulation.working = self.loop
        result = failure = None
        try:
            result = job.work(*job.arguments)
        except BaseException as error:
            failure = error
        self.loop.simulation.working = None
        asyncio._set_running_loop(self.loop)
        if not self.loop.is_dead:
            end = partial(self._end, job, result, failure)
            self.loop.simulation.hand_over(self.loop, job, end, is_done=True)

    def _end(self, job: Job, result: Any, failure: BaseException | None) -> None:
        self.free += 1
        if not job.answer.cancelled():
            if failure is not None:
                job.answer.set_exception(failure)
            else:
                job.answer.set_result(result)
        self._go_on()


def begin(
    loop: SimLoop, work: Callable[[], Coroutine[Any, Any, T]], name: str, *, outlives: bool = False
) -> tuple[asyncio.Task[T], asyncio.Future[T]]:
    """Begin a coroutine in another process. Returns its task, and a future of this process with its end.

    The future gets Died if the other process is killed, and Cancelled. If this process is killed, the task is
    cancelled, unless it ``outlives`` it.
    """
    here = asyncio.get_running_loop()
    assert isinstance(here, SimLoop)
    answer: asyncio.Future[T] = here.create_future()
    task = loop.create_task(work(), name=name, context=Context())
    loop.visitors[task] = answer
    if not outlives:
        here.requests[task] = None

    def ended(task: asyncio.Task[T]) -> None:
        loop.visitors.pop(task, None)
        here.requests.pop(task, None)
        failure = Cancelled(name) if task.cancelled() else task.exception()
        if not answer.done():
            if failure is not None:
                answer.set_exception(failure)
            else:
                answer.set_result(task.result())

    task.add_done_callback(ended)
    return task, answer


async def across(
    loop: SimLoop, work: Callable[[], Coroutine[Any, Any, T]], name: str = "request", *, outlives: bool = False
) -> T:
    """Run a coroutine in another process, as a request over a connection, which a cancelled caller closes.

    Raises what it raises, Died if that process is killed, and Cancelled.
    """
    if loop is asyncio.get_running_loop():
        return await work()
    if loop.is_dead:
        raise Died(loop.name)
    task, answer = begin(loop, work, name, outlives=outlives)
    try:
        return await answer
    except asyncio.CancelledError:
        task.cancel()
        raise


# -- what a run changes in Python ------------------------------------------------------------------------------


@contextlib.contextmanager
def _the_only_clock(simulation: Simulation) -> Iterator[None]:
    """For the length of a block, the modules time, random and secrets are those of the simulation.

    There is no inotify, as if the node had no instance left: it would tell of changes of others to the folders above.
    What follows a folder reads it again every few seconds then.
    """
    drawn = random.Random(simulation.seed ^ 0x5EED)

    def monotonic() -> float:
        return simulation._now

    def token_bytes(count: int | None = None) -> bytes:
        return drawn.randbytes(32 if count is None else count)

    def no_instance(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    changes: dict[Any, dict[str, Any]] = {
        Inotify: {"__init__": no_instance},
        time: {
            "monotonic": monotonic,
            "perf_counter": monotonic,
            "time": simulation.wall,
            "monotonic_ns": lambda: int(simulation._now * 1e9),
            "perf_counter_ns": lambda: int(simulation._now * 1e9),
            "time_ns": lambda: int(simulation.wall() * 1e9),
            "sleep": simulation.stand_still,
        },
        secrets: {
            "token_bytes": token_bytes,
            "token_hex": lambda count=None: token_bytes(count).hex(),
            "token_urlsafe": lambda count=None: token_bytes(count).hex(),
        },
    }
    before = {module: {name: getattr(module, name) for name in names} for module, names in changes.items()}
    state = random.getstate()
    random.seed(simulation.seed)
    _set(changes)
    try:
        yield
    finally:
        _set(before)
        random.setstate(state)


def _set(changes: dict[Any, dict[str, Any]]) -> None:
    for module, values in changes.items():
        for name, value in values.items():
            setattr(module, name, value)


@contextlib.contextmanager
def _collected_later() -> Iterator[None]:
    """Collect garbage behind the block, not in it: the moment would depend on earlier runs."""
    was_on = gc.isenabled()
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        # Processes that were killed have not closed theirs. What is frozen is older, and not looked at.
        for left in [one for one in gc.get_objects() if type(one) in (socket.socket, _Transport)]:
            if isinstance(left, socket.socket):
                left.close()
            else:
                left._sock = None
        gc.collect()
        gc.unfreeze()
        if was_on:
            gc.enable()


@contextlib.contextmanager
def _generators(simulation: Simulation) -> Iterator[None]:
    before = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(firstiter=simulation.first_iteration, finalizer=simulation.end_generator)
    try:
        yield
    finally:
        sys.set_asyncgen_hooks(*before)
