"""Labels carry the CRI's labels and annotations there and back, and our own label whatever else is needed."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockershim.errors import InvalidArgument
from dockershim.translate.labels import (
    ANNOTATION_PREFIX,
    CONTAINER_NAME_LABEL,
    CONTAINER_TYPE,
    EXTRA_LABEL,
    LOG_PATH_LABEL,
    SANDBOX_ID_LABEL,
    SANDBOX_TYPE,
    TYPE_LABEL,
    ContainerExtra,
    Extra,
    SandboxExtra,
    from_engine_labels,
    read_extra,
    to_engine_labels,
    write_extra,
)
from dockershim.translate.names import ContainerName, SandboxName
from tests.unit.translate.kubelet import CGROUP_PARENT, LOG_DIRECTORY, UID


def read(
    engine_labels: dict[str, str], image_labels: dict[str, str] | None = None
) -> tuple[dict[str, str], dict[str, str]]:
    extra = read_extra(ContainerExtra, engine_labels) or ContainerExtra()
    return from_engine_labels(engine_labels, extra, image_labels or {})


keys = st.text(min_size=1, max_size=30) | st.builds(ANNOTATION_PREFIX.__add__, st.text(max_size=10))
OWN = {TYPE_LABEL: CONTAINER_TYPE, SANDBOX_ID_LABEL: "id", LOG_PATH_LABEL: "/log"}


@given(
    st.dictionaries(keys.filter(lambda key: key not in OWN and key != EXTRA_LABEL), st.text(max_size=20)),
    st.dictionaries(keys, st.text(max_size=20)),
)
def test_labels_and_annotations_come_back(labels: dict[str, str], annotations: dict[str, str]) -> None:
    engine_labels = to_engine_labels(labels, annotations, OWN, ContainerExtra(image="i"))

    assert read(engine_labels) == (labels, annotations)
    extra = read_extra(ContainerExtra, engine_labels)
    assert extra is not None
    assert extra.image == "i"
    assert {key: engine_labels[key] for key in OWN} == OWN


def test_a_label_like_an_annotation_does_not_hide_the_annotation() -> None:
    labels, annotations = {"annotation.a": "label"}, {"a": "annotation"}

    assert read(to_engine_labels(labels, annotations, OWN, ContainerExtra())) == (labels, annotations)


@pytest.mark.parametrize("key", [*OWN, EXTRA_LABEL])
def test_a_label_of_the_shims_own_is_refused(key: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(key)):
        to_engine_labels({key: "x"}, {}, OWN, ContainerExtra())


def test_a_sandboxs_label_that_would_be_hidden_is_refused() -> None:
    own = {TYPE_LABEL: SANDBOX_TYPE, CONTAINER_NAME_LABEL: "POD"}

    with pytest.raises(InvalidArgument, match=CONTAINER_NAME_LABEL):
        to_engine_labels({CONTAINER_NAME_LABEL: "x"}, {}, own, SandboxExtra())


def test_labels_of_another_shim_are_read() -> None:
    engine_labels = {
        "app": "web",
        "annotation.io.kubernetes.container.hash": "1",
        TYPE_LABEL: SANDBOX_TYPE,
        CONTAINER_NAME_LABEL: "POD",
    }

    assert read(engine_labels) == ({"app": "web"}, {"io.kubernetes.container.hash": "1"})


def test_on_a_container_the_kubelets_name_label_is_seen() -> None:
    engine_labels = {TYPE_LABEL: CONTAINER_TYPE, CONTAINER_NAME_LABEL: "nginx"}

    assert read(engine_labels) == ({CONTAINER_NAME_LABEL: "nginx"}, {})


@given(
    st.dictionaries(keys.filter(lambda key: key not in OWN and key != EXTRA_LABEL), st.text(max_size=20)),
    st.dictionaries(keys, st.text(max_size=20)),
    st.dictionaries(keys | st.sampled_from([*OWN, EXTRA_LABEL]), st.text(max_size=20)),
)
def test_labels_of_the_image_are_not_among_those_that_were_asked_for(
    labels: dict[str, str], annotations: dict[str, str], image_labels: dict[str, str]
) -> None:
    engine_labels = image_labels | to_engine_labels(labels, annotations, OWN, ContainerExtra())

    assert read(engine_labels) == (labels, annotations)


def test_where_nothing_tells_what_was_asked_for_the_images_labels_are_left_out() -> None:
    """Of pods of another shim; what a kubelet always gives is its own, also where an image says the same."""
    asked = {
        "annotation.io.kubernetes.container.hash": "1",
        "app": "web",
        "io.kubernetes.container.name": "nginx",
        "tier": "changed",
    }
    image_labels = {
        "annotation.io.kubernetes.container.hash": "1",
        "annotation.io.kubernetes.container.preStopHandler": "{}",
        "io.kubernetes.container.name": "nginx",
        "maintainer": "me",
        "tier": "front",
    }
    labels = {"app": "web", "io.kubernetes.container.name": "nginx", "tier": "changed"}

    assert read(image_labels | asked, image_labels) == (labels, {"io.kubernetes.container.hash": "1"})


@pytest.mark.parametrize("where", ["labels", "annotations"])
def test_more_than_a_list_can_hold_is_refused(where: str) -> None:
    given_labels: dict[str, dict[str, str]] = {"labels": {}, "annotations": {}, where: {"a": "x" * (1 << 20)}}

    with pytest.raises(InvalidArgument, match="1048577 bytes"):
        to_engine_labels(given_labels["labels"], given_labels["annotations"], OWN, ContainerExtra())


# What is in our own label.

#: As a real server wrote them; no server may ever fail to read them.
OLDEST_SANDBOX = (
    '{"logDirectory":"/var/log/pods/default_web-0_c3f2a1d0-4a1e-4b5c-9d0e-0123456789ab","metadata":["my_web","default",'
    '"c3f2a1d0-4a1e-4b5c-9d0e-0123456789ab",0],"overhead":{},"resources":{"cpu_period":"100000","cpu_quota":"50000",'
    '"cpu_shares":"256","memory_limit_in_bytes":"134217728"},"runtimeHandler":"kata","v":1}'
)
OLDEST_CONTAINER = (
    '{"cgroupFiles":{"hugetlb.1GB.max":"0","hugetlb.2MB.max":"0","memory.oom.group":"1","memory.swap.max":"0"},'
    '"image":"nginx:1.27","metadata":["my_nginx",1,"web-0","default","c3f2a1d0-4a1e-4b5c-9d0e-0123456789ab",0]}'
)
SANDBOX_WITHOUT_KEYS = (
    '{"cgroupParent":"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podc3f2a1d0.slice","logDirectory":'
    '"/var/log/pods/default_web-0_c3f2a1d0-4a1e-4b5c-9d0e-0123456789ab","metadata":["my_web","default",'
    '"c3f2a1d0-4a1e-4b5c-9d0e-0123456789ab",0],"overhead":{},"pid":"CONTAINER","resources":{"cpu_period":"100000",'
    '"cpu_quota":"50000","cpu_shares":"256","memory_limit_in_bytes":"134217728"},"runtimeHandler":"kata","v":1}'
)
CONTAINER_WITHOUT_KEYS = (
    '{"cgroupFiles":{"hugetlb.1GB.max":"0","hugetlb.2MB.max":"0","memory.oom.group":"1","memory.swap.max":"0"},'
    '"cgroupParent":"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podc3f2a1d0.slice","envs":2,"image":'
    '"nginx:1.27","labels":{"annotation.x":"y"},"log":"cri","metadata":["my_nginx",1,"web-0","default",'
    '"c3f2a1d0-4a1e-4b5c-9d0e-0123456789ab",0]}'
)
LAST_SANDBOX = (
    '{"cgroupParent":"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podc3f2a1d0.slice","keys":'
    '["annotation.kubernetes.io/config.seen","annotation.kubernetes.io/config.source","app","io.kubernetes.pod.name",'
    '"io.kubernetes.pod.namespace","io.kubernetes.pod.uid"],"logDirectory":'
    '"/var/log/pods/default_web-0_c3f2a1d0-4a1e-4b5c-9d0e-0123456789ab","metadata":["my_web","default",'
    '"c3f2a1d0-4a1e-4b5c-9d0e-0123456789ab",0],"overhead":{},"pid":"CONTAINER","resources":{"cpu_period":"100000",'
    '"cpu_quota":"50000","cpu_shares":"256","memory_limit_in_bytes":"134217728"},"runtimeHandler":"kata","v":1}'
)
LAST_CONTAINER = (
    '{"cgroupFiles":{"hugetlb.1GB.max":"0","hugetlb.2MB.max":"0","memory.oom.group":"1","memory.swap.max":"0"},'
    '"cgroupParent":"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podc3f2a1d0.slice","envs":2,"image":'
    '"nginx:1.27","keys":["annotation.io.kubernetes.container.hash","io.kubernetes.container.name"],"labels":'
    '{"annotation.x":"y"},"log":"cri","metadata":["my_nginx",1,"web-0","default",'
    '"c3f2a1d0-4a1e-4b5c-9d0e-0123456789ab",0]}'
)
POD = SandboxName("web-0", "default", UID, 0)
OLD_SANDBOX: dict[str, Any] = {
    "v": 1,
    "metadata": ("my_web", "default", UID, 0),
    "log_directory": LOG_DIRECTORY,
    "overhead": {},
    "resources": {
        "cpu_period": "100000",
        "cpu_quota": "50000",
        "cpu_shares": "256",
        "memory_limit_in_bytes": "134217728",
    },
    "runtime_handler": "kata",
}
OLD_CONTAINER: dict[str, Any] = {
    "cgroup_files": {
        "hugetlb.1GB.max": "0",
        "hugetlb.2MB.max": "0",
        "memory.oom.group": "1",
        "memory.swap.max": "0",
    },
    "image": "nginx:1.27",
    "metadata": ("my_nginx", 1, "web-0", "default", UID, 0),
}
LATER_SANDBOX = OLD_SANDBOX | {"cgroup_parent": CGROUP_PARENT, "pid": "CONTAINER"}
LATER_CONTAINER = OLD_CONTAINER | {
    "cgroup_parent": CGROUP_PARENT,
    "envs": 2,
    "labels": {"annotation.x": "y"},
    "log": "cri",
}
SANDBOX_KEYS = (
    "annotation.kubernetes.io/config.seen",
    "annotation.kubernetes.io/config.source",
    "app",
    "io.kubernetes.pod.name",
    "io.kubernetes.pod.namespace",
    "io.kubernetes.pod.uid",
)
CONTAINER_KEYS = ("annotation.io.kubernetes.container.hash", "io.kubernetes.container.name")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(OLDEST_SANDBOX, SandboxExtra(**OLD_SANDBOX), id="the oldest sandbox"),
        pytest.param(OLDEST_CONTAINER, ContainerExtra(**OLD_CONTAINER), id="the oldest container"),
        pytest.param(SANDBOX_WITHOUT_KEYS, SandboxExtra(**LATER_SANDBOX), id="a sandbox without keys"),
        pytest.param(CONTAINER_WITHOUT_KEYS, ContainerExtra(**LATER_CONTAINER), id="a container without keys"),
        pytest.param(
            LAST_SANDBOX, SandboxExtra(**LATER_SANDBOX, keys=SANDBOX_KEYS), id="the last sandbox of version 1"
        ),
        pytest.param(
            LAST_CONTAINER, ContainerExtra(**LATER_CONTAINER, keys=CONTAINER_KEYS), id="the last container of version 0"
        ),
    ],
)
def test_each_older_form_is_read(text: str, expected: SandboxExtra | ContainerExtra) -> None:
    assert read_extra(type(expected), {EXTRA_LABEL: text}) == expected
    name = SandboxName("my_web", "default", UID, 0)
    assert expected.name == (name if isinstance(expected, SandboxExtra) else ContainerName("my_nginx", 1, POD))


@pytest.mark.parametrize(
    ("extra", "old"),
    [
        pytest.param(SandboxExtra(**LATER_SANDBOX, keys=SANDBOX_KEYS), LAST_SANDBOX, id="sandbox"),
        pytest.param(ContainerExtra(**LATER_CONTAINER, keys=CONTAINER_KEYS), LAST_CONTAINER, id="container"),
    ],
)
def test_a_server_of_before_the_version_reads_what_is_written(extra: Extra, old: str) -> None:
    """It knows the keys of JSON, and looks at no version: so this is the form of version 2, too."""
    assert json.loads(write_extra(extra)) == json.loads(old) | {"v": 2}


def test_what_says_nothing_is_not_written() -> None:
    assert write_extra(SandboxExtra()) == write_extra(ContainerExtra()) == '{"v":2}'
    assert json.loads(write_extra(SandboxExtra(keys=(), overhead={}))) == {"v": 2, "keys": [], "overhead": {}}


def test_a_newer_form_is_read_as_far_as_it_is_known() -> None:
    text = json.dumps({"v": 3, "image": "i", "shape": {"of": ["things", "to", "come"]}})

    assert read_extra(ContainerExtra, {EXTRA_LABEL: text}) == ContainerExtra(v=3, image="i")


encodable = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
texts_by_texts = st.dictionaries(encodable, encodable, max_size=3)
json_objects = st.dictionaries(
    encodable, st.recursive(encodable | st.integers(-9, 9), st.lists, max_leaves=4), max_size=3
)
common = {"keys": st.none() | st.lists(encodable).map(tuple), "labels": texts_by_texts, "cgroup_parent": encodable}
numbers = st.integers(0, 2**32 - 1)
sandbox_extras = st.builds(
    SandboxExtra,
    v=st.just(2),
    metadata=st.just(()) | st.tuples(encodable, encodable, encodable, numbers),
    runtime_handler=encodable,
    log_directory=encodable,
    pid=encodable,
    overhead=st.none() | json_objects,
    resources=st.none() | json_objects,
    **common,
)
container_extras = st.builds(
    ContainerExtra,
    v=st.just(2),
    metadata=st.just(()) | st.tuples(encodable, numbers, encodable, encodable, encodable, numbers),
    image=encodable,
    envs=numbers,
    log=encodable,
    cgroup_files=st.dictionaries(st.sampled_from(["memory.high", "hugetlb.2MB.max"]), encodable),
    **common,
)


@given(sandbox_extras | container_extras)
def test_what_is_written_is_read(extra: SandboxExtra | ContainerExtra) -> None:
    assert read_extra(type(extra), {EXTRA_LABEL: write_extra(extra)}) == extra
    assert (extra.name is None) == (extra.metadata == ())


DAMAGED = [
    pytest.param("", id="empty"),
    pytest.param("{", id="cut"),
    pytest.param("[]", id="no object"),
    pytest.param("null", id="nothing"),
    pytest.param('{"v": "2"}', id="a version that is a text"),
    pytest.param('{"labels": ["a"]}', id="labels that are a list"),
    pytest.param('{"metadata": 5}', id="metadata that is a number"),
    pytest.param('{"keys": [1]}', id="a key that is a number"),
    pytest.param('{"keys": "app"}', id="keys that are a text"),
    pytest.param('{"labels": {"a": {}}}', id="a label that is no text"),
    pytest.param('{"cgroupParent": []}', id="a cgroup parent that is a list"),
    pytest.param('{"cgroupParent": "\\ud800"}', id="half of a character"),
    pytest.param('{"cgroupParent": "\ud800"}', id="half of a character as it is"),
    pytest.param('{"\\uDFFF": 1}', id="half of a character in a name"),
    pytest.param("[" * 100_000, id="deeper than can be read"),
    pytest.param('{"x":' + "[" * 100_000, id="deeper than can be read in what is not known"),
    pytest.param("9" * 5000, id="a number longer than can be read"),
    pytest.param('{"v":' + "9" * 5000 + "}", id="a version longer than can be read"),
]


@pytest.mark.parametrize("kind", [SandboxExtra, ContainerExtra])
@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_label_of_ours_is_as_good_as_none(kind: type[Extra], text: str) -> None:
    engine_labels = {EXTRA_LABEL: text, "app": "web"}

    assert read_extra(kind, engine_labels) is None
    assert read(engine_labels) == ({"app": "web"}, {})


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        pytest.param(SandboxExtra, '{"runtimeHandler": null}', id="a handler that is nothing"),
        pytest.param(SandboxExtra, '{"logDirectory": 1}', id="a directory that is a number"),
        pytest.param(SandboxExtra, '{"pid": {}}', id="a mode that is an object"),
        pytest.param(SandboxExtra, '{"overhead": "much"}', id="overhead that is a text"),
        pytest.param(SandboxExtra, '{"resources": {"a": "\\udc00"}}', id="half of a character in resources"),
        pytest.param(SandboxExtra, '{"resources": {"a":' + "[" * 100_000, id="resources deeper than can be read"),
        pytest.param(ContainerExtra, '{"image": []}', id="an image that is a list"),
        pytest.param(ContainerExtra, '{"log": true}', id="a log that is a truth"),
        pytest.param(ContainerExtra, '{"envs": -1}', id="fewer than no variables"),
        pytest.param(ContainerExtra, '{"envs": 1.5}', id="half a variable"),
        pytest.param(ContainerExtra, '{"cgroupFiles": "x"}', id="files that are a text"),
        pytest.param(ContainerExtra, '{"cgroupFiles": {"memory.max": 1}}', id="a file's content that is a number"),
        pytest.param(ContainerExtra, '{"cgroupFiles": {"cgroup./../../x": "1"}}', id="a file that is none of a cgroup"),
        pytest.param(ContainerExtra, '{"cgroupFiles": {"../memory.max": "1"}}', id="a file of another cgroup"),
        pytest.param(ContainerExtra, '{"cgroupFiles": {"memory.max\\n": "1"}}', id="a file and a line's end"),
    ],
)
def test_so_is_one_with_a_damaged_value_of_its_kind(kind: type[Extra], text: str) -> None:
    assert read_extra(kind, {EXTRA_LABEL: text}) is None


@pytest.mark.parametrize("text", [None, "{}"])
def test_without_our_label_a_container_is_not_ours(text: str | None) -> None:
    assert read_extra(SandboxExtra, {EXTRA_LABEL: text} if text is not None else {}) is None


def test_a_label_of_the_image_is_not_ours_unless_it_tells_the_request() -> None:
    old, new = {EXTRA_LABEL: '{"image":"i"}'}, {EXTRA_LABEL: '{"image":"i","keys":[]}'}

    assert read_extra(ContainerExtra, old, old) is None
    assert read_extra(ContainerExtra, old, {}) == ContainerExtra(image="i")
    assert read_extra(ContainerExtra, new, new) == ContainerExtra(image="i", keys=())


@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param([], id="nothing"),
        pytest.param(["a", "b", "c"], id="too short"),
        pytest.param(["a", "b", "c", "0"], id="an attempt that is a text"),
        pytest.param([None, "b", "c", 0], id="no name"),
        pytest.param(["x", "y", "z", 99999999999], id="an attempt that CRI cannot say"),
        pytest.param(["x", 99999999999, "x", "y", "z", 1], id="a container's attempt that CRI cannot say"),
        pytest.param(["x", "y", "z", -1], id="an attempt below none"),
        pytest.param(["x", "y", "z", True], id="an attempt that is no number"),
        pytest.param(["x", "y", "z", 1.0], id="an attempt that is no whole number"),
        pytest.param([["x"], "y", "z", 1], id="a list for a name"),
    ],
)
def test_damaged_metadata_is_none_and_spoils_nothing_else(metadata: list[object]) -> None:
    engine_labels = {EXTRA_LABEL: json.dumps({"metadata": metadata, "cgroupParent": "/a"})}
    for extra in (read_extra(SandboxExtra, engine_labels), read_extra(ContainerExtra, engine_labels)):
        assert extra is not None
        assert (extra.name, extra.cgroup_parent) == (None, "/a")


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=8))
def test_no_content_of_our_label_breaks_a_list(content: object) -> None:
    for value in (content, {"metadata": content}, {"labels": content}):
        engine_labels = {EXTRA_LABEL: json.dumps(value)}
        for extra in (read_extra(SandboxExtra, engine_labels), read_extra(ContainerExtra, engine_labels)):
            assert extra is None or extra.name is None
        read(engine_labels)
