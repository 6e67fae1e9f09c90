"""SPEC.md section 5 "ADD Success", of every version."""

from __future__ import annotations

import ipaddress
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cni

OLD_FORM = {
    "cniVersion": "0.2.0",
    "ip4": {"ip": "10.1.0.5/16", "gateway": "10.1.0.1", "routes": [{"dst": "0.0.0.0/0"}]},
    "ip6": {"ip": "fd00::5/64", "routes": [{"dst": "::/0", "gw": "fd00::1"}]},
    "dns": {"nameservers": ["10.1.0.1"]},
}
MIDDLE_FORM = {
    "cniVersion": "0.4.0",
    "interfaces": [{"name": "cni0", "mac": "00:11:22:33:44:55"}, {"name": "eth0", "sandbox": "/run/netns/blue"}],
    "ips": [
        {"version": "4", "address": "10.1.0.5/16", "gateway": "10.1.0.1", "interface": 1},
        {"version": "6", "address": "fd00::5/64"},
    ],
    "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0", "gw": "fd00::1"}],
    "dns": {"nameservers": ["10.1.0.1"], "domain": "d", "search": ["s"], "options": ["ndots:2"]},
}
NEW_FORM = {
    "cniVersion": "1.1.0",
    "interfaces": [
        {"name": "eth0", "mac": "00:11:22:33:44:55", "sandbox": "/n", "mtu": 1450, "socketPath": "/s", "pciID": "p"}
    ],
    "ips": [{"address": "10.1.0.5/16", "gateway": "10.1.0.1", "interface": 0}],
    "routes": [{"dst": "10.9.0.0/24", "mtu": 1400, "advmss": 1360, "priority": 0, "table": 100, "scope": 0}],
}


@pytest.mark.parametrize(
    ("raw", "versions"),
    [
        pytest.param(OLD_FORM, ("0.1.0", "0.2.0"), id="an address of each family"),
        pytest.param(MIDDLE_FORM, ("0.3.0", "0.3.1", "0.4.0"), id="a list with versions"),
        pytest.param(NEW_FORM, ("1.0.0", "1.1.0"), id="a list without"),
        pytest.param({"cniVersion": "1.0.0"}, ("1.0.0", "1.1.0"), id="nothing"),
    ],
)
def test_each_form_is_read_and_written_as_it_was(raw: dict[str, Any], versions: tuple[str, ...]) -> None:
    for version in versions:
        wanted = {**raw, "cniVersion": version}
        assert cni.Result.parse(json.dumps(wanted).encode()).as_json(version) == wanted


def test_old_form_says_the_same_as_the_new() -> None:
    old = cni.Result.parse(OLD_FORM)
    assert [str(ip.address) for ip in old.ips] == ["10.1.0.5/16", "fd00::5/64"]
    assert old.as_json("1.0.0") == {
        "cniVersion": "1.0.0",
        "ips": [{"address": "10.1.0.5/16", "gateway": "10.1.0.1"}, {"address": "fd00::5/64"}],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0", "gw": "fd00::1"}],
        "dns": {"nameservers": ["10.1.0.1"]},
    }


def test_new_form_loses_only_what_the_old_has_no_room_for() -> None:
    assert cni.Result.parse(MIDDLE_FORM).as_json("0.2.0") == {
        **OLD_FORM,
        "dns": MIDDLE_FORM["dns"],
    }
    assert cni.Result.parse(NEW_FORM).as_json("0.4.0") == {
        "cniVersion": "0.4.0",
        "interfaces": [{"name": "eth0", "mac": "00:11:22:33:44:55", "sandbox": "/n"}],
        "ips": [{"version": "4", "address": "10.1.0.5/16", "gateway": "10.1.0.1", "interface": 0}],
        "routes": [{"dst": "10.9.0.0/24"}],
    }


@pytest.mark.parametrize("raw", [OLD_FORM, MIDDLE_FORM, NEW_FORM], ids=["old", "middle", "new"])
def test_a_missing_version_is_the_configurations(raw: dict[str, Any]) -> None:
    bare = {key: value for key, value in raw.items() if key != "cniVersion"}
    assert cni.Result.parse(bare, raw["cniVersion"]) == cni.Result.parse(raw)


def ip(**fields: Any) -> dict[str, Any]:
    return {"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.2/24", **fields}]}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        pytest.param(b"", "invalid JSON", id="silence"),
        pytest.param(b"null", "expected an object, found null", id="null"),
        pytest.param(b"ok\n{}", "invalid JSON", id="chatter before the JSON"),
        pytest.param(b'"' + b"x" * (1 << 20) + b'"', "larger than", id="too large"),
        pytest.param({"cniVersion": "9.9.9"}, "version '9.9.9' is not supported", id="version of the future"),
        pytest.param({"cniVersion": 1}, "cniVersion: expected a string", id="version is a number"),
        pytest.param({"ips": {}}, "ips: expected a list", id="ips is no list"),
        pytest.param({"ips": ["10.0.0.1/8"]}, "ips[0]: expected an object", id="ip is a string"),
        pytest.param({"ips": [{}]}, "ips[0].address: '' must be an address", id="no address"),
        pytest.param(ip(address="10.0.0.300/24"), "10.0.0.300", id="an octet too large"),
        pytest.param(ip(address="10.0.0.2"), "prefix length", id="no prefix"),
        pytest.param(ip(address="10.0.0.2/33"), "10.0.0.2/33", id="prefix too long"),
        pytest.param(ip(address="10.0.0.2/255.255.255.0"), "prefix length", id="a netmask"),
        pytest.param(ip(address="10.0.0.2/²"), "prefix length", id="a digit that is none"),
        pytest.param(ip(address="fe80::1%eth0/64"), "must not have a zone", id="a zone"),
        pytest.param(ip(address="$(reboot)/24"), "$(reboot)", id="a command"),
        pytest.param(ip(address=167772162), "address: expected a string", id="an address as a number"),
        pytest.param(ip(gateway="10.0.0"), "10.0.0", id="gateway is none"),
        pytest.param(ip(interface=0), "ips[0].interface: interface 0 does not exist", id="interface out of range"),
        pytest.param(ip(interface=-1), "interface -1 does not exist", id="negative interface"),
        pytest.param(ip(interface=True), "expected an integer, found a boolean", id="interface is a flag"),
        pytest.param(ip(interface="0"), "expected an integer, found a string", id="interface is a string"),
        pytest.param({"routes": [{"dst": "default"}]}, "routes[0].dst", id="destination is a word"),
        pytest.param({"routes": [{"dst": "0.0.0.0/0", "mtu": 1.5}]}, "mtu: expected an integer", id="broken mtu"),
        pytest.param({"interfaces": [{"name": []}]}, "interfaces[0].name", id="name is a list"),
        pytest.param({"dns": {"search": "a"}}, "dns.search: expected a list", id="search is a string"),
        pytest.param({"dns": {"nameservers": [1]}}, "dns.nameservers[0]", id="nameserver is a number"),
        pytest.param(
            {"cniVersion": "0.2.0", "ip4": {"ip": "fd00::1/64"}}, "ip4: must be one IPv4 address", id="family mixed up"
        ),
        pytest.param({"cniVersion": "0.2.0", "ip4": []}, "ip4: expected an object", id="ip4 is a list"),
        pytest.param({"cniVersion": "0.2.0", "ip4": {"ip": "x"}}, "ip4.ip", id="ip4 is no address"),
    ],
)
def test_hostile_result_is_refused_with_its_place(data: bytes | dict[str, Any], reason: str) -> None:
    with pytest.raises(cni.ResultError) as caught:
        cni.Result.parse(data if isinstance(data, bytes) else json.dumps(data).encode())
    assert reason in str(caught.value)


def test_null_and_empty_are_as_good_as_absent() -> None:
    raw = {"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.2/24", "gateway": "", "interface": None}], "dns": None}
    assert cni.Result.parse(raw).as_json("1.0.0") == ip()


addresses = st.ip_addresses()
interfaces = st.builds(
    cni.Interface,
    name=st.text(max_size=15),
    mac=st.text(max_size=17),
    sandbox=st.text(max_size=20),
    mtu=st.none() | st.integers(0, 65536),
    socket_path=st.text(max_size=5),
    pci_id=st.text(max_size=5),
)
numbers = st.none() | st.integers(0, 2**32)
routes = st.builds(
    cni.Route,
    dst=addresses.map(lambda address: ipaddress.ip_interface(f"{address}/20").network),
    gw=st.none() | addresses,
    mtu=numbers,
    advmss=numbers,
    priority=numbers,
    table=numbers,
    scope=numbers,
)
names = st.lists(st.text(min_size=1, max_size=5), max_size=2).map(tuple)


@st.composite
def results(draw: st.DrawFn) -> cni.Result:
    made = draw(st.lists(interfaces, max_size=3))
    index = st.none() | st.integers(0, len(made) - 1) if made else st.none()
    prefixed = addresses.map(lambda address: ipaddress.ip_interface(f"{address}/24"))
    ips = st.builds(cni.IPConfig, address=prefixed, gateway=st.none() | addresses, interface=index)
    return cni.Result(
        interfaces=tuple(made),
        ips=tuple(draw(st.lists(ips, max_size=4))),
        routes=tuple(draw(st.lists(routes, max_size=3))),
        dns=cni.DNS(draw(names), draw(st.text(max_size=5)), draw(names), draw(names)),
    )


@given(results())
def test_newest_form_keeps_everything(result: cni.Result) -> None:
    assert cni.Result.parse(json.dumps(result.as_json("1.1.0")).encode()) == result


@given(results(), st.sampled_from(["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0"]))
def test_every_form_can_be_read_back_and_is_then_stable(result: cni.Result, version: str) -> None:
    form = result.as_json(version)
    again = cni.Result.parse(form)
    assert again.version == version
    assert again.as_json(version) == form


@given(st.binary(max_size=100))
def test_garbage_ends_in_a_result_error(data: bytes) -> None:
    try:
        cni.Result.parse(data)
    except cni.ResultError:
        return
    assert isinstance(json.loads(data), dict)
