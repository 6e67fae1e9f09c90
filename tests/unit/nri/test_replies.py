"""What no answer of a plugin may have: each is an error that names plugin and field, and costs little."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from dockershim.api.nri.v1alpha1 import api_pb2 as api
from dockershim.errors import HookFailure
from dockershim.nri.adjustments import CreateResult
from dockershim.nri.replies import AdjustmentError, BadReply, check_reply, check_update
from dockershim.translate.user_namespace import ANNOTATION
from tests.unit.nri.answers import FIELDS, A, answer, limits, linux, request

NODE: dict[str, Any] = {"path": "/dev/x", "type": "c", "major": 1, "minor": 3}


def mount(**fields: Any) -> api.CreateContainerResponse:
    return answer(mounts=[api.Mount(**{"destination": "/m", "source": "/s", **fields})])


def device(**fields: Any) -> api.CreateContainerResponse:
    return linux(devices=[api.LinuxDevice(**{**NODE, **fields})])


def rlimit(**fields: Any) -> api.CreateContainerResponse:
    return answer(rlimits=[api.POSIXRlimit(**{"type": "RLIMIT_CORE", "hard": 1, "soft": 1, **fields})])


def rule(**fields: Any) -> api.CreateContainerResponse:
    return limits(devices=[api.LinuxDeviceCgroup(**{"allow": True, "type": "c", "access": "rw", **fields})])


def number(value: int) -> api.OptionalInt64:
    return api.OptionalInt64(value=value)


def unsigned(value: int) -> api.OptionalUInt64:
    return api.OptionalUInt64(value=value)


BAD = {
    "an annotation without a name": (answer(annotations={"": "x"}), "annotations"),
    "a removal of an annotation without a name": (answer(annotations={"-": ""}), "annotations"),
    "a long annotation": (answer(annotations={"k": "x" * 300_000}), "annotations"),
    "the kubelet's own": (answer(annotations={"io.kubernetes.container.hash": "0"}), "io.kubernetes.container.hash"),
    "to remove the kubelet's own": (answer(annotations={"-io.kubernetes.pod.uid": ""}), "io.kubernetes.pod.uid"),
    "users of another pod": (answer(annotations={ANNOTATION: "1 1 65536"}), ANNOTATION),
    "another pod's network": (answer(annotations={"io.dockershim.network-namespace": "/x"}), "network-namespace"),
    "to remove the pod's users": (answer(annotations={f"-{ANNOTATION}": ""}), ANNOTATION),
    "a NUL in an annotation": (answer(annotations={"k": "a\0b"}), "annotations"),
    "a NUL in a name": (answer(annotations={"a\0b": "v"}), "annotations"),
    "a NUL in an argument": (answer(args=["a\0b"]), "args"),
    "a NUL in a hook": (answer(hooks=api.Hooks(prestart=[api.Hook(path="/a\0")])), "hooks.prestart.path"),
    "a long argument": (answer(args=["x" * 131_072]), "args"),
    "a mount above the root": (mount(destination="/a/../../etc"), "mounts.destination"),
    "a mount of what is above": (mount(source="/a/../etc"), "mounts[/m].source"),
    "a mount nowhere": (mount(destination=""), "mounts.destination"),
    "a relative mount": (mount(destination="a"), "mounts.destination"),
    "a removal of no mount": (mount(destination="-"), "mounts.destination"),
    "a mount with a line break": (mount(destination="/a\nb"), "mounts.destination"),
    "two options in one": (mount(options=["ro,exec"]), "mounts[/m].options"),
    "an empty option": (mount(options=[""]), "mounts[/m].options"),
    "a variable without a name": (answer(env=[api.KeyValue(value="x")]), "env"),
    "a variable with two values": (answer(env=[api.KeyValue(key="A=B", value="x")]), "env"),
    "a removal of no variable": (answer(env=[api.KeyValue(key="-")]), "env"),
    "a long variable": (answer(env=[api.KeyValue(key="A", value="x" * 131_072)]), "env[A]"),
    "a limit that does not exist": (rlimit(type="RLIMIT_FOO"), "rlimits"),
    "a limit in lower case": (rlimit(type="nofile"), "rlimits"),
    "a soft limit above the hard one": (rlimit(soft=2), "rlimits[RLIMIT_CORE]"),
    "a CDI device without a vendor": (answer(CDI_devices=[api.CDIDevice(name="gpu")]), "CDI_devices"),
    "a CDI device without a name": (answer(CDI_devices=[api.CDIDevice()]), "CDI_devices"),
    "a device of type x": (device(type="x"), "linux.devices[/dev/x].type"),
    "a device without a type": (device(type=""), "linux.devices[/dev/x].type"),
    "a device with a negative number": (device(major=-1), "linux.devices[/dev/x]"),
    "a device with a large number": (device(minor=1 << 20), "linux.devices[/dev/x]"),
    "a device above": (device(path="/dev/../x"), "linux.devices.path"),
    "a removal of no device": (device(path="-"), "linux.devices.path"),
    "a score too low": (linux(oom_score_adj=api.OptionalInt(value=-1001)), "linux.oom_score_adj"),
    "a score too high": (linux(oom_score_adj=api.OptionalInt(value=1001)), "linux.oom_score_adj"),
    "a namespace of another kind": (linux(namespaces=[api.LinuxNamespace(type="x")]), "linux.namespaces"),
    "a namespace at no path": (linux(namespaces=[api.LinuxNamespace(type="pid", path="x")]), "linux.namespaces[pid]"),
    "a cgroup with a line break": (linux(cgroups_path="/a\nb"), "linux.cgroups_path"),
    "a sysctl without a name": (linux(sysctl={"-": ""}), "linux.sysctl"),
    "a network device without a name": (linux(net_devices={"": api.LinuxNetDevice()}), "linux.net_devices"),
    "a class that does not exist": (linux(io_priority=api.LinuxIOPriority(**{"class": 9})), "linux.io_priority.class"),
    "a flag that does not exist": (linux(scheduler=api.LinuxScheduler(flags=[77])), "linux.scheduler.flags"),  # type: ignore[list-item]
    "negative memory": (limits(memory=api.LinuxMemory(limit=number(-2))), "linux.resources.memory.limit"),
    "negative swap": (limits(memory=api.LinuxMemory(swap=number(-2))), "linux.resources.memory.swap"),
    "negative kernel memory": (limits(memory=api.LinuxMemory(kernel=number(-2))), "linux.resources.memory.kernel"),
    "too much swappiness": (limits(memory=api.LinuxMemory(swappiness=unsigned(101))), "memory.swappiness"),
    "a negative quota": (limits(cpu=api.LinuxCPU(quota=number(-2))), "linux.resources.cpu.quota"),
    "too many shares": (limits(cpu=api.LinuxCPU(shares=unsigned(2**63))), "linux.resources.cpu.shares"),
    "too long a period": (limits(cpu=api.LinuxCPU(period=unsigned(2**63))), "linux.resources.cpu.period"),
    "fewer processes than none": (limits(pids=api.LinuxPids(limit=-2)), "linux.resources.pids.limit"),
    "pages of no size": (limits(hugepage_limits=[api.HugepageLimit(page_size="x")]), "hugepage_limits"),
    "a cgroup file elsewhere": (limits(unified={"../memory.high": "1"}), "linux.resources.unified"),
    "a cgroup file with two lines": (limits(unified={"memory.high": "1\n2"}), "linux.resources.unified"),
    "a rule for another type": (rule(type="x"), "linux.resources.devices"),
    "a rule without access": (rule(access=""), "linux.resources.devices"),
    "a rule of another access": (rule(access="rx"), "linux.resources.devices"),
    "a rule with a negative number": (rule(major=number(-2)), "linux.resources.devices"),
    "an eviction of nobody": (api.CreateContainerResponse(evict=[api.ContainerEviction(reason="x")]), "evict"),
    "an update of nobody": (api.CreateContainerResponse(update=[api.ContainerUpdate()]), "update.container_id"),
    "a million annotations": (answer(annotations={f"{number:x}": "" for number in range(1_000_000)}), "bytes, at most"),
    "many annotations": (answer(annotations={f"{number:x}": "" for number in range(20_000)}), "elements"),
    "many hooks": (answer(hooks=api.Hooks(prestart=[api.Hook()] * 20_000)), "elements"),
    "many calls": (linux(seccomp_policy=api.LinuxSeccomp(syscalls=[api.LinuxSyscall()] * 20_000)), "elements"),
    "many updates": (api.CreateContainerResponse(update=[api.ContainerUpdate()] * 20_000), "elements"),
}


@pytest.mark.parametrize(("reply", "words"), BAD.values(), ids=BAD)
def test_what_cannot_be_is_an_error_that_names_plugin_and_field(reply: api.CreateContainerResponse, words: str) -> None:
    result = CreateResult(request())
    before = time.thread_time()
    with pytest.raises(BadReply) as caught:
        result.apply(A, reply)
    assert time.thread_time() - before < 1
    assert str(caught.value).startswith(f"plugin '{A}': ")
    assert words in str(caught.value)
    assert len(str(caught.value)) < 500
    assert isinstance(caught.value, HookFailure)


GOOD = {
    "nothing": api.CreateContainerResponse(),
    "an empty variable": answer(env=[api.KeyValue(key="A")]),
    "a removal of a mount": mount(destination="-/m", source=""),
    "no limit of memory": limits(memory=api.LinuxMemory(limit=number(-1), swap=number(-1))),
    "no quota": limits(cpu=api.LinuxCPU(quota=number(-1))),
    "no limit of processes": limits(pids=api.LinuxPids(limit=-1)),
    "the largest numbers": limits(memory=api.LinuxMemory(limit=number(2**63 - 1))),
    "an infinite limit": rlimit(hard=2**64 - 1, soft=2**64 - 1),
    "the largest device": device(major=4095, minor=2**20 - 1),
    "a removal of a device": device(path="-/dev/x", type="", major=0, minor=0),
    "a rule for all": rule(type="", major=number(-1)),
    "a removal of a namespace": linux(namespaces=[api.LinuxNamespace(type="-pid", path="x")]),
    "a tab in a sysctl": linux(sysctl={"net.ipv4.tcp_rmem": "1\t2\t3"}),
    "a line break in an annotation": answer(annotations={"k": "a\nb"}),
}


@pytest.mark.parametrize("reply", GOOD.values(), ids=GOOD)
def test_what_can_be_is_taken(reply: api.CreateContainerResponse) -> None:
    CreateResult(request()).apply(A, reply)


def test_a_plugin_can_update_every_container_of_a_full_node() -> None:
    resources = api.LinuxResources(
        memory=api.LinuxMemory(limit=number(1 << 30), swap=number(1 << 30), reservation=number(1 << 29)),
        cpu=api.LinuxCPU(shares=unsigned(2), quota=number(1000), period=unsigned(1000), cpus="0-63", mems="0"),
        pids=api.LinuxPids(limit=100),
    )
    spec = api.LinuxContainerUpdate(resources=resources)
    reply = api.CreateContainerResponse()
    for place in range(2000):
        reply.update.add(container_id=f"{place:064x}").linux.CopyFrom(spec)
    result = CreateResult(request())
    result.apply(A, reply)
    assert len(result.updates) == 2000


def test_a_field_that_is_newer_than_this_server_is_told_and_not_lost() -> None:
    newer = api.ContainerAdjustment.FromString(b"\xfa\x07\x01x")  # field 127
    with pytest.raises(BadReply, match=r"adjust\.127: .* unknown"):
        check_reply(A, api.CreateContainerResponse(adjust=newer))
    # What is not about the container cannot be lost by it.
    check_reply(A, api.CreateContainerResponse.FromString(b"\xfa\x07\x01x"))


def test_updates_from_a_plugin_at_any_time_are_checked_the_same_way() -> None:
    check_reply(A, api.UpdateContainersRequest(update=[api.ContainerUpdate(container_id="x")]))
    with pytest.raises(BadReply, match="elements"):
        check_reply(A, api.UpdateContainersRequest(evict=[api.ContainerEviction(container_id="x")] * 20_000))
    bad = api.LinuxResources(pids=api.LinuxPids(limit=-3))
    with pytest.raises(BadReply, match=r"update\[x\]\.linux\.resources\.pids"):
        check_update(A, api.ContainerUpdate(container_id="x", linux=api.LinuxContainerUpdate(resources=bad)))


WHOLE = b"".join(reply.SerializeToString() for reply, _ in FIELDS)


@given(st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), max_size=8))
@settings(max_examples=500)
def test_no_damaged_answer_does_anything_else(damages: list[tuple[int, int]]) -> None:
    data = bytearray(WHOLE)
    for place, byte in damages:
        data[place] = byte
    with contextlib.suppress(DecodeError, AdjustmentError):
        CreateResult(request()).apply(A, api.CreateContainerResponse.FromString(bytes(data)))
