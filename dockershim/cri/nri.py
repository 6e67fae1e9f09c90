"""What NRI plugins want of containers, carried out on the engine. Imported only when NRI is on."""

from __future__ import annotations

import asyncio
from typing import Any

from dockershim.api.nri.v1alpha1 import api_pb2 as api
from dockershim.cri.cdi import CdiSpecs
from dockershim.errors import FailedPrecondition
from dockershim.host_paths.service import HostPaths
from dockershim.nri.adjustments import UpdateResult
from dockershim.nri.devices import find_nodes
from dockershim.nri.engine_body import REMEDY, apply_adjustment, blame, cdi_names, device_numbers, to_edits
from dockershim.nri.events import Creation
from dockershim.nri.messages import known_as
from dockershim.nri.resources import update_body
from dockershim.translate.capabilities import Capabilities
from dockershim.translate.cdi import NO_EDITS, check_host
from dockershim.translate.labels import with_nri_id
from dockershim.translate.records import ContainerRecord, to_current_resources


async def adjust_container(
    creation: Creation,
    body: dict[str, Any],
    *,
    host_paths: HostPaths,
    cdi: CdiSpecs,
    lowest_oom_score: int,
    features: Capabilities,
) -> None:
    """Make what plugins want to the body of a new container. Raises ShimError with the names of plugin and field."""
    adjustment = creation.adjustment
    where = blame(creation.owners, creation.container_id)
    nodes = await asyncio.to_thread(find_nodes, device_numbers(adjustment))
    edits = to_edits(adjustment, where, nodes)
    if edits.host_paths:
        try:
            there = await host_paths.look_at(edits.host_paths)
        except OSError as error:
            raise FailedPrecondition(f"an NRI plugin's mounts and devices: {error}") from error
        check_host(edits, there, REMEDY)
    apply_adjustment(
        body,
        adjustment,
        where,
        edits=edits,
        cdi_edits=NO_EDITS if features.cdi else await cdi.edits(cdi_names(adjustment)),
        lowest_oom_score=lowest_oom_score,
        features=features,
    )
    body["Labels"] = with_nri_id(body["Labels"], creation.container_id)


def to_update(
    record: ContainerRecord, result: UpdateResult, features: Capabilities
) -> tuple[dict[str, Any], dict[str, str]] | None:
    """The engine's fields and the cgroup files of an update that plugins have changed; None if none has.

    Raises InvalidArgument and Unsupported with the names of plugin and field.
    """
    container_id = known_as(record)
    if container_id not in result.owners.owners:
        return None
    where = blame(result.owners, container_id)
    return update_body(result.resources, where, before=to_current_resources(record), features=features)


def to_plugins_update(
    record: ContainerRecord, resources: api.LinuxResources, plugin: str, features: Capabilities
) -> tuple[dict[str, Any], dict[str, str]]:
    """The same of an update that a plugin asks for by itself; ``plugin`` is empty if it may be of several."""

    def where(_: api.Field, path: str, __: str) -> str:
        return f"plugin {plugin!r}: {path}" if plugin else path

    return update_body(resources, where, before=to_current_resources(record), features=features)
