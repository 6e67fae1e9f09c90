"""Security contexts: profiles, users, groups and namespaces."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.errors import FailedPrecondition, InvalidArgument
from dockershim.translate.capabilities import Capabilities
from dockershim.translate.security import (
    check_sandbox_namespaces,
    seccomp_profile_path,
    to_capabilities,
    to_container_namespaces,
    to_group_add,
    to_security_opt,
    to_user,
)
from tests.unit.translate.kubelet import ENGINE_28

DEFAULT, UNCONFINED, LOCALHOST = (
    cri.SecurityProfile.RuntimeDefault,
    cri.SecurityProfile.Unconfined,
    cri.SecurityProfile.Localhost,
)
PROFILES = {"/profiles/a.json": '{"defaultAction":"SCMP_ACT_ALLOW"}'}
SELINUX = replace(ENGINE_28, selinux=True)


def profile(kind: cri.SecurityProfile.ProfileType, reference: str = "") -> cri.SecurityProfile:
    return cri.SecurityProfile(profile_type=kind, localhost_ref=reference)


def container(**fields: Any) -> cri.LinuxContainerSecurityContext:
    return cri.LinuxContainerSecurityContext(**fields)


def options(
    context: cri.LinuxContainerSecurityContext | cri.LinuxSandboxSecurityContext,
    *,
    no_new_privs: bool = False,
    unset_seccomp: str = "unconfined",
    features: Capabilities = ENGINE_28,
) -> list[str]:
    return to_security_opt(
        context, profiles=PROFILES, no_new_privs=no_new_privs, unset_seccomp=unset_seccomp, features=features
    )


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({}, ["seccomp=unconfined"], id="nothing said: unconfined, what a kubelet means by it"),
        pytest.param({"seccomp": profile(DEFAULT)}, [], id="the engine's default"),
        pytest.param({"seccomp": profile(UNCONFINED)}, ["seccomp=unconfined"], id="unconfined"),
        pytest.param(
            {"seccomp": profile(LOCALHOST, "/profiles/a.json")},
            [f"seccomp={PROFILES['/profiles/a.json']}"],
            id="a profile's content, for engines read no files of the node",
        ),
        pytest.param(
            {"seccomp": profile(LOCALHOST, "localhost//profiles/a.json")},
            [f"seccomp={PROFILES['/profiles/a.json']}"],
            id="a profile with the prefix of the deprecated field",
        ),
        pytest.param({"seccomp_profile_path": "runtime/default"}, [], id="deprecated: default"),
        pytest.param({"seccomp_profile_path": "docker/default"}, [], id="deprecated: its older name"),
        pytest.param({"seccomp_profile_path": "unconfined"}, ["seccomp=unconfined"], id="deprecated: unconfined"),
        pytest.param(
            {"seccomp_profile_path": "localhost//profiles/a.json"},
            [f"seccomp={PROFILES['/profiles/a.json']}"],
            id="deprecated: a profile",
        ),
        pytest.param(
            {"seccomp": profile(DEFAULT), "seccomp_profile_path": "unconfined"}, [], id="the new field goes first"
        ),
    ],
)
def test_seccomp(fields: dict[str, Any], expected: list[str]) -> None:
    assert options(container(**fields)) == expected


def test_a_sandbox_without_seccomp_gets_the_engines_default() -> None:
    assert options(cri.LinuxSandboxSecurityContext(), no_new_privs=True, unset_seccomp="") == ["no-new-privileges"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({}, "", id="nothing said"),
        pytest.param({"seccomp": profile(DEFAULT, "/a")}, "", id="not of another kind"),
        pytest.param({"seccomp": profile(LOCALHOST, "/a")}, "/a", id="of the new field"),
        pytest.param({"seccomp_profile_path": "localhost//a"}, "/a", id="of the deprecated field"),
    ],
)
def test_the_file_of_a_profile(fields: dict[str, Any], expected: str) -> None:
    assert seccomp_profile_path(container(**fields)) == expected


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"seccomp": profile(LOCALHOST)}, id="no path"),
        pytest.param({"seccomp": profile(LOCALHOST, "a.json")}, id="a relative path"),
        pytest.param({"seccomp_profile_path": "localhost/a.json"}, id="deprecated: a relative path"),
        pytest.param({"seccomp_profile_path": "strict"}, id="deprecated: no kind"),
    ],
)
def test_seccomp_that_cannot_be_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=r"security_context\.seccomp"):
        options(container(**fields))


def test_a_profile_needs_an_engine_with_seccomp() -> None:
    with pytest.raises(FailedPrecondition, match=r"security_context\.seccomp"):
        options(container(seccomp=profile(LOCALHOST, "/profiles/a.json")), features=replace(ENGINE_28, seccomp=False))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({}, [], id="nothing said: the engine's default"),
        pytest.param({"apparmor": profile(DEFAULT)}, [], id="default"),
        pytest.param({"apparmor": profile(UNCONFINED)}, ["apparmor=unconfined"], id="unconfined"),
        pytest.param({"apparmor": profile(LOCALHOST, "mine")}, ["apparmor=mine"], id="a profile of the node"),
        pytest.param({"apparmor": profile(LOCALHOST, "localhost/mine")}, ["apparmor=mine"], id="with the prefix"),
        pytest.param({"apparmor_profile": "runtime/default"}, [], id="deprecated: default"),
        pytest.param({"apparmor_profile": "unconfined"}, ["apparmor=unconfined"], id="deprecated: unconfined"),
        pytest.param({"apparmor_profile": "localhost/mine"}, ["apparmor=mine"], id="deprecated: a profile"),
        pytest.param(
            {"apparmor": profile(DEFAULT), "apparmor_profile": "unconfined"}, [], id="the new field goes first"
        ),
    ],
)
def test_apparmor(fields: dict[str, Any], expected: list[str]) -> None:
    assert options(container(**fields), unset_seccomp="") == expected


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"apparmor": profile(LOCALHOST)}, id="no name"),
        pytest.param({"apparmor": profile(LOCALHOST, "a\nb")}, id="a line end in a name"),
        pytest.param({"apparmor_profile": "localhost/"}, id="deprecated: no name"),
        pytest.param({"apparmor_profile": "mine"}, id="deprecated: no kind"),
    ],
)
def test_apparmor_that_cannot_be_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=r"security_context\.apparmor"):
        options(container(**fields))


@pytest.mark.parametrize(
    "fields", [{"apparmor": profile(LOCALHOST, "mine")}, {"apparmor_profile": "localhost/mine"}], ids=["new", "old"]
)
def test_a_profile_on_a_node_without_apparmor_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(FailedPrecondition, match=r"security_context\.apparmor: profile 'mine'"):
        options(container(**fields), features=replace(ENGINE_28, apparmor=False))


@pytest.mark.parametrize("kind", [DEFAULT, UNCONFINED])
def test_without_apparmor_nothing_is_said_of_it(kind: cri.SecurityProfile.ProfileType) -> None:
    assert (
        options(container(apparmor=profile(kind)), unset_seccomp="", features=replace(ENGINE_28, apparmor=False)) == []
    )


def test_selinux_labels() -> None:
    context = container(selinux_options=cri.SELinuxOption(type="container_t", level="s0:c1,c2"))

    assert options(context, unset_seccomp="", features=SELINUX) == ["label=type:container_t", "label=level:s0:c1,c2"]
    assert options(context, unset_seccomp="") == []


def test_nothing_confines_a_privileged_container() -> None:
    context = container(
        privileged=True,
        seccomp=profile(LOCALHOST, "/profiles/a.json"),
        apparmor=profile(LOCALHOST, "mine"),
        selinux_options=cri.SELinuxOption(type="container_t"),
    )
    assert options(context, no_new_privs=True, features=replace(SELINUX, apparmor=True)) == [
        "no-new-privileges",
        "seccomp=unconfined",
        "apparmor=unconfined",
        "label=disable",
    ]
    assert options(context, features=replace(ENGINE_28, apparmor=False)) == ["seccomp=unconfined"]


def test_a_selinux_label_with_a_line_end_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"selinux_options\.role"):
        options(container(selinux_options=cri.SELinuxOption(role="a\n")), features=SELINUX)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({}, "", id="the image's"),
        pytest.param({"run_as_user": cri.Int64Value(value=0)}, "0", id="root, which is not the same as unset"),
        pytest.param({"run_as_user": cri.Int64Value(value=2**31 - 1)}, "2147483647", id="the highest"),
        pytest.param({"run_as_username": "nobody"}, "nobody", id="a name"),
        pytest.param(
            {"run_as_user": cri.Int64Value(value=1), "run_as_group": cri.Int64Value(value=0)}, "1:0", id="and a group"
        ),
        pytest.param(
            {"run_as_username": "nobody", "run_as_group": cri.Int64Value(value=5)}, "nobody:5", id="a name and a group"
        ),
    ],
)
def test_users(fields: dict[str, Any], expected: str) -> None:
    assert to_user(container(**fields)) == expected


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        pytest.param(
            {"run_as_user": cri.Int64Value(value=1), "run_as_username": "a"}, "mutually exclusive", id="two users"
        ),
        pytest.param({"run_as_group": cri.Int64Value(value=1)}, "run_as_group: requires", id="a group alone"),
        pytest.param({"run_as_user": cri.Int64Value(value=-1)}, "run_as_user: -1", id="a negative user"),
        pytest.param({"run_as_user": cri.Int64Value(value=2**31)}, "run_as_user: 2147483648", id="too high a user"),
        pytest.param(
            {"run_as_user": cri.Int64Value(value=1), "run_as_group": cri.Int64Value(value=-1)},
            "run_as_group: -1",
            id="a negative group",
        ),
        pytest.param({"run_as_username": "a:b"}, "run_as_username", id="a name with a group in it"),
        pytest.param({"run_as_username": "a\n"}, "run_as_username", id="a name with a line end"),
    ],
)
def test_users_that_cannot_be_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        to_user(container(**fields))


@pytest.mark.parametrize(
    ("add", "drop", "expected"),
    [
        pytest.param(["NET_ADMIN"], ["CHOWN"], ["NET_ADMIN"], id="different ones"),
        pytest.param(["NET_ADMIN", "CHOWN"], ["NET_ADMIN"], ["CHOWN"], id="one in both"),
        pytest.param(["CAP_NET_ADMIN"], ["net_admin"], [], id="one in both, in two spellings"),
        pytest.param(["ALL"], ["CHOWN"], ["ALL"], id="all but one"),
        pytest.param(["ALL", "CHOWN"], ["all"], ["CHOWN"], id="all in both"),
        pytest.param(["CHOWN", "KILL"], ["ALL", "KILL"], ["CHOWN"], id="dropped alone and with all others"),
    ],
)
def test_what_is_dropped_is_not_added(add: list[str], drop: list[str], expected: list[str]) -> None:
    capability = cri.Capability(add_capabilities=add, drop_capabilities=drop)

    assert to_capabilities(capability) == (expected, drop)


def test_a_sandbox_with_a_group_alone_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="run_as_group: requires"):
        to_user(cri.LinuxSandboxSecurityContext(run_as_group=cri.Int64Value(value=1)))


def test_groups() -> None:
    assert to_group_add(container(supplemental_groups=[0, 2000])) == ["0", "2000"]
    with pytest.raises(InvalidArgument, match=r"supplemental_groups: -1"):
        to_group_add(container(supplemental_groups=[-1]))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({}, ("container:S", "container:S", "container:S", ""), id="the API's zero: all of the pod"),
        pytest.param(
            {"pid": cri.CONTAINER}, ("container:S", "container:S", "", ""), id="process ids of its own: a kubelet's"
        ),
        pytest.param(
            {"network": cri.NODE, "pid": cri.NODE, "ipc": cri.NODE},
            ("container:S", "host", "host", "host"),
            id="the node's",
        ),
        pytest.param({"ipc": cri.CONTAINER}, ("container:S", "private", "container:S", ""), id="IPC of its own"),
        pytest.param(
            {"pid": cri.TARGET, "target_id": "T"}, ("container:S", "container:S", "container:T", ""), id="a target's"
        ),
    ],
)
def test_namespaces_of_a_container(fields: dict[str, Any], expected: tuple[str, ...]) -> None:
    modes = to_container_namespaces(cri.NamespaceOption(**fields), "S")

    assert tuple(modes[key] for key in ("NetworkMode", "IpcMode", "PidMode", "UTSMode")) == expected


@pytest.mark.parametrize(
    ("fields", "error", "field"),
    [
        pytest.param({"network": cri.CONTAINER}, InvalidArgument, "network", id="a network of its own"),
        pytest.param({"ipc": cri.TARGET}, InvalidArgument, "ipc", id="IPC of a target"),
        pytest.param({"pid": cri.TARGET}, InvalidArgument, "target_id", id="no target"),
    ],
)
def test_namespaces_that_a_container_cannot_have(fields: dict[str, Any], error: type[Exception], field: str) -> None:
    with pytest.raises(error, match=rf"namespace_options\.{field}") as caught:
        to_container_namespaces(cri.NamespaceOption(**fields), "S")
    assert type(caught.value) is error


@pytest.mark.parametrize(
    ("fields", "error", "field"),
    [
        pytest.param({"network": cri.CONTAINER}, InvalidArgument, "network", id="a container's network"),
        pytest.param({"ipc": cri.CONTAINER}, InvalidArgument, "ipc", id="a container's IPC"),
        pytest.param({"pid": cri.TARGET, "target_id": "T"}, InvalidArgument, "pid", id="process ids of a container"),
        pytest.param({"userns_options": cri.UserNamespace()}, InvalidArgument, "userns_options", id="no mapping"),
    ],
)
def test_namespaces_that_a_sandbox_cannot_have(fields: dict[str, Any], error: type[Exception], field: str) -> None:
    with pytest.raises(error, match=rf"namespace_options\.{field}") as caught:
        check_sandbox_namespaces(cri.NamespaceOption(**fields))
    assert type(caught.value) is error


def test_the_nodes_user_namespace_is_no_wish_for_another() -> None:
    check_sandbox_namespaces(cri.NamespaceOption(userns_options=cri.UserNamespace(mode=cri.NODE)))
