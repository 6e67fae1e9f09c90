"""Engine names carry the CRI's metadata there and back, whatever it is made of."""

from __future__ import annotations

import re
from dataclasses import astuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockershim.translate.names import (
    ContainerName,
    SandboxName,
    container_name,
    kept_metadata,
    parse_container_name,
    parse_sandbox_name,
    sandbox_container_name,
)

#: What an engine takes as a container's name.
ENGINE_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]+")
UID = "c3f2a1d0-4a1e-4b5c-9d0e-0123456789ab"

attempts = st.integers(0, 2**32 - 1)
#: Anything a request can hold, with plenty of the separator.
fields = st.text(st.characters(exclude_categories=["Cs", "Cc"]) | st.just("_"), min_size=1, max_size=80)
sandboxes = st.builds(SandboxName, fields, fields, fields, attempts)


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
    assert parse_sandbox_name(name) == expected


def test_names_are_those_of_every_dockershim() -> None:
    pod = SandboxName("web-0", "default", UID, 2)

    assert sandbox_container_name(pod) == f"k8s_POD_web-0_default_{UID}_2"
    assert container_name("nginx", 3, pod) == f"k8s_nginx_web-0_default_{UID}_3"


def test_a_containers_name_is_read_without_the_pods_attempt() -> None:
    expected = ContainerName("nginx", 3, SandboxName("web", "ns", "uid", 0))

    assert parse_container_name("/k8s_nginx_web_ns_uid_3") == expected


@given(sandboxes)
def test_a_sandboxs_metadata_comes_back(sandbox: SandboxName) -> None:
    name = sandbox_container_name(sandbox)
    kept = kept_metadata(*astuple(sandbox))

    assert ENGINE_NAME.fullmatch(name)
    assert kept in ((), astuple(sandbox))
    assert parse_sandbox_name("/" + name, sandbox if kept else None) == sandbox


@given(fields, attempts, sandboxes)
def test_a_containers_metadata_comes_back(name: str, attempt: int, pod: SandboxName) -> None:
    engine_name = container_name(name, attempt, pod)
    kept = kept_metadata(name, attempt, *astuple(pod))

    found = parse_container_name("/" + engine_name, ContainerName(name, attempt, pod) if kept else None)

    assert ENGINE_NAME.fullmatch(engine_name)
    assert found is not None
    assert (found.name, found.attempt) == (name, attempt)
    assert (found.pod.name, found.pod.namespace, found.pod.uid) == (pod.name, pod.namespace, pod.uid)


@pytest.mark.parametrize("length", range(320, 345))
def test_a_long_name_is_either_read_back_or_has_its_metadata(length: int) -> None:
    sandbox = SandboxName("n" * length, "s" * length, "u" * length, 2**32 - 1)

    if not kept_metadata(*astuple(sandbox)):
        assert parse_sandbox_name(sandbox_container_name(sandbox)) == sandbox


@given(sandboxes, sandboxes)
def test_other_metadata_is_another_name(one: SandboxName, other: SandboxName) -> None:
    assert (sandbox_container_name(one) == sandbox_container_name(other)) == (one == other)


def test_a_container_is_no_sandbox_by_its_name() -> None:
    assert parse_sandbox_name("k8s_nginx_web_ns_uid_0") is None


def test_what_another_name_was_made_of_gives_way_to_the_name() -> None:
    other = SandboxName("x", "y", "z", 1)

    assert parse_sandbox_name("k8s_POD_a_b_c_1", other) == SandboxName("a", "b", "c", 1)
    found = parse_container_name("k8s_x_a_b_c_1", ContainerName("x", 1, other))
    assert found == ContainerName("x", 1, SandboxName("a", "b", "c", 0))
