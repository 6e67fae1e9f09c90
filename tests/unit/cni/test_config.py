"""SPEC.md section 1: what is a usable network configuration, and what a plugin gets of it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cni
from cni.config import describe_lack

BRIDGE = {"type": "bridge"}


def conflist(name: object = "podnet", **more: Any) -> dict[str, Any]:
    return {"cniVersion": "1.0.0", "name": name, "plugins": [BRIDGE], **more}


def request(network: cni.NetworkList, index: int = 0, **more: Any) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(network.plugins[index].request(network, **more))
    return decoded


def found(folder: Path) -> cni.NetworkList:
    network, damaged = cni.find_network(folder)
    assert network is not None, damaged
    return network


@pytest.mark.parametrize(
    ("fields", "version"),
    [
        pytest.param({"cniVersion": "0.3.1"}, "0.3.1", id="one version"),
        pytest.param({}, "0.1.0", id="none: the first version had no such field"),
        pytest.param({"cniVersion": ""}, "0.1.0", id="empty is none"),
        pytest.param({"cniVersions": ["0.4.0", "1.1.0", "1.0.0"]}, "1.1.0", id="the newest of a list"),
        pytest.param({"cniVersions": ["1.0.0", "1.2.0", "2.0.0"]}, "1.0.0", id="newer than this package is left out"),
        pytest.param({"cniVersion": "1.1.0", "cniVersions": ["0.4.0"]}, "1.1.0", id="the single field counts too"),
        pytest.param({"cniVersion": "0.4.0", "cniVersions": []}, "0.4.0", id="an empty list says nothing"),
        pytest.param({"cniVersion": "0.4.0", "cniVersions": ["0.9.9"]}, "0.4.0", id="a version nobody released"),
    ],
)
def test_version_is_the_newest_that_both_support(fields: dict[str, Any], version: str) -> None:
    assert cni.NetworkList.parse({"name": "n", "plugins": [BRIDGE], **fields}).version == version


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        pytest.param(b"", "invalid JSON", id="empty file"),
        pytest.param(b"[]", "expected an object, found a list", id="not an object"),
        pytest.param(b"{" * 100_000, "invalid JSON", id="cut off and deep"),
        pytest.param(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "invalid JSON", id="nested past the stack"),
        pytest.param(b'{"a":' + b"[" * 99 + b"]" * 99 + b"}", "nested more than", id="nested deeper than any real one"),
        pytest.param(b'{"name":"\xff"}', "invalid JSON", id="not UTF-8"),
        pytest.param(b'{"mtu":NaN}', "NaN is not a valid JSON number", id="JavaScript, not JSON"),
        pytest.param(conflist(name=""), "network name ''", id="no name"),
        pytest.param(conflist(name="../../etc"), "network name '../../etc'", id="a name that leaves its folder"),
        pytest.param(conflist(name="a\n"), "network name", id="a name with a newline at its end"),
        pytest.param(conflist(name=7), "name: expected a string, found an integer", id="name is a number"),
        pytest.param(conflist(plugins=[]), "must not be empty", id="no plugins"),
        pytest.param(conflist(plugins={}), "plugins: expected a list, found an object", id="plugins is no list"),
        pytest.param(conflist(plugins=["bridge"]), "plugins[0]: expected an object", id="a plugin is a string"),
        pytest.param(conflist(plugins=[BRIDGE, {}]), "plugins[1]: no plugin type", id="a plugin without type"),
        pytest.param(conflist(plugins=[{"type": "../sh"}]), "must be a file name", id="a type that leaves its folder"),
        pytest.param(
            conflist(plugins=[{"type": "a", "capabilities": {"mac": "yes"}}]),
            "capabilities",
            id="capability is no flag",
        ),
        pytest.param(conflist(cniVersion="1.2.0"), "version 1.2.0 is not supported", id="newer than this package"),
        pytest.param(conflist(cniVersion="1.x"), "'1.x' is not a valid version", id="no version at all"),
        pytest.param(conflist(cniVersions=["0.4.0", 1]), "cniVersions[1]: expected a string", id="version is a number"),
        pytest.param(conflist(disableGC="maybe"), "disableGC: expected true or false", id="flag is a word"),
        pytest.param(
            {"name": "n", "loadOnlyInlinedPlugins": True},
            "required by loadOnlyInlinedPlugins",
            id="only inlined, none inlined",
        ),
        pytest.param({"name": "n"}, "at least one is required", id="neither inlined nor a folder"),
    ],
)
def test_damaged_configuration_is_refused_with_its_place(data: bytes | dict[str, Any], reason: str) -> None:
    with pytest.raises(cni.ConfigError) as caught:
        cni.NetworkList.parse(data, source="10-net.conflist")
    assert str(caught.value).startswith("10-net.conflist: ")
    assert reason in str(caught.value)


@given(st.binary(max_size=200))
def test_garbage_is_refused_and_nothing_else_happens(data: bytes) -> None:
    with pytest.raises(cni.ConfigError):
        cni.NetworkList.parse(data)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["name", "type", "plugins", "cniVersion", "capabilities", "x"]), inner)
        ),
        max_leaves=12,
    ).filter(lambda value: isinstance(value, dict))
)
def test_any_json_is_a_network_or_an_error(value: dict[str, Any]) -> None:
    try:
        network = cni.NetworkList.parse(json.dumps(value).encode())
    except cni.ConfigError:
        return
    assert cni.NetworkList.parse(network.raw) == network


def test_single_plugin_form_becomes_a_list() -> None:
    network = cni.NetworkList.parse({"cniVersion": "0.2.0", "name": "lo", "type": "loopback", "extra": 1})
    assert [plugin.type for plugin in network.plugins] == ["loopback"]
    assert (network.name, network.version) == ("lo", "0.2.0")
    assert request(network) == {"cniVersion": "0.2.0", "name": "lo", "type": "loopback", "extra": 1}
    assert cni.NetworkList.parse(network.raw) == network


@pytest.mark.parametrize("value", [pytest.param(True, id="boolean"), pytest.param("True", id="spelled")])
def test_flags_are_read(value: object) -> None:
    network = cni.NetworkList.parse(conflist(disableGC=value))
    assert network.disable_gc


class TestRequest:
    """SPEC.md section 3, "Deriving request configuration from plugin configuration"."""

    def test_name_and_version_are_of_the_network_and_unknown_fields_stay(self) -> None:
        plugin = {"type": "bridge", "name": "other", "cniVersion": "0.1.0", "keyA": [1, {"b": None}], "ipam": {}}
        assert request(cni.NetworkList.parse(conflist(plugins=[plugin]))) == {
            "type": "bridge",
            "name": "podnet",
            "cniVersion": "1.0.0",
            "keyA": [1, {"b": None}],
            "ipam": {},
        }

    def test_capability_arguments_reach_only_who_declares_them(self) -> None:
        plugin = {"type": "portmap", "capabilities": {"portMappings": True, "mac": False, "dns": True}}
        made = request(
            cni.NetworkList.parse(conflist(plugins=[plugin])),
            capability_args={"portMappings": [{"hostPort": 80}], "mac": "aa", "bandwidth": {}},
        )
        assert made["runtimeConfig"] == {"portMappings": [{"hostPort": 80}]}
        assert "capabilities" not in made

    def test_no_runtime_config_without_a_declared_argument(self) -> None:
        network = cni.NetworkList.parse(conflist())
        assert "runtimeConfig" not in request(network, capability_args={"portMappings": []})
        assert network.capabilities == frozenset()

    def test_what_the_runtime_writes_is_not_taken_from_the_file(self) -> None:
        plugin = {"type": "a", "prevResult": {"evil": 1}, "cni.dev/valid-attachments": []}
        assert request(cni.NetworkList.parse(conflist(plugins=[plugin]))).keys() == {"type", "name", "cniVersion"}

    def test_prev_result_and_operation_keys_are_inserted(self) -> None:
        network = cni.NetworkList.parse(conflist())
        made = request(network, prev_result={"ips": []}, operation_keys={"cni.dev/valid-attachments": []})
        assert made["prevResult"] == {"ips": []}
        assert made["cni.dev/valid-attachments"] == []


class TestFolder:
    def write(self, folder: Path, name: str, content: object) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))

    def test_first_valid_file_in_lexical_order_wins_and_damaged_ones_are_reported(self, tmp_path: Path) -> None:
        self.write(tmp_path, "00-readme.txt", "not for us")
        self.write(tmp_path, "05-broken.conflist", "{")
        self.write(tmp_path, "07-list.conf", conflist(name="list-in-conf"))
        self.write(tmp_path, "10-single.json", {"name": "single", "type": "bridge", "cniVersion": "0.4.0"})
        self.write(tmp_path, "20-list.conflist", conflist(name="later"))
        (tmp_path / "01-folder.conf").mkdir()
        network, damaged = cni.find_network(tmp_path)
        assert network is not None
        assert network.name == "single"
        assert network.source == str(tmp_path / "10-single.json")
        assert ["05-broken.conflist" in str(error) for error in damaged] == [True, False]
        assert "must end with .conflist" in str(damaged[1])

    @pytest.mark.parametrize(
        ("files", "reason"),
        [
            pytest.param(None, "does not exist", id="no folder"),
            pytest.param({"a.txt": "{}"}, "no *.conflist, *.conf or *.json file", id="nothing of the kind"),
            pytest.param({"a.conf": "{", "b.conflist": "["}, "no valid network configuration", id="all damaged"),
        ],
    )
    def test_without_a_network_there_is_a_reason(
        self, tmp_path: Path, files: dict[str, str] | None, reason: str
    ) -> None:
        folder = tmp_path / "net.d"
        for name, content in (files or {}).items():
            self.write(folder, name, content)
        network, damaged = cni.find_network(folder)
        assert network is None
        assert len(damaged) == (2 if files and "b.conflist" in files else 0)
        assert reason in describe_lack(folder, damaged)

    def test_plugins_of_the_networks_folder_are_appended_and_kept_for_a_later_del(self, tmp_path: Path) -> None:
        self.write(tmp_path, "10-net.conflist", conflist(cniVersion="1.1.0"))
        self.write(tmp_path, "podnet/20-second.conf", {"type": "second"})
        self.write(tmp_path, "podnet/10-first.conf", {"type": "first"})
        self.write(tmp_path, "podnet/30-other.json", {"type": "not-read"})
        network = found(tmp_path)
        assert [plugin.type for plugin in network.plugins] == ["bridge", "first", "second"]
        assert cni.NetworkList.parse(network.raw) == network
        assert json.loads(network.raw)["loadOnlyInlinedPlugins"] is True

    def test_plugins_may_all_be_in_the_folder(self, tmp_path: Path) -> None:
        self.write(tmp_path, "10-net.conflist", {"cniVersion": "1.1.0", "name": "podnet"})
        self.write(tmp_path, "podnet/a.conf", {"type": "first"})
        assert [plugin.type for plugin in found(tmp_path).plugins] == ["first"]

    def test_folder_is_left_alone_when_the_list_says_so(self, tmp_path: Path) -> None:
        self.write(tmp_path, "10-net.conflist", conflist(loadOnlyInlinedPlugins=True))
        self.write(tmp_path, "podnet/a.conf", "{")
        network = found(tmp_path)
        assert [plugin.type for plugin in network.plugins] == ["bridge"]
        assert network.raw == (tmp_path / "10-net.conflist").read_bytes()

    def test_a_damaged_plugin_in_the_folder_damages_the_network(self, tmp_path: Path) -> None:
        self.write(tmp_path, "10-net.conflist", conflist())
        self.write(tmp_path, "podnet/a.conf", "{")
        network, [error] = cni.find_network(tmp_path)
        assert network is None
        assert "podnet/a.conf: invalid JSON" in str(error)

    def test_a_pipe_or_a_giant_does_not_hang_the_reader(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "05-pipe.conf")
        (tmp_path / "07-loop.conf").symlink_to("07-loop.conf")
        self.write(tmp_path, "06-giant.conf", " " * (2 << 20))
        _, damaged = cni.find_network(tmp_path)
        assert [str(error).partition(": ")[2] for error in damaged] == [
            "not a regular file",
            "larger than 1048576 bytes",
            f"[Errno 40] Too many levels of symbolic links: '{tmp_path}/07-loop.conf'",
        ]
