"""``dockershim info``: what kernel, engine and runtimes of this node can do, as the running server has found it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import grpc

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.common.text import escape
from dockershim.server.cri_calls import call, connect, reason

_KEY: Final = "capabilities"
_DEADLINE: Final = 10.0
_FOREIGN: Final = "the server does not report this: it is not dockershim, or has another version"


class NoInfo(Exception):
    """The text says in one line why there is nothing to print."""


def read(endpoint: str) -> dict[str, Any]:
    """Ask the server on this endpoint (``unix:///path``). See ``to_node_facts`` for the answer. Raises NoInfo."""
    with connect(endpoint) as channel:
        try:
            return facts_of(call(channel, cri.StatusRequest(verbose=True), cri.StatusResponse, _DEADLINE))
        except grpc.RpcError as error:
            raise NoInfo(
                f"no server responds on {endpoint}: start dockershim, or set --container-runtime-endpoint"
                f" ({escape(reason(error))})"
            ) from error


def facts_of(status: cri.StatusResponse) -> dict[str, Any]:
    """The facts in the answer to a verbose Status. Raises NoInfo if the engine is away, or if it has none."""
    for condition in status.status.conditions:
        if condition.type == "RuntimeReady" and not condition.status:
            raise NoInfo(f"the server is running, but the engine does not respond: {escape(condition.message)}")
    try:
        facts: dict[str, Any] = json.loads(status.info[_KEY])
    except ValueError:
        raise NoInfo(_FOREIGN) from None
    return facts


def render(facts: Mapping[str, Any]) -> str:
    """The facts for people, a line each. Raises NoInfo if a server of another version sent them."""
    try:
        rows = list(_rows(facts))
    except (KeyError, TypeError):
        raise NoInfo(f"{_FOREIGN}; --json prints what it reports") from None
    width = max(len(name) for name, _ in rows)
    return "".join(f"{name:{width}}  {escape(text)}\n" for name, text in rows)


def _rows(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    kernel, engine, cgroups, security = (facts[key] for key in ("kernel", "engine", "cgroups", "security"))
    yield "kernel", f"{kernel['release']}, {kernel['architecture']}, {kernel['operatingSystem']}"
    yield "engine", f"Docker {engine['version']}, API {engine['api']}, in {engine['rootDirectory']}"
    yield "live-restore", _yes(engine["liveRestore"])
    yield "rootless", _yes(engine["rootless"])
    yield "userns-remap", _yes(engine["userNamespaceRemap"])
    namespaces = facts["userNamespaces"]
    yield "user namespaces", f"by {namespaces['runtime']}" if namespaces["runtime"] else f"no: {namespaces['problem']}"
    early = facts["earlyNetwork"]
    yield "early network", f"by {early['runtime']}" if early["runtime"] else f"no: {early['problem']}"
    yield "image volumes", _yes(engine["imageVolumes"])
    yield "CDI", "yes" if engine["cdi"] else "without hooks"
    yield "image store", f"{facts['images']['store']}, {facts['images']['storageDriver']}"
    yield "cgroups", f"v{cgroups['version']}, {cgroups['driver']}"
    yield "missing limits", ", ".join(cgroups["missingLimits"]) or "none"
    yield "huge pages", ", ".join(cgroups["hugePages"]) or "none"
    for key, name in (("seccomp", "seccomp"), ("appArmor", "AppArmor"), ("seLinux", "SELinux")):
        yield name, _yes(security[key])
    for handler in facts["runtimeHandlers"]:
        mounts, namespaces = _yes(handler["recursiveReadOnlyMounts"]), _yes(handler["userNamespaces"])
        yield (
            f"handler {json.dumps(handler['name'])}",
            f"runtime {handler['runtime']}; recursive read-only mounts: {mounts}; user namespaces: {namespaces}",
        )


def _yes(value: bool) -> str:
    return "yes" if value else "no"
