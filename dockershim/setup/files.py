"""The other files that setup writes: each from what is there and what it must have. Pure."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

_HEAD: Final = "# Written by dockershim setup.\n"
#: Ranges for the pods of one node; the first is what Debian and Podman have in their examples.
_RANGES: Final = tuple(ipaddress.IPv4Network(f"10.{number}.0.0/16") for number in range(88, 120))


def sysctls(content: bytes | None, values: Mapping[str, str]) -> bytes:
    """A file of /etc/sysctl.d with these values; lines of other sysctls stay."""
    lines = _HEAD.splitlines() if content is None else content.decode(errors="surrogateescape").splitlines()
    kept = [line for line in lines if line.partition("=")[0].strip() not in values]
    return _lines([*kept, *(f"{name} = {value}" for name, value in sorted(values.items()))])


def modules(content: bytes | None, name: str) -> bytes:
    """A file of /etc/modules-load.d with this module."""
    lines = _HEAD.splitlines() if content is None else content.decode(errors="surrogateescape").splitlines()
    return _lines(lines if name in lines else [*lines, name])


def crictl(content: bytes | None, endpoint: str) -> bytes:
    """/etc/crictl.yaml with this endpoint. Other lines stay, comments too."""
    text = (content or b"").decode(errors="surrogateescape")
    keys = ["runtime-endpoint"]
    if re.search(r"^image-endpoint:", text, re.MULTILINE):
        keys.append("image-endpoint")
    for key in keys:
        line = f"{key}: {endpoint}"
        text, count = re.subn(rf"^{key}:.*$", lambda _, line=line: line, text, flags=re.MULTILINE)  # type: ignore[misc]
        if not count:
            text = f"{line}\n{text}"
    return text.encode(errors="surrogateescape")


def kubelet_drop_in(command: str, endpoint: str) -> bytes:
    """A drop-in that adds the endpoint to the command of the kubelet's unit. The last one of two flags counts."""
    flag = f"--container-runtime-endpoint={endpoint}"
    return _lines([_HEAD.strip(), "[Service]", "ExecStart=", f"ExecStart={command} {flag}"])


def free_range(routes: Iterable[ipaddress.IPv4Network]) -> ipaddress.IPv4Network | None:
    """A range of addresses for pods to which no route of the node leads; None if all are in use."""
    taken = [route for route in routes if route.prefixlen > 0]
    return next((one for one in _RANGES if not any(one.overlaps(route) for route in taken)), None)


def conflist(pods: ipaddress.IPv4Network) -> bytes:
    """A network for the pods of one node, which has all of these addresses."""
    bridge: dict[str, Any] = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "ipMasq": True,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": str(pods)}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    plugins = [
        bridge,
        {"type": "portmap", "capabilities": {"portMappings": True}},
        # Docker drops packets that are forwarded and that no rule accepts: this one makes the rules for pods.
        {"type": "firewall"},
    ]
    return (json.dumps({"cniVersion": "1.0.0", "name": "pods", "plugins": plugins}, indent=2) + "\n").encode()


def _lines(lines: Sequence[str]) -> bytes:
    return ("\n".join(lines) + "\n").encode(errors="surrogateescape")
