"""What holds in every run, whatever the seed: checked at each answer, at each change of the engine, and at the end."""

from __future__ import annotations

import asyncio
import gc
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.common import rollback
from dockershim.common.single_flight import SingleFlight
from dockershim.cri.engine_containers import EngineContainers
from dockershim.cri.limits import Limits
from dockershim.cri.logs import LogKeeper
from dockershim.nri.events import Events
from dockershim.state.inventory import Inventory
from dockershim.state.kept_limits import KeptLimits, read_kept_limits
from dockershim.state.pods import Pods
from tests.sim.engine import Container, EngineModel
from tests.sim.plugins import CNIPlugins, HookServers, NRIPlugins, Session, Told

T = TypeVar("T")

#: Seconds after its deadline in which a call's undo and what must not stop half-way have their end: plugins have 220 s
#: for a pod, and a call may wait for another one that waits for them.
_AFTER_DEADLINE: Final = 900.0
#: Seconds between two looks for what a create that was given up may have made.
_LOOK: Final = 60.0
#: Seconds in which an event arrives.
_ON_ITS_WAY: Final = 1.0
#: Seconds for which a start waits for the server's own NRI plugins.
_FIRST_SYNCHRONIZE: Final = 10.0
#: Files that stay: the lock of the root directory, and what belongs to the node.
STAYS: Final = ("lock", ".lock")


@dataclass(slots=True)
class Call:
    """A call and what came of it. ``code`` is empty while it runs, "OK", or the name of a gRPC status.

    ``subject`` are the whole ids of which it is about, as far as the engine knew them when it began.
    """

    method: str
    request: Any
    begun: float
    deadline: float | None
    server: int
    subjects: frozenset[str] = frozenset()
    code: str = ""
    ended: float = 0.0
    #: Whether the server has done its work, though the answer may be on its way.
    is_done: bool = False
    response: Any = None

    @property
    def ok(self) -> bool:
        return self.code == "OK"


@dataclass(slots=True)
class _Known:
    """What callers know of one sandbox or container."""

    made: bool = False
    stopped: float | None = None
    removed: float | None = None


class Invariants:
    """Checks a run. ``problems`` are the violations, in the order in which they were seen."""

    def __init__(
        self, engine: EngineModel, cni: CNIPlugins, nri: NRIPlugins, record: Callable[[str, str], None]
    ) -> None:
        self.problems: list[str] = []
        self.calls: Counter[str] = Counter()
        #: Whether nothing keeps a call that fails from undoing what it did.
        self.undo_works = False
        #: Whether the disk is full at times. What cannot be noted then, the next start of a server finds.
        self.disk_is_full_at_times = False
        self._engine = engine
        self._cni = cni
        self._nri = nri
        self._record = record
        self._known: dict[str, _Known] = {}
        #: When the engine last lost or ended something without being asked, by the id of the container.
        self._disturbed: dict[str, float] = {}
        self._all_disturbed = -1.0
        self._power_was_cut = False
        #: When the last RunPodSandbox began that has failed, by the server and the name of the sandbox.
        self._failed_runs: dict[tuple[int, str], float] = {}
        #: Whether an image is there, by its name, as far as callers know.
        self._images: dict[str, bool] = {}
        self._under_way: list[Call] = []
        self._recent: deque[Call] = deque(maxlen=200)
        engine.on_change.append(self._changed)

    def fail(self, problem: str) -> None:
        """Note a violation."""
        self._record("VIOLATED", problem)
        if problem not in self.problems:
            self.problems.append(problem)

    def disturb(self) -> None:
        """The engine or the node restarts: what callers saw may not hold any more."""
        self._all_disturbed = self._now()

    def power_was_cut(self) -> None:
        """The node restarts: a file that was removed, and not synced, may be there again, and tell of a pod."""
        self.disturb()
        self._power_was_cut = True
        for known in self._known.values():
            known.removed = None

    # -- during the run ----------------------------------------------------------------------------------------

    def begin(self, method: str, request: Any, deadline: float | None, server: int) -> Call:
        """A caller makes a call."""
        call = Call(method, request, self._now(), deadline, server)
        fields = request.DESCRIPTOR.fields_by_name
        for name in ("pod_sandbox_id", "container_id"):
            if name in fields and (begin := getattr(request, name)):
                call.subjects |= self._ids(begin)
        if method in _CHANGES_IMAGES:
            # A removal may name any image by its id.
            self._images.clear()
        self._under_way.append(call)
        return call

    def end(self, call: Call, code: str, response: Any = None) -> None:
        """The call has its answer, at this very moment."""
        call.code, call.response, call.ended = code, response, self._now()
        self._under_way.remove(call)
        self._recent.append(call)
        self.calls[f"{call.method} {code}"] += 1
        if code == "INTERNAL" and "internal error" in str(response):
            self.fail(f"{call.method} failed with an error that nobody foresaw: {response}")
        if call.ok and (check := getattr(self, f"_ok_{_snake(call.method)}", None)) is not None:
            check(call)

    def handler_ended(self, call: Call, *, failed: bool, cancelled: bool) -> None:
        """The server's own work for the call is over, maybe long after its caller has gone."""
        call.is_done = True
        if failed and call.method == "RunPodSandbox":
            self._failed_runs[call.server, _name_of(call)] = call.begun
        if call.method in ("StopPodSandbox", "RemovePodSandbox"):
            self._check_stand_ins(call)
        # A container that was made when its caller went stays: the next call with the same metadata removes it.
        if failed and self.undo_works and not (cancelled and call.method == "CreateContainer"):
            self._check_failed(call)
        if call.deadline is not None and (took := self._now() - call.begun) > call.deadline + _AFTER_DEADLINE:
            self.fail(f"{call.method} went on for {took:.0f} s, with a deadline of {call.deadline:g} s")

    def _check_stand_ins(self, call: Call) -> None:
        """What a tear-down makes in the place of a lost namespace goes with it, even if it fails."""
        for sandbox_id in call.subjects:
            at_work = any(sandbox_id in other.subjects and not other.is_done for other in self._working())
            for path, namespace in self._engine.world.kernel.mounts.items():
                if namespace.is_stand_in and path.name.endswith(sandbox_id) and not at_work:
                    self.fail(f"{call.method} of {sandbox_id[:12]} leaves {path}, in the place of a lost namespace")

    def _working(self) -> Iterator[Call]:
        """The calls that may still be at work, whether or not their callers have gone."""
        yield from self._under_way
        yield from self._recent

    def _check_failed(self, call: Call) -> None:
        """A call that has failed, or whose caller has gone, leaves nothing behind, and does not stop half-way."""
        if call.method in ("RunPodSandbox", "CreateContainer"):
            name = _name_of(call)
            for container in self._engine.containers.values():
                mine = container.name == name and container.asked >= call.begun
                if mine and not self._of(container.id).made and not self._of_same_name(call):
                    self.fail(f"{call.method} failed, and {name} ({container.id[:12]}) is left")
        elif call.method == "StopPodSandbox" and call.code in ("DEADLINE_EXCEEDED", "CANCELLED"):
            for sandbox_id in call.subjects:
                infra = self._engine.containers.get(sandbox_id)
                if infra is not None and infra.running:
                    self.fail(f"StopPodSandbox of {sandbox_id[:12]} stopped half-way as its caller had gone")

    def _of_same_name(self, call: Call) -> bool:
        """Whether another call makes the same."""
        others = (one for one in self._working() if one is not call and one.method == call.method)
        return any(_name_of(one) == _name_of(call) and (not one.ended or one.ended >= call.begun) for one in others)

    def _ok_run_pod_sandbox(self, call: Call) -> None:
        sandbox_id = call.response.pod_sandbox_id
        self._of(sandbox_id).made = True
        call.subjects = frozenset({sandbox_id})
        for session in self._nri.sessions:
            answers = session.is_synchronized and session.end is None and not session.is_late
            if session.server == call.server and answers and not session.knows(sandbox_id):
                self.fail(f"NRI plugin {session.plugin} was not told of pod {sandbox_id[:12]}")
        if self._is_disturbed(sandbox_id, call) or self._ended_meanwhile(sandbox_id, call):
            return
        container = self._engine.containers.get(sandbox_id)
        if container is None or not container.running:
            self.fail(f"RunPodSandbox returned {sandbox_id[:12]}, which does not run")
        elif not self._has_network(container):
            self.fail(f"RunPodSandbox returned {sandbox_id[:12]} without its whole network")

    def _has_network(self, infra: Container) -> bool:
        """Whether all plugins have done their part, if they make the sandbox's network."""
        if infra.host_config.get("NetworkMode") != "none":
            return True
        return infra.id in self._cni.attached and infra.id in self._cni.ports

    def _ok_create_container(self, call: Call) -> None:
        container_id, sandbox_id = call.response.container_id, call.request.pod_sandbox_id
        self._of(container_id).made = True
        if self._is_disturbed(container_id, call) or self._ended_meanwhile(container_id, call):
            return
        if self._ended_meanwhile(sandbox_id, call):
            return
        container = self._engine.containers.get(container_id)
        if container is None:
            self.fail(f"CreateContainer returned {container_id[:12]}, which does not exist")
        elif not container.name.startswith("k8s_"):
            self.fail(f"CreateContainer returned {container_id[:12]} with the name {container.name}")

    def _ok_start_container(self, call: Call) -> None:
        for container_id in call.subjects:
            container = self._engine.containers.get(container_id)
            if container is not None and not container.started and not self._is_disturbed(container_id, call):
                self.fail(f"StartContainer of {container_id[:12]} succeeded, and it has never run")

            if container is not None and container.running:
                self._check_limits(container)

    def _check_limits(self, container: Container) -> None:
        """A container that runs has the limits for which the engine has no field."""
        has = self._engine.world.kernel.cgroups.get(container.id, {})
        if not container.paused and "memory.high" not in has:
            self.fail(f"{container.name} ({container.id[:12]}) runs without its limits")

    def check_installed(self, server: int, took: float) -> None:
        """A server serves calls: its own NRI plugins know what runs, unless that takes too long."""
        for session in self._nri.sessions:
            is_out = session.server == server and session.is_installed and not session.is_synchronized
            if is_out and session.end is None and took < _FIRST_SYNCHRONIZE:
                self.fail(f"server {server} serves calls, and its NRI plugin {session.plugin} does not know what runs")

    def nri_was_told(self, told: Told) -> None:
        """A plugin is told something, at this very moment."""
        running = [one for one in self._engine.running(told.pod) if one.sandbox_id]
        if told.event == "StopPodSandbox" and running:
            self.fail(f"NRI plugins are told of the end of {told.pod[:12]}, and {running[0].name} runs")
        if told.event == "StartContainer" and told.container in self._nri.rejected:
            self.fail(f"{told.container[:12]} is started, to which a validator has not agreed")
        container = self._engine.containers.get(told.container)
        if told.event == "RemoveContainer" and container is not None and container.running:
            self.fail(f"NRI plugins are told of the removal of {told.container[:12]}, which runs")

    def _ok_stop_container(self, call: Call) -> None:
        for container_id in call.subjects:
            container = self._engine.containers.get(container_id)
            if container is not None and container.running and not self._beside(call, "StartContainer"):
                self.fail(f"StopContainer of {container_id[:12]} succeeded, and it runs")

    def _ok_remove_container(self, call: Call) -> None:
        for container_id in call.subjects:
            self._of(container_id).removed = self._now()
            if container_id in self._engine.containers:
                self.fail(f"RemoveContainer of {container_id[:12]} succeeded, and it is there")

    def _ok_stop_pod_sandbox(self, call: Call) -> None:
        for sandbox_id in call.subjects:
            if not self._is_sandbox(sandbox_id):
                continue
            if self._is_unknown(sandbox_id):
                continue
            self._of(sandbox_id).stopped = self._now()
            if self._is_lost(sandbox_id):
                continue
            if running := [one.name for one in self._engine.running(sandbox_id)]:
                self.fail(f"StopPodSandbox of {sandbox_id[:12]} succeeded, and {', '.join(running)} runs")
            if sandbox_id in self._cni.attached:
                self.fail(f"StopPodSandbox of {sandbox_id[:12]} succeeded, and it has its network")

    def _ok_remove_pod_sandbox(self, call: Call) -> None:
        for sandbox_id in call.subjects:
            if not self._is_sandbox(sandbox_id):
                continue
            if self._is_unknown(sandbox_id):
                continue
            self._of(sandbox_id).stopped = self._of(sandbox_id).removed = self._now()
            there = self._of_sandbox(sandbox_id)
            if left := [one.name for one in there if self.undo_works or one.asked < call.begun]:
                self.fail(f"RemovePodSandbox of {sandbox_id[:12]} succeeded, and {', '.join(left)} is there")

    def _ok_list_pod_sandbox(self, call: Call) -> None:
        self._check_list(call, call.response.items, call.request.filter, cri.SANDBOX_READY)
        making = self._being_made()
        for item in call.response.items:
            container = self._engine.containers.get(item.id)
            if container is None or item.state != cri.SANDBOX_READY or self._of(item.id).made:
                continue
            if container.asked >= making.get(container.name, math.inf):
                self.fail(f"ListPodSandbox shows {item.id[:12]}, which RunPodSandbox has not returned yet")
            if container.asked >= self._failed_runs.get((call.server, container.name), math.inf):
                self.fail(f"ListPodSandbox shows {item.id[:12]} as ready, whose RunPodSandbox has failed")

    def _ok_list_containers(self, call: Call) -> None:
        self._check_list(call, call.response.containers, call.request.filter, cri.CONTAINER_RUNNING)

    def _ok_pull_image(self, call: Call) -> None:
        name = call.request.image.image
        if self._has_changed_images_beside(call):
            return
        self._images[name] = True
        image = self._engine.image(name)
        if image is None:
            self.fail(f"PullImage of {name} succeeded, and it is not there")
        elif call.response.image_ref != image.id:
            self.fail(f"PullImage of {name} returned {call.response.image_ref}, and it is {image.id}")

    def _ok_remove_image(self, call: Call) -> None:
        name = call.request.image.image
        if self._has_changed_images_beside(call):
            return
        self._images[name] = False
        if self._engine.image(name) is not None:
            self.fail(f"RemoveImage of {name} succeeded, and it is there")

    def _ok_image_status(self, call: Call) -> None:
        name = call.request.image.image
        expected = self._images.get(name)
        if expected is None or self._has_changed_images_beside(call):
            return
        if call.response.HasField("image") is not expected:
            self.fail(f"ImageStatus says that {name} is {'not ' if expected else ''}there")

    def _has_changed_images_beside(self, call: Call) -> bool:
        """Whether another call changes images, or has since this one began; or what it began goes on."""
        return any(self._engine.pulls.values()) or any(
            other.method in _CHANGES_IMAGES and other is not call and (not other.is_done or other.ended >= call.begun)
            for other in self._working()
        )

    def _check_list(self, call: Call, items: Iterable[Any], wanted: Any, runs: int) -> None:
        """What a caller saw removed before this call is not listed; what it saw stopped is not shown as running."""
        for item in items:
            known = self._of(item.id)
            if known.removed is not None and known.removed < call.begun:
                self.fail(f"{call.method} shows {item.id[:12]}, which was removed before")
            if known.stopped is not None and known.stopped < call.begun and item.state == runs:
                self.fail(f"{call.method} shows {item.id[:12]} as running, which was stopped before")

    def _changed(self, action: str, container: Container) -> None:
        """The engine has changed something."""
        if action in ("die", "lost", "destroy"):
            self._disturbed[container.id] = self._now()
        if not container.is_pods:
            return
        sandbox_id = container.sandbox_id or container.id
        known = self._known.get(sandbox_id)
        if known is None:
            return
        if action == "start" and known.stopped is not None:
            self.fail(f"{container.name} is started in {sandbox_id[:12]}, which was stopped")
        if action == "create" and known.removed is not None and container.asked > known.removed:
            self.fail(f"{container.name} is made in {sandbox_id[:12]}, which was removed")

    def _being_made(self) -> dict[str, float]:
        """The names of sandboxes whose RunPodSandbox is under way, with the time of its begin."""
        runs = [one for one in self._under_way if one.method == "RunPodSandbox"]
        done = {_name_of(one) for one in runs if one.is_done}
        return {name: one.begun for one in runs if (name := _name_of(one)) not in done}

    def _beside(self, call: Call, *methods: str) -> bool:
        """Whether such a call for the same subject is under way, or was since this one began."""
        return any(
            other.method in methods and other is not call and other.subjects & call.subjects
            for other in self._working()
            if not other.ended or other.ended >= call.begun
        )

    def _ended_meanwhile(self, subject: str, call: Call) -> bool:
        """Whether somebody has begun to stop or remove it."""
        return any(
            subject.startswith(tuple(_begins(other.request)))
            for other in self._working()
            if other.method.startswith(("Stop", "Remove")) and (not other.ended or other.ended >= call.begun)
        )

    def _is_disturbed(self, container_id: str, call: Call) -> bool:
        return max(self._all_disturbed, self._disturbed.get(container_id, -1.0)) >= call.begun

    def _is_unknown(self, sandbox_id: str) -> bool:
        """Whether a server may not know it yet: no call has told of it, and its event is on its way."""
        container, faults = self._engine.containers.get(sandbox_id), self._engine.faults_of_run
        if container is None or self._of(sandbox_id).made:
            return False
        # The inspect that follows the event may be slow, too.
        on_its_way = _ON_ITS_WAY + (faults.seconds if faults.slow else 0.0)
        return bool(faults.lost_events or faults.late_events) or self._now() - container.asked < on_its_way

    def _is_lost(self, sandbox_id: str) -> bool:
        """Whether the engine has lost the sandbox without being asked."""
        return sandbox_id not in self._engine.containers

    def _is_sandbox(self, container_id: str) -> bool:
        found = self._engine.containers.get(container_id)
        return found is None or not found.sandbox_id

    def _of(self, subject: str) -> _Known:
        return self._known.setdefault(subject, _Known())

    def _of_sandbox(self, sandbox_id: str) -> Iterator[Container]:
        for container in self._engine.pods_containers():
            if sandbox_id in (container.id, container.sandbox_id):
                yield container

    def _ids(self, begin: str) -> frozenset[str]:
        """The whole id, or the only known one that begins so."""
        if len(begin) == 64:
            return frozenset({begin})
        found = {one for one in (*self._engine.containers, *self._known) if one.startswith(begin)}
        return frozenset(found) if len(found) == 1 else frozenset()

    # -- at the end --------------------------------------------------------------------------------------------

    def check_lists(self, sandboxes: Iterable[cri.PodSandbox], containers: Iterable[cri.Container]) -> None:
        """Nothing has happened for a while: the lists say what the engine has."""
        listed = {one.id: one.state for one in sandboxes}
        for container in self._engine.pods_containers():
            if container.sandbox_id:
                continue
            if container.id not in listed:
                self.fail(f"sandbox {container.id[:12]} is not listed")
            elif listed[container.id] == cri.SANDBOX_READY and not container.running:
                self.fail(f"sandbox {container.id[:12]} is listed as ready and does not run")
            elif listed[container.id] == cri.SANDBOX_READY and not self._has_network(container):
                self.fail(f"sandbox {container.id[:12]} is listed as ready without its whole network")
        states = {one.id: one.state for one in containers}
        there = {one.id: one for one in self._engine.pods_containers() if one.sandbox_id}
        for container_id in states.keys() ^ there.keys():
            self.fail(f"container {container_id[:12]} is {'not ' if container_id in there else ''}listed")
        for container_id in states.keys() & there.keys():
            if there[container_id].running:
                self._check_limits(there[container_id])
            if (states[container_id] == cri.CONTAINER_RUNNING) is not there[container_id].running:
                state = cri.ContainerState.Name(states[container_id])
                self.fail(f"container {container_id[:12]} is {state}, and {there[container_id].status} in the engine")

    def check_kept_limits(self, services: Any, *, is_first: bool) -> None:
        """Nothing has happened for a while: the disk has the limits of the last updates.

        So has the cgroup, unless a server was killed in an update: ``is_first`` says that there was only one.
        """
        for kept in Inside(services).of(KeptLimits):
            written = dict(read_kept_limits(kept._folder))
            if written != kept._known and not self.disk_is_full_at_times:
                self.fail(f"limits {written} are on the disk, and those of the last updates are {kept._known}")
            for container_id, files in kept._known.items() if is_first else ():
                has = self._engine.world.kernel.cgroups.get(container_id, {})
                if wrong := {name: value for name, value in has.items() if files.get(name, value) != value}:
                    self.fail(f"{container_id[:12]} has {wrong} in its cgroup, and the last updates are {files}")

    def check_images(self, images: Iterable[cri.Image]) -> None:
        """Nothing has happened for a while: the list says what the engine has."""
        listed = {one.id: sorted(one.repo_tags) for one in images}
        there = {one.id: sorted(one.tags) for one in self._engine.images.values()}
        if listed != there:
            self.fail(f"images {listed} are listed, and the engine has {there}")

    def check_nothing_left(self, folders: Iterable[Path], pinned: Iterable[str]) -> None:
        """Everything was removed: nothing of a pod is on the node."""
        for container in self._engine.containers.values():
            self.fail(f"container {container.name} ({container.id[:12]}) is left")
        for process in self._engine.processes.values():
            if process.id not in self._engine.containers and not self._of(process.sandbox_id or process.id).made:
                continue  # the engine has lost it during its RunPodSandbox, whose undo finds no more than its network
            self.fail(f"a process of {process.name} ({process.id[:12]}) is left")
        for sandbox_id, address in self._cni.attached.items():
            self.fail(f"address {address} of {sandbox_id[:12]} is left")
        for sandbox_id in self._cni.ports:
            self.fail(f"published ports of {sandbox_id[:12]} are left")
        for sandbox_id in self._cni.masqueraded:
            self.fail(f"masquerade rules of {sandbox_id[:12]} are left")
        for problem in self._cni.problems:
            self.fail(problem)
        lost = {f"/var/run/docker/netns/{one.id[:12]}" for one in self._engine.processes.values()}
        for pin in set(pinned) - lost:
            self.fail(f"pin {pin} is left")
        for folder in folders:
            for path in sorted(folder.rglob("*")):
                if "cni-cache" in path.parts and self._power_was_cut:
                    continue  # a result that was not synced is damaged: it may be another runtime's (cni/runtime.py)
                if path.parent.name == "cni" and self.disk_is_full_at_times:
                    continue
                if path.is_file() and path.name not in STAYS:
                    self.fail(f"file {path.relative_to(folder.parent)} is left")

    def check_server(self, services: Any) -> None:
        """The server has nothing more in memory of pods that are gone."""
        for problem in left_in_memory(services, self._now()):
            self.fail(problem)

    def check_tasks(self, tasks: Iterable[asyncio.Task[Any]], usual: Iterable[str]) -> None:
        """No task is left but those that a server has that nobody calls; ``usual`` are their names."""
        more = Counter(map(kind_of, tasks)) - Counter((*usual, *_FOLLOWS))
        for name in more:
            self.fail(f"task {name!r} is left")

    def check_nri(self, servers: int) -> None:
        """Plugins saw each begin and end once and in order; those that stayed saw all of them."""
        for session in self._nri.sessions:
            whole = session.end is None and session.server == servers
            _check_session(session, self._nri.refused, self.fail, self._is_sure, whole=whole)

    def _is_sure(self, container_id: str) -> bool:
        """Whether it has one end. One that was not made, and cannot be removed, may have another at its removal."""
        return self.undo_works or self._of(container_id).made

    def check_hooks(self, servers: HookServers) -> None:
        """Hook servers were not told of an end twice, unless the server was restarted in between."""
        ends = Counter((one.server, one.container) for one in servers.told if one.event == "PostStopContainer")
        for (server, container), times in ends.items():
            if times > 1:
                self.fail(f"server {server} told a hook server {times} times of the end of {container[:12]}")

    def _now(self) -> float:
        return self._engine.now


#: Tasks of the follower, which it has only while the engine is there, and the answer of a plugin that hangs.
_FOLLOWS: Final = (
    "examine CNI network sim",
    "engine session",
    "engine events",
    "keep in sync",
    "stay in sync",
    "suspicion",
)
_CHANGES_IMAGES: Final = ("PullImage", "RemoveImage")
#: Of each container that may still be started a plugin hears when it is made, or when the plugin connects.
_OF_KNOWN: Final = ("StartContainer", "PostStartContainer", "UpdateContainer", "PostUpdateContainer")
#: What plugins are asked of a new container before the pod's lock is taken, and what follows if there is no pod then.
_UNDER_NO_LOCK: Final = ("CreateContainer", "ValidateContainerAdjustment", "StopContainer", "RemoveContainer")
#: What each part of the server keeps of pods and calls, which is empty when there are none.
_EMPTY: Final[dict[type[Any], tuple[str, ...]]] = {
    Pods: ("_marks",),
    Inventory: ("_sandboxes", "_containers", "_of_sandbox", "_starting", "_put_off", "_under_way", "_begun", "_made"),
    EngineContainers: ("_left",),
    SingleFlight: ("_flights",),
    Limits: ("_due", "_starting", "_late"),
    LogKeeper: ("_removing",),
    Events: ("_creations", "_started_pods", "_stopped", "_removed", "_evicted"),
}


class Inside:
    """Finds the parts of a composed server, so that this does not depend on how they are connected."""

    def __init__(self, services: Any) -> None:
        self._found: list[Any] = []
        seen: set[int] = set()
        todo = [services]
        while todo:
            one = todo.pop()
            if id(one) in seen or isinstance(one, (type, str, bytes, int, float, asyncio.AbstractEventLoop)):
                continue
            seen.add(id(one))
            module = type(one).__module__
            if module.startswith(("dockershim.", "cni", "checkpoints", "background")) and "_pb2" not in module:
                self._found.append(one)
                todo += gc.get_referents(one)
            elif isinstance(one, (dict, list, tuple, set)) or callable(one) or type(one).__name__ == "cell":
                todo += [
                    inner
                    for inner in gc.get_referents(one)
                    if not isinstance(inner, dict) or "__builtins__" not in inner
                ]

    def of(self, kind: type[T]) -> list[T]:
        """Every object of exactly this type."""
        return [one for one in self._found if type(one) is kind]


def left_in_memory(services: Any, now: float) -> Iterator[str]:
    """What a server remembers of pods, though there are none."""
    inside = Inside(services)
    for kind, names in _EMPTY.items():
        for found in inside.of(kind):
            for name in names:
                if value := _due(getattr(found, name), now):
                    yield f"{kind.__name__}.{name} is not empty: {str(value)[:200]}"
    for locks in inside.of(rollback.Locks):
        if locks._locks:
            yield f"a lock is held: {list(locks._locks)}"


def _due(value: Any, now: float) -> Any:
    """Without what the server looks for on purpose: containers whose create had no answer, by the end of the search."""
    if isinstance(value, dict) and all(hasattr(one, "until") for one in value.values()):
        return {key: left for key, left in value.items() if left.until + _LOOK <= now}
    return value


def _check_session(
    session: Session, refused: Set[str], fail: Callable[[str], None], is_sure: Callable[[str], bool], *, whole: bool
) -> None:
    """``refused`` are containers whose start a plugin has refused: to those that connect later they have ended."""
    begun, started, ended, removed = set(session.containers), set[str](), set[str](), set[str]()
    pods, stopped, gone = set(session.pods), set[str](), set[str]()
    where = f"NRI plugin {session.plugin} of server {session.server}"
    for told in session.told:
        container, pod = told.container, told.pod
        if container:
            about = f"{told.event} of container {container[:12]}"
            if container in removed and is_sure(container):
                fail(f"{where}: {about} after its removal")
            if told.event in _OF_KNOWN and container not in begun | refused:
                fail(f"{where}: {about}, of which it was not told before")
            match told.event:
                case "CreateContainer":
                    if container in begun:
                        fail(f"{where}: {about} twice")
                    begun.add(container)
                case "StartContainer":
                    if pod in stopped:
                        fail(f"{where}: {about} after the end of its pod")
                    ended.discard(container)
                case "PostStartContainer":
                    started.add(container)
                    if container in ended:
                        fail(f"{where}: {about} after its end")
                case "PostCreateContainer":
                    begun.add(container)
                case "StopContainer":
                    # A start that another plugin refused has an end, too, also for those that were not asked of it.
                    if container in ended & started and is_sure(container):
                        fail(f"{where}: {about} twice")
                    ended.add(container)
                case "RemoveContainer":
                    if container in begun - ended:
                        fail(f"{where}: {about} before its end")
                    removed.add(container)
            if pod in gone and told.event not in _UNDER_NO_LOCK:
                fail(f"{where}: {about} after the removal of its pod")
        elif pod:
            about = f"{told.event} of pod {pod[:12]}"
            match told.event:
                case "RunPodSandbox":
                    if pod in pods:
                        fail(f"{where}: {about} twice")
                    pods.add(pod)
                case "StopPodSandbox":
                    if pod in stopped:
                        fail(f"{where}: {about} twice")
                    stopped.add(pod)
                case "RemovePodSandbox":
                    gone.add(pod)
    if not whole:
        return
    for container in begun - removed:
        fail(f"{where}: it never heard of the removal of container {container[:12]}")
    for container in begun - ended:
        fail(f"{where}: it never heard of the end of container {container[:12]}")
    for pod in pods - stopped:
        fail(f"{where}: it never heard of the end of pod {pod[:12]}")
    for pod in pods - gone:
        fail(f"{where}: it never heard of the removal of pod {pod[:12]}")


def _name_of(call: Call) -> str:
    """The engine's name of what RunPodSandbox or CreateContainer makes."""
    is_pod = call.method == "RunPodSandbox"
    pod = (call.request.config if is_pod else call.request.sandbox_config).metadata
    own = pod if is_pod else call.request.config.metadata
    return f"k8s_{'POD' if is_pod else own.name}_{pod.name}_{pod.namespace}_{pod.uid}_{own.attempt}"


def _begins(request: Any) -> Iterator[str]:
    """The ids, or beginnings of ids, in a request."""
    for name in ("pod_sandbox_id", "container_id"):
        if name in request.DESCRIPTOR.fields_by_name and (value := getattr(request, name)):
            yield value


def kind_of(task: asyncio.Task[Any]) -> str:
    """The name of a task, without what is of one container or call."""
    return " ".join(word for word in task.get_name().split() if not any(char.isdigit() for char in word))


def _snake(name: str) -> str:
    return "".join(f"_{char.lower()}" if char.isupper() else char for char in name).lstrip("_")
