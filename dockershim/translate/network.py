"""Converts a pod's CRI fields to arguments of CNI plugins; also the CNI configuration of kubenet."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.errors import InvalidArgument
from dockershim.translate.names import SandboxName
from dockershim.translate.sandbox import protocol_name, published_ports

INTERFACE = "eth0"

_INGRESS = "kubernetes.io/ingress-bandwidth"
_EGRESS = "kubernetes.io/egress-bandwidth"
#: Kubernetes' limits of a pod's bandwidth, in bits per second.
_LOWEST_RATE, _HIGHEST_RATE = 1000, 10**15
_BURST = 2**32 - 1

_QUANTITY = re.compile(r"([+-]?\d+(?:\.\d*)?|[+-]?\.\d+)(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?\d{1,3}))?")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


def parse_quantity(text: str) -> int:
    """A Kubernetes resource quantity ("10M", "1.5Gi", "1e6") as a whole number, rounded up.

    Raises ValueError for other text.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a valid quantity")
    number, suffix, exponent = Decimal(match[1]), match[2] or "", match[3]
    if suffix in _BINARY:
        number *= 2 ** _BINARY[suffix]
    else:
        number = number.scaleb(int(exponent) if exponent else _DECIMAL[suffix])
    return int(number.to_integral_value(rounding="ROUND_CEILING"))


def to_bandwidth(annotations: Mapping[str, str]) -> dict[str, int] | None:
    """The ``bandwidth`` capability argument of CNI, bits per second. Raises InvalidArgument naming the annotation."""
    result: dict[str, int] = {}
    for key, direction in ((_INGRESS, "ingress"), (_EGRESS, "egress")):
        if key not in annotations:
            continue
        try:
            rate = parse_quantity(annotations[key])
        except ValueError as error:
            raise InvalidArgument(f"annotation {key}: {error}") from error
        if not _LOWEST_RATE <= rate <= _HIGHEST_RATE:
            raise InvalidArgument(f"annotation {key}: {annotations[key]} must be between 1k and 1P bits per second")
        result[f"{direction}Rate"] = rate
        result[f"{direction}Burst"] = _BURST
    return result or None


def to_port_mappings(ports: Iterable[tuple[str, int, int, str]]) -> dict[str, Any]:
    """The ``portMappings`` argument from (protocol, container port, host port, host address); empty if no ports."""
    mappings = [
        {"hostPort": host_port, "containerPort": container_port, "protocol": protocol, "hostIP": host_ip}
        for protocol, container_port, host_port, host_ip in ports
    ]
    return {"portMappings": mappings} if mappings else {}


def to_capability_args(config: cri.PodSandboxConfig, pod_cidrs: Sequence[str]) -> dict[str, Any]:
    """The capability arguments of a pod. A plugin gets only those that its configuration declares."""
    result = to_port_mappings(
        (protocol_name(port.protocol), port.container_port, port.host_port, port.host_ip)
        for port in published_ports(config)
    )
    bandwidth = to_bandwidth(config.annotations)
    if bandwidth:
        result["bandwidth"] = bandwidth
    if pod_cidrs:
        result["ipRanges"] = [[{"subnet": cidr}] for cidr in pod_cidrs]
    dns = config.dns_config
    if dns.servers or dns.searches or dns.options:
        result["dns"] = {
            "servers": list(dns.servers),
            "searches": list(dns.searches),
            "options": list(dns.options),
        }
    return result


def to_cni_args(name: SandboxName, sandbox_id: str) -> tuple[tuple[str, str], ...]:
    """CNI_ARGS of a pod, in the same order as other runtimes."""
    return (
        ("IgnoreUnknown", "1"),
        ("K8S_POD_NAMESPACE", name.namespace),
        ("K8S_POD_NAME", name.name),
        ("K8S_POD_INFRA_CONTAINER_ID", sandbox_id),
        ("K8S_POD_UID", name.uid),
    )


def by_preference(addresses: Iterable[str]) -> tuple[str, ...]:
    """A pod's addresses with an IPv4 one first, otherwise in the order of the plugins."""
    return tuple(sorted(addresses, key=lambda address: ipaddress.ip_address(address).version))


def parse_pod_cidrs(text: str) -> tuple[str, ...]:
    """The pod CIDRs of "10.0.0.0/24,fd00::/64". Raises InvalidArgument."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    for part in parts:
        if "/" not in part:
            raise InvalidArgument(f"pod_cidr: {part!r} must be a CIDR such as 10.244.0.0/24")
    try:
        return tuple(str(ipaddress.ip_network(part)) for part in parts)
    except ValueError as error:
        raise InvalidArgument(f"pod_cidr: {error}") from error


def kubenet_config(pod_cidrs: Sequence[str], *, mtu: int, hairpin_mode: str) -> dict[str, Any]:
    """The CNI configuration that does what kubenet did: a bridge with the node's pod CIDRs, and host ports."""
    bridge: dict[str, Any] = {
        "type": "bridge",
        "bridge": "cbr0",
        "isGateway": True,
        "ipMasq": True,
        "hairpinMode": hairpin_mode == "hairpin-veth",
        "promiscMode": hairpin_mode == "promiscuous-bridge",
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": cidr}] for cidr in pod_cidrs],
            "routes": [{"dst": "::/0" if ":" in cidr else "0.0.0.0/0"} for cidr in pod_cidrs],
        },
    }
    if mtu:
        bridge["mtu"] = mtu
    return {
        "cniVersion": "1.0.0",
        "name": "kubenet",
        "plugins": [
            bridge,
            {"type": "portmap", "capabilities": {"portMappings": True}},
            {"type": "firewall"},
            {"type": "bandwidth", "capabilities": {"bandwidth": True}},
        ],
    }
