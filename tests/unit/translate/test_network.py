"""What CNI plugins get of a pod."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.errors import InvalidArgument
from dockershim.translate.names import SandboxName
from dockershim.translate.network import (
    by_preference,
    kubenet_config,
    parse_pod_cidrs,
    parse_quantity,
    to_bandwidth,
    to_capability_args,
    to_cni_args,
)
from tests.unit.translate.kubelet import sandbox_config

INGRESS, EGRESS = "kubernetes.io/ingress-bandwidth", "kubernetes.io/egress-bandwidth"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("0", 0, id="nothing"),
        pytest.param("1000", 1000, id="a number"),
        pytest.param("10k", 10_000, id="thousands"),
        pytest.param("10M", 10_000_000, id="millions"),
        pytest.param("1E", 10**18, id="the largest suffix, which is no exponent"),
        pytest.param("1e3", 1000, id="an exponent"),
        pytest.param("1E3", 1000, id="an exponent that looks like a suffix"),
        pytest.param("1e-1", 1, id="a negative exponent, rounded up"),
        pytest.param("1Ki", 1024, id="a binary suffix"),
        pytest.param("1.5Gi", 1610612736, id="a fraction of a binary suffix"),
        pytest.param("100m", 1, id="thousandths, rounded up"),
        pytest.param("1n", 1, id="the smallest suffix"),
        pytest.param(".5k", 500, id="no digit before the point"),
        pytest.param("5.k", 5000, id="no digit behind it"),
        pytest.param("+2k", 2000, id="a sign"),
        pytest.param("-1k", -1000, id="a negative one"),
        pytest.param("9007199254740993", 9007199254740993, id="more than a float has"),
    ],
)
def test_quantities(text: str, expected: int) -> None:
    assert parse_quantity(text) == expected


@pytest.mark.parametrize("text", ["", "k", "1kk", "1 k", "1K", "1ki", "1e", "1e3k", "0x10", "1,5", "NaN", "inf", "--1"])
def test_what_is_no_quantity(text: str) -> None:
    with pytest.raises(ValueError, match="is not a valid quantity"):
        parse_quantity(text)


@given(st.integers(0, 10**15), st.sampled_from(["k", "M", "G", "Ki", "Mi", "Gi", ""]))
def test_whole_quantities_are_exact(number: int, suffix: str) -> None:
    factor = {"k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "": 1}[suffix]

    assert parse_quantity(f"{number}{suffix}") == number * factor


@given(st.text(st.sampled_from("0123456789.eE+-kKMi ")) | st.text())
def test_any_text_is_a_quantity_or_a_value_error(text: str) -> None:
    try:
        assert isinstance(parse_quantity(text), int)
    except ValueError:
        return


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        pytest.param({}, None, id="none"),
        pytest.param({INGRESS: "1M"}, {"ingressRate": 10**6, "ingressBurst": 2**32 - 1}, id="in"),
        pytest.param(
            {INGRESS: "1k", EGRESS: "1P"},
            {"ingressRate": 1000, "ingressBurst": 2**32 - 1, "egressRate": 10**15, "egressBurst": 2**32 - 1},
            id="both, at their bounds",
        ),
    ],
)
def test_bandwidth(annotations: dict[str, str], expected: dict[str, int] | None) -> None:
    assert to_bandwidth(annotations) == expected


@pytest.mark.parametrize(("key", "value"), [(INGRESS, "999"), (EGRESS, "2P"), (EGRESS, "fast"), (INGRESS, "-1M")])
def test_a_bandwidth_that_cannot_be_is_refused(key: str, value: str) -> None:
    with pytest.raises(InvalidArgument, match=key):
        to_bandwidth({key: value})


def test_capability_arguments_of_a_pod() -> None:
    config = sandbox_config()
    config.annotations[INGRESS] = "1M"

    assert to_capability_args(config, ["10.1.0.0/24", "fd00::/64"]) == {
        "portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": ""}],
        "bandwidth": {"ingressRate": 10**6, "ingressBurst": 2**32 - 1},
        "ipRanges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/64"}]],
        "dns": {
            "servers": ["10.96.0.10"],
            "searches": ["default.svc.cluster.local", "svc.cluster.local", "cluster.local"],
            "options": ["ndots:5"],
        },
    }


def test_a_pod_that_asks_for_nothing_has_none() -> None:
    assert to_capability_args(cri.PodSandboxConfig(), []) == {}


def test_cni_args_are_those_of_other_runtimes() -> None:
    args = to_cni_args(SandboxName("p", "n", "u", 1), "id")

    assert ";".join(f"{key}={value}" for key, value in args) == (
        "IgnoreUnknown=1;K8S_POD_NAMESPACE=n;K8S_POD_NAME=p;K8S_POD_INFRA_CONTAINER_ID=id;K8S_POD_UID=u"
    )


@pytest.mark.parametrize(
    ("addresses", "expected"),
    [
        pytest.param([], (), id="none"),
        pytest.param(["fd00::1", "10.0.0.1"], ("10.0.0.1", "fd00::1"), id="IPv4 goes first"),
        pytest.param(["10.0.0.2", "10.0.0.1"], ("10.0.0.2", "10.0.0.1"), id="otherwise the plugins' order"),
    ],
)
def test_the_order_of_addresses(addresses: list[str], expected: tuple[str, ...]) -> None:
    assert by_preference(addresses) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("", (), id="none"),
        pytest.param("10.0.0.0/24", ("10.0.0.0/24",), id="one"),
        pytest.param("10.0.0.0/24, fd00::/64,", ("10.0.0.0/24", "fd00::/64"), id="two, with a space"),
    ],
)
def test_pod_cidrs(text: str, expected: tuple[str, ...]) -> None:
    assert parse_pod_cidrs(text) == expected


@pytest.mark.parametrize("text", ["10.0.0.1/24", "10.0.0.0/33", "10.0.0.0", "pods", "10.0.0.0/24;fd00::/64"])
def test_what_is_no_pod_cidr_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="pod_cidr"):
        parse_pod_cidrs(text)


@pytest.mark.parametrize(
    ("mode", "hairpin", "promiscuous"),
    [("none", False, False), ("hairpin-veth", True, False), ("promiscuous-bridge", False, True)],
)
def test_kubenet(mode: str, hairpin: bool, promiscuous: bool) -> None:
    config = kubenet_config(["10.1.0.0/24", "fd00::/64"], mtu=1400, hairpin_mode=mode)
    bridge, *others = config["plugins"]

    assert (bridge["type"], bridge["bridge"], bridge["mtu"]) == ("bridge", "cbr0", 1400)
    assert (bridge["hairpinMode"], bridge["promiscMode"]) == (hairpin, promiscuous)
    assert bridge["ipam"]["ranges"] == [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/64"}]]
    assert bridge["ipam"]["routes"] == [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]
    assert [plugin["type"] for plugin in others] == ["portmap", "firewall", "bandwidth"]
    assert "mtu" not in kubenet_config(["10.1.0.0/24"], mtu=0, hairpin_mode=mode)["plugins"][0]
