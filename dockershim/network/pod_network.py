"""A pod's network: made by CNI plugins, or by the engine's own bridge."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from enum import Enum
from pathlib import Path
from typing import Protocol, Self

import cni
from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.common.own_files import with_own_files, with_own_thread
from dockershim.errors import FailedPrecondition, NetworkFailure, Unsupported, disk_error
from dockershim.network.netns import Pins, names_in
from dockershim.network.readiness import PATIENCE, Readiness
from dockershim.translate.names import SandboxName
from dockershim.translate.network import (
    INTERFACE,
    by_preference,
    kubenet_config,
    parse_pod_cidrs,
    to_bandwidth,
    to_capability_args,
    to_cni_args,
    to_port_mappings,
)
from dockershim.translate.records import SandboxRecord
from dockershim.translate.sandbox import sandbox_name

logger = logging.getLogger(__name__)

#: A published port: protocol, container port, host port, host address.
Port = tuple[str, int, int, str]

#: The capability arguments for what the pod itself asks for.
_WISHES_OF_PODS = {"portMappings", "bandwidth"}
#: Plugins that read the addresses for their masquerade rules from the interface in the namespace.
_MASQUERADING = ("bridge", "ptp")


class PodNetwork(Protocol):
    """Who gives a pod its network.

    ``kind`` is its name in checkpoints; ``engine_mode`` is the infra container's NetworkMode; ``publishes_ports`` tells
    whether the engine itself publishes host ports; ``can_be_early`` whether ``set_up`` needs only a pinned namespace.
    """

    kind: str
    engine_mode: str
    publishes_ports: bool
    can_be_early: bool

    async def check(self, patience: float = PATIENCE) -> None:
        """Raises FailedPrecondition if no pod can get a network now.

        Asks the network's maker again if its last answer is old. No answer within ``patience`` seconds is a failure.
        """

    def pin(self, sandbox: SandboxRecord) -> bool:
        """Pin the netns of a started sandbox until ``tear_down``, if this kind of network needs that.

        Returns whether it pinned one now. Raises OSError.
        """

    async def set_up(self, sandbox_id: str, config: cri.PodSandboxConfig, given: Sequence[str] = ()) -> tuple[str, ...]:
        """Attach a pinned sandbox and return its addresses, the primary one first. Raises NetworkFailure.

        ``given`` are the addresses that the engine gave it.
        """

    async def is_set_up(self, sandbox: SandboxRecord) -> bool:
        """Whether the network of a running sandbox was set up completely. Raises NetworkFailure."""

    async def addresses(self, sandbox: SandboxRecord) -> tuple[str, ...]:
        """The addresses of a sandbox, the primary one first; empty if it has none, or none any more."""

    async def tear_down(self, sandbox_id: str, name: SandboxName, ports: Iterable[Port] = ()) -> None:
        """Release all that ``set_up`` took. May be called repeatedly, and for a sandbox that does not exist any more.

        ``ports`` are its published ports; they are used if the CNI cache has no entry. Raises NetworkFailure; the
        caller must then call it again.
        """


class NodeNetwork(PodNetwork, Protocol):
    """Who gives new pods their network."""

    def set_pod_cidr(self, text: str) -> None:
        """Take the node's pod CIDRs from the kubelet. Raises InvalidArgument."""


class _OfTheEngine:
    """A network that the engine makes, and releases when the container ends."""

    can_be_early = False

    async def check(self, patience: float = PATIENCE) -> None:
        return

    def pin(self, sandbox: SandboxRecord) -> bool:
        return False

    async def is_set_up(self, sandbox: SandboxRecord) -> bool:
        return True

    async def tear_down(self, sandbox_id: str, name: SandboxName, ports: Iterable[Port] = ()) -> None:
        return


class HostNetwork(_OfTheEngine):
    """Pods on the node's own network."""

    kind = "host"
    engine_mode = "host"
    publishes_ports = False

    async def set_up(self, sandbox_id: str, config: cri.PodSandboxConfig, given: Sequence[str] = ()) -> tuple[str, ...]:
        return ()

    async def addresses(self, sandbox: SandboxRecord) -> tuple[str, ...]:
        return ()


class EngineNetwork(_OfTheEngine):
    """The engine's default bridge serves the pods."""

    kind = "docker"
    engine_mode = "default"
    publishes_ports = True

    def set_pod_cidr(self, text: str) -> None:
        parse_pod_cidrs(text)

    async def set_up(self, sandbox_id: str, config: cri.PodSandboxConfig, given: Sequence[str] = ()) -> tuple[str, ...]:
        if to_bandwidth(config.annotations):
            raise Unsupported(
                "annotations kubernetes.io/ingress-bandwidth, egress-bandwidth: the engine's bridge does not support"
                " traffic shaping; remove them, or use CNI plugins (--network-plugin=cni)"
            )
        if not given:
            raise NetworkFailure("the engine assigned no IP address to the pod on its default bridge")
        return by_preference(given)

    async def addresses(self, sandbox: SandboxRecord) -> tuple[str, ...]:
        return by_preference(sandbox.addresses)


HOST_NETWORK = HostNetwork()
ENGINE_NETWORK = EngineNetwork()


class ConfigSource(Protocol):
    """Where the CNI configuration in force comes from."""

    @property
    def network(self) -> cni.NetworkList | None: ...

    @property
    def reason(self) -> str: ...


class NoSource:
    """No CNI configuration at all: no pod is attached, and attached pods are detached by their CNI cache entry."""

    network: cni.NetworkList | None = None
    reason = "CNI is not in use"


class KubenetSource:
    """kubenet's configuration, which exists as soon as the node's pod CIDRs are known."""

    def __init__(self, *, mtu: int, hairpin_mode: str) -> None:
        self._mtu = mtu
        self._hairpin_mode = hairpin_mode
        self.network: cni.NetworkList | None = None
        self.reason = "kubenet has no pod CIDR: set --pod-cidr, or wait until the kubelet sends one"

    def set_pod_cidrs(self, cidrs: Sequence[str]) -> None:
        if cidrs:
            config = kubenet_config(cidrs, mtu=self._mtu, hairpin_mode=self._hairpin_mode)
            self.network = cni.NetworkList.parse(config, source="kubenet")
            self.reason = ""


class CNINetwork:
    """CNI plugins serve the pods, in the netns that ``pins`` keeps.

    ``locks`` is a folder with one lock file for each sandbox. A plugin that outlives a killed server still holds the
    lock, so the next server's DEL waits until that plugin ends.
    """

    kind = "cni"
    engine_mode = "none"
    publishes_ports = False
    can_be_early = True

    def __init__(
        self, runtime: cni.Runtime, source: ConfigSource, pins: Pins, locks: Path, pod_cidrs: Sequence[str]
    ) -> None:
        self._runtime = runtime
        self._source = source
        self._pins = pins
        self._locks = locks
        self._pod_cidrs = tuple(pod_cidrs)
        self._known: dict[str, tuple[str, ...]] = {}
        self._readiness = Readiness(runtime, lambda: source.network)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._readiness.close()

    async def check(self, patience: float = PATIENCE) -> None:
        if self._source.network is None:
            raise FailedPrecondition(self._source.reason)
        await self._readiness.check(patience)

    def set_pod_cidr(self, text: str) -> None:
        self._pod_cidrs = parse_pod_cidrs(text)
        if isinstance(self._source, KubenetSource):
            self._source.set_pod_cidrs(self._pod_cidrs)

    async def set_up(self, sandbox_id: str, config: cri.PodSandboxConfig, given: Sequence[str] = ()) -> tuple[str, ...]:
        network = self._source.network
        if network is None:
            raise FailedPrecondition(f"no pod network: {self._source.reason}")
        wishes = to_capability_args(config, self._pod_cidrs)
        if unheard := _WISHES_OF_PODS & wishes.keys() - network.capabilities:
            # No error: plugins such as Cilium's learn from the API server what pods wish.
            logger.warning(
                "sandbox %s asks for %s, but no plugin of CNI network %r declares that capability",
                sandbox_id,
                ", ".join(sorted(unheard)),
                network.name,
            )
        attachment = self._attachment(sandbox_id, sandbox_name(config.metadata), capability_args=wishes)
        try:
            result = await self._runtime.add(network, attachment)
        except cni.CacheError as error:
            raise disk_error(f"cannot store the network of the pod: {error}", error.__cause__) from error
        except cni.CNIError as error:
            raise NetworkFailure(f"CNI network {network.name!r}: {error}") from error
        found = self._addresses_of(result)
        if not found:
            raise NetworkFailure(f"CNI network {network.name!r} assigned no IP address to the pod")
        self._known[sandbox_id] = found
        return found

    def pin(self, sandbox: SandboxRecord) -> bool:
        if not (sandbox.running and sandbox.netns_path) or self._pins.is_pinned(sandbox.id):
            return False
        self._pins.pin(sandbox.id, Path(sandbox.netns_path))
        return True

    async def is_set_up(self, sandbox: SandboxRecord) -> bool:
        # Another shim returned its sandbox to the kubelet only after it had attached it completely.
        return not sandbox.made_here or bool(await self.addresses(sandbox))

    async def tear_down(self, sandbox_id: str, name: SandboxName, ports: Iterable[Port] = ()) -> None:
        self._known.pop(sandbox_id, None)
        try:
            to_delete = await self._to_delete(sandbox_id, name, to_port_mappings(ports))
        except cni.CNIError as error:
            raise NetworkFailure(f"cannot read the cached attachments of the pod: {error}") from error
        failures = []
        for attachment in to_delete:
            try:
                await self._detach(attachment)
            except NetworkFailure as error:
                failures.append(str(error))
        if failures:
            raise NetworkFailure("; ".join(failures))
        self._pins.unpin(sandbox_id)
        self._lock_path(sandbox_id).unlink(missing_ok=True)

    def remembered(self) -> set[str]:
        """The ids of sandboxes that have a pin, a lock, or a cached attachment in a netns that this server pinned.

        Attachments that other runtimes made do not count. Blocks on the file system. Raises NetworkFailure.
        """
        try:
            attachments = self._runtime.cached_attachments()
            left = self._pins.pinned() | names_in(self._locks)
        except (cni.CNIError, OSError) as error:
            raise NetworkFailure(f"cannot read the cached attachments of pods: {error}") from error
        return left | {cached.attachment.container_id for cached in attachments if self._is_ours(cached)}

    def _is_ours(self, cached: cni.CachedAttachment) -> bool:
        netns = cached.attachment.netns
        return netns is not None and self._pins.path(cached.attachment.container_id) == Path(netns)

    async def collect_garbage(self, known: Callable[[], Collection[str]]) -> None:
        """Have plugins that support GC (spec 1.1.0) remove what belongs to none of the ``known`` sandboxes.

        All attachments that other runtimes made count as valid. ``known`` is called while nothing is attached or
        detached. Raises NetworkFailure.
        """
        network = self._source.network
        if network is None or not cni.has_gc(network):
            return

        def valid(cached: Sequence[cni.CachedAttachment]) -> set[tuple[str, str]]:
            ids = set(known())
            valid_items = (item for item in cached if item.attachment.container_id in ids or not self._is_ours(item))
            attachments = {(item.attachment.container_id, item.attachment.ifname) for item in valid_items}
            return {(sandbox_id, INTERFACE) for sandbox_id in ids} | attachments

        try:
            await self._runtime.gc(network, valid)
        except cni.CNIError as error:
            raise NetworkFailure(f"CNI network {network.name!r}: {error}") from error

    async def _to_delete(
        self, sandbox_id: str, name: SandboxName, capability_args: dict[str, object]
    ) -> list[cni.CachedAttachment]:
        """The attachments in the CNI cache; if there are none, what the current configuration would have added."""
        cached = await with_own_files(self._runtime.cached_attachments, sandbox_id)
        if cached:
            return [
                dataclasses.replace(item, attachment=self._attachment(sandbox_id, name, like=item.attachment))
                for item in cached
            ]
        if self._source.network is None:
            return []
        attachment = self._attachment(sandbox_id, name, capability_args=capability_args)
        return [cni.CachedAttachment(self._source.network, attachment, None)]

    async def _detach(self, added: cni.CachedAttachment) -> None:
        """DEL in each way in turn, until one succeeds. Raises NetworkFailure."""
        *first, last = ways_to_detach(added)
        for way in first:
            try:
                # Its failure is no trouble: after a boot the rules of no pod are there.
                await self._detach_by(way, added, logging.DEBUG)
            except NetworkFailure as error:
                logger.debug("sandbox %s is not detached in %s: %s", added.attachment.container_id, way.value, error)
            except OSError as error:
                logger.warning("rules of sandbox %s may be left behind: %s", added.attachment.container_id, error)
            else:
                return
        await self._detach_by(last, added)

    async def _detach_by(self, way: Way, added: cni.CachedAttachment, level: int = logging.WARNING) -> None:
        """DEL in one way. Failures of plugins are logged at ``level``.

        Raises NetworkFailure, and OSError if the namespace or interface cannot be made.
        """
        attachment = added.attachment
        if way is Way.STAND_IN:
            pin = await with_own_thread(
                self._pins.pin_stand_in, attachment.container_id, attachment.ifname, _addresses_in(added)
            )
            try:
                await self._delete(added.network, dataclasses.replace(attachment, netns=str(pin)), level)
            finally:
                self._pins.unpin(attachment.container_id)
            return
        if way is Way.RESTORED_LINK:
            assert attachment.netns is not None
            netns, addresses = Path(attachment.netns), _addresses_in(added)
            if not await with_own_thread(self._pins.restore_link, netns, attachment.ifname, addresses):
                raise NetworkFailure("its interface is there")
        await self._delete(added.network, attachment, level)

    async def _delete(self, network: cni.NetworkList, attachment: cni.Attachment, level: int) -> None:
        """DEL. Raises NetworkFailure."""
        try:
            await self._runtime.delete(network, attachment, level)
        except cni.CNIError as error:
            raise NetworkFailure(f"CNI network {network.name!r}: {error}") from error

    def _attachment(
        self,
        sandbox_id: str,
        name: SandboxName,
        *,
        capability_args: dict[str, object] | None = None,
        like: cni.Attachment | None = None,
    ) -> cni.Attachment:
        # The folder of the locks may not exist yet. On a full disk the network is torn down without a lock.
        with contextlib.suppress(OSError):
            self._locks.mkdir(mode=0o700, parents=True, exist_ok=True)
        return cni.Attachment(
            container_id=sandbox_id,
            netns=str(self._pins.path(sandbox_id)) if self._pins.is_pinned(sandbox_id) else None,
            ifname=like.ifname if like else INTERFACE,
            args=like.args if like else to_cni_args(name, sandbox_id),
            capability_args=like.capability_args if like else capability_args or {},
            lock_path=self._lock_path(sandbox_id),
        )

    def _lock_path(self, sandbox_id: str) -> Path:
        return self._locks / sandbox_id

    async def addresses(self, sandbox: SandboxRecord) -> tuple[str, ...]:
        if sandbox.id in self._known:
            return self._known[sandbox.id]
        if not sandbox.running:
            return ()
        found = await with_own_thread(self._read_addresses, sandbox)
        if found:
            self._known[sandbox.id] = found
        return found

    def _read_addresses(self, sandbox: SandboxRecord) -> tuple[str, ...]:
        try:
            attachments = self._runtime.cached_attachments(sandbox.id)
        except cni.CNIError as error:
            raise NetworkFailure(f"cannot read the IP addresses of sandbox {sandbox.id}: {error}") from error
        for cached in attachments:
            if cached.finished and cached.result is not None and (found := self._addresses_of(cached.result)):
                return found
        if sandbox.made_here or not sandbox.netns_path:
            # A successful ADD by dockershim is in the cache; without an entry the network is incomplete.
            return ()
        try:
            return by_preference(self._pins.addresses(Path(sandbox.netns_path), INTERFACE))
        except OSError as error:
            logger.warning("%s", error)
            return ()

    def _addresses_of(self, result: cni.Result) -> tuple[str, ...]:
        # Other shims also attach the loopback by CNI, under the same interface name. Its addresses are not the pod's.
        return by_preference(str(ip.address.ip) for ip in result.ips if not ip.address.is_loopback)


class Way(Enum):
    """How an attachment is deleted."""

    AS_IT_IS = "its own namespace, or none"
    RESTORED_LINK = "its own namespace, with its interface restored"
    STAND_IN = "a namespace that looks as the lost one did"


def ways_to_detach(added: cni.CachedAttachment) -> tuple[Way, ...]:
    """The ways to try, in turn; only a failure of the last one is an error.

    Plugins that masquerade find their rules by the addresses of the interface. Without the namespace or the interface
    they leave the rules and succeed. DEL removes the interface first and then the rules, so a DEL that was cut short
    may leave rules. If the rules are gone too, DEL with a restored interface fails, and DEL without one succeeds.
    """
    masquerades = any(plugin.type in _MASQUERADING and plugin.raw.get("ipMasq") for plugin in added.network.plugins)
    if not masquerades or not _addresses_in(added):
        return (Way.AS_IT_IS,)
    return (Way.RESTORED_LINK if added.attachment.netns else Way.STAND_IN, Way.AS_IT_IS)


def _addresses_in(added: cni.CachedAttachment) -> list[str]:
    """The addresses of the attachment's interface, with prefix lengths."""
    return [str(ip.address) for ip in added.result.ips] if added.result is not None else []
