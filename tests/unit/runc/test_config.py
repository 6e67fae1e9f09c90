"""What dockershim-runc makes of config.json: only what is asked for, of any JSON, and nothing of a broken one."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.runc.library import Asked, Library, Refused, damaged

NAME = "io.dockershim.user-namespace"
MAPPING = {
    "uidMappings": [{"containerID": 0, "hostID": 200000, "size": 65536}],
    "gidMappings": [{"containerID": 0, "hostID": 300000, "size": 65536}],
}


def config(annotation: str | None = "200000 300000 65536", **changes: Any) -> dict[str, Any]:
    """A config.json in dockerd's form."""
    annotations = {"other": "x"} | ({NAME: annotation} if annotation is not None else {})
    return {
        "ociVersion": "1.2.0",
        "process": {"args": ["sh", "-c", 'echo "{[\\"'], "env": ["A=}]", 'B="linux":{"namespaces":[]}']},
        "root": {"path": "/var/lib/docker/overlay2/abc/merged"},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid"]},
            {"destination": "/etc/hosts", "type": "bind", "source": "/x/hosts", "options": ["rbind"]},
            {"destination": "/data", "type": "bind", "source": "/srv/data", "options": ["rbind", "ro"]},
            {"destination": "/other", "type": "bind", "source": "/srv/other", "options": ["rbind"]},
        ],
        "annotations": annotations,
        "linux": {
            "sysctl": {"net.ipv4.ip_unprivileged_port_start": "0", "net.ipv4.ping_group_range": "0 2147483647"},
            "namespaces": [{"type": "mount"}, {"type": "network"}, {"type": "pid"}],
        },
        **changes,
    }


def encoded(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def test_without_the_annotation_nothing_is_asked_for(library: Library) -> None:
    assert library.read(encoded(config(None))) is None
    assert library.read(b'{"annotations":null}') is None
    assert library.read(b"{}") is None


def test_an_infra_container_gets_a_new_namespace(library: Library) -> None:
    given = config()
    found = library.read(encoded(given))
    assert isinstance(found, Asked)
    assert found.ids == (200000, 300000, 65536)
    assert (found.network, found.root) == (b"", b"/var/lib/docker/overlay2/abc/merged")
    wanted = copy.deepcopy(given)
    wanted["root"]["path"] = "/own/root"
    wanted["linux"]["namespaces"].insert(0, {"type": "user"})
    wanted["linux"] |= MAPPING
    wanted["linux"]["sysctl"]["net.ipv4.ping_group_range"] = "0 65535"
    wanted["mounts"][1] |= MAPPING
    assert json.loads(library.amend(encoded(given), "/own/root")) == wanted


def test_another_container_joins_that_of_the_infra_container(library: Library) -> None:
    given = config("200000 300000 65536\n/data\n/other")
    given["linux"]["namespaces"][1]["path"] = "/proc/17/ns/net"
    del given["linux"]["sysctl"]
    found = library.read(encoded(given))
    assert isinstance(found, Asked)
    assert found.network == b"/proc/17/ns/net"
    wanted = copy.deepcopy(given)
    wanted["root"]["path"] = "/root"
    wanted["linux"]["namespaces"].insert(0, {"type": "user", "path": "/proc/17/ns/user"})
    for mount in wanted["mounts"][1:]:
        mount |= MAPPING
    assert json.loads(library.amend(encoded(given), user="/proc/17/ns/user")) == wanted


def test_the_highest_ids(library: Library) -> None:
    found = library.read(encoded(config("4294967294 4294901759 1")))
    assert isinstance(found, Asked)
    assert found.ids == (4294967294, 4294901759, 1)
    assert b'"hostID":4294967294,"size":1}' in library.amend(encoded(config("4294967294 1 1")))


def test_white_space_between_the_parts_does_not_matter(library: Library) -> None:
    given = config("200000 300000 65536\n/data")
    assert json.loads(library.amend(json.dumps(given, indent=3).encode())) == json.loads(library.amend(encoded(given)))


def test_a_range_of_groups_that_the_pod_chose_is_kept(library: Library) -> None:
    given = config()
    given["linux"]["sysctl"]["net.ipv4.ping_group_range"] = "5 7"
    made = json.loads(library.amend(encoded(given)))
    assert made["linux"]["sysctl"]["net.ipv4.ping_group_range"] == "5 7"


@pytest.mark.parametrize(
    "annotation",
    [
        "",
        "1",
        "1 2",
        "1 2 0",
        "0 2 3",
        "2 0 3",
        "1 2 3 4",
        "-1 2 3",
        " 1 2 3",
        "1  2 3",
        "1 2 3/data",
        "1 2 3\n",
        "4294967296 1 1",
        "4294967295 1 1",
        "99999999999999999999999999999999999 1 1",
        "1 2 3\t/data",
    ],
)
def test_an_annotation_that_is_not_understood_is_refused(library: Library, annotation: str) -> None:
    with pytest.raises(Refused, match="annotation"):
        library.amend(encoded(config(annotation)))


def without(name: str) -> dict[str, Any]:
    made = config()
    del made[name]
    return made


def with_linux(**changes: Any) -> dict[str, Any]:
    made = config()
    made["linux"] |= changes
    return made


MOUNTS = "200000 300000 65536\n"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        pytest.param(without("root"), "root.path", id="no root"),
        pytest.param(config(root={"path": 5}), "root.path", id="a root that is no text"),
        pytest.param(without("linux"), "linux.namespaces", id="no linux"),
        pytest.param(config(linux=[]), "linux.namespaces", id="linux that is no object"),
        pytest.param(with_linux(namespaces={}), "linux.namespaces", id="namespaces that are no array"),
        pytest.param(with_linux(namespaces=[{"type": "mount"}]), "node's network", id="no network namespace"),
        pytest.param(with_linux(namespaces=[{}, {"type": "network"}]), "no type", id="a namespace without a type"),
        pytest.param(with_linux(namespaces=[{"type": "user"}]), "already", id="a user namespace of somebody else"),
        pytest.param(with_linux(uidMappings=[]), "already", id="mappings of somebody else"),
        pytest.param(config(MOUNTS + "/none"), "not in config.json", id="a mount that is not there"),
        pytest.param(config(MOUNTS + "/data\n/data"), "not in config.json", id="a mount twice"),
        pytest.param(config(MOUNTS + "/proc"), "not a bind mount", id="a mount that cannot be mapped"),
        pytest.param(config(mounts=[{"type": "bind"}]), "no destination", id="a mount without a destination"),
        pytest.param(config(mounts={}), "not an array", id="mounts that are no array"),
        pytest.param(
            config(mounts=[{"destination": "/etc/hosts", "type": "bind", "uidMappings": []}]), "already", id="mapped"
        ),
        pytest.param(
            config(mounts=[{"destination": "/etc/hosts", "type": "bind"}] * 5000), "too many mounts", id="5000 mounts"
        ),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(library: Library, given: dict[str, Any], words: str) -> None:
    with pytest.raises(Refused, match=words):
        library.amend(encoded(given))


def test_what_is_there_twice_is_refused(library: Library) -> None:
    text = encoded(config()).decode()
    for name in ("annotations", "root", "linux", "mounts"):
        with pytest.raises(Refused):
            library.amend(text.replace("{", f'{{"{name}":[],', 1).encode())


def test_a_text_that_has_no_room_is_refused(library: Library) -> None:
    text = encoded(config())
    whole = library.amend(text)
    assert library.amend(text, room=len(whole)) == whole
    for room in (0, 1, 100, len(whole) - 1):
        with pytest.raises(Refused, match="too large"):
            library.amend(text, room=room)


def test_each_beginning_of_a_file_is_refused_or_asks_for_nothing(library: Library) -> None:
    text = encoded(config(MOUNTS + "/data"))
    for length in range(len(text)):
        with pytest.raises(Refused):
            library.amend(text[:length])


def test_a_large_file_and_a_deep_one(library: Library) -> None:
    large = config(MOUNTS + "/data", hooks=[{"a": 'x\\"' * 1000}] * 5000)
    assert len(encoded(large)) > 20_000_000
    assert json.loads(library.amend(encoded(large)))["mounts"][2]["uidMappings"]
    deep = b"[" * 3_000_000 + b"]" * 3_000_000
    text = encoded(config(hooks="DEEP")).replace(b'"DEEP"', deep)
    assert deep in library.amend(text)
    with pytest.raises(Refused):
        library.amend(text.replace(deep, deep[:-1]))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None)
@given(process=JSON, hooks=JSON, resources=JSON, before=JSON, ascii=st.booleans(), indent=st.sampled_from([None, 1]))
def test_nothing_else_changes(
    library: Library, process: Any, hooks: Any, resources: Any, before: Any, ascii: bool, indent: int | None
) -> None:
    given = {"before": before} | config(MOUNTS + "/data", process=process, hooks=hooks)
    given["linux"]["resources"] = resources
    text = json.dumps(given, ensure_ascii=ascii, indent=indent)
    made = json.loads(library.amend(text.encode("utf-8", "surrogatepass")))
    assert made["before"] == before
    assert (made["process"], made["hooks"], made["linux"]["resources"]) == (process, hooks, resources)
    assert made["mounts"][2] == given["mounts"][2] | MAPPING


@settings(deadline=None, max_examples=500)
@given(data=st.data())
def test_no_change_of_bytes_makes_it_read_what_is_not_there(library: Library, data: st.DataObject) -> None:
    text = damaged(data, encoded(config(MOUNTS + "/data")))
    try:
        made = library.amend(text)
    except Refused:
        return
    assert made.startswith(text[:1])
    assert len(made) <= len(text) + 1000
