"""What of the plugins' changes an operator allows."""

from __future__ import annotations

import time
from dataclasses import fields
from typing import Any

import pytest

from dockershim.api.nri.v1alpha1 import api_pb2 as api
from dockershim.nri.adjustments import CreateResult
from dockershim.nri.validator import REQUIRED_PLUGINS, Rejected, Rules, validate
from tests.unit.nri.answers import EXAMPLES, ID, POLICY, A, B, answer, linux

REJECT_ALL: dict[str, Any] = {field.name: True for field in fields(Rules) if field.name.startswith("reject_")}
ALL = Rules(**REJECT_ALL)
PROFILES = {
    "reject_runtime_default_seccomp_adjustment": api.SecurityProfile.RUNTIME_DEFAULT,
    "reject_unconfined_seccomp_adjustment": api.SecurityProfile.UNCONFINED,
    "reject_custom_seccomp_adjustment": api.SecurityProfile.LOCALHOST,
}


def only(rule: str) -> Rules:
    given: dict[str, Any] = {rule: True}
    return Rules(**given)


def all_but(rule: str) -> Rules:
    return Rules(**{**REJECT_ALL, rule: False})


def request(
    *replies: api.CreateContainerResponse,
    profile: api.SecurityProfile.ProfileType | None = None,
    annotations: dict[str, str] | None = None,
    plugins: tuple[str, ...] = (A, B),
) -> api.ValidateContainerAdjustmentRequest:
    container = api.Container(id=ID, name="main")
    if profile is not None:
        container.linux.seccomp_profile.profile_type = profile
    result = CreateResult(api.CreateContainerRequest(container=container))
    for plugin, reply in zip((A, B), replies, strict=False):
        result.apply(plugin, reply)
    instances = [api.PluginInstance(index=name[:2], name=name[3:]) for name in plugins]
    return api.ValidateContainerAdjustmentRequest(
        pod=api.PodSandbox(annotations=annotations),
        container=container,
        adjust=result.adjustment,
        owners=result.owners,
        plugins=instances,
    )


def test_without_rules_everything_is_allowed() -> None:
    validate(Rules(), request(*EXAMPLES.values()))


@pytest.mark.parametrize("row", EXAMPLES)
def test_only_what_has_a_rule_is_rejected(row: str) -> None:
    ruled = {"hooks", "linux.seccomp_policy", "linux.namespaces", "linux.sysctl"}
    if row not in ruled:
        validate(ALL, request(EXAMPLES[row]))
        return
    with pytest.raises(Rejected, match=f"container 'main': .* of plugin '{A}'"):
        validate(ALL, request(EXAMPLES[row]))


@pytest.mark.parametrize(
    ("rule", "reply", "words"),
    [
        ("reject_oci_hook_adjustment", EXAMPLES["hooks"], "OCI hooks of plugins '10-a', '20-b'"),
        ("reject_namespace_adjustment", linux(namespaces=[api.LinuxNamespace(type="-pid")]), "namespaces pid of"),
        ("reject_sysctl_adjustment", linux(sysctl={"net.x": "1"}), "sysctls net.x of plugin '10-a'"),
        ("reject_sysctl_adjustment", linux(sysctl={"-net.x": ""}), "sysctls net.x"),
    ],
)
def test_each_rule_rejects_its_own_field(rule: str, reply: api.CreateContainerResponse, words: str) -> None:
    told = request(reply, reply) if "hook" in rule else request(reply)
    with pytest.raises(Rejected, match=words):
        validate(only(rule), told)
    validate(all_but(rule), told)


@pytest.mark.parametrize("rule", PROFILES)
def test_a_seccomp_policy_is_rejected_by_what_was_there_before(rule: str) -> None:
    for other, profile in PROFILES.items():
        told = request(linux(seccomp_policy=POLICY), profile=profile)
        if other == rule:
            with pytest.raises(Rejected, match="seccomp policy of plugin '10-a'"):
                validate(only(rule), told)
        else:
            validate(only(rule), told)


def test_a_container_without_a_profile_is_unconfined() -> None:
    told = request(linux(seccomp_policy=POLICY))
    with pytest.raises(Rejected, match="in place of none"):
        validate(Rules(reject_unconfined_seccomp_adjustment=True), told)


REQUIRING = Rules(required_plugins=("a", B), tolerate_missing_plugins_annotation="example.com/tolerate")


@pytest.mark.parametrize(
    ("plugins", "annotations", "missing"),
    [
        ((A, B), {}, ""),
        ((A,), {}, "missing plugin '20-b'"),
        (("20-a", "21-b"), {}, "missing plugin '20-b'"),
        ((), {}, "missing plugins '20-b', 'a'"),
        ((), {"example.com/tolerate": "true"}, ""),
        ((), {"example.com/tolerate/pod": "1"}, ""),
        ((), {"example.com/tolerate": "false"}, "missing"),
        ((), {"example.com/tolerate/container.main": "false", "example.com/tolerate": "true"}, "missing"),
        ((), {"example.com/tolerate/container.other": "true"}, "missing"),
        ((), {"example.com/tolerate": "yes"}, "'yes' is neither true nor false"),
        ((A, B), {REQUIRED_PLUGINS: "[b, 10-a]"}, ""),
        ((A, B), {REQUIRED_PLUGINS: "- c\n- d"}, "missing plugins 'c', 'd'"),
        ((A, B), {f"{REQUIRED_PLUGINS}/container.main": "[]", REQUIRED_PLUGINS: "[c]"}, ""),
        ((A, B), {f"{REQUIRED_PLUGINS}/pod": "[c]", REQUIRED_PLUGINS: "[]"}, "missing plugin 'c'"),
        ((A, B), {REQUIRED_PLUGINS: ""}, ""),
        ((A, B), {REQUIRED_PLUGINS: "c"}, "must be a list of names"),
        ((A, B), {REQUIRED_PLUGINS: "{a: b}"}, "must be a list of names"),
        ((A, B), {REQUIRED_PLUGINS: "[[c]]"}, "must be a list of names"),
        ((A, B), {REQUIRED_PLUGINS: "[c"}, "is not valid YAML"),
        ((A, B), {REQUIRED_PLUGINS: "[c, ~]"}, "must be a list of names"),
        ((A, B), {REQUIRED_PLUGINS: "[" * 100}, "levels"),
        ((A, B), {REQUIRED_PLUGINS: "[" + "a," * 5000 + "]"}, "at most"),
        ((A, B), {REQUIRED_PLUGINS: "[&a x, *a]"}, "alias"),
        ((A, B), {REQUIRED_PLUGINS: "[\0]"}, "is not valid YAML"),
    ],
)
def test_required_plugins(plugins: tuple[str, ...], annotations: dict[str, str], missing: str) -> None:
    told = request(annotations=annotations, plugins=plugins)
    before = time.thread_time()
    if missing:
        with pytest.raises(Rejected, match=missing):
            validate(REQUIRING, told)
    else:
        validate(REQUIRING, told)
    assert time.thread_time() - before < 1


def test_a_pod_can_require_plugins_where_the_operator_requires_none() -> None:
    with pytest.raises(Rejected, match="missing plugin 'c', which it requires"):
        validate(Rules(), request(annotations={REQUIRED_PLUGINS: "[c]"}))


def test_names_and_values_of_options_are_those_of_other_runtimes() -> None:
    assert [field.name for field in fields(Rules)] == [
        "reject_oci_hook_adjustment",
        "reject_runtime_default_seccomp_adjustment",
        "reject_unconfined_seccomp_adjustment",
        "reject_custom_seccomp_adjustment",
        "reject_namespace_adjustment",
        "reject_sysctl_adjustment",
        "required_plugins",
        "tolerate_missing_plugins_annotation",
    ]


def test_a_message_from_elsewhere_is_no_crash() -> None:
    validate(ALL, api.ValidateContainerAdjustmentRequest())
    told: Any = request(answer(annotations={"k": "v"}))
    told.owners.owners.clear()
    validate(ALL, told)
