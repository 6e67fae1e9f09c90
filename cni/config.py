"""Reads network configurations, and makes the request configuration of each plugin.

SPEC.md, section 1 "Network configuration format" and section 3 "Deriving request configuration from plugin
configuration". A file ``*.conflist`` has a list of plugins; ``*.conf`` and ``*.json`` have the older form, one plugin.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cni import _files, _json, names, versions
from cni.errors import ConfigError

MAX_CONFIG_BYTES: Final = 1 << 20
_LIST_SUFFIX: Final = ".conflist"
_SINGLE_SUFFIXES: Final = (".conf", ".json")
# The runtime writes these for each call; values from files are not passed on.
_RUNTIME_KEYS: Final = ("prevResult", "capabilities")
_RUNTIME_PREFIX: Final = "cni.dev/"


@dataclass(frozen=True, slots=True)
class PluginConfig:
    """One plugin's configuration object. ``raw`` has all fields, also unknown ones."""

    type: str
    capabilities: frozenset[str]
    raw: Mapping[str, Any]

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> PluginConfig:
        """Raises ``ValueError`` with the reason."""
        plugin_type = _json.text(raw, "type")
        if not plugin_type:
            raise _json.Malformed("no plugin type")
        names.check_plugin_type(plugin_type)
        declared = _json.mapping(raw, "capabilities")
        if not all(isinstance(wanted, bool) for wanted in declared.values()):
            raise _json.Malformed("capabilities: each value must be true or false")
        return cls(plugin_type, frozenset(key for key, wanted in declared.items() if wanted), raw)

    def request(
        self,
        network: NetworkList,
        *,
        prev_result: Mapping[str, Any] | None = None,
        capability_args: Mapping[str, Any] | None = None,
        operation_keys: Mapping[str, Any] | None = None,
    ) -> bytes:
        """The configuration for one execution, as JSON for the plugin's standard input.

        The plugin gets only those ``capability_args`` that it declares as capabilities; without any there is no
        ``runtimeConfig``. ``operation_keys`` are keys that an operation adds, as GC does.
        """
        request: dict[str, Any] = {
            key: value
            for key, value in self.raw.items()
            if key not in _RUNTIME_KEYS and not key.startswith(_RUNTIME_PREFIX)
        }
        request |= {"name": network.name, "cniVersion": network.version}
        granted = {key: value for key, value in (capability_args or {}).items() if key in self.capabilities}
        if granted:
            request["runtimeConfig"] = granted
        if prev_result is not None:
            request["prevResult"] = prev_result
        return _json.encode(request | dict(operation_keys or {}))


@dataclass(frozen=True, slots=True)
class NetworkList:
    """A network: its plugins in the order of ADD, and the version of the specification for calling them.

    ``raw`` is the complete configuration as JSON. It includes plugins that came from a folder, so a copy of ``raw`` is
    all that a later DEL needs.
    """

    name: str
    version: str
    plugins: tuple[PluginConfig, ...]
    raw: bytes = field(repr=False)
    disable_gc: bool = False
    source: str = field(default="", compare=False)

    @property
    def capabilities(self) -> frozenset[str]:
        """The capabilities that at least one plugin declares."""
        return frozenset().union(*(plugin.capabilities for plugin in self.plugins))

    @classmethod
    def parse(cls, data: bytes | Mapping[str, Any], source: str = "configuration") -> NetworkList:
        """Read a list, or a single plugin's configuration, from JSON or from a decoded JSON object.

        ``source`` is named in errors. Raises :class:`ConfigError`.
        """
        try:
            raw = _json.decode_object(data) if isinstance(data, bytes) else dict(data)
            if "plugins" not in raw and "type" in raw:
                return _from_single(raw, source)
            return _from_list(raw, data if isinstance(data, bytes) else _json.encode(raw), (), source)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{source}: {error}") from error


def find_network(conf_dir: Path) -> tuple[NetworkList | None, tuple[ConfigError, ...]]:
    """The first usable network of a folder in lexical order of the file names, as in all users of libcni.

    Returns it, or None, and an error for each earlier file that could not be used. Never raises, whatever is in the
    folder and even if it is missing.
    """
    damaged: list[ConfigError] = []
    for path in _config_files(conf_dir, (_LIST_SUFFIX, *_SINGLE_SUFFIXES), damaged):
        try:
            return _load(path), tuple(damaged)
        except ConfigError as error:
            damaged.append(error)
    return None, tuple(damaged)


def describe_lack(conf_dir: Path, damaged: tuple[ConfigError, ...]) -> str:
    """Why a folder has no usable network, in one line for the operator."""
    if damaged:
        return f"no valid network configuration in {conf_dir}: " + "; ".join(str(error) for error in damaged)
    if not conf_dir.is_dir():
        return f"{conf_dir} does not exist"
    return f"no *.conflist, *.conf or *.json file in {conf_dir}"


def _load(path: Path) -> NetworkList:
    source = str(path)
    try:
        data = _files.read_bounded(path, MAX_CONFIG_BYTES)
        raw = _json.decode_object(data)
        if path.suffix == _LIST_SUFFIX:
            return _from_list(raw, data, _folder_plugins(path.parent, raw), source)
        if "plugins" in raw:
            raise _json.Malformed(f"the file name of a list of plugins must end with {_LIST_SUFFIX}")
        return _from_single(raw, source)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{source}: {error}") from error


def _from_list(raw: _json.Object, data: bytes, more: tuple[_json.Object, ...], source: str) -> NetworkList:
    name = _json.text(raw, "name")
    names.check_network_name(name)
    inlined = _json.objects(raw, "plugins")
    if "plugins" in raw and not inlined:
        raise _json.Malformed("plugins: must not be empty")
    if not inlined and _json.flag(raw, "loadOnlyInlinedPlugins"):
        raise _json.Malformed("plugins: required by loadOnlyInlinedPlugins")
    plugins = tuple(_plugins((*inlined, *more)))
    if not plugins:
        raise _json.Malformed("plugins: at least one is required")
    if more:
        data = _json.encode(raw | {"plugins": [*inlined, *more], "loadOnlyInlinedPlugins": True})
    return NetworkList(
        name=name,
        version=versions.select(raw),
        plugins=plugins,
        raw=data,
        disable_gc=_json.flag(raw, "disableGC"),
        source=source,
    )


def _from_single(raw: _json.Object, source: str) -> NetworkList:
    wrapped = {"cniVersion": versions.select(raw), "name": _json.text(raw, "name"), "plugins": [raw]}
    return _from_list(wrapped, _json.encode(wrapped), (), source)


def _plugins(raws: tuple[_json.Object, ...]) -> Iterator[PluginConfig]:
    for index, raw in enumerate(raws):
        try:
            yield PluginConfig.parse(raw)
        except ValueError as error:
            raise _json.Malformed(f"plugins[{index}]: {error}") from error


def _folder_plugins(conf_dir: Path, raw: _json.Object) -> tuple[_json.Object, ...]:
    """The plugins in ``<conf_dir>/<network>/*.conf``; none if the list has loadOnlyInlinedPlugins (SPEC.md 1.1.0)."""
    name = _json.text(raw, "name")
    names.check_network_name(name)
    if _json.flag(raw, "loadOnlyInlinedPlugins"):
        return ()
    plugins: list[_json.Object] = []
    for path in _config_files(conf_dir / name, (".conf",)):
        try:
            plugins.append(_json.decode_object(_files.read_bounded(path, MAX_CONFIG_BYTES)))
        except ValueError as error:
            raise _json.Malformed(f"{path}: {error}") from error
    return tuple(plugins)


def _config_files(conf_dir: Path, suffixes: tuple[str, ...], damaged: list[ConfigError] | None = None) -> list[Path]:
    try:
        found = [path for path in conf_dir.iterdir() if path.suffix in suffixes and not path.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        if damaged is None:
            raise
        damaged.append(ConfigError(f"{conf_dir}: {error}"))
        return []
    return sorted(found)
