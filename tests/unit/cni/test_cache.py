"""The cache is libcni's: what it wrote is read here, and what is written here is what it wrote."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cni
from cni import cache
from tests.unit.cni.fakes import CONTAINER, network, result

SAMPLES = Path(__file__).with_name("samples")
ATTACHMENT = cni.Attachment(CONTAINER, "/run/netns/pod", "eth0", (("IgnoreUnknown", "1"),), {"mac": "aa"})


@pytest.fixture
def store(tmp_path: Path) -> cache.ResultCache:
    return cache.ResultCache(tmp_path / "cni")


def file(tmp_path: Path, name: str = f"podnet-{CONTAINER}-eth0") -> Path:
    path = tmp_path / "cni/results" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def test_form_is_libcnis(store: cache.ResultCache, tmp_path: Path) -> None:
    net = network("bridge")
    store.write(net, ATTACHMENT, cni.Result.parse(result()))
    path = file(tmp_path)
    assert json.loads(path.read_text()) == {
        "kind": "cniCacheV1",
        "containerId": CONTAINER,
        "config": base64.b64encode(net.raw).decode(),
        "ifName": "eth0",
        "networkName": "podnet",
        "netns": "/run/netns/pod",
        "cniArgs": [["IgnoreUnknown", "1"]],
        "capabilityArgs": {"mac": "aa"},
        "result": result(),
    }
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert [entry.name for entry in (tmp_path / "cni").iterdir()] == ["results"]


def test_fields_without_content_are_left_out(store: cache.ResultCache, tmp_path: Path) -> None:
    store.write(network("bridge"), cni.Attachment(CONTAINER), cni.Result())
    assert json.loads(file(tmp_path).read_text()).keys() == {
        "kind", "containerId", "config", "ifName", "networkName", "result",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("sample", "ifname", "args"),
    [
        pytest.param("libcni-1.3-full", "eth0", (("IgnoreUnknown", "1"), ("K8S_POD_NAME", "go")), id="everything"),
        pytest.param("libcni-1.3-loopback", "lo", (), id="cri-dockerd's loopback of 0.2.0"),
    ],
)
def test_files_that_libcni_wrote(
    store: cache.ResultCache, tmp_path: Path, sample: str, ifname: str, args: tuple[tuple[str, str], ...]
) -> None:
    data = (SAMPLES / f"{sample}.json").read_bytes()
    raw = json.loads(data)
    # Go's encoder writes this out where nothing is said.
    raw["result"] = {key: value for key, value in raw["result"].items() if value != {}}
    file(tmp_path, f"{raw['networkName']}-{raw['containerId']}-{ifname}").write_bytes(data)
    [found], skipped = store.attachments(raw["containerId"])
    assert not skipped
    assert (found.attachment.ifname, found.attachment.args) == (ifname, args)
    assert found.attachment.netns == raw["netns"]
    assert found.attachment.capability_args == raw.get("capabilityArgs", {})
    assert found.result is not None
    assert found.result.as_json(found.network.version) == raw["result"]
    written = json.loads(cache.encode(found.network, found.attachment, found.result))
    assert written == raw


def test_older_form_has_a_result_and_nothing_for_a_del(store: cache.ResultCache, tmp_path: Path) -> None:
    file(tmp_path).write_text(json.dumps(result()))
    assert store.result(network("bridge"), ATTACHMENT) == cni.Result.parse(result())
    found, [skipped] = store.attachments(CONTAINER)
    assert not found
    assert "there is no configuration" in str(skipped)


@pytest.mark.parametrize("sample", ["libcni-1.3-full", "libcni-1.3-loopback"])
def test_the_begin_of_a_del_is_noted_and_all_else_stays(store: cache.ResultCache, tmp_path: Path, sample: str) -> None:
    raw = json.loads((SAMPLES / f"{sample}.json").read_bytes())
    path = file(tmp_path, f"{raw['networkName']}-{raw['containerId']}-{raw['ifName']}")
    path.write_text(json.dumps(raw))
    [before], _ = store.attachments()
    for _ in range(2):
        store.begin_removal(raw["networkName"], before.attachment)
        assert json.loads(path.read_bytes()) == {**raw, "unfinished": True}
    assert store.attachments() == ([dataclasses.replace(before, finished=False)], [])
    assert store.result(before.network, before.attachment) == before.result


def test_no_begin_of_a_del_is_noted_without_an_entry_or_in_the_older_form(
    store: cache.ResultCache, tmp_path: Path
) -> None:
    path = file(tmp_path)
    store.begin_removal("podnet", ATTACHMENT)
    assert not path.exists()
    path.write_text(json.dumps(result()))
    store.begin_removal("podnet", ATTACHMENT)
    assert json.loads(path.read_bytes()) == result()
    path.write_text("{")
    with pytest.raises(cni.CacheError, match="invalid JSON"):
        store.begin_removal("podnet", ATTACHMENT)


def test_result_is_none_when_nothing_is_cached(store: cache.ResultCache) -> None:
    assert store.result(network("bridge"), ATTACHMENT) is None
    assert store.attachments() == ([], [])
    store.remove("podnet", ATTACHMENT)


def test_a_failed_write_leaves_the_file_before_it_and_no_part(store: cache.ResultCache, tmp_path: Path) -> None:
    store.write(network("bridge"), ATTACHMENT, cni.Result.parse(result()))
    before = file(tmp_path).read_bytes()
    with pytest.raises(cni.CacheError, match="not JSON serializable"):
        store.write(network("bridge"), dataclasses.replace(ATTACHMENT, capability_args={"x": object()}), cni.Result())
    file(tmp_path, f"podnet-{CONTAINER}-eth1").mkdir()
    with pytest.raises(cni.CacheError, match="Is a directory"):
        store.write(network("bridge"), dataclasses.replace(ATTACHMENT, ifname="eth1"), cni.Result())
    assert file(tmp_path).read_bytes() == before
    assert [entry.name for entry in (tmp_path / "cni").iterdir()] == ["results"]


def test_remove_takes_a_part_that_a_crash_left(store: cache.ResultCache, tmp_path: Path) -> None:
    store.write(network("bridge"), ATTACHMENT, cni.Result())
    (tmp_path / f"cni/.podnet-{CONTAINER}-eth0").write_text("{")
    store.remove("podnet", ATTACHMENT)
    assert [path for path in (tmp_path / "cni").rglob("*") if path.is_file()] == []


def test_only_the_containers_own_attachments(store: cache.ResultCache) -> None:
    for container, ifname in (("c1", "eth0"), ("c1", "eth1"), ("c12", "eth0"), ("x-c1-y", "eth0")):
        store.write(network("bridge"), cni.Attachment(container, ifname=ifname), cni.Result())
    found, skipped = store.attachments("c1")
    assert [(one.attachment.container_id, one.attachment.ifname) for one in found] == [("c1", "eth0"), ("c1", "eth1")]
    assert not skipped
    assert len(store.attachments()[0]) == 4


def valid() -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(cache.encode(network("bridge"), ATTACHMENT, cni.Result.parse(result())))
    return decoded


def config(**more: Any) -> str:
    return base64.b64encode(json.dumps({"name": "podnet", "plugins": [{"type": "a"}], **more}).encode()).decode()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        pytest.param({"kind": "cniCacheV2"}, "kind must be", id="another kind"),
        pytest.param({"config": "%%%"}, "base64", id="configuration is not base64"),
        pytest.param({"config": ""}, "invalid JSON", id="no configuration"),
        pytest.param(
            {"config": config(plugins=[{"type": "../x"}])}, "must be a file name", id="a plugin outside the folders"
        ),
        pytest.param({"networkName": "other"}, "must be the configuration's name", id="two network names"),
        pytest.param({"networkName": "../x", "config": config(name="../x")}, "network name", id="network name escapes"),
        pytest.param({"containerId": "../../x"}, "container id", id="container id escapes"),
        pytest.param({"containerId": "other"}, "must match the file name", id="another container's file"),
        pytest.param({"ifName": "a/../../b"}, "interface name", id="interface escapes"),
        pytest.param({"ifName": "eth9"}, "must match the file name", id="another interface's file"),
        pytest.param({"netns": ["/n"]}, "netns: expected a string", id="namespace is a list"),
        pytest.param({"netns": "/n\0"}, "zero byte", id="namespace with a zero byte"),
        pytest.param({"cniArgs": {"A": "B"}}, "cniArgs", id="arguments are an object"),
        pytest.param({"cniArgs": [["A"]]}, "cniArgs", id="half a pair"),
        pytest.param({"cniArgs": [["A", 1]]}, "cniArgs", id="an argument is a number"),
        pytest.param({"cniArgs": [["A", "1;B=2"]]}, "CNI_ARGS", id="an argument that begins another"),
        pytest.param({"capabilityArgs": []}, "capabilityArgs: expected an object", id="capabilities are a list"),
    ],
)
def test_damaged_entry_is_skipped_with_a_reason(
    store: cache.ResultCache, tmp_path: Path, fields: dict[str, Any], reason: str
) -> None:
    file(tmp_path).write_text(json.dumps(valid() | fields))
    store.write(network("bridge"), cni.Attachment(CONTAINER, ifname="eth1"), cni.Result())
    found, [skipped] = store.attachments()
    assert reason in str(skipped)
    assert str(file(tmp_path)) in str(skipped)
    assert [one.attachment.ifname for one in found] == ["eth1"]


def test_what_is_no_file_or_too_large_is_skipped(store: cache.ResultCache, tmp_path: Path) -> None:
    os.mkfifo(file(tmp_path, f"a-{CONTAINER}-pipe"))
    store.write(network("bridge"), cni.Attachment(CONTAINER, ifname="link"), cni.Result())
    linked = file(tmp_path, f"podnet-{CONTAINER}-link")
    linked.symlink_to(linked.rename(tmp_path / "elsewhere"))
    file(tmp_path, f"a-{CONTAINER}-folder").mkdir()
    file(tmp_path, f"a-{CONTAINER}-giant").write_bytes(b" " * (5 << 20))
    found, skipped = store.attachments(CONTAINER)
    assert not found
    assert [Path(str(error).split(": ")[0]).name.rpartition("-")[2] for error in skipped] == [
        "folder", "giant", "pipe", "link",
    ]  # fmt: skip


def test_a_damaged_result_does_not_take_the_configuration_with_it(store: cache.ResultCache, tmp_path: Path) -> None:
    file(tmp_path).write_text(json.dumps(valid() | {"result": {"ips": 1}}))
    [found], skipped = store.attachments(CONTAINER)
    assert (found.network, found.attachment, found.result) == (network("bridge"), ATTACHMENT, None)
    assert not skipped
    with pytest.raises(cni.CacheError, match="ips: expected a list"):
        store.result(network("bridge"), ATTACHMENT)


@given(st.binary(max_size=100) | st.integers(0, 600).map(lambda cut: json.dumps(valid()).encode()[:cut]))
def test_garbage_and_cut_files_end_in_a_cache_error(data: bytes) -> None:
    try:
        cache.decode(data)
    except cni.CacheError:
        return
    assert json.loads(data) == valid()


@given(
    st.dictionaries(
        st.sampled_from(["kind", "containerId", "config", "ifName", "networkName", "netns", "cniArgs", "result"]),
        st.none() | st.integers() | st.text(max_size=8) | st.lists(st.lists(st.text(max_size=3), max_size=3)),
        max_size=3,
    )
)
def test_any_field_may_be_anything(fields: dict[str, Any]) -> None:
    try:
        found = cache.decode(json.dumps(valid() | fields).encode())
    except cni.CacheError:
        return
    assert found.network.name == "podnet"
