"""What of the plugins' changes an operator allows: the validator that every runtime with NRI has built in. Pure.

Source: containerd/nri v0.12.5, plugins/default-validator, whose options these are, with their names.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from dockershim.api.nri.v1alpha1 import api_pb2 as api
from dockershim.host_paths.cdi import yaml_to_json
from dockershim.nri.adjustments import owner_of
from dockershim.nri.replies import AdjustmentError, without_mark

#: The annotation of a pod with which it names plugins that must see its containers, as a YAML list.
REQUIRED_PLUGINS: Final = "required-plugins.noderesource.dev"
#: Characters of that annotation: whoever may make pods writes it, and it is read for each container.
_LONGEST_LIST: Final = 4096
#: As Go's strconv.ParseBool.
_TRUE: Final = frozenset(("1", "t", "T", "TRUE", "true", "True"))
_FALSE: Final = frozenset(("0", "f", "F", "FALSE", "false", "False"))


class Rejected(AdjustmentError):
    """The operator does not allow what plugins have changed, or a plugin that is required is not there."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What an operator allows; all of it by default.

    The three for seccomp are about what a container had before: the runtime's default profile, none, or one of the
    node. ``required_plugins`` are names, or ``<index>-<name>``, of plugins without which no container is made.
    ``tolerate_missing_plugins_annotation`` is the key of the annotation by which a pod does without them, or empty.
    """

    reject_oci_hook_adjustment: bool = False
    reject_runtime_default_seccomp_adjustment: bool = False
    reject_unconfined_seccomp_adjustment: bool = False
    reject_custom_seccomp_adjustment: bool = False
    reject_namespace_adjustment: bool = False
    reject_sysctl_adjustment: bool = False
    required_plugins: tuple[str, ...] = ()
    tolerate_missing_plugins_annotation: str = ""


def validate(rules: Rules, request: api.ValidateContainerAdjustmentRequest) -> None:
    """Raises Rejected, with the plugins' names.

    The request has the container as it was before any adjustment, the merged adjustment, its owners and all plugins.
    """
    for reason in _reasons(rules, request):
        raise Rejected(f"the validator rejects the adjustment of container {request.container.name!r:.100}: {reason}")


def _reasons(rules: Rules, request: api.ValidateContainerAdjustmentRequest) -> Iterator[str]:
    container_id, owners = request.container.id, request.owners
    hooks = owner_of(owners, container_id, api.OciHooks)
    if rules.reject_oci_hook_adjustment and hooks:
        yield f"OCI hooks of {_plugins(hooks.split(','))}"
    seccomp = owner_of(owners, container_id, api.SeccompPolicy)
    if seccomp and _seccomp_is_rejected(rules, request.container.linux):
        yield f"seccomp policy of {_plugins([seccomp])}, in place of {_profile_name(request.container.linux)}"
    namespaces = _owned(request, api.Namespace)
    if rules.reject_namespace_adjustment and namespaces:
        yield f"namespaces {', '.join(sorted(namespaces))} of {_plugins(namespaces.values())}"
    yield from _missing_plugins(rules, request)
    sysctls = _owned(request, api.Sysctl)
    # Nobody owns what was only removed.
    changed = {without_mark(key) for key in request.adjust.linux.sysctl}
    if rules.reject_sysctl_adjustment and changed:
        whose = f" of {_plugins(sysctls.values())}" if sysctls else ""
        yield f"sysctls {', '.join(sorted(changed))}{whose}"


def _owned(request: api.ValidateContainerAdjustmentRequest, field: api.Field) -> dict[str, str]:
    """The owner of each key of a field of the container."""
    owners = request.owners.owners
    if request.container.id not in owners or field not in owners[request.container.id].compound:
        return {}
    return dict(owners[request.container.id].compound[field].owners)


def _plugins(names: Iterable[str]) -> str:
    distinct = sorted({without_mark(name) for name in names})
    return f"{'plugin' if len(distinct) == 1 else 'plugins'} {', '.join(map(repr, distinct))}"


def _seccomp_is_rejected(rules: Rules, linux: api.LinuxContainer) -> bool:
    return {
        "none": rules.reject_unconfined_seccomp_adjustment,
        "the runtime's default": rules.reject_runtime_default_seccomp_adjustment,
        "a profile of the node": rules.reject_custom_seccomp_adjustment,
    }[_profile_name(linux)]


def _profile_name(linux: api.LinuxContainer) -> str:
    """What the container had before. Without any it is unconfined."""
    kind = linux.seccomp_profile.profile_type
    if not linux.HasField("seccomp_profile") or kind == api.SecurityProfile.UNCONFINED:
        return "none"
    return "the runtime's default" if kind == api.SecurityProfile.RUNTIME_DEFAULT else "a profile of the node"


def _missing_plugins(rules: Rules, request: api.ValidateContainerAdjustmentRequest) -> Iterator[str]:
    if rules.tolerate_missing_plugins_annotation:
        key = rules.tolerate_missing_plugins_annotation
        tolerated = _annotation(request, key)
        if tolerated in _TRUE:
            return
        if tolerated is not None and tolerated not in _FALSE:
            yield f"annotation {key}: {tolerated!r:.100} is neither true nor false"
            return
    required = list(rules.required_plugins)
    annotated = _annotation(request, REQUIRED_PLUGINS)
    if annotated is not None:
        try:
            required += _list(annotated)
        except ValueError as error:
            yield f"annotation {REQUIRED_PLUGINS}: {error}"
            return
    there = {name for one in request.plugins for name in (one.name, f"{one.index}-{one.name}")}
    missing = [name for name in dict.fromkeys(required) if name not in there]
    if missing:
        yield f"missing {_plugins(missing)}, which it requires"


def _annotation(request: api.ValidateContainerAdjustmentRequest, key: str) -> str | None:
    """The pod's annotation for this container, or for all of its containers."""
    annotations = request.pod.annotations
    keys = (f"{key}/container.{request.container.name}", f"{key}/pod", key)
    return next((annotations[one] for one in keys if one in annotations), None)


def _list(text: str) -> list[str]:
    """Raises ValueError."""
    if len(text) > _LONGEST_LIST:
        raise ValueError(f"must have at most {_LONGEST_LIST} characters")
    names = json.loads(yaml_to_json(text))
    if names is None:
        return []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("must be a list of names")
    return names
