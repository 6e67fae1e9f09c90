"""critest's specs of AppArmor, which a test node's kernel does not have, and a few others with the systemd driver."""

from __future__ import annotations

import re

import pytest

from tests.conformance.verdict import Spec, read_report
from tests.vm.guest import Guest

PREFER, SUPPORT, DEPRECATED = (
    f"[It] [k8s.io] AppArmor runtime should {what}"
    for what in (
        "prefer new apparmor field",
        "support apparmor field",
        "support deprecated apparmor_profile field",
    )
)
APPARMOR = (
    f"{PREFER} should enforce a apparmor_profile blocking writes",
    f"{PREFER} should fail with an unloaded apparmor_profile",
    f"{PREFER} should work with apparmor profile",
    f"{SUPPORT} should enforce a apparmor_profile blocking writes",
    f"{SUPPORT} should enforce a permissive deprecated profile",
    f"{SUPPORT} should fail with an unloaded apparmor_profile",
    f"{DEPRECATED} should enforce a apparmor_profile blocking writes",
    f"{DEPRECATED} should enforce a permissive deprecated profile",
    f"{DEPRECATED} should fail with an unloaded apparmor_profile",
)
BASIC = "[It] [k8s.io] Container runtime should support basic operations on container runtime should support"
POD = "[It] [k8s.io] PodSandbox runtime should support basic operations on PodSandbox runtime should support"
OOM = "[It] [k8s.io] Container OOM runtime should output OOMKilled reason"
SELECTED = (
    f"{OOM} should terminate with exitCode 137 and reason OOMKilled",
    f"{BASIC} execSync with timeout [Conformance]",
    f"{BASIC} listing stats for started containers [Conformance]",
    f"{BASIC} removing running container [Conformance]",
    f"{POD} removing PodSandbox [Conformance]",
)
SPECS = (*APPARMOR, *SELECTED)
REPORT = "/tmp/junit.xml"
TIME_LIMIT = 1200


def _id(name: str) -> str:
    """The test's id of a spec."""
    return name.removeprefix("[It] [k8s.io] ")


@pytest.fixture(scope="module")
def specs(request: pytest.FixtureRequest, guest: Guest) -> dict[str, Spec]:
    """What critest reported of the specs that pytest chose. AppArmor's load profiles by `sudo apparmor_parser`."""
    chosen = " ".join(item.name for item in request.session.items)
    names = (name.removeprefix("[It] ") for name in SPECS if f"[{_id(name)}]" in chosen)
    guest.run(
        "critest",
        "--runtime-endpoint=unix:///run/dockershim.sock",
        f"--ginkgo.focus=({'|'.join(re.escape(name) for name in names)})$",
        "--ginkgo.seed=1",
        "--ginkgo.no-color",
        f"--ginkgo.junit-report={REPORT}",
        check=False,  # its report says more
        timeout=TIME_LIMIT,
    )
    return {spec.name: spec for spec in read_report(guest.read(REPORT))}


@pytest.mark.parametrize("name", SPECS, ids=_id)
def test_spec_of_critest_passes(specs: dict[str, Spec], name: str) -> None:
    assert specs[name].outcome == "passed", specs[name].message
