from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoints import Checkpoint, DamagedCheckpoint, NewerCheckpoint, PortMapping, decode, encode
from checkpoints.format import checksum

SAMPLES = Path(__file__).parent / "samples"
ID = "a" * 64
WEB = PortMapping("tcp", 80, 8080)
DNS = PortMapping("udp", 53, 0, "127.0.0.1")
PLAIN = Checkpoint(ID, "web-0", "default")

texts = st.text(st.characters(codec="utf-8"))
mappings = st.builds(
    PortMapping,
    protocol=st.sampled_from(["tcp", "udp", "sctp"]),
    container_port=st.integers(0, 65535),
    host_port=st.integers(0, 65535),
    host_ip=texts,
)
json_objects = st.dictionaries(texts, texts | st.integers() | st.dictionaries(texts, texts, max_size=2), max_size=3)
checkpoints = st.builds(
    Checkpoint,
    sandbox_id=st.just(ID),
    name=texts,
    namespace=texts,
    port_mappings=st.lists(mappings, max_size=4).map(tuple),
    host_network=st.booleans(),
    uid=texts,
    attempt=st.integers(0, 2**32 - 1),
    network=st.sampled_from(["", "cni", "docker", "host"]),
    log_directory=texts,
    cgroup_parent=texts,
    runtime_handler=texts,
    created_at=st.integers(0, 2**63 - 1),
    labels=st.dictionaries(texts, texts, max_size=4),
    annotations=st.dictionaries(texts, texts, max_size=4),
    overhead=st.none() | json_objects,
    resources=st.none() | json_objects,
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(), children, max_size=4),
    max_leaves=12,
)
known_keys = ["version", "name", "namespace", "data", "checksum", "dockershim", "port_mappings", "uid", "labels"]


@pytest.mark.parametrize(
    ("port_mappings", "host_network", "expected"),
    [
        pytest.param((), False, 2305795928, id="no-ports-pod-network"),
        pytest.param((), True, 12315789, id="host-network"),
        pytest.param((WEB,), False, 3712672205, id="one-port"),
        pytest.param((WEB, DNS), False, 3472794026, id="two-ports-one-with-an-address"),
    ],
)
def test_the_checksum_is_the_one_that_cri_dockerd_computes(
    port_mappings: tuple[PortMapping, ...], host_network: bool, expected: int
) -> None:
    assert checksum(port_mappings, host_network) == expected


@pytest.mark.parametrize(
    ("sample", "expected", "differs"),
    [
        pytest.param("cri-dockerd-no-ports", PLAIN, False, id="cri-dockerd-no-ports"),
        pytest.param(
            "cri-dockerd-host-network",
            Checkpoint(ID, "kube-proxy-x7k2p", "kube-system", host_network=True),
            False,
            id="cri-dockerd-host-network",
        ),
        pytest.param("cri-dockerd-ports", replace(PLAIN, port_mappings=(WEB, DNS)), False, id="cri-dockerd-ports"),
        pytest.param("in-tree", replace(PLAIN, port_mappings=(WEB,)), True, id="in-tree-checksum-differs"),
        pytest.param(
            "in-tree-before-host-network-and-checksum",
            replace(PLAIN, port_mappings=(WEB,)),
            False,
            id="no-checksum-is-not-a-wrong-one",
        ),
        pytest.param("without-data", PLAIN, False, id="no-data-is-no-ports"),
        pytest.param(
            "dockershim-1",
            Checkpoint(
                ID,
                "web-0",
                "default",
                (WEB,),
                uid="1c0f2b9e-8a8e-4f0e-9a55-3f4f2f1a7c11",
                attempt=2,
                network="cni",
                log_directory="/var/log/pods/default_web-0_1c0f2b9e-8a8e-4f0e-9a55-3f4f2f1a7c11",
                cgroup_parent="/kubepods/besteffort/pod1c0f2b9e",
                runtime_handler="runc",
                created_at=1700000000123456789,
                labels={"app": "web"},
                annotations={"note": "ü\n"},
            ),
            False,
            id="our-first-release",
        ),
        pytest.param(
            "dockershim-2",
            replace(
                PLAIN,
                uid="1c0f2b9e-8a8e-4f0e-9a55-3f4f2f1a7c11",
                network="cni",
                overhead={},
                resources={"cpu_shares": "512", "unified": {"memory.min": "1"}},
            ),
            False,
            id="ours-after-a-resize",
        ),
    ],
)
def test_files_of_every_past_writer_are_read(sample: str, expected: Checkpoint, differs: bool) -> None:
    content = (SAMPLES / f"{sample}.json").read_bytes()
    assert decode(ID, content) == expected
    ours = checksum(expected.port_mappings, expected.host_network)
    assert (json.loads(content).get("checksum", ours) != ours) is differs


def test_every_sample_is_read() -> None:
    for path in sorted(SAMPLES.glob("*.json")):
        assert decode(ID, path.read_bytes()).sandbox_id == ID, path.name


@given(checkpoints)
def test_what_is_encoded_is_read_back(checkpoint: Checkpoint) -> None:
    assert decode(ID, encode(checkpoint)) == checkpoint


@given(checkpoints)
def test_an_older_reader_finds_its_fields_and_its_checksum(checkpoint: Checkpoint) -> None:
    document = json.loads(encode(checkpoint))
    assert set(document) == {"version", "name", "namespace", "data", "checksum", "dockershim"}
    assert set(document["data"]) <= {"port_mappings", "host_network"}
    assert document["checksum"] == checksum(checkpoint.port_mappings, checkpoint.host_network)
    # cri-dockerd omits what is empty and hashes that as absent.
    assert ("port_mappings" in document["data"]) == bool(checkpoint.port_mappings)


def whole(**changes: object) -> bytes:
    document: dict[str, object] = {"version": "v1", "name": "web-0", "namespace": "default", "data": {}}
    return json.dumps(document | changes).encode()


def port(**changes: object) -> bytes:
    mapping: dict[str, object] = {"protocol": "tcp", "container_port": 80, "host_port": 8080}
    return whole(data={"port_mappings": [mapping | changes]})


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(whole()[:-7], id="cut-short"),
        pytest.param(b"\0" * 512, id="zeros-after-a-power-cut"),
        pytest.param(b"\xff\xfe\xfd", id="not-text"),
        pytest.param(b"[]", id="not-an-object"),
        pytest.param(b"[" * 200_000, id="nested-too-deeply"),
        pytest.param(b'{"version":' + b"9" * 10_000 + b"}", id="a-number-of-ten-thousand-digits"),
        pytest.param(b'{"name":"web-0","namespace":"default","data":{}}', id="no-version"),
        pytest.param(whole(version="v0"), id="a-version-that-never-was"),
        pytest.param(whole(version="v1x"), id="a-version-that-is-none"),
        pytest.param(whole(version=2), id="a-version-of-another-type"),
        pytest.param(whole(name=None), id="no-name"),
        pytest.param(whole(namespace=7), id="namespace-not-a-text"),
        pytest.param(whole(data=[]), id="data-not-an-object"),
        pytest.param(whole(data={"host_network": "true"}), id="host-network-not-a-boolean"),
        pytest.param(whole(data={"port_mappings": {}}), id="port-mappings-not-a-list"),
        pytest.param(whole(data={"port_mappings": [80]}), id="port-mapping-not-an-object"),
        pytest.param(port(protocol="icmp"), id="unknown-protocol"),
        pytest.param(port(protocol=["tcp"]), id="protocol-of-another-type"),
        pytest.param(port(container_port=65536), id="port-too-high"),
        pytest.param(port(host_port=-1), id="port-negative"),
        pytest.param(port(host_port=True), id="port-a-boolean"),
        pytest.param(port(host_port=None), id="port-missing"),
        pytest.param(port(host_ip=1), id="address-not-a-text"),
        pytest.param(whole(dockershim=1), id="extension-not-an-object"),
        pytest.param(whole(dockershim={"uid": 1}), id="uid-not-a-text"),
        pytest.param(whole(dockershim={"attempt": "1"}), id="attempt-not-a-number"),
        pytest.param(whole(dockershim={"labels": {"a": 1}}), id="label-not-a-text"),
        pytest.param(whole(dockershim={"resources": ["cpu"]}), id="resources-not-an-object"),
    ],
)
def test_what_is_no_checkpoint_is_damaged(content: bytes) -> None:
    with pytest.raises(DamagedCheckpoint):
        decode(ID, content)


@pytest.mark.parametrize("version", ["v2", "v9", "v10", "v123"])
def test_a_newer_schema_is_not_damage(version: str) -> None:
    with pytest.raises(NewerCheckpoint):
        decode(ID, json.dumps({"version": version, "pods": []}).encode())


def test_keys_of_a_later_release_are_ignored() -> None:
    read = decode(ID, whole(later=1, dockershim={"uid": "u", "later": {"a": 1}}))
    assert read == replace(PLAIN, uid="u")


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(whole(name="\ud800"), id="the name"),
        pytest.param(whole(dockershim={"labels": {"a": "\udfff"}}), id="a label"),
        pytest.param(whole(dockershim={"annotations": {"\ud800": "a"}}), id="an annotation's key"),
        pytest.param(port(host_ip="\ud800"), id="an address"),
    ],
)
def test_half_of_a_character_is_damage(content: bytes) -> None:
    """JSON can write it, and no message of the CRI can hold it: a list of all pods would fail for one."""
    with pytest.raises(DamagedCheckpoint):
        decode(ID, content)


def assert_decodes_or_is_refused(content: bytes) -> None:
    try:
        decode(ID, content)
    except (DamagedCheckpoint, NewerCheckpoint):
        return


@given(st.binary())
def test_any_bytes_are_a_checkpoint_or_refused(content: bytes) -> None:
    assert_decodes_or_is_refused(content)


@given(st.dictionaries(st.sampled_from(known_keys), json_values))
def test_any_json_is_a_checkpoint_or_refused(document: dict[str, object]) -> None:
    assert_decodes_or_is_refused(json.dumps({"version": "v1", **document}).encode())
