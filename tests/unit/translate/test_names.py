"""Engine names and labels carry the CRI's metadata there and back, whatever it is made of."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockershim.errors import InvalidArgument
from dockershim.translate.names import (
    ANNOTATION_PREFIX,
    CONTAINER_NAME_LABEL,
    CONTAINER_TYPE,
    EXTRA_LABEL,
    LOG_PATH_LABEL,
    SANDBOX_ID_LABEL,
    SANDBOX_TYPE,
    TYPE_LABEL,
    ContainerName,
    SandboxName,
    container_name,
    from_engine_labels,
    needs_metadata,
    parse_container_name,
    parse_sandbox_name,
    read_extra,
    sandbox_container_name,
    to_engine_labels,
)

#: What an engine takes as a container's name.
ENGINE_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]+")
UID = "c3f2a1d0-4a1e-4b5c-9d0e-0123456789ab"

attempts = st.integers(0, 2**32 - 1)
#: Anything a request can hold, with plenty of the separator.
fields = st.text(st.characters(exclude_categories=["Cs", "Cc"]) | st.just("_"), min_size=1, max_size=80)
sandboxes = st.builds(SandboxName, fields, fields, fields, attempts)


def read(
    engine_labels: dict[str, str], image_labels: dict[str, str] | None = None
) -> tuple[dict[str, str], dict[str, str]]:
    return from_engine_labels(engine_labels, read_extra(engine_labels), image_labels or {})


def metadata_of(sandbox: SandboxName) -> dict[str, object]:
    return {"metadata": [sandbox.name, sandbox.namespace, sandbox.uid, sandbox.attempt]}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param("k8s_POD_web-0_default_uid_0", SandboxName("web-0", "default", "uid", 0), id="a sandbox"),
        pytest.param("/k8s_POD_web_ns_uid_7", SandboxName("web", "ns", "uid", 7), id="with an engine's slash"),
        pytest.param(
            "k8s_POD_web_ns_uid_7_1f2e3d4c", SandboxName("web", "ns", "uid", 7), id="an older shim's after a conflict"
        ),
        pytest.param("k8s_POD_web_ns_uid_x", None, id="no number of an attempt"),
        pytest.param("k8s_POD_web_ns_uid_4294967296", None, id="an attempt that CRI cannot say"),
        pytest.param("k8s_POD_my_web_ns_more_uid_0", None, id="too many fields"),
        pytest.param("k8s_POD_web_ns_0", None, id="too few fields"),
        pytest.param("portainer", None, id="somebody else's"),
        pytest.param("", None, id="none"),
    ],
)
def test_names_of_any_shim_are_read(name: str, expected: SandboxName | None) -> None:
    assert parse_sandbox_name(name, {}) == expected


def test_names_are_those_of_every_dockershim() -> None:
    pod = SandboxName("web-0", "default", UID, 2)

    assert sandbox_container_name(pod) == f"k8s_POD_web-0_default_{UID}_2"
    assert container_name("nginx", 3, pod) == f"k8s_nginx_web-0_default_{UID}_3"


def test_a_containers_name_is_read_without_the_pods_attempt() -> None:
    expected = ContainerName("nginx", 3, SandboxName("web", "ns", "uid", 0))

    assert parse_container_name("/k8s_nginx_web_ns_uid_3", {}) == expected


@given(sandboxes)
def test_a_sandboxs_metadata_comes_back(sandbox: SandboxName) -> None:
    name = sandbox_container_name(sandbox)
    needed = needs_metadata([sandbox.name, sandbox.namespace, sandbox.uid])

    assert ENGINE_NAME.fullmatch(name)
    assert parse_sandbox_name("/" + name, metadata_of(sandbox) if needed else {}) == sandbox


@given(fields, attempts, sandboxes)
def test_a_containers_metadata_comes_back(name: str, attempt: int, pod: SandboxName) -> None:
    engine_name = container_name(name, attempt, pod)
    needed = needs_metadata([name, pod.name, pod.namespace, pod.uid])
    extra = {"metadata": [name, attempt, pod.name, pod.namespace, pod.uid, pod.attempt]} if needed else {}

    found = parse_container_name("/" + engine_name, extra)

    assert ENGINE_NAME.fullmatch(engine_name)
    assert found is not None
    assert (found.name, found.attempt) == (name, attempt)
    assert (found.pod.name, found.pod.namespace, found.pod.uid) == (pod.name, pod.namespace, pod.uid)


@pytest.mark.parametrize("length", range(320, 345))
def test_a_long_name_is_either_read_back_or_has_its_metadata(length: int) -> None:
    sandbox = SandboxName("n" * length, "s" * length, "u" * length, 2**32 - 1)

    if not needs_metadata([sandbox.name, sandbox.namespace, sandbox.uid]):
        assert parse_sandbox_name(sandbox_container_name(sandbox), {}) == sandbox


@given(sandboxes, sandboxes)
def test_other_metadata_is_another_name(one: SandboxName, other: SandboxName) -> None:
    assert (sandbox_container_name(one) == sandbox_container_name(other)) == (one == other)


keys = st.text(min_size=1, max_size=30) | st.builds(ANNOTATION_PREFIX.__add__, st.text(max_size=10))
OWN = {TYPE_LABEL: CONTAINER_TYPE, SANDBOX_ID_LABEL: "id", LOG_PATH_LABEL: "/log"}


@given(
    st.dictionaries(keys.filter(lambda key: key not in OWN and key != EXTRA_LABEL), st.text(max_size=20)),
    st.dictionaries(keys, st.text(max_size=20)),
)
def test_labels_and_annotations_come_back(labels: dict[str, str], annotations: dict[str, str]) -> None:
    engine_labels = to_engine_labels(labels, annotations, OWN, {"image": "i"})

    assert read(engine_labels) == (labels, annotations)
    assert read_extra(engine_labels)["image"] == "i"
    assert {key: engine_labels[key] for key in OWN} == OWN


def test_a_label_like_an_annotation_does_not_hide_the_annotation() -> None:
    labels, annotations = {"annotation.a": "label"}, {"a": "annotation"}

    assert read(to_engine_labels(labels, annotations, OWN, {})) == (labels, annotations)


@pytest.mark.parametrize("key", [*OWN, EXTRA_LABEL])
def test_a_label_of_the_shims_own_is_refused(key: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(key)):
        to_engine_labels({key: "x"}, {}, OWN, {})


def test_a_sandboxs_label_that_would_be_hidden_is_refused() -> None:
    own = {TYPE_LABEL: SANDBOX_TYPE, CONTAINER_NAME_LABEL: "POD"}

    with pytest.raises(InvalidArgument, match=CONTAINER_NAME_LABEL):
        to_engine_labels({CONTAINER_NAME_LABEL: "x"}, {}, own, {})


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


@pytest.mark.parametrize(
    "value",
    [
        pytest.param("", id="empty"),
        pytest.param("{", id="cut"),
        pytest.param("[]", id="no object"),
        pytest.param('{"labels": ["a"]}', id="labels that are a list"),
        pytest.param('{"metadata": 5}', id="metadata that is a number"),
        pytest.param('{"cgroupFiles": "x"}', id="files that are a text"),
        pytest.param('{"cgroupFiles": {"cgroup./../../x": "1"}}', id="a file that is none of a cgroup"),
        pytest.param('{"cgroupFiles": {"memory.max": 1}}', id="a file's content that is a number"),
        pytest.param('{"labels": {"a": {}}}', id="a label that is no text"),
        pytest.param('{"keys": [1]}', id="a key that is a number"),
        pytest.param('{"envs": -1}', id="fewer than no variables"),
        pytest.param('{"image": "\\ud800"}', id="half of a character"),
        pytest.param('{"\\uDFFF": 1}', id="half of a character in a name"),
        pytest.param("[" * 100_000, id="deeper than can be read"),
        pytest.param("9" * 5000, id="a number longer than can be read"),
    ],
)
def test_a_damaged_label_of_ours_is_as_good_as_none(value: str) -> None:
    engine_labels = {EXTRA_LABEL: value, "app": "web"}

    assert read_extra(engine_labels) == {}
    assert read(engine_labels) == ({"app": "web"}, {})


@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param([], id="nothing"),
        pytest.param(["a", "b", "c"], id="too short"),
        pytest.param(["a", "b", "c", "0"], id="an attempt that is a text"),
        pytest.param([None, "b", "c", 0], id="no name"),
        pytest.param(["x", "y", "z", 99999999999], id="an attempt that CRI cannot say"),
        pytest.param(["x", "y", "z", -1], id="an attempt below none"),
        pytest.param(["x", "y", "z", True], id="an attempt that is no number"),
        pytest.param(["x", "y", "z", 1], id="another pod's, which the name was not made of"),
        pytest.param(["x", 1, "x", "y", "z", 1], id="another container's, which the name was not made of"),
    ],
)
def test_damaged_metadata_gives_way_to_the_name(metadata: list[object]) -> None:
    extra = {"metadata": metadata}

    assert parse_sandbox_name("k8s_POD_a_b_c_1", extra) == SandboxName("a", "b", "c", 1)
    assert parse_container_name("k8s_x_a_b_c_1", extra) == ContainerName("x", 1, SandboxName("a", "b", "c", 0))


@given(
    st.dictionaries(keys.filter(lambda key: key not in OWN and key != EXTRA_LABEL), st.text(max_size=20)),
    st.dictionaries(keys, st.text(max_size=20)),
    st.dictionaries(keys | st.sampled_from([*OWN, EXTRA_LABEL]), st.text(max_size=20)),
)
def test_labels_of_the_image_are_not_among_those_that_were_asked_for(
    labels: dict[str, str], annotations: dict[str, str], image_labels: dict[str, str]
) -> None:
    engine_labels = image_labels | to_engine_labels(labels, annotations, OWN, {})

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
        to_engine_labels(given_labels["labels"], given_labels["annotations"], OWN, {})


def test_a_container_is_no_sandbox_by_its_name() -> None:
    assert parse_sandbox_name("k8s_nginx_web_ns_uid_0", {}) is None


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=8))
def test_no_content_of_our_label_breaks_a_list(content: object) -> None:
    for value in (content, {"metadata": content}, {"labels": content}):
        engine_labels = {EXTRA_LABEL: json.dumps(value)}
        extra = read_extra(engine_labels)
        parse_sandbox_name("x", extra)
        parse_container_name("x", extra)
        read(engine_labels)
