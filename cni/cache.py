"""Keeps results on disk for DEL, in libcni's format.

The file ``<cache_dir>/results/<network>-<container id>-<interface>`` has a JSON object of kind ``cniCacheV1``
(libcni, api.go, ``cachedInfo``). So this runtime can detach what another one attached, and the other way round.
Older files have only the result. Other programs may write to the folder, so the files are checked like any other
input.

A write ends with a rename, without a sync. After a crash of the machine the namespaces are gone too, and DEL can
release what survives (leases of addresses) without a cached result. A sync would take longer than the rest of the
cache's work in a pod's start.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cni import _files, _json, names
from cni.config import NetworkList
from cni.errors import AttachmentError, CacheError, ConfigError, ResultError
from cni.result import Result

KIND: Final = "cniCacheV1"
# A configuration in base64, a result, and capability arguments, each near its own bound.
MAX_CACHE_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class Attachment:
    """The parameters of one attachment (SPEC.md, section 3 "Attachment Parameters").

    ``netns`` is the path of the namespace; DEL works without it, ADD does not. ``args`` become CNI_ARGS in the
    same order. ``capability_args`` may have keys that no plugin needs. ``lock_path`` is a file that is locked while
    plugins run and that they inherit, see :mod:`cni.fence`; the owner of its folder removes it.

    Raises :class:`AttachmentError` for values that the specification does not allow.
    """

    container_id: str
    netns: str | None = None
    ifname: str = "eth0"
    args: tuple[tuple[str, str], ...] = ()
    capability_args: Mapping[str, Any] = field(default_factory=dict, hash=False)
    lock_path: Path | None = None

    def __post_init__(self) -> None:
        try:
            names.check_container_id(self.container_id)
            names.check_interface_name(self.ifname)
            names.check_environment("network namespace", self.netns or "")
            names.check_arguments(self.args)
        except ValueError as error:
            raise AttachmentError(str(error)) from error


@dataclass(frozen=True, slots=True)
class CachedAttachment:
    """An attachment from the cache: all that a DEL needs, even if the configuration is not on the node any more.

    ``attachment.netns`` is the path at the time of ADD. If it is ``/proc/<pid>/ns/net``, that pid may belong to another
    process now. ``result`` is None if the result in the file is damaged. ``finished`` is false if ADD failed or was cut
    off between its plugins; then ``result`` is that of the last plugin that succeeded. It is false, too, once a DEL has
    begun: some plugins may have done their part.
    """

    network: NetworkList
    attachment: Attachment
    result: Result | None
    finished: bool = True


def encode(network: NetworkList, attachment: Attachment, result: Result, *, finished: bool = True) -> bytes:
    """The content of a cache file."""
    optional = {
        "netns": attachment.netns,
        "cniArgs": [list(pair) for pair in attachment.args],
        "capabilityArgs": dict(attachment.capability_args),
        # Our own key. Other runtimes ignore it, and detach such an attachment like any other.
        "unfinished": not finished,
    }
    return _json.encode(
        {
            "kind": KIND,
            "containerId": attachment.container_id,
            "config": base64.b64encode(network.raw).decode(),
            "ifName": attachment.ifname,
            "networkName": network.name,
            **{key: value for key, value in optional.items() if value},
            "result": result.as_json(network.version),
        }
    )


def decode(data: bytes) -> CachedAttachment:
    """Read a cache file of kind ``cniCacheV1``; raises :class:`CacheError`."""
    try:
        raw = _json.decode_object(data)
        if _json.text(raw, "kind") != KIND:
            raise _json.Malformed(f"kind must be {KIND}: there is no configuration")
        network = NetworkList.parse(
            base64.b64decode(_json.text(raw, "config"), validate=True), "the cached configuration"
        )
        if network.name != _json.text(raw, "networkName"):
            raise _json.Malformed("networkName must be the configuration's name")
        attachment = Attachment(
            container_id=_json.text(raw, "containerId"),
            netns=_json.text(raw, "netns") or None,
            ifname=_json.text(raw, "ifName"),
            args=_pairs(raw),
            capability_args=_json.mapping(raw, "capabilityArgs"),
        )
    except (ValueError, binascii.Error, ConfigError, AttachmentError) as error:
        raise CacheError(str(error)) from error
    return CachedAttachment(network, attachment, _usable_result(raw, network), finished=not raw.get("unfinished"))


def decode_result(data: bytes, version: str) -> Result:
    """The result of a cache file, of the older form too; raises :class:`CacheError`."""
    try:
        raw = _json.decode_object(data)
        return Result.parse(_json.mapping(raw, "result") if _json.text(raw, "kind") == KIND else raw, version)
    except (ValueError, ResultError) as error:
        raise CacheError(str(error)) from error


class ResultCache:
    """The folder of results. Its methods block on the file system."""

    def __init__(self, cache_dir: Path) -> None:
        self._cache_dir = cache_dir
        self._results = cache_dir / "results"

    def path(self, network_name: str, attachment: Attachment) -> Path:
        """The file of an attachment. The names in it were checked, so the file is inside the folder."""
        return self._results / f"{network_name}-{attachment.container_id}-{attachment.ifname}"

    def write(self, network: NetworkList, attachment: Attachment, result: Result, *, finished: bool = True) -> None:
        """Write an entry; raises :class:`CacheError`."""
        path = self.path(network.name, attachment)
        try:
            self._results.mkdir(mode=0o700, parents=True, exist_ok=True)
            data = encode(network, attachment, result, finished=finished)
            _files.replace(path, data, unfinished=self._unfinished(path))
        except (OSError, TypeError, ValueError) as error:
            raise CacheError(f"cannot write {path}: {error}") from error

    def remove(self, network_name: str, attachment: Attachment) -> None:
        """Remove the entry if there is one; raises :class:`CacheError`."""
        path = self.path(network_name, attachment)
        try:
            path.unlink(missing_ok=True)
            self._unfinished(path).unlink(missing_ok=True)
        except OSError as error:
            raise CacheError(f"cannot remove {path}: {error}") from error

    def begin_removal(self, network_name: str, attachment: Attachment) -> None:
        """Mark the entry, if there is one, as unfinished. Raises :class:`CacheError`."""
        path = self.path(network_name, attachment)
        try:
            raw = _json.decode_object(_read(path))
            # Files of the older form have no place for it.
            if raw.get("kind") == KIND and not raw.get("unfinished"):
                _files.replace(path, _json.encode({**raw, "unfinished": True}), unfinished=self._unfinished(path))
        except FileNotFoundError:
            return
        except (OSError, TypeError, ValueError) as error:
            raise CacheError(f"cannot write {path}: {error}") from error

    def result(self, network: NetworkList, attachment: Attachment) -> Result | None:
        """The cached result of ADD; None if there is no entry. Raises :class:`CacheError`."""
        path = self.path(network.name, attachment)
        try:
            return decode_result(_read(path), network.version)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, CacheError) as error:
            raise CacheError(f"{path}: {error}") from error

    def attachments(self, container_id: str | None = None) -> tuple[list[CachedAttachment], list[CacheError]]:
        """The attachments of one container, or all, in the order of their files; and an error for each bad file."""
        found: list[CachedAttachment] = []
        skipped: list[CacheError] = []
        for path in self._entries():
            if container_id is not None and f"-{container_id}-" not in path.name:
                continue
            try:
                cached = decode(_read(path))
                if self.path(cached.network.name, cached.attachment) != path:
                    raise CacheError("the names in the content must match the file name")
            except FileNotFoundError:
                continue  # removed since the folder was listed
            except (OSError, ValueError, CacheError) as error:
                skipped.append(CacheError(f"{path}: {error}"))
                continue
            if container_id in (None, cached.attachment.container_id):
                found.append(cached)
        return found, skipped

    def _unfinished(self, path: Path) -> Path:
        """The path for unfinished writes, outside of the results folder: libcni reads every file in that."""
        return self._cache_dir / f".{path.name}"

    def _entries(self) -> list[Path]:
        try:
            return sorted(self._results.iterdir())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CacheError(f"cannot list {self._results}: {error}") from error


def _read(path: Path) -> bytes:
    return _files.read_bounded(path, MAX_CACHE_BYTES, follow=False)


def _pairs(raw: _json.Object) -> tuple[tuple[str, str], ...]:
    pairs = raw.get("cniArgs") or []
    if not isinstance(pairs, list) or not all(
        isinstance(pair, list) and len(pair) == 2 and all(isinstance(part, str) for part in pair) for pair in pairs
    ):
        raise _json.Malformed("cniArgs: expected a list of pairs of strings")
    return tuple((key, value) for key, value in pairs)


def _usable_result(raw: _json.Object, network: NetworkList) -> Result | None:
    try:
        return Result.parse(_json.mapping(raw, "result"), network.version)
    except (ValueError, ResultError):
        return None
