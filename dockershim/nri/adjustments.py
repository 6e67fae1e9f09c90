"""How the answers of several plugins become one: who may set what, and what the next plugin sees. Pure.

Each field, or each key of a field with several, belongs to the first plugin that sets it; another one that sets it,
too, fails the request. A plugin that first removes it (a ``-`` before its name) takes it over. The next plugin sees
the container as it is by then.

Source: containerd/nri v0.12.5, pkg/adaptation/result.go and pkg/api/owners.go. Different from it, on purpose:

* A removal on its own is always kept, also of variables, devices and annotations, and takes back what an earlier plugin
  has set.
* An update that may fail claims nothing if it does fail.
* The number of processes in an update counts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, MutableMapping, MutableSequence
from typing import Any, Final, TypeVar

from google.protobuf.message import Message

from dockershim.api.nri.v1alpha1 import api_pb2 as api
from dockershim.nri.replies import (
    REMOVAL,
    AdjustmentError,
    BadReply,
    check_reply,
    check_update,
    is_removal,
    without_mark,
)
from dockershim.nri.resources import claims, overlay
from dockershim.translate.mounts import container_path

logger = logging.getLogger(__name__)

M = TypeVar("M", bound=Message)

_HOOKS: Final = ("prestart", "create_runtime", "create_container", "start_container", "poststart", "poststop")
#: Fields of LinuxContainerAdjustment that one plugin sets as a whole, with their field in LinuxContainer, if any.
_WHOLE: Final = (
    ("oom_score_adj", api.OomScoreAdj, True),
    ("io_priority", api.IoPriority, True),
    ("seccomp_policy", api.SeccompPolicy, True),
    ("scheduler", api.LinuxSched, True),
    ("memory_policy", api.MemoryPolicy, False),
)
_RDT: Final = (
    ("clos_id", api.RdtClosID),
    ("schemata", api.RdtSchemata),
    ("enable_monitoring", api.RdtEnableMonitoring),
)


class Conflict(AdjustmentError):
    """Two plugins set the same field of a container, or one plugin sets it twice."""

    def __init__(self, plugin: str, other: str, field: str, container_id: str) -> None:
        super().__init__(f"plugins {plugin!r} and {other!r} both tried to set {field} of container {container_id}")
        self.plugin = plugin
        self.other = other
        self.field = field
        self.container_id = container_id


def owner_of(owners: api.OwningPlugins, container_id: str, field: api.Field, key: str = "") -> str:
    """The plugin, or the plugins with commas, that own a field; empty if none does."""
    if container_id not in owners.owners:
        return ""
    fields = owners.owners[container_id]
    if not key:
        return fields.simple.get(field, "")
    return fields.compound[field].owners.get(key, "") if field in fields.compound else ""


class _Owners:
    """Who has set what. A plugin that has removed something, and nothing since, is noted with a ``-``."""

    def __init__(self) -> None:
        self.message = api.OwningPlugins()

    def check(self, container_id: str, field: api.Field, plugin: str, key: str = "") -> None:
        """Raises Conflict if the field belongs to another one, or already to this one."""
        owner = owner_of(self.message, container_id, field, key)
        if owner and owner != REMOVAL + plugin:
            name = f"{api.Field.Name(field)} {key}".rstrip()
            raise Conflict(plugin, without_mark(owner), name, container_id)

    def claim(self, container_id: str, field: api.Field, plugin: str, key: str = "") -> None:
        """The same, and takes it."""
        self.check(container_id, field, plugin, key)
        self.give(container_id, field, plugin, key)

    def clear(self, container_id: str, field: api.Field, plugin: str, key: str = "") -> None:
        """Give the field to a plugin that removes it, if somebody owns it."""
        if owner_of(self.message, container_id, field, key):
            self.give(container_id, field, REMOVAL + plugin, key)

    def add(self, container_id: str, field: api.Field, plugin: str) -> None:
        """One more owner of a field that takes the values of all."""
        before = owner_of(self.message, container_id, field)
        self.give(container_id, field, f"{before},{plugin}" if before else plugin)

    def give(self, container_id: str, field: api.Field, owner: str, key: str = "") -> None:
        """Whoever it belongs to."""
        fields = self.message.owners[container_id]
        if key:
            fields.compound[field].owners[key] = owner
        else:
            fields.simple[field] = owner


class _Result:
    """What all kinds of requests share: updates and evictions of other containers.

    ``owners`` is in the form of ValidateContainerAdjustmentRequest. ``updates`` are by id; ``evictions`` have the
    plugin's words, by id. An answer that is an error leaves the updates that stand before the wrong one.
    """

    def __init__(self) -> None:
        self._owners = _Owners()
        self.updates: dict[str, api.ContainerUpdate] = {}
        self.evictions: dict[str, str] = {}

    @property
    def owners(self) -> api.OwningPlugins:
        return self._owners.message

    def _update(self, plugin: str, updates: Iterable[api.ContainerUpdate]) -> None:
        for update in updates:
            try:
                check_update(plugin, update)
                self._update_one(plugin, update)
            except AdjustmentError as error:
                if not update.ignore_failure:
                    raise
                logger.info("ignoring an update of container %.80s: %s", update.container_id, error)

    def _update_one(self, plugin: str, update: api.ContainerUpdate) -> None:
        resources = update.linux.resources
        wanted = list(claims(resources))
        for field, key in wanted:
            self._owners.check(update.container_id, field, plugin, key)
        for field, key in wanted:
            # Not before all were checked: an update that may fail leaves nothing behind.
            self._owners.claim(update.container_id, field, plugin, key)
        overlay(self._target(update), resources)

    def _target(self, update: api.ContainerUpdate) -> api.LinuxResources:
        """Where the plugins' changes to a container are put together."""
        merged = self.updates.get(update.container_id)
        if merged is None:
            merged = api.ContainerUpdate(container_id=update.container_id, ignore_failure=update.ignore_failure)
            self.updates[update.container_id] = merged
        merged.ignore_failure = merged.ignore_failure and update.ignore_failure
        return merged.linux.resources

    def _evict(self, evictions: Iterable[api.ContainerEviction], plugin: str) -> None:
        for eviction in evictions:
            self.evictions.setdefault(eviction.container_id, f"plugin {plugin!r}: {eviction.reason}")


class CreateResult(_Result):
    """What becomes of a CreateContainerRequest: ``apply`` each answer in the order of the plugins.

    ``request`` is what the next plugin is to be asked: its container has the changes. ``adjustment`` has them all.
    The ``request`` that was given stays as it was, for validators. After an error the result is of no use.
    """

    def __init__(self, request: api.CreateContainerRequest) -> None:
        super().__init__()
        self.request = api.CreateContainerRequest()
        self.request.CopyFrom(request)
        self.adjustment = api.ContainerAdjustment()
        self._container_id = request.container.id
        self._args = tuple(request.container.args)
        # Plugins in Go look into these without asking if they are there: their own runtimes always set them.
        container, linux = self.request.container, self.adjustment.linux
        for message in (container.hooks, container.linux.resources.memory, container.linux.resources.cpu):
            message.SetInParent()
        for message in (self.adjustment.hooks, linux.resources.memory, linux.resources.cpu):
            message.SetInParent()

    def apply(self, plugin: str, reply: api.CreateContainerResponse) -> None:
        """Add what a plugin (``<index>-<name>``) answered.

        Raises BadReply, and Conflict if it sets what belongs to another plugin.
        """
        check_reply(plugin, reply)
        if reply.HasField("adjust"):
            self._adjust(plugin, reply.adjust)
        for update in reply.update:
            self._check_not_new(plugin, "update", update.container_id)
        for eviction in reply.evict:
            self._check_not_new(plugin, "evict", eviction.container_id)
        self._update(plugin, reply.update)
        self._evict(reply.evict, plugin)

    def _check_not_new(self, plugin: str, field: str, container_id: str) -> None:
        if container_id == self._container_id:
            raise BadReply(f"plugin {plugin!r}: {field}: {container_id!r:.80} is the container being created")

    def _adjust(self, plugin: str, change: api.ContainerAdjustment) -> None:
        """In the order of NRI, so that of several conflicts the same one is told."""
        merged, shown = self.adjustment, self.request.container
        self._map(plugin, api.Annotations, change.annotations, merged.annotations, shown.annotations)
        self._list(plugin, api.Mounts, change.mounts, merged.mounts, shown.mounts, _destination)
        self._env(plugin, change.env)
        self._change_args(plugin, change.args)
        self._hooks(plugin, change.hooks)
        self._linux(plugin, change.linux)
        self._rlimits(plugin, change.rlimits)
        for device in change.CDI_devices:
            self._claim(plugin, api.CdiDevices, device.name)
            merged.CDI_devices.append(device)
            shown.CDI_devices.append(device)

    def _linux(self, plugin: str, change: api.LinuxContainerAdjustment) -> None:
        merged, shown = self.adjustment.linux, self.request.container.linux
        self._list(plugin, api.Devices, change.devices, merged.devices, shown.devices, _path)
        for field, key in claims(change.resources):
            self._claim(plugin, field, key)
        for resources in (merged.resources, shown.resources):
            overlay(resources, change.resources)
        if change.cgroups_path:
            self._claim(plugin, api.CgroupsPath)
            merged.cgroups_path = shown.cgroups_path = change.cgroups_path
        for name, field, is_shown in _WHOLE:
            if change.HasField(name):
                self._claim(plugin, field)
                getattr(merged, name).CopyFrom(getattr(change, name))
                if is_shown:
                    getattr(shown, name).CopyFrom(getattr(change, name))
        self._namespaces(plugin, change.namespaces)
        self._map(plugin, api.Sysctl, change.sysctl, merged.sysctl, shown.sysctl)
        self._map(plugin, api.LinuxNetDevices, change.net_devices, merged.net_devices, shown.net_devices)
        if change.HasField("rdt"):
            self._rdt(plugin, change.rdt)

    def _claim(self, plugin: str, field: api.Field, key: str = "") -> None:
        self._owners.claim(self._container_id, field, plugin, key)

    def _clear(self, plugin: str, field: api.Field, key: str = "") -> None:
        self._owners.clear(self._container_id, field, plugin, key)

    def _map(
        self,
        plugin: str,
        field: api.Field,
        change: MutableMapping[str, Any],
        merged: MutableMapping[str, Any],
        shown: MutableMapping[str, Any],
    ) -> None:
        # Removals first: in a map they have no other place.
        for mark in sorted(filter(is_removal, change)):
            key = without_mark(mark)
            if key in merged:
                del merged[key]
            if key in shown:
                del shown[key]
            self._clear(plugin, field, key)
            _put(merged, mark, change[mark])
        for key in sorted(change):
            if not is_removal(key):
                self._claim(plugin, field, key)
                _put(merged, key, change[key])
                _put(shown, key, change[key])

    def _list(
        self,
        plugin: str,
        field: api.Field,
        change: Iterable[M],
        merged: MutableSequence[M],
        shown: MutableSequence[Any],
        name: Callable[[M], str],
        shown_name: Callable[[Any], str] | None = None,
        to_shown: Callable[[M], Any] = lambda item: item,
    ) -> None:
        """``name`` is an item's key, with the mark of a removal; ``shown`` has items of another form for variables."""
        changes = [(name(item), item) for item in change]
        removed = {without_mark(key) for key, _ in changes if is_removal(key)}
        put = {key for key, _ in changes if not is_removal(key)}
        for key in sorted(removed):
            self._clear(plugin, field, key)
        if removed:
            _keep(merged, lambda item: without_mark(name(item)) not in removed)
        if changes:
            key_of = shown_name or name
            _keep(shown, lambda item: key_of(item) not in removed and key_of(item) not in put)
        for key, item in changes:
            if is_removal(key):
                if without_mark(key) not in put:
                    merged.append(item)
            else:
                self._claim(plugin, field, key)
                merged.append(item)
                shown.append(to_shown(item))

    def _env(self, plugin: str, change: Iterable[api.KeyValue]) -> None:
        self._list(
            plugin,
            api.Env,
            change,
            self.adjustment.env,
            self.request.container.env,
            lambda variable: variable.key,
            lambda text: text.partition("=")[0],
            lambda variable: f"{variable.key}={variable.value}",
        )

    def _change_args(self, plugin: str, change: Iterable[str]) -> None:
        args = list(change)
        if not args:
            return
        if not args[0]:
            self._clear(plugin, api.Args)
            del args[0]
        self._claim(plugin, api.Args)
        self.adjustment.args[:] = args
        # Without any it takes back those of another plugin.
        self.request.container.args[:] = args or self._args

    def _hooks(self, plugin: str, change: api.Hooks) -> None:
        for name in _HOOKS:
            for hooks in (self.adjustment.hooks, self.request.container.hooks):
                getattr(hooks, name).extend(getattr(change, name))
        if change.ListFields():
            self._owners.add(self._container_id, api.OciHooks, plugin)

    def _namespaces(self, plugin: str, change: Iterable[api.LinuxNamespace]) -> None:
        shown = self.request.container.linux.namespaces
        for namespace in change:
            kind = without_mark(namespace.type)
            self._claim(plugin, api.Namespace, kind)
            self.adjustment.linux.namespaces.append(namespace)
            _keep(shown, lambda one, kind=kind: one.type != kind)  # type: ignore[misc]
            if not is_removal(namespace.type):
                shown.append(namespace)

    def _rdt(self, plugin: str, change: api.LinuxRdt) -> None:
        for rdt in (self.adjustment.linux.rdt, self.request.container.linux.rdt):
            if change.remove:
                rdt.Clear()
                rdt.remove = True
        for name, field in _RDT:
            if change.remove:
                # Also if nobody owns it: a container without a class is what this plugin wants.
                self._owners.give(self._container_id, field, REMOVAL + plugin)
            if change.HasField(name):
                self._claim(plugin, field)
                for rdt in (self.adjustment.linux.rdt, self.request.container.linux.rdt):
                    getattr(rdt, name).CopyFrom(getattr(change, name))
                    rdt.remove = False

    def _rlimits(self, plugin: str, change: Iterable[api.POSIXRlimit]) -> None:
        shown = self.request.container.rlimits
        for limit in change:
            self._claim(plugin, api.Rlimits, limit.type)
            self.adjustment.rlimits.append(limit)
            _keep(shown, lambda one, kind=limit.type: one.type != kind)  # type: ignore[misc]
            shown.append(limit)


class UpdateResult(_Result):
    """What becomes of an UpdateContainerRequest: ``apply`` each answer in the order of the plugins.

    ``request`` is what the next plugin is to be asked: its ``linux_resources`` have the changes of that container.
    ``updates`` are of other containers. The ``request`` that was given stays as it was.
    """

    def __init__(self, request: api.UpdateContainerRequest) -> None:
        super().__init__()
        self.request = api.UpdateContainerRequest()
        self.request.CopyFrom(request)
        for message in (self.request.linux_resources.memory, self.request.linux_resources.cpu):
            message.SetInParent()

    @property
    def resources(self) -> api.LinuxResources:
        """What the container is to get: what was asked for, with the changes of the plugins."""
        return self.request.linux_resources

    def apply(self, plugin: str, reply: api.UpdateContainerResponse) -> None:
        """Add what a plugin (``<index>-<name>``) answered. Raises BadReply and Conflict."""
        check_reply(plugin, reply)
        self._update(plugin, reply.update)
        self._evict(reply.evict, plugin)

    def _target(self, update: api.ContainerUpdate) -> api.LinuxResources:
        return self.resources if update.container_id == self.request.container.id else super()._target(update)


class StopResult(_Result):
    """What becomes of a StopContainerRequest: ``apply`` each answer. ``updates`` are of other containers."""

    def __init__(self, request: api.StopContainerRequest) -> None:
        super().__init__()
        self.request = request

    def apply(self, plugin: str, reply: api.StopContainerResponse) -> None:
        """Add what a plugin (``<index>-<name>``) answered. Raises BadReply and Conflict."""
        check_reply(plugin, reply)
        self._update(plugin, reply.update)


def _destination(mount: api.Mount) -> str:
    """The same place has one name, however a plugin writes it."""
    mark = REMOVAL if is_removal(mount.destination) else ""
    return mark + container_path(without_mark(mount.destination))


def _path(device: api.LinuxDevice) -> str:
    mark = REMOVAL if is_removal(device.path) else ""
    return mark + container_path(without_mark(device.path))


def _put(into: MutableMapping[str, Any], key: str, value: Any) -> None:
    if isinstance(value, Message):
        into[key].CopyFrom(value)
    else:
        into[key] = value


def _keep(items: MutableSequence[Any], wanted: Callable[[Any], bool]) -> None:
    kept = [item for item in items if wanted(item)]
    if len(kept) != len(items):
        del items[:]
        items.extend(kept)
