"""The kubelet's configuration, compared with ours. Only files are read: the kubelet need not run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from dockershim.doctor.findings import Finding, fail, ok, warn
from dockershim.doctor.node_files import text
from dockershim.translate.capabilities import Capabilities

CONFIGURATION: Final = Path("/var/lib/kubelet/config.yaml")
#: Files of flags, in the order in which kubeadm's unit gives them to the kubelet: the last one wins.
FLAG_FILES: Final = (
    Path("/var/lib/kubelet/kubeadm-flags.env"),
    Path("/etc/default/kubelet"),
    Path("/etc/sysconfig/kubelet"),
)
#: Where systemd looks for the kubelet's unit, the first one that exists counts; and the folders of drop-ins, in their
#: order. Of two drop-ins with the same name the last one counts.
UNIT_FOLDERS: Final = (Path("/etc/systemd/system"), Path("/usr/lib/systemd/system"), Path("/lib/systemd/system"))
_UNIT: Final = "kubelet.service"
CRICTL: Final = Path("/etc/crictl.yaml")
_ENDPOINT: Final = "container-runtime-endpoint"
_RESTART: Final = "then: systemctl restart kubelet"


@dataclass(frozen=True, slots=True)
class Setting:
    """A value, and the file that has it."""

    value: str
    source: Path


@dataclass(frozen=True, slots=True)
class Kubelet:
    """What the files say; None for what they do not say. ``problem`` is why one of them cannot be used."""

    endpoint: Setting | None = None
    cgroup_driver: Setting | None = None
    fail_swap_on: bool = True
    problem: str = ""


def read_kubelet(
    configuration: Path = CONFIGURATION,
    flag_files: tuple[Path, ...] = FLAG_FILES,
    unit_folders: tuple[Path, ...] = UNIT_FOLDERS,
) -> Kubelet | None:
    """The kubelet's settings: a flag wins over the configuration. None if the node has no kubelet."""
    flags: dict[str, Setting] = {}
    for path in flag_files:
        flags |= {name: Setting(value, path) for name, value in _flags(text(path) or "")}
    command = read_command(unit_folders)
    if command is not None:
        flags |= {name: Setting(value, command.source) for name, value in _flags_of(command.value)}
    document: Mapping[str, Any] = {}
    problem = ""
    if configuration.exists():
        try:
            document = parse_mapping(text(configuration))
        except ValueError as error:
            problem = f"{configuration}: {error}"
    elif not flags and command is None:
        return None
    return Kubelet(
        endpoint=flags.get(_ENDPOINT) or _setting(document, "containerRuntimeEndpoint", configuration),
        cgroup_driver=flags.get("cgroup-driver") or _setting(document, "cgroupDriver", configuration),
        fail_swap_on=_fails_on_swap(flags, document),
        problem=problem,
    )


def parse_mapping(content: str | None) -> Mapping[str, Any]:
    """A YAML mapping, from the text of a file; None if it cannot be read. Raises ValueError with the reason."""
    if content is None:
        raise ValueError("cannot be read, or is too large")
    try:
        document = yaml.safe_load(content)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ValueError(f"invalid YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(document, dict):
        raise ValueError("must be a YAML mapping")
    return document


def _setting(document: Mapping[str, Any], key: str, source: Path) -> Setting | None:
    value = document.get(key)
    return Setting(value, source) if isinstance(value, str) and value else None


def _flags(content: str) -> Iterator[tuple[str, str]]:
    """The flags in the values of a file of variables, as systemd's EnvironmentFile= reads it."""
    for line in content.splitlines():
        name, equals, value = line.partition("=")
        if not equals or name.lstrip().startswith("#"):
            continue
        try:
            yield from _flags_of(" ".join(shlex.split(value)))
        except ValueError:
            continue


def _flags_of(command: str) -> list[tuple[str, str]]:
    """The flags among the words of a command. Raises ValueError for unbalanced quotes."""
    words = shlex.split(command)
    found = []
    for word, following in zip(words, [*words, ""][1:], strict=True):
        if word.startswith("--"):
            flag, joined, own = word[2:].partition("=")
            found.append((flag, own if joined else following))
    return found


def read_command(unit_folders: tuple[Path, ...] = UNIT_FOLDERS) -> Setting | None:
    """The last ExecStart= of the kubelet's unit and its drop-ins, and the file that has it. None without a unit."""
    unit = next((folder / _UNIT for folder in unit_folders if (folder / _UNIT).is_file()), None)
    if unit is None:
        return None
    drop_ins = {path.name: path for folder in reversed(unit_folders) for path in (folder / f"{_UNIT}.d").glob("*.conf")}
    command = Setting("", unit)
    for path in (unit, *(drop_ins[name] for name in sorted(drop_ins))):
        for line in (text(path) or "").replace("\\\n", " ").splitlines():
            key, _, value = line.strip().partition("=")
            if key.strip() == "ExecStart" and _is_quoted(value):
                command = Setting(" ".join(value.split()), path)
    return command


def _is_quoted(command: str) -> bool:
    try:
        shlex.split(command)
    except ValueError:
        return False
    return True


def _fails_on_swap(flags: Mapping[str, Setting], document: Mapping[str, Any]) -> bool:
    if (flag := flags.get("fail-swap-on")) is not None:
        return flag.value != "false"
    return document.get("failSwapOn") is not False


def check_kubelet(kubelet: Kubelet | None, endpoint: str, features: Capabilities | None) -> Iterator[Finding]:
    """``endpoint`` is the server's; ``features`` the engine's, None if it could not be asked."""
    if kubelet is None:
        yield ok("kubelet", f"no kubelet configuration at {CONFIGURATION}")
        return
    if kubelet.problem:
        yield fail("kubelet", kubelet.problem, f"fix the file {CONFIGURATION}, {_RESTART}")
        return
    yield _endpoint(kubelet.endpoint, endpoint)
    if features is not None:
        yield _driver(kubelet.cgroup_driver, features.cgroup_driver)


def _endpoint(setting: Setting | None, endpoint: str) -> Finding:
    title = "kubelet's endpoint"
    if setting is None:
        edit = f"set containerRuntimeEndpoint: {endpoint} in {CONFIGURATION}, {_RESTART}"
        return warn(title, "not set in any file of the kubelet", edit)
    found = f"{setting.value} ({setting.source})"
    if _plain(setting.value) == _plain(endpoint):
        return ok(title, found)
    edit = f"set it to {endpoint} in {setting.source}, {_RESTART}"
    return fail(title, f"{found}, but the server listens on {endpoint}", edit)


def check_crictl(settings: str | None, endpoint: str, *, installed: bool) -> Iterator[Finding]:
    """``settings`` is the text of /etc/crictl.yaml, None if it does not exist."""
    title = "crictl"
    if not installed:
        yield ok(title, "not installed")
        return
    try:
        found = parse_mapping(settings or "{}").get("runtime-endpoint")
    except ValueError as error:
        yield warn(title, f"{CRICTL}: {error}", f"crictl config --set runtime-endpoint={endpoint}")
        return
    if isinstance(found, str) and _plain(found) == _plain(endpoint):
        yield ok(title, f"{found} ({CRICTL})")
    else:
        said = f"{found} ({CRICTL}), but the server listens on {endpoint}" if found else f"not set in {CRICTL}"
        yield warn(title, said, f"crictl config --set runtime-endpoint={endpoint}")


def _plain(endpoint: str) -> str:
    path = endpoint.removeprefix("unix://")
    return path.removeprefix("/var") if path.startswith("/var/run/") else path


def _driver(setting: Setting | None, engines: str) -> Finding:
    title = "kubelet's cgroup driver"
    if setting is None:
        return ok(title, f"not set: kubelet 1.31 and newer use the engine's, which is {engines}")
    found = f"{setting.value} ({setting.source})"
    if setting.value == engines:
        return ok(title, found)
    edit = f"set cgroupDriver: {engines} in {setting.source}, {_RESTART}"
    return fail(title, f"{found}, but the engine's is {engines}", edit)


def check_swap(swaps: str, kubelet: Kubelet | None) -> Iterator[Finding]:
    """``swaps`` is /proc/swaps, proc(5)."""
    areas = [line.split()[0] for line in swaps.splitlines()[1:] if line.strip()]
    if not areas:
        yield ok("swap", "off")
    elif kubelet is None or not kubelet.fail_swap_on:
        whose = "failSwapOn is false" if kubelet else "there is no kubelet"
        yield ok("swap", f"on: {', '.join(areas[:4])}; {whose}")
    else:
        found = f"on: {', '.join(areas[:4])}; the kubelet does not start with swap unless failSwapOn is false"
        yield fail("swap", found, "swapoff -a (and remove it from /etc/fstab)")
