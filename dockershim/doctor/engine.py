"""The engine: whether it answers, and whether it is set up for a kubelet."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dockershim.doctor.findings import ENGINE, Finding, fail, ok, warn
from dockershim.doctor.node_files import answers
from dockershim.engine.client import TLS, Engine
from dockershim.errors import DeadlineExceeded, NotFound, ShimError, Unavailable
from dockershim.server.config import DEFAULT_DOCKER_ENDPOINT, Config
from dockershim.translate.capabilities import Capabilities, read_capabilities

#: Seconds. The server takes an engine that is silent for 3.5 s for a hung one.
_DEADLINE: Final = 4.0
_SLOW: Final = 1.0
_USUAL_SOCKETS: Final = (DEFAULT_DOCKER_ENDPOINT, "unix:///run/docker.sock", "unix:///run/user/0/docker.sock")
#: Drivers that copy whole layers, or that engines have given up.
_POOR_DRIVERS: Final = frozenset({"vfs", "native", "aufs", "devicemapper", "overlay"})
_NEEDED_LIMITS: Final = ("memory", "cpuShares", "cpuQuota", "pids")
_DAEMON_JSON: Final = "/etc/docker/daemon.json"


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """``features`` is None if the engine did not respond; ``failure`` is the reason. ``seconds`` is its response time.

    ``containers`` are the ids of all containers, running or not, ``running`` is the number of those that run;
    ``runtimes`` are the paths of OCI runtimes, by name. ``log_driver`` is the default of containers. ``swarm`` is
    whether the engine is in a swarm, ``authorization`` whether plugins decide who may do what.
    """

    features: Capabilities | None = None
    failure: ShimError | None = None
    seconds: float = 0.0
    containers: frozenset[str] = field(default_factory=frozenset)
    runtimes: Mapping[str, str] = field(default_factory=dict)
    running: int = 0
    log_driver: str = ""
    swarm: bool = False
    authorization: bool = False


def ask(config: Config) -> EngineAnswer:
    """Ask the engine, for 4 s at most. Never raises a ShimError."""
    return asyncio.run(_ask(config))


async def _ask(config: Config) -> EngineAnswer:
    began = time.monotonic()
    try:
        async with asyncio.timeout(_DEADLINE):
            async with connect(config) as engine:
                api = await engine.api_version()
                info = _object(await engine.get("/info"))
                features = read_capabilities(api, info)
                seconds = time.monotonic() - began
                listed = await engine.get("/containers/json", params={"all": "true"})
                return EngineAnswer(
                    features,
                    None,
                    seconds,
                    frozenset(ids(listed)),
                    dict(_runtimes(info)),
                    running=sum(1 for one in _objects(listed) if one.get("State") == "running"),
                    log_driver=str(info.get("LoggingDriver", "")),
                    swarm=_object(info.get("Swarm")).get("LocalNodeState", "inactive") != "inactive",
                    authorization=bool(_object(info.get("Plugins")).get("Authorization")),
                )
    except ShimError as error:
        return EngineAnswer(failure=error)
    except TimeoutError:
        return EngineAnswer(failure=DeadlineExceeded(f"no response within {_DEADLINE:g} s"))


def connect(config: Config) -> Engine:
    """A client of the engine; each of its calls ends within 4 s."""
    tls = None
    if config.docker_tls_ca or config.docker_tls_cert:
        tls = TLS(config.docker_tls_ca, config.docker_tls_cert, config.docker_tls_key, config.docker_tls_verify)
    return Engine(config.docker_endpoint, request_timeout=lambda: _DEADLINE, tls=tls)


def _object(answer: Any) -> dict[str, Any]:
    return answer if isinstance(answer, dict) else {}


def _runtimes(info: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Those that are programs at a path of their own: others are looked for in the PATH of the engine's containerd."""
    for name, runtime in _object(info.get("Runtimes")).items():
        path = _object(runtime).get("path")
        if isinstance(path, str) and path.startswith("/"):
            yield name, path


def _objects(listed: Any) -> Iterator[dict[str, Any]]:
    return (item for item in listed if isinstance(item, dict)) if isinstance(listed, list) else iter(())


def ids(listed: Any) -> Iterator[str]:
    """The ids in the engine's list of containers."""
    for item in _objects(listed):
        if isinstance(identity := item.get("Id"), str):
            yield identity


def containers_of(config: Config, runtimes: Collection[str]) -> list[str]:
    """The names of the containers, running or not, that have one of these runtimes. Raises ShimError."""
    return asyncio.run(_containers_of(config, runtimes))


async def _containers_of(config: Config, runtimes: Collection[str]) -> list[str]:
    async with connect(config) as client:
        found = []
        for identity in ids(await client.get("/containers/json", params={"all": "true"})):
            with contextlib.suppress(NotFound):  # it was removed meanwhile
                inspected = await client.get(f"/containers/{identity}/json")
                if inspected["HostConfig"].get("Runtime") in runtimes:
                    found.append(inspected["Name"].removeprefix("/"))
        return found


def check_engine(answer: EngineAnswer, endpoint: str, other_sockets: Iterable[str]) -> Iterator[Finding]:
    """``other_sockets`` are endpoints at which an engine may be instead."""
    if answer.failure is not None:
        yield fail(ENGINE, str(answer.failure), _fix_for(answer.failure, endpoint, next(iter(other_sockets), None)))
        return
    features = answer.features
    assert features is not None, "an engine that has answered has features"
    major, minor = features.api
    milliseconds = answer.seconds * 1000
    found = f"Docker {features.version}, API {major}.{minor}, responds in {milliseconds:.0f} ms on {endpoint}"
    if answer.seconds > _SLOW:
        yield warn(ENGINE, f"{found}, which is slow", "journalctl -u docker.service -n 100")
    else:
        yield ok(ENGINE, found)
    yield _storage(features)
    if features.live_restore:
        yield ok("live-restore", "enabled")
    elif answer.swarm:
        # It would not start with both.
        found = "not possible, as the engine is in a swarm: a restart of the engine stops all containers"
        yield warn("live-restore", found, "docker swarm leave, and enable it then")
    else:
        found = "disabled: a restart of the engine stops all containers"
        edit = f'add "live-restore": true to {_DAEMON_JSON}, then: systemctl reload docker.service'
        yield warn("live-restore", found, edit)


def _fix_for(failure: ShimError, endpoint: str, other: str | None) -> str:
    number = _errno_of(failure)
    if isinstance(failure, DeadlineExceeded):
        return "systemctl restart docker.service"
    if number in (errno.EACCES, errno.EPERM):
        return "sudo dockershim doctor"
    if isinstance(failure, Unavailable) and number in (errno.ENOENT, errno.ECONNREFUSED, errno.ENOTSOCK):
        if other is not None:
            return f"configure the server to use the socket that exists: --docker-endpoint={other}"
        return "systemctl start docker.service"
    if "or newer is required" in str(failure):
        return "install Docker 20.10 or newer"
    if "a newer dockershim" in str(failure):
        return "install a newer dockershim"
    return f"docker -H {endpoint} version"


def _errno_of(failure: BaseException) -> int | None:
    cause = getattr(failure.__cause__, "os_error", failure.__cause__)
    return cause.errno if isinstance(cause, OSError) else None


def _storage(features: Capabilities) -> Finding:
    store = "the containerd image store" if features.containerd_store else "the engine's own store"
    found = f"{features.storage_driver} in {store}, in {features.root_dir}"
    if features.storage_driver not in _POOR_DRIVERS:
        return ok("image store", found)
    good = "overlayfs" if features.containerd_store else "overlay2"
    edit = f'"storage-driver": "{good}" in {_DAEMON_JSON} (images are pulled again), then: systemctl restart docker'
    return warn("image store", f"{found}: slow, and needs much disk space", edit)


def other_sockets(endpoint: str, environ_host: str, answers: Callable[[str], bool] = answers) -> list[str]:
    """The default endpoints, other than ``endpoint``, at which a server responds."""
    usual = dict.fromkeys((environ_host, *_USUAL_SOCKETS))
    return [name for name in usual if name.startswith("unix:///") and name != endpoint and answers(name[7:])]


def check_cgroups(features: Capabilities, wanted: str) -> Iterator[Finding]:
    """``wanted`` is --cgroup-driver; empty means the engine's."""
    found = f"v{features.cgroup_version}, driver {features.cgroup_driver}"
    missing = [name for name in features.missing_limits if name in _NEEDED_LIMITS]
    if wanted not in ("", features.cgroup_driver):
        edit = f"remove --cgroup-driver from the server's flags, or set it to {features.cgroup_driver}"
        yield fail("cgroups", f"{found}, but --cgroup-driver is {wanted}", edit)
    elif missing:
        found = f"{found}; the kernel does not support limits of {', '.join(missing)}"
        yield warn("cgroups", found, "enable the controllers on the kernel command line, such as cgroup_enable=memory")
    else:
        yield ok("cgroups", found)


def check_runtimes(runtimes: Mapping[str, str], wanted: str, executable: Callable[[str], bool]) -> Iterator[Finding]:
    """``wanted`` is --oci-runtime, empty for none; ``executable`` tells of a path whether a program is there."""
    if wanted and wanted not in runtimes:
        found = f"--oci-runtime is {wanted}, but the engine has no runtime with this name and a path"
        edit = f'"runtimes": {{"{wanted}": {{"path": "/usr/lib/dockershim/dockershim-runc"}}}} in {_DAEMON_JSON}'
        yield warn("OCI runtimes", found, f"{edit}, then: systemctl reload docker.service")
    gone = {name: path for name, path in sorted(runtimes.items()) if not executable(path)}
    for name, path in gone.items():
        found = f"{path} of the runtime {name} is not an executable: its pods cannot start, and need 10 s to stop"
        yield fail("OCI runtimes", found, f"restore {path} with mode 755")
    if runtimes and not gone and (not wanted or wanted in runtimes):
        yield ok("OCI runtimes", ", ".join(f"{name} at {path}" for name, path in sorted(runtimes.items())))


def check_lsms(features: Capabilities, kernel: Iterable[str]) -> Iterator[Finding]:
    """``kernel`` are the security modules that are enabled in the kernel."""
    active = set(kernel) & {"apparmor", "selinux"}
    engines = {name for name in ("apparmor", "selinux") if getattr(features, name)}
    if not active - engines:
        yield ok("security modules", f"kernel: {_list(active)}; engine: {_list(engines)}")
    if "apparmor" in active - engines:
        found = "AppArmor is enabled in the kernel, but the engine starts containers without it"
        yield warn("security modules", found, "apt-get install apparmor && systemctl restart docker.service")
    if "selinux" in active - engines:
        edit = f'add "selinux-enabled": true to {_DAEMON_JSON}, then: systemctl restart docker.service'
        found = "SELinux is enabled in the kernel, but the engine starts containers without it"
        yield warn("security modules", found, edit)


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
