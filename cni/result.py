"""The result of ADD, as one class for all versions of the specification.

SPEC.md, section 5 "ADD Success". There are three JSON forms: 0.1.0 and 0.2.0 have one address per family under
``ip4`` and ``ip6``; 0.3.0 to 0.4.0 have a list, each address with its ``version``; 1.0.0 and newer do not have that.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cni import _json, versions
from cni.errors import ResultError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
AddressWithPrefix = ipaddress.IPv4Interface | ipaddress.IPv6Interface
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

MAX_RESULT_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface. ``sandbox`` is the path of its netns, empty on the host; ``mtu`` is in bytes."""

    name: str
    mac: str = ""
    sandbox: str = ""
    mtu: int | None = None
    socket_path: str = ""
    pci_id: str = ""

    @classmethod
    def _parse(cls, raw: _json.Object, where: str) -> Interface:
        return cls(
            name=_json.text(raw, "name", where),
            mac=_json.text(raw, "mac", where),
            sandbox=_json.text(raw, "sandbox", where),
            mtu=_json.integer(raw, "mtu", where),
            socket_path=_json.text(raw, "socketPath", where),
            pci_id=_json.text(raw, "pciID", where),
        )

    def _as_json(self, version: str) -> _json.Object:
        raw = {"name": self.name, **_present(mac=self.mac, sandbox=self.sandbox)}
        if versions.at_least(version, "1.0.0"):
            raw |= _present(mtu=self.mtu, socketPath=self.socket_path, pciID=self.pci_id)
        return raw


@dataclass(frozen=True, slots=True)
class IPConfig:
    """An address with its prefix; ``interface`` is an index into the result's interfaces."""

    address: AddressWithPrefix
    gateway: Address | None = None
    interface: int | None = None

    @classmethod
    def _parse(cls, raw: _json.Object, key: str, where: str) -> IPConfig:
        return cls(
            _address_with_prefix(raw, key, where),
            _address(raw, "gateway", where),
            _json.integer(raw, "interface", where),
        )

    def _as_json(self, version: str) -> _json.Object:
        raw: _json.Object = {"address": str(self.address)}
        if not versions.at_least(version, "1.0.0"):
            raw["version"] = str(self.address.version)
        return raw | _present(gateway=self.gateway, interface=self.interface)


@dataclass(frozen=True, slots=True)
class Route:
    """A route. The fields after ``gw`` exist since 1.1.0; they are None if the plugin did not set them."""

    dst: Network
    gw: Address | None = None
    mtu: int | None = None
    advmss: int | None = None
    priority: int | None = None
    table: int | None = None
    scope: int | None = None

    @classmethod
    def _parse(cls, raw: _json.Object, where: str) -> Route:
        more = {key: _json.integer(raw, key, where) for key in ("mtu", "advmss", "priority", "table", "scope")}
        return cls(_address_with_prefix(raw, "dst", where).network, _address(raw, "gw", where), **more)

    def _as_json(self, version: str) -> _json.Object:
        raw: _json.Object = {"dst": str(self.dst), **_present(gw=self.gw)}
        if versions.at_least(version, "1.0.0"):
            raw |= _present(
                mtu=self.mtu, advmss=self.advmss, priority=self.priority, table=self.table, scope=self.scope
            )
        return raw


@dataclass(frozen=True, slots=True)
class DNS:
    nameservers: tuple[str, ...] = ()
    domain: str = ""
    search: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    @classmethod
    def _parse(cls, raw: _json.Object) -> DNS:
        return cls(
            nameservers=_json.texts(raw, "nameservers", "dns."),
            domain=_json.text(raw, "domain", "dns."),
            search=_json.texts(raw, "search", "dns."),
            options=_json.texts(raw, "options", "dns."),
        )

    def _as_json(self) -> _json.Object:
        return _present(
            nameservers=list(self.nameservers),
            domain=self.domain,
            search=list(self.search),
            options=list(self.options),
        )


@dataclass(frozen=True, slots=True)
class Result:
    """The result of an attachment. ``version`` is that of the JSON it was read from."""

    version: str = versions.NEWEST
    interfaces: tuple[Interface, ...] = ()
    ips: tuple[IPConfig, ...] = ()
    routes: tuple[Route, ...] = ()
    dns: DNS = DNS()

    @classmethod
    def parse(cls, data: bytes | Mapping[str, Any], config_version: str = versions.NEWEST) -> Result:
        """Read a plugin's output of any version.

        A result without ``cniVersion`` has the configuration's version: plugins before 1.0.0 often leave it out.
        Raises :class:`ResultError`.
        """
        try:
            if isinstance(data, bytes) and len(data) > MAX_RESULT_BYTES:
                raise _json.Malformed(f"larger than {MAX_RESULT_BYTES} bytes")
            raw = _json.decode_object(data) if isinstance(data, bytes) else data
            version = _json.text(raw, "cniVersion") or config_version
            if version not in versions.SUPPORTED:
                raise _json.Malformed(f"version {version!r:.80} is not supported")
            if versions.at_least(version, "0.3.0"):
                return cls._parse_lists(raw, version)
            return cls._parse_families(raw, version)
        except ValueError as error:
            raise ResultError(f"invalid result: {error}") from error

    @classmethod
    def _parse_lists(cls, raw: Mapping[str, Any], version: str) -> Result:
        interfaces = _json.objects(raw, "interfaces")
        ips = tuple(
            IPConfig._parse(ip, "address", f"ips[{index}].") for index, ip in enumerate(_json.objects(raw, "ips"))
        )
        for index, ip in enumerate(ips):
            if ip.interface is not None and not 0 <= ip.interface < len(interfaces):
                raise _json.Malformed(f"ips[{index}].interface: interface {ip.interface} does not exist")
        return cls(
            version=version,
            interfaces=tuple(Interface._parse(item, f"interfaces[{i}].") for i, item in enumerate(interfaces)),
            ips=ips,
            routes=tuple(Route._parse(item, f"routes[{i}].") for i, item in enumerate(_json.objects(raw, "routes"))),
            dns=DNS._parse(_json.mapping(raw, "dns")),
        )

    @classmethod
    def _parse_families(cls, raw: Mapping[str, Any], version: str) -> Result:
        ips: list[IPConfig] = []
        routes: list[Route] = []
        for key, family in (("ip4", 4), ("ip6", 6)):
            section = _json.mapping(raw, key)
            if not section:
                continue
            ip = IPConfig._parse(section, "ip", f"{key}.")
            if ip.address.version != family or ip.interface is not None:
                raise _json.Malformed(f"{key}: must be one IPv{family} address")
            ips.append(ip)
            routes += (
                Route._parse(item, f"{key}.routes[{index}].")
                for index, item in enumerate(_json.objects(section, "routes", f"{key}."))
            )
        return cls(version, (), tuple(ips), tuple(routes), DNS._parse(_json.mapping(raw, "dns")))

    def as_json(self, version: str) -> _json.Object:
        """The JSON form of any supported version.

        An older form may hold less: before 0.3.0 it has only the first address of each family, and no interfaces;
        before 1.0.0 it does not have the fields that 1.1.0 added.
        """
        if versions.at_least(version, "0.3.0"):
            body = _present(
                interfaces=[interface._as_json(version) for interface in self.interfaces],
                ips=[ip._as_json(version) for ip in self.ips],
                routes=[route._as_json(version) for route in self.routes],
            )
        else:
            body = _present(ip4=self._family(4), ip6=self._family(6))
        return {"cniVersion": version, **body, **_present(dns=self.dns._as_json())}

    def _family(self, family: int) -> _json.Object:
        ip = next((ip for ip in self.ips if ip.address.version == family), None)
        if ip is None:
            return {}
        routes = [
            {"dst": str(route.dst), **_present(gw=route.gw)} for route in self.routes if route.dst.version == family
        ]
        return {"ip": str(ip.address), **_present(gateway=ip.gateway, routes=routes)}


def _present(**values: Any) -> _json.Object:
    """The fields that have a value; None and empty values are left out, zero is not."""
    return {
        key: str(value) if isinstance(value, ipaddress.IPv4Address | ipaddress.IPv6Address) else value
        for key, value in values.items()
        if value not in (None, "", [], {})
    }


def _address(raw: _json.Object, key: str, where: str) -> Address | None:
    spelled = _json.text(raw, key, where)
    return ipaddress.ip_address(_unscoped(spelled, f"{where}{key}")) if spelled else None


def _address_with_prefix(raw: _json.Object, key: str, where: str) -> AddressWithPrefix:
    """An address in CIDR notation. Python alone would also take a bare address or a netmask."""
    spelled = _unscoped(_json.text(raw, key, where), f"{where}{key}")
    prefix = spelled.partition("/")[2]
    if not (prefix.isascii() and prefix.isdigit()):
        raise _json.Malformed(f"{where}{key}: {spelled!r:.80} must be an address with a prefix length")
    return ipaddress.ip_interface(spelled)


def _unscoped(spelled: str, what: str) -> str:
    if "%" in spelled:
        raise _json.Malformed(f"{what}: {spelled!r:.80} must not have a zone")
    return spelled
