"""What a request says of users becomes an annotation, and comes back; what cannot be made is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.errors import InvalidArgument, Unsupported
from dockershim.translate.capabilities import RuntimeSupport, user_namespace_program
from dockershim.translate.mounts import to_cri_mounts, with_mapped_ids
from dockershim.translate.node_facts import to_runtime_handlers
from dockershim.translate.sandbox import to_infra_container
from dockershim.translate.user_namespace import (
    ANNOTATION,
    UserNamespace,
    asked_user_namespace,
    read_user_namespace,
)
from tests.unit.translate.kubelet import ENGINE_28, sandbox_config

OURS = UserNamespace(200_000, 300_000, 65_536)
HIGHEST = 2**32 - 1
ABLE = replace(ENGINE_28, runtimes=ENGINE_28.runtimes | {"ours"}, user_namespaces=RuntimeSupport(runtime="ours"))

namespaces = st.integers(1, HIGHEST - 1).flatmap(
    lambda size: st.builds(UserNamespace, *[st.integers(1, HIGHEST - size)] * 2, st.just(size))
)
paths = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1).map("/{}".format)


@given(namespace=namespaces, mounts=st.lists(paths, unique=True))
def test_what_is_asked_for_comes_back(namespace: UserNamespace, mounts: list[str]) -> None:
    assert asked_user_namespace(cri.NamespaceOption(userns_options=namespace.to_cri())) == namespace
    annotations = {ANNOTATION: namespace.to_annotation(mounts)}
    assert read_user_namespace({"Annotations": annotations}) == (namespace, frozenset(mounts))


@pytest.mark.parametrize("text", ["", "1 2", "1 2 3 4", "a b c", "1 2 3\n", "1 2 3\n\n/a", "1 2 3\n/a\n", 5, None, {}])
def test_an_annotation_of_somebody_else_says_nothing(text: Any) -> None:
    assert read_user_namespace({"Annotations": {ANNOTATION: text}}) == (None, frozenset())
    assert read_user_namespace({"Annotations": None}) == (None, frozenset())


def test_the_nodes_users_are_no_namespace() -> None:
    assert asked_user_namespace(cri.NamespaceOption()) is None
    assert asked_user_namespace(cri.NamespaceOption(userns_options=cri.UserNamespace(mode=cri.NODE))) is None


def one(host_id: int = 1, length: int = 1, container_id: int = 0) -> cri.IDMapping:
    return cri.IDMapping(host_id=host_id, length=length, container_id=container_id)


def asked(uids: list[cri.IDMapping], gids: list[cri.IDMapping], **fields: Any) -> cri.NamespaceOption:
    return cri.NamespaceOption(userns_options=cri.UserNamespace(mode=cri.POD, uids=uids, gids=gids), **fields)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        pytest.param(asked([], []), "uids: must have one", id="none"),
        pytest.param(asked([one()], []), "gids: must have one", id="no groups"),
        pytest.param(asked([one(), one()], [one()]), "uids: must have one", id="two"),
        pytest.param(asked([one(container_id=1)], [one()]), "container_id 0", id="root is not mapped"),
        pytest.param(asked([one(0)], [one()]), "uids: 1 ids from 0", id="the node's root"),
        pytest.param(asked([one(length=0)], [one()]), "uids: 0 ids", id="no ids"),
        pytest.param(asked([one()], [one(HIGHEST)]), "gids: 1 ids from 4294967295", id="too high"),
        pytest.param(asked([one()], [one(length=2)]), "same length", id="two lengths"),
        pytest.param(asked([one()], [one()], network=cri.NODE), "node's network", id="network"),
        pytest.param(asked([one()], [one()], pid=cri.NODE), "node's pid", id="processes"),
        pytest.param(asked([one()], [one()], ipc=cri.NODE), "node's ipc", id="IPC"),
        pytest.param(
            cri.NamespaceOption(userns_options=cri.UserNamespace(mode=cri.NODE, uids=[one()])), "NODE", id="node"
        ),
        pytest.param(
            cri.NamespaceOption(userns_options=cri.UserNamespace(mode=cri.CONTAINER)), "POD or NODE", id="mode"
        ),
    ],
)
def test_what_cannot_be_is_refused(options: cri.NamespaceOption, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        asked_user_namespace(options)


def mount(path: str = "/data", **fields: Any) -> cri.Mount:
    return cri.Mount(**{"container_path": path, "uidMappings": [OURS.uids], "gidMappings": [OURS.gids], **fields})


def test_mounts_ask_each_for_themselves() -> None:
    mounts = [mount("data/"), cri.Mount(container_path="/plain"), mount("/other")]
    assert with_mapped_ids(mounts, OURS) == ["/data", "/other"]
    host_config = {
        "Annotations": {ANNOTATION: OURS.to_annotation(["/data"])},
        "Mounts": [{"Type": "bind", "Source": "/a", "Target": "/data"}],
        "Binds": ["/b:/plain"],
    }
    mapped, plain = to_cri_mounts(host_config)
    assert (list(mapped.uidMappings), list(mapped.gidMappings)) == ([OURS.uids], [OURS.gids])
    assert (list(plain.uidMappings), list(plain.gidMappings)) == ([], [])


@pytest.mark.parametrize(
    ("fields", "namespace", "words"),
    [
        pytest.param({}, None, "with a user namespace", id="the node's users"),
        pytest.param({"uidMappings": []}, OURS, "mappings of the pod", id="groups alone"),
        pytest.param({"gidMappings": []}, OURS, "mappings of the pod", id="users alone"),
        pytest.param({"gidMappings": [OURS.uids]}, OURS, "mappings of the pod", id="other ids"),
        pytest.param({"uidMappings": [OURS.uids] * 2}, OURS, "mappings of the pod", id="twice"),
        pytest.param({"image": cri.ImageSpec(image="x")}, OURS, "image volume", id="an image"),
        pytest.param({"container_path": "/a\\nb"}, OURS, "backslash", id="a path that looks like two"),
    ],
)
def test_mounts_that_cannot_be(fields: dict[str, Any], namespace: UserNamespace | None, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        with_mapped_ids([mount(**fields)], namespace)


def infra(handler: str, features: Any) -> dict[str, Any]:
    config = sandbox_config()
    config.linux.security_context.namespace_options.userns_options.CopyFrom(OURS.to_cri())
    made = to_infra_container(
        config,
        image="pause",
        runtime_handler=handler,
        network_mode="none",
        publish_ports=False,
        profiles={},
        lowest_oom_score=-1000,
        features=features,
    )
    host_config: dict[str, Any] = made["HostConfig"]
    return host_config


@pytest.mark.parametrize("handler", ["", "docker", "runc", "io.containerd.runc.v2", "ours"])
def test_the_runtime_stands_in_for_runc(handler: str) -> None:
    made = infra(handler, ABLE)
    assert (made["Runtime"], made["Annotations"]) == ("ours", {ANNOTATION: "200000 300000 65536"})


def test_it_stands_in_for_no_other_runtime() -> None:
    with pytest.raises(Unsupported, match="cannot be used instead of the runtime kata"):
        infra("kata", ABLE)
    with pytest.raises(Unsupported, match="cannot be used instead of the runtime kata"):
        infra("", replace(ABLE, default_runtime="kata"))
    with pytest.raises(Unsupported, match=r"userns_options: .*--oci-runtime is not set"):
        infra("", ENGINE_28)
    told = {one.name: one.features.user_namespaces for one in to_runtime_handlers(ABLE)}
    assert told == {"": True, "docker": True, "io.containerd.runc.v2": True, "kata": False, "ours": True, "runc": True}


def info(features: str, **fields: Any) -> dict[str, Any]:
    status = {"org.opencontainers.runtime-spec.features": features}
    return {
        "Runtimes": {"ours": {"path": "/bin/ours", "status": status, **fields}, "odd": [], "runc": {"path": "runc"}}
    }


GOOD = '{"linux":{"namespaces":["user"],"mountExtensions":{"idmap":{"enabled":true}}}}'


def test_the_program_is_that_of_the_engines_runtime() -> None:
    assert user_namespace_program((1, 43), info(GOOD), "ours") == "/bin/ours"


@pytest.mark.parametrize(
    ("api", "told", "name", "words"),
    [
        pytest.param((1, 42), info(GOOD), "ours", "Docker 25", id="an old engine"),
        pytest.param((1, 43), {}, "ours", "no runtime 'ours'", id="no runtimes"),
        pytest.param((1, 43), info(GOOD), "other", "no runtime 'other'", id="another name"),
        pytest.param((1, 43), info(GOOD), "runc", "with a path", id="the engine's own"),
        pytest.param((1, 43), info(GOOD), "odd", "no runtime 'odd'", id="a list"),
        pytest.param((1, 43), info(GOOD, status=None), "ours", "runc 1.2", id="no status"),
        pytest.param((1, 43), info("{"), "ours", "runc 1.2", id="no JSON"),
        pytest.param((1, 43), info("[]"), "ours", "runc 1.2", id="an array"),
        pytest.param((1, 43), info('{"linux":{"namespaces":["user"]}}'), "ours", "runc 1.2", id="runc 1.1"),
        pytest.param((1, 43), info(GOOD.replace("true", "false")), "ours", "runc 1.2", id="not enabled"),
        pytest.param(
            (1, 43),
            info(GOOD.replace("user", "net")),
            "ours",
            "runc 1.2",
            id="user namespaces of pods are not supported",
        ),
    ],
)
def test_a_runtime_that_says_that_it_cannot(api: tuple[int, int], told: dict[str, Any], name: str, words: str) -> None:
    with pytest.raises(Unsupported, match=words):
        user_namespace_program(api, told, name)
