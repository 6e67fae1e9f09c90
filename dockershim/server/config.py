"""The configuration: one table of options for flags, environment, file and defaults.

The fields of ``Config`` are the table. Each field has the function that reads its value, a help text, its other names
and whether SIGHUP applies it to the running server. The rest of this module works on that table.

A value comes from the first source that has it: flag, environment (``DOCKERSHIM_`` and the key in capitals),
configuration files (TOML), default. Flags of cri-dockerd keep their names and meanings, so that its unit files only
need another program name.
"""

from __future__ import annotations

import dataclasses
import difflib
import ipaddress
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar, cast

T = TypeVar("T")

ENVIRONMENT_PREFIX: Final = "DOCKERSHIM_"
DEFAULT_FILE: Final = Path("/etc/dockershim/config.toml")
DEFAULT_DOCKER_ENDPOINT: Final = "unix:///var/run/docker.sock"
DEFAULT_STREAMING_ADDRESS: Final = "127.0.0.1:0"
DEFAULT_REQUEST_TIMEOUT: Final = 120.0
# The kernel's sockaddr_un holds 108 bytes with the closing NUL; a socket is bound under a longer name first.
MAX_SOCKET_PATH: Final = 107 - len(".") - len(".4194304")


class ConfigError(Exception):
    """Values that cannot be used. ``problems`` has one line for each, with its key and its source."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


# -- Readers of values. Each takes text (flag, environment) or a TOML value, and raises ValueError.


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a string")
    return value


def _choice(*allowed: str, **synonyms: str) -> Callable[[object], str]:
    def read(value: object) -> str:
        text = _text(value)
        chosen = synonyms.get(text, text)
        if chosen not in allowed:
            raise ValueError(f"must be one of {', '.join(sorted({*allowed, *synonyms}))}")
        return chosen

    return read


def _level(value: object) -> str:
    # cri-dockerd has three more levels at the ends; they mean the nearest one here.
    read = _choice("error", "warning", "info", "debug", warn="warning", trace="debug", fatal="error", panic="error")
    return read(_text(value).lower())


def _boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    # The spellings of Go's strconv.ParseBool, which cri-dockerd's flags follow.
    if value in ("1", "t", "T", "true", "TRUE", "True"):
        return True
    if value in ("0", "f", "F", "false", "FALSE", "False"):
        return False
    raise ValueError("must be true or false")


def _integer(lowest: int, highest: int) -> Callable[[object], int]:
    def read(value: object) -> int:
        if isinstance(value, str) and value.isdecimal():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
            raise ValueError(f"must be an integer between {lowest} and {highest}")
        return value

    return read


def _size(value: object) -> str:
    text = _text(value).lower()
    if re.fullmatch(r"[1-9]\d{0,8}[kmg]", text, re.ASCII) is None:
        raise ValueError('must be a size such as "512k", "32m" or "1g"')
    return text


_UNITS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION_PART: Final = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_PLAIN_NUMBER: Final = re.compile(r"\d+\.?\d*|\.\d+", re.ASCII)
MAX_DURATION: Final = float(2**63 // 10**9)


def parse_duration(value: object) -> float:
    """Seconds from a Go duration (``1m0s``, ``250ms``) or a plain number of seconds.

    Raises ValueError for anything else, for a negative one, and for one that does not fit into Go's int64 of
    nanoseconds.
    """
    seconds = _seconds(value)
    if seconds is None or not 0 <= seconds <= MAX_DURATION:
        raise ValueError('must be a duration such as "1m30s" or "250ms", or a number of seconds')
    return seconds


def _seconds(value: object) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, str):
        return None
    if _PLAIN_NUMBER.fullmatch(value):
        return float(value)
    parts = list(_DURATION_PART.finditer(value))
    if not parts or "".join(part[0] for part in parts) != value:
        return None
    return sum(float(part[1]) * _UNITS[part[2]] for part in parts)


def format_duration(seconds: float) -> str:
    """``seconds`` as a Go duration that ``parse_duration`` reads back, rounded to nanoseconds."""
    total = round(seconds * 10**9)
    minutes, nanoseconds = divmod(total, 60 * 10**9)
    hours, minutes = divmod(minutes, 60)
    whole, fraction = divmod(nanoseconds, 10**9)
    tail = f"{whole}.{fraction:09}".rstrip("0").rstrip(".") + "s"
    if hours:
        return f"{hours}h{minutes}m{tail}"
    return f"{minutes}m{tail}" if minutes else tail


def _request_timeout(value: object) -> float:
    # cri-dockerd's default of 0 means its built-in limit, not "none". A call without a limit could block forever.
    return parse_duration(value) or DEFAULT_REQUEST_TIMEOUT


def _positive_duration(value: object) -> float:
    seconds = parse_duration(value)
    if seconds == 0:
        raise ValueError("must be greater than 0")
    return seconds


def _path(value: object) -> Path:
    text = _text(value)
    if not text.startswith("/") or "\0" in text:
        raise ValueError("must be an absolute path")
    return Path(text)


def _optional_path(value: object) -> Path | None:
    return None if value == "" else _path(value)


def _paths(value: object) -> tuple[Path, ...]:
    items: Sequence[object] = value.split(",") if isinstance(value, str) else cast("Sequence[object]", value)
    if not isinstance(items, list) or not items:
        raise ValueError("must be a list of absolute paths, or a string of them separated by commas")
    return tuple(_path(item.strip() if isinstance(item, str) else item) for item in items)


def _optional_paths(value: object) -> tuple[Path, ...]:
    return () if value in ("", []) else _paths(value)


def _texts(*allowed: str) -> Callable[[object], tuple[str, ...]]:
    """A reader of a list, or of a string separated by commas. Without ``allowed``, any string is accepted."""

    def read(value: object) -> tuple[str, ...]:
        items = [item for item in value.split(",") if item] if isinstance(value, str) else value
        if not isinstance(items, list):
            raise ValueError("must be a list, or a string separated by commas")
        texts = tuple(_text(item).strip() for item in items)
        if allowed and not set(texts) <= set(allowed):
            raise ValueError(f"must contain only {', '.join(sorted(allowed))}")
        return texts

    return read


def _endpoint(value: object) -> str:
    text = _text(value)
    # Old kubelets and their unit files have only the path of the socket.
    endpoint = f"unix://{text}" if text.startswith("/") else text
    if endpoint.startswith("fd://"):
        return endpoint
    path = endpoint.removeprefix("unix://")
    if path == endpoint or not path.startswith("/") or path.endswith("/") or "\0" in path:
        raise ValueError("must be unix:///path, or fd:// for a socket passed by systemd")
    if len(path.encode()) > MAX_SOCKET_PATH:
        raise ValueError(f"must have a path no longer than {MAX_SOCKET_PATH} bytes")
    return endpoint


def _socket(value: object) -> Path:
    path = _path(value)
    if len(bytes(path)) > MAX_SOCKET_PATH:
        raise ValueError(f"must be no longer than {MAX_SOCKET_PATH} bytes")
    return path


def _optional_endpoint(value: object) -> str:
    return "" if value == "" else _endpoint(value)


def _docker_endpoint(value: object) -> str:
    text = _text(value)
    if text and not re.match(r"(unix:///|tcp://|http://|https://).", text):
        raise ValueError("must be unix:///path, tcp://host:port, or empty to use DOCKER_HOST")
    return text


def _streaming_address(value: object) -> str:
    """``host:port``, IPv6 in brackets. As in cri-dockerd the port, or all of it, may be left out."""
    text = _text(value)
    if not text:
        return DEFAULT_STREAMING_ADDRESS
    return _address_and_port(f"{text}:0" if _is_address(text.strip("[]")) else text)


def _metrics_address(value: object) -> str:
    return _address_and_port(value) if value != "" else ""


def _loopback_address(value: object) -> str:
    """``address:port`` on a loopback interface: the page has no authentication, and shows names of pods."""
    address = _metrics_address(value)
    if address and not ipaddress.ip_address(address.rpartition(":")[0].strip("[]")).is_loopback:
        raise ValueError("must be a loopback address with a port, such as 127.0.0.1:9324; use ssh -L for remote access")
    return address


def _address_and_port(value: object) -> str:
    host, _, port = _text(value).rpartition(":")
    host = host.strip("[]")
    if not _is_address(host) or not port.isdecimal() or int(port) > 65535:
        raise ValueError("must be an IP address or address:port")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _cidrs(value: object) -> str:
    text = _text(value)
    for part in filter(None, text.split(",")):
        try:
            ipaddress.ip_network(part.strip(), strict=False)
        except ValueError:
            raise ValueError("must be a CIDR such as 10.244.0.0/24, or two separated by a comma") from None
    return text


# -- The table.


@dataclass(frozen=True, slots=True)
class Option:
    """A row of the table, for the rest of this module."""

    key: str
    default: object
    read: Callable[[object], object]
    help: str
    also: tuple[str, ...]
    reloads: bool
    effective: bool
    repeats: bool

    @property
    def keys(self) -> tuple[str, ...]:
        """Every name of the option; the first is its attribute in ``Config``."""
        return (self.key, *self.also)

    @property
    def is_switch(self) -> bool:
        """Whether the bare flag, without a value, means true."""
        return isinstance(self.default, bool)


_ROW: Final = "option"


def _option(
    default: T,
    read: Callable[[object], T],
    text: str,
    *,
    also: tuple[str, ...] = (),
    reloads: bool = False,
    effective: bool = True,
    repeats: bool = False,
) -> T:
    row = {"read": read, "help": text, "also": also, "reloads": reloads, "effective": effective, "repeats": repeats}
    return dataclasses.field(default=default, metadata={_ROW: row})


@dataclass(frozen=True, slots=True)
class Config:
    """The values of all options. Durations are in seconds. Options of cri-dockerd have the same meaning as there."""

    container_runtime_endpoint: str = _option(
        "unix:///run/dockershim.sock",
        _endpoint,
        "Endpoint of the CRI: unix:///path, or fd:// for a socket passed by systemd (fd://name selects one by name).",
    )
    image_service_endpoint: str = _option(
        "",
        _optional_endpoint,
        "Endpoint of the ImageService. Empty: the container runtime endpoint.",
    )
    docker_endpoint: str = _option(
        DEFAULT_DOCKER_ENDPOINT,
        _docker_endpoint,
        "Endpoint of the Docker Engine: unix:///path or tcp://host:port. Empty: DOCKER_HOST, or the default socket.",
    )
    docker_tls_ca: Path | None = _option(
        None, _optional_path, "CA certificates that verify the engine's certificate over TLS."
    )
    docker_tls_cert: Path | None = _option(
        None, _optional_path, "Client certificate that is presented to the engine over TLS."
    )
    docker_tls_key: Path | None = _option(None, _optional_path, "Private key of docker_tls_cert.")
    docker_tls_verify: bool = _option(True, _boolean, "Verify the engine's certificate over TLS.")
    root_directory: Path = _option(
        Path("/var/lib/dockershim"),
        _path,
        "Directory of state that survives a reboot: checkpoints. Only one server at a time can use it.",
        also=("cri_dockerd_root_directory",),
    )
    adopt_from: tuple[Path, ...] = _option(
        (),
        _optional_paths,
        "Root directory of another dockershim to adopt checkpoints from, such as /var/lib/cri-dockerd. Repeatable.",
        repeats=True,
    )
    state_directory: Path = _option(
        Path("/run/dockershim"),
        _path,
        "Directory of state that does not survive a reboot: pinned network namespaces and private sockets.",
    )
    pod_infra_container_image: str = _option(
        "", _text, "Image of the container that holds a pod's namespaces. Empty: the image built into dockershim."
    )
    image_pull_progress_deadline: float = _option(
        60.0, _positive_duration, "Cancel an image pull that makes no progress for this long.", reloads=True
    )
    runtime_request_timeout: float = _option(
        DEFAULT_REQUEST_TIMEOUT,
        _request_timeout,
        "Timeout of one call to the engine, except for pull, logs, exec and attach. 0: the default.",
        reloads=True,
    )
    inventory_check_interval: float = _option(
        60.0,
        _positive_duration,
        "How often the inventory of containers and images is compared with the engine's lists.",
    )
    disk_usage_interval: float = _option(
        60.0,
        _positive_duration,
        "How often the writable layer of a running container is measured. Large layers are measured less often.",
    )
    streaming_bind_addr: str = _option(
        DEFAULT_STREAMING_ADDRESS,
        _streaming_address,
        "Address of the exec, attach and port-forward server: address or address:port. Port 0: any free port.",
    )
    streaming_idle_timeout: float = _option(
        4 * 3600.0, _positive_duration, "Close an exec, attach or port-forward stream that is idle for this long."
    )
    streaming_tls_cert: Path | None = _option(
        None,
        _optional_path,
        "Certificate of the exec, attach and port-forward server. Reloaded within seconds. Empty: no TLS.",
    )
    streaming_tls_key: Path | None = _option(None, _optional_path, "Private key of streaming_tls_cert.")
    streaming_tls_client_ca: Path | None = _option(
        None,
        _optional_path,
        "CA certificates. When set, exec, attach and port-forward require a client certificate signed by one of them.",
    )
    metrics_bind_addr: str = _option(
        "",
        _metrics_address,
        "Address of the metrics server, which serves /metrics over HTTP: address:port. Empty: disabled.",
    )
    metrics_tls_cert: Path | None = _option(
        None,
        _optional_path,
        "Certificate of the metrics server. Reloaded within seconds. Empty: no TLS.",
        also=("metrics_tls_cert_file",),
    )
    metrics_tls_key: Path | None = _option(
        None, _optional_path, "Private key of metrics_tls_cert.", also=("metrics_tls_key_file",)
    )
    metrics_tls_client_ca: Path | None = _option(
        None,
        _optional_path,
        "CA certificates. When set, the metrics server requires a client certificate signed by one of them.",
    )
    debug_bind_addr: str = _option(
        "",
        _loopback_address,
        "Loopback address of the debug server, which shows the state of the node over HTTP: 127.0.0.1:port. Empty: "
        "disabled.",
    )
    network_plugin: str = _option(
        "cni",
        _choice("cni", "kubenet", "docker", **{"": "docker", "no-op": "docker"}),
        "Network of pods: cni, kubenet, or docker (synonyms: no-op and empty) for the engine's own bridge.",
    )
    cni_conf_dir: Path = _option(Path("/etc/cni/net.d"), _path, "Directory of CNI network configurations.")
    cni_bin_dir: tuple[Path, ...] = _option(
        (Path("/opt/cni/bin"),), _paths, "Directories of CNI plugins, searched in order."
    )
    cni_cache_dir: Path = _option(Path("/var/lib/cni/cache"), _path, "Directory of the cached results of CNI plugins.")
    cni_timeout: float = _option(220.0, _positive_duration, "Timeout of setting up or tearing down a pod's network.")
    network_plugin_mtu: int = _option(0, _integer(0, 65535), "MTU of the network that kubenet creates. 0: the default.")
    hairpin_mode: str = _option(
        "none",
        _choice("none", "promiscuous-bridge", "hairpin-veth"),
        "How kubenet lets a pod reach itself through a Service.",
    )
    pod_cidr: str = _option("", _cidrs, "CIDR of pod addresses for kubenet, used until the kubelet sends one.")
    ipv6_dual_stack: bool = _option(
        False,
        _boolean,
        "Accepted for compatibility with cri-dockerd and ignored: one address per IP family is always reported.",
        effective=False,
    )
    cgroup_driver: str = _option(
        "",
        _choice("", "cgroupfs", "systemd"),
        "The engine's cgroup driver, reported to the kubelet before the engine answers. Empty: ask the engine.",
    )
    oci_runtime: str = _option(
        "",
        _text,
        "The engine's name for dockershim-runc, which user namespaces and OCI hooks of pods require. Empty: none.",
    )
    early_network: bool = _option(
        False,
        _boolean,
        "Run the CNI plugins of a pod while its infra container starts. Requires oci_runtime and Docker 28 or newer.",
    )
    container_log_format: str = _option(
        "cri",
        _choice("cri", "docker"),
        "Log of a new container: cri for a file in CRI format, docker for a symbolic link to the engine's json-file.",
    )
    engine_log_max_size: str = _option(
        "32m", _size, "Size at which the engine rotates a container's json-file, with container_log_format cri."
    )
    # With only one file, the engine empties it in place, and lines that were not copied yet are lost.
    engine_log_max_files: int = _option(
        3,
        _integer(2, 1000),
        "Number of json-files that the engine keeps for a container, with container_log_format cri.",
    )
    runtime_hooks_dir: Path = _option(
        Path("/etc/runtime/hookserver.d"), _path, "Directory of hook server configurations, one file for each server."
    )
    runtime_hook_timeout: float = _option(5.0, _positive_duration, "Timeout of a call to a hook server.", reloads=True)
    nri: bool = _option(
        False, _boolean, "Enable NRI, whose plugins are notified of pods and containers and can adjust containers."
    )
    nri_socket: Path = _option(Path("/var/run/nri/nri.sock"), _socket, "Socket that NRI plugins connect to.")
    nri_disable_connections: bool = _option(
        False, _boolean, "Do not open the NRI socket: use only the plugins in nri_plugin_dir."
    )
    nri_plugin_dir: Path = _option(Path("/opt/nri/plugins"), _path, "Directory of NRI plugins that the server starts.")
    nri_plugin_config_dir: Path = _option(
        Path("/etc/nri/conf.d"), _path, "Directory of the configurations of these plugins."
    )
    nri_plugin_registration_timeout: float = _option(
        5.0, _positive_duration, "Timeout of the registration of an NRI plugin.", reloads=True
    )
    nri_plugin_request_timeout: float = _option(
        2.0, _positive_duration, "Timeout of a request to an NRI plugin.", reloads=True
    )
    nri_default_validator: bool = _option(
        False, _boolean, "Validate adjustments of NRI plugins against the options below and the pod's annotations."
    )
    nri_reject: tuple[str, ...] = _option(
        (),
        _texts("custom-seccomp", "namespace", "oci-hook", "runtime-default-seccomp", "sysctl", "unconfined-seccomp"),
        "Adjustments that the validator rejects.",
    )
    nri_required_plugins: tuple[str, ...] = _option(
        (), _texts(), "NRI plugins that the validator requires to create a container: name or index-name."
    )
    nri_tolerate_missing_plugins_annotation: str = _option(
        "", _text, "Annotation that, set to true, exempts a pod from nri_required_plugins. Empty: none."
    )
    log_level: str = _option(
        "info",
        _level,
        "Minimum severity of log messages.",
        reloads=True,
    )
    log_format: str = _option(
        "text", _choice("text", "json"), "Format of log messages: text, or json for one object per line.", reloads=True
    )
    shutdown_grace: float = _option(
        30.0, parse_duration, "How long calls in flight may take to finish after SIGTERM.", reloads=True
    )
    runtime_cgroups: str = _option(
        "", _text, "Accepted for compatibility with cri-dockerd and ignored.", effective=False
    )


OPTIONS: Final[tuple[Option, ...]] = tuple(
    Option(key=field.name, default=field.default, **field.metadata[_ROW]) for field in dataclasses.fields(Config)
)
_BY_KEY: Final = {key: option for option in OPTIONS for key in option.keys}


def flag_name(key: str) -> str:
    """``--root-directory`` for ``root_directory``."""
    return "--" + key.replace("_", "-")


# -- Merging the sources.


@dataclass(frozen=True, slots=True)
class _Entry:
    """A value, and its source in words."""

    value: object
    origin: str


def load(
    flags: Mapping[str, str],
    environ: Mapping[str, str],
    file: Path | None = None,
    defaults: Mapping[str, str] | None = None,
) -> Config:
    """The configuration from ``flags`` (by any key of an option, as text), environment and files.

    A ``file`` must exist; without one, the default file is read if it exists. The files ``*.toml`` in the folder beside
    it, with its name and ``.d``, are read after it in the order of their names. ``defaults`` come before those of the
    table, by key. Raises ConfigError with every value that cannot be used.
    """
    return _load(flags, environ, file, defaults or {})[0]


def _load(
    flags: Mapping[str, str], environ: Mapping[str, str], file: Path | None, defaults: Mapping[str, str]
) -> tuple[Config, dict[str, _Entry]]:
    problems: list[str] = []
    entries = {key: _Entry(value, "default") for key, value in defaults.items()}
    for source in (_from_files(file, problems), _from_environment(environ, problems), _from_flags(flags)):
        entries.update(source)
    values: dict[str, Any] = {}
    for option in OPTIONS:
        if (entry := entries.get(option.key)) is not None:
            try:
                values[option.key] = option.read(entry.value)
            except ValueError as error:
                problems.append(f"{option.key} ({entry.origin}): {error}, got {entry.value!r}")
    if problems:
        raise ConfigError(problems)
    config = _settled(Config(**values), environ)
    if problems := list(_incomplete(config)):
        raise ConfigError(problems)
    return config, entries


def _incomplete(config: Config) -> Iterator[str]:
    for name in ("docker_tls", "streaming_tls", "metrics_tls"):
        if bool(getattr(config, f"{name}_cert")) != bool(getattr(config, f"{name}_key")):
            yield f"{name}_cert, {name}_key: must be set together"
    for name in ("streaming_tls", "metrics_tls"):
        if getattr(config, f"{name}_client_ca") and not getattr(config, f"{name}_cert"):
            yield f"{name}_client_ca: requires TLS; set {name}_cert and {name}_key"


def _settled(config: Config, environ: Mapping[str, str]) -> Config:
    """``config`` with the values filled in that depend on the environment or on other options."""
    if not config.docker_endpoint:
        config = dataclasses.replace(config, docker_endpoint=_engine_of(environ))
    if config.image_service_endpoint == config.container_runtime_endpoint:
        config = dataclasses.replace(config, image_service_endpoint="")
    if config.root_directory in config.adopt_from:
        # Its checkpoints are this server's own.
        others = tuple(root for root in config.adopt_from if root != config.root_directory)
        config = dataclasses.replace(config, adopt_from=others)
    return config


def _engine_of(environ: Mapping[str, str]) -> str:
    try:
        return _docker_endpoint(environ.get("DOCKER_HOST", "")) or DEFAULT_DOCKER_ENDPOINT
    except ValueError as error:
        raise ConfigError([f"docker_endpoint (environment DOCKER_HOST): {error}"]) from None


def _from_flags(flags: Mapping[str, str]) -> dict[str, _Entry]:
    return {_BY_KEY[key].key: _Entry(value, f"flag {flag_name(key)}") for key, value in flags.items()}


_NOT_OPTIONS: Final = {f"{ENVIRONMENT_PREFIX}CONFIG"}
# Kubernetes sets these in every pod if its namespace has a service named dockershim.
_SERVICE_LINK: Final = re.compile(rf"{ENVIRONMENT_PREFIX}(SERVICE_(HOST|PORT)\w*|PORT|PORT_\d+_(TCP|UDP|SCTP)\w*)")


def _from_environment(environ: Mapping[str, str], problems: list[str]) -> dict[str, _Entry]:
    entries = {}
    for name, value in environ.items():
        if not name.startswith(ENVIRONMENT_PREFIX) or name in _NOT_OPTIONS or _SERVICE_LINK.fullmatch(name):
            continue
        key = name.removeprefix(ENVIRONMENT_PREFIX).lower()
        option = _BY_KEY.get(key)
        if option is None:
            problems.append(f"{name} (environment): unknown option{did_you_mean(key, _BY_KEY)}")
        else:
            entries[option.key] = _Entry(value, f"environment {name}")
    return entries


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the most similar known name, or nothing."""
    similar = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {similar[0]}?" if similar else ""


def _from_files(file: Path | None, problems: list[str]) -> dict[str, _Entry]:
    path = file or DEFAULT_FILE
    entries = _from_file(path, problems, must_exist=file is not None)
    folder = path.with_name(f"{path.name}.d")
    try:
        drop_ins = sorted(child for child in folder.iterdir() if child.suffix == ".toml")
    except FileNotFoundError:
        return entries
    except OSError as error:
        problems.append(f"config ({folder}): {error.strerror}")
        return entries
    for drop_in in drop_ins:
        entries |= _from_file(drop_in, problems, must_exist=True)
    return entries


def _from_file(path: Path, problems: list[str], *, must_exist: bool) -> dict[str, _Entry]:
    try:
        with path.open("rb") as stream:
            table = tomllib.load(stream)
    except FileNotFoundError as error:
        if must_exist:
            problems.append(f"config ({path}): {error.strerror}")
        return {}
    except OSError as error:
        problems.append(f"config ({path}): {error.strerror}")
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        problems.append(f"config ({path}): {error}")
        return {}
    problems += [f"{key} ({path}): unknown option{did_you_mean(key, _BY_KEY)}" for key in table if key not in _BY_KEY]
    return {_BY_KEY[key].key: _Entry(value, str(path)) for key, value in table.items() if key in _BY_KEY}


# -- Other uses of the table.


def default_file() -> str:
    """A TOML file with an explanation of every key, and its default as a comment."""
    return "\n".join(f"{_comment(option)}\n# {option.key} = {to_toml(option.default)}\n" for option in OPTIONS)


def effective_file(flags: Mapping[str, str], environ: Mapping[str, str], file: Path | None = None) -> str:
    """What ``load`` gives, as a TOML file: each value with its source as a comment. Raises ConfigError."""
    config, entries = _load(flags, environ, file, {})
    lines = []
    for option in OPTIONS:
        value = getattr(config, option.key)
        entry = entries.get(option.key)
        origin = entry.origin if entry is not None else "default"
        lines.append(f"{option.key} = {to_toml(value)}  # {origin}\n")
    return "".join(lines)


def drop_in(content: bytes | None, settings: Mapping[str, object], author: str) -> bytes:
    """A drop-in file with these keys, and those of ``content`` that it does not replace. ``author`` is a command.

    Raises ValueError if ``content`` is not TOML.
    """
    before = tomllib.loads(content.decode()) if content is not None else {}
    lines = (f"{key} = {_written(value)}\n" for key, value in {**before, **settings}.items())
    return f"# Written by dockershim {author}.\n{''.join(lines)}".encode()


def _written(value: object) -> str:
    return to_toml(tuple(value) if isinstance(value, list) else value)


def _comment(option: Option) -> str:
    return f"# {option.help}" + (" Reloaded on SIGHUP." if option.reloads else "")


def to_toml(value: object) -> str:
    """The value of an option as it is written in the file."""
    if value is None:
        return '""'
    if isinstance(value, bool | int):
        return json.dumps(value)
    if isinstance(value, float):
        return json.dumps(format_duration(value))
    if isinstance(value, tuple):
        return f"[{', '.join(to_toml(item) for item in value)}]"
    return json.dumps(str(value))


def without_effect(config: Config) -> tuple[str, ...]:
    """Keys that are set and have no effect in dockershim."""
    return tuple(
        option.key for option in OPTIONS if not option.effective and option.key in _differing(config, Config())
    )


@dataclass(frozen=True, slots=True)
class Reload:
    """The result of SIGHUP: the configuration now, the keys that were applied, and those that need a restart."""

    config: Config
    applied: tuple[str, ...]
    need_restart: tuple[str, ...]


def merge_reload(running: Config, wanted: Config) -> Reload:
    """``running`` with the reloadable part of ``wanted``."""
    changed = _differing(running, wanted)
    applied = tuple(key for key in changed if _BY_KEY[key].reloads)
    config = dataclasses.replace(running, **{key: getattr(wanted, key) for key in applied})
    return Reload(config, applied, tuple(key for key in changed if key not in applied))


def _differing(before: Config, after: Config) -> tuple[str, ...]:
    return tuple(option.key for option in OPTIONS if getattr(before, option.key) != getattr(after, option.key))
