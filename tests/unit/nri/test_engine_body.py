"""What becomes of an adjustment in the body of the engine's create call."""

from __future__ import annotations

import contextlib
import copy
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.api.nri.v1alpha1 import api_pb2 as api
from dockershim.errors import FailedPrecondition, InvalidArgument, ShimError, Unsupported
from dockershim.nri.adjustments import CreateResult
from dockershim.nri.devices import find_nodes
from dockershim.nri.engine_body import REMEDY, apply_adjustment, blame, cdi_names, device_numbers, to_edits
from dockershim.nri.resources import update_body
from dockershim.translate.capabilities import Capabilities, RuntimeSupport
from dockershim.translate.cdi import NO_EDITS, DeviceNode, Edits, HostPath, check_host
from dockershim.translate.cgroup_files import specified_files
from dockershim.translate.config_members import read_members
from dockershim.translate.labels import ContainerExtra, from_engine_labels, read_extra
from dockershim.translate.records import read_container
from dockershim.translate.user_namespace import ANNOTATION, UserNamespace, read_user_namespace
from tests.fields import ROOT, leaves
from tests.unit.nri.answers import EXAMPLES, ID, POLICY, A, B, answer, device, env, limits, linux, memory, mount, quota
from tests.unit.translate import kubelet
from tests.unit.translate.engine_bodies import to_engine
from tests.unit.translate.kubelet import ENGINE_20, ENGINE_28, SANDBOX_ID

OURS = UserNamespace(200_000, 300_000, 65_536)
NULL = ("c", 1, 3)
NODES = {NULL: "/dev/null", ("b", 7, 0): "/dev/loop0"}
#: An engine with dockershim-runc.
MEMBERS = replace(ENGINE_28, config_members=RuntimeSupport("ours"))
UNIFIED = replace(MEMBERS, unified=RuntimeSupport("ours"))
V1 = replace(ENGINE_28, cgroup_version=1, cgroup_driver="cgroupfs")


def plain_body(features: Capabilities, **changes: Any) -> dict[str, Any]:
    config, sandbox = kubelet.container_config(), kubelet.sandbox_config()
    if features.cgroup_version == 1:
        config.linux.resources.unified.clear()
    if features.cgroup_driver == "cgroupfs":
        sandbox.linux.cgroup_parent = "/kubepods/pod1"
    config.MergeFrom(changes.pop("config", cri.ContainerConfig()))
    return to_engine(config, features, sandbox=sandbox, **changes)


@dataclass
class Made:
    before: dict[str, Any]
    body: dict[str, Any]
    host_config: dict[str, Any]
    extra: ContainerExtra
    annotations: dict[str, str]


def make(
    *replies: api.CreateContainerResponse,
    features: Capabilities = ENGINE_28,
    body: dict[str, Any] | None = None,
    nodes: Any = NODES,
    cdi_edits: Edits = NO_EDITS,
    plugin: str = A,
) -> Made:
    """The body with the answers of one plugin after the other."""
    result = CreateResult(api.CreateContainerRequest(container=api.Container(id=ID)))
    for number, reply in enumerate(replies):
        result.apply(plugin if not number else f"{number}-more", reply)
    where = blame(result.owners, ID)
    before = plain_body(features) if body is None else body
    made = copy.deepcopy(before)
    edits = to_edits(result.adjustment, where, nodes)
    apply_adjustment(
        made, result.adjustment, where, edits=edits, cdi_edits=cdi_edits, lowest_oom_score=-500, features=features
    )
    extra = read_extra(ContainerExtra, made["Labels"]) or ContainerExtra()
    annotations = from_engine_labels(made["Labels"], extra, {})[1]
    return Made(before, made, made["HostConfig"], extra, annotations)


# The table of docs/nri.md.

ROW = re.compile(r"\| `([\w.]+)` \| (honoured|refused) \| (.+) \|")
TABLE = {match[1]: match[2] for match in ROW.finditer((ROOT / "docs/nri.md").read_text())}
#: Rows of which another engine shows the verdict.
ENGINES = {
    "linux.resources.memory.swappiness": V1,
    "linux.resources.memory.disable_oom_killer": V1,
    "linux.resources.cpu.realtime_runtime": V1,
    "linux.resources.cpu.realtime_period": V1,
    "hooks": MEMBERS,
    "linux.io_priority": MEMBERS,
    "linux.scheduler": MEMBERS,
}


def test_every_field_of_an_adjustment_has_one_row() -> None:
    paths = [path for path, _ in leaves(api.DESCRIPTOR.message_types_by_name["ContainerAdjustment"])]
    assert [path for path in paths if sum(f"{path}.".startswith(f"{row}.") for row in TABLE) != 1] == []
    assert [row for row in TABLE if not any(f"{path}.".startswith(f"{row}.") for path in paths)] == []
    assert sorted(EXAMPLES) == sorted(TABLE)


@pytest.mark.parametrize("row", TABLE)
def test_the_verdict_of_each_row_is_what_the_code_does(row: str) -> None:
    features, words = ENGINES.get(row, ENGINE_28), f"^plugin '{A}': {re.escape(row)}"
    if TABLE[row] == "refused":
        with pytest.raises(Unsupported, match=words):
            make(EXAMPLES[row], features=features)
        return
    made = make(EXAMPLES[row], features=features)
    assert made.body != made.before
    if row in ENGINES:
        with pytest.raises(Unsupported, match=words):
            make(EXAMPLES[row])


@pytest.mark.parametrize("features", [ENGINE_28, ENGINE_20, V1])
def test_no_adjustment_changes_nothing(features: Capabilities) -> None:
    made = make(features=features)
    assert made.body == made.before


# Each field.


def test_annotations_are_those_of_the_status() -> None:
    made = make(answer(annotations={"k": "v", "-io.kubernetes.x": "", "foo": "a\nb"}))
    before = kubelet.container_config().annotations
    assert made.annotations == {**before, "k": "v", "foo": "a\nb"}
    assert made.host_config["Annotations"] == {"k": "v", "foo": "a\nb"}
    assert "Annotations" not in make(answer(annotations={"k": "v"}), features=ENGINE_20).host_config


def with_users(*mapped: str) -> dict[str, Any]:
    """A body of a container in a pod with a user namespace."""
    body = plain_body(ENGINE_28)
    body["HostConfig"]["Annotations"] = {ANNOTATION: OURS.to_annotation(mapped)}
    return body


def test_annotations_do_not_take_a_container_out_of_its_pods_user_namespace() -> None:
    made = make(answer(annotations={"k": "v"}), body=with_users("/data"))
    assert made.host_config["Annotations"] == {"k": "v", ANNOTATION: "200000 300000 65536\n/data"}


def test_mounts_that_plugins_remove_or_replace_have_no_mapped_ids() -> None:
    changes = [mount("/replaced/"), answer(mounts=[api.Mount(destination="-/removed")]), mount("/tmp", "t", "tmpfs")]
    made = make(*changes, body=with_users("/removed", "/replaced", "/kept", "/tmp"))
    assert read_user_namespace(made.host_config) == (OURS, frozenset({"/kept"}))


def test_an_annotation_of_the_request_can_be_removed_and_changed() -> None:
    body = plain_body(ENGINE_28, config=cri.ContainerConfig(annotations={"a": "1", "b": "1"}))
    made = make(answer(annotations={"-a": "", "b": "2"}), body=body)
    assert "a" not in made.annotations
    assert "annotation.a" not in made.body["Labels"]
    assert made.annotations["b"] == "2"
    record = read_container(inspect(made.body))
    assert record is not None
    assert record.annotations == made.annotations


def inspect(body: dict[str, Any]) -> dict[str, Any]:
    name = f"/k8s_nginx_web-0_default_{kubelet.UID}_1"
    return {"Id": "c" * 64, "Name": name, "Config": body, "HostConfig": body["HostConfig"], "State": {}}


def test_annotations_have_a_bound_together_with_those_of_the_request() -> None:
    large = cri.ContainerConfig(annotations={"x": "x" * 900_000})
    with pytest.raises(InvalidArgument, match="bytes long"):
        make(answer(annotations={"k": "v" * 200_000}), body=plain_body(ENGINE_28, config=large))


def test_variables_are_replaced_in_place_and_added_behind_those_of_the_request() -> None:
    made = make(env(EMPTY="x", NEW="1"), env(MORE="2"))
    assert made.body["Env"] == ["KUBERNETES_SERVICE_HOST=10.96.0.1", "EMPTY=x", "NEW=1", "MORE=2"]
    assert made.extra.envs == 4


def test_a_removed_variable_is_removed_of_the_image_too() -> None:
    made = make(answer(env=[api.KeyValue(key="-EMPTY"), api.KeyValue(key="-PATH"), api.KeyValue(key="NEW")]))
    assert made.body["Env"] == ["KUBERNETES_SERVICE_HOST=10.96.0.1", "NEW=", "EMPTY", "PATH"]
    assert made.extra.envs == 2
    assert make(answer(env=[api.KeyValue(key="-K")]), env(K="v")).body["Env"][-1] == "K=v"


def test_variables_of_cdi_stay_behind_those_that_count() -> None:
    edits = Edits(env=("CDI=1",))
    body = plain_body(ENGINE_20, cdi_edits=edits)
    made = make(env(NEW="1", CDI="2"), features=ENGINE_20, body=body)
    assert made.body["Env"] == ["KUBERNETES_SERVICE_HOST=10.96.0.1", "EMPTY=", "NEW=1", "CDI=2"]
    assert made.extra.envs == 3


@given(st.lists(st.tuples(st.sampled_from(["EMPTY", "KUBERNETES_SERVICE_HOST", "A", "B"]), st.booleans()), max_size=5))
def test_the_count_of_variables_is_that_of_those_with_a_value(changes: list[tuple[str, bool]]) -> None:
    replies = [answer(env=[api.KeyValue(key=f"-{key}" if gone else key)]) for key, gone in dict(changes).items()]
    made = make(*replies)
    with_value = [variable for variable in made.body["Env"] if "=" in variable]
    assert made.body["Env"][: made.extra.envs] == with_value
    assert len({variable.partition("=")[0] for variable in made.body["Env"]}) == len(made.body["Env"])


def test_arguments_replace_command_and_arguments() -> None:
    made = make(answer(args=["sh", "-c", "x"]))
    assert made.body["Entrypoint"] == ["sh", "-c", "x"]
    assert "Cmd" not in made.body


def targets(made: Made) -> list[str]:
    return [one["Target"] for one in made.host_config["Mounts"]]


def test_a_mount_is_added_replaced_and_removed() -> None:
    made = make(mount(options=["rbind", "ro", "rslave"]))
    assert made.host_config["Mounts"][-1] == {
        "Type": "bind",
        "Source": "/s",
        "Target": "/m",
        "ReadOnly": True,
        "BindOptions": {"Propagation": "rslave", "ReadOnlyNonRecursive": True},
    }
    made = make(mount("/dev/termination-log/", "/other", "", ["bind"]))
    assert targets(made).count("/dev/termination-log") == 1
    assert made.host_config["Mounts"][-1]["Source"] == "/other"
    assert made.host_config["Mounts"][-1]["BindOptions"]["NonRecursive"]
    made = make(answer(mounts=[api.Mount(destination="-/dev/termination-log"), api.Mount(destination="-/nothing")]))
    assert "/dev/termination-log" not in targets(made)


def test_a_tmpfs_has_the_options_that_are_asked_for_and_no_others() -> None:
    made = make(mount("/dev/termination-log", "tmpfs", "tmpfs", ["size=1m", "nosuid", "mode=0700"]))
    assert made.host_config["Tmpfs"] == {"/dev/termination-log": "size=1m,nosuid,mode=0700,exec,dev"}
    assert "/dev/termination-log" not in targets(made)


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (mount(kind="proc"), "type: 'proc'"),
        (mount(kind=""), "type: ''"),
        (mount(source="s"), "source: 's' is not an absolute path"),
        (mount(options=["rbind", "noatime"]), "options: 'noatime'"),
        (mount(kind="tmpfs", options=["huge=always"]), "options: 'huge=always'"),
        (mount(kind="tmpfs", options=["rbind"]), "options: 'rbind'"),
    ],
)
def test_mounts_that_the_engine_cannot_make(reply: api.CreateContainerResponse, words: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"^plugin '{A}': mounts\[/m\]") as caught:
        make(reply)
    assert words in str(caught.value)


def test_what_the_engine_mounts_itself_cannot_be_removed() -> None:
    with pytest.raises(Unsupported, match=r"mounts\[-/proc\]"):
        make(answer(mounts=[api.Mount(destination="-/proc/")]))
    # To put something else there is no removal.
    made = make(answer(mounts=[api.Mount(destination="-/dev/shm")]), mount("/dev/shm"))
    assert targets(made)[-1] == "/dev/shm"


def test_a_device_is_a_copy_of_the_hosts_node() -> None:
    node = api.LinuxDevice(path="/dev/x", type="u", major=1, minor=3, file_mode=api.OptionalFileMode(value=0o666))
    made = make(linux(devices=[node, api.LinuxDevice(path="/dev/y", type="b", major=7)]))
    assert made.host_config["Devices"] == [
        {"PathOnHost": "/dev/null", "PathInContainer": "/dev/x", "CgroupPermissions": "rw"},
        {"PathOnHost": "/dev/loop0", "PathInContainer": "/dev/y", "CgroupPermissions": "rwm"},
    ]
    adjustment = linux(devices=[node, api.LinuxDevice(path="-/dev/z")]).adjust
    assert device_numbers(adjustment) == {NULL}


@pytest.mark.parametrize(
    ("fields", "mode", "refused"),
    [
        ({}, 0o020666, ""),
        ({"file_mode": api.OptionalFileMode(value=0o600)}, 0o020666, "fileMode 0o600 differs from 0o666"),
        ({"uid": api.OptionalUInt32(value=5)}, 0o020666, "uid 5 differs from 0"),
        ({}, 0o060666, "type character differs from block"),
    ],
)
def test_a_node_that_would_differ_is_refused(fields: Any, mode: int, refused: str) -> None:
    reply = linux(devices=[api.LinuxDevice(path="/dev/x", type="c", major=1, minor=3, **fields)])
    edits = to_edits(reply.adjust, lambda _, path, key: f"plugin 'p': {path}", NODES)
    there = {"/dev/null": HostPath(mode=mode, uid=0, gid=0, major=1, minor=3, flags=0)}
    if not refused:
        check_host(edits, there, REMEDY)
        return
    with pytest.raises(Unsupported, match=rf"^plugin 'p': linux.devices\[/dev/x\]: {refused}.*{REMEDY}"):
        check_host(edits, there, REMEDY)


def test_devices_that_the_engine_cannot_make() -> None:
    with pytest.raises(FailedPrecondition, match=rf"^plugin '{A}': linux.devices\[/dev/x\]: .* c 1:3"):
        make(linux(devices=[device("/dev/x")]), nodes={})
    with pytest.raises(Unsupported, match="p device nodes"):
        make(linux(devices=[api.LinuxDevice(path="/dev/x", type="p")]))


def test_a_device_of_the_request_can_be_removed_and_replaced() -> None:
    config = cri.ContainerConfig(
        devices=[cri.Device(host_path="/dev/a"), cri.Device(host_path="/dev/b", container_path="/dev/x")]
    )
    body = plain_body(ENGINE_28, config=config)
    made = make(linux(devices=[api.LinuxDevice(path="-/dev/a"), device("/dev/x")]), body=body)
    assert [one["PathOnHost"] for one in made.host_config["Devices"]] == ["/dev/null"]
    with pytest.raises(Unsupported, match="every container has it"):
        make(linux(devices=[api.LinuxDevice(path="-/dev/null")]))
    body["HostConfig"]["Privileged"] = True
    with pytest.raises(Unsupported, match="privileged"):
        make(linux(devices=[api.LinuxDevice(path="-/dev/a")]), body=body)


def test_cdi_devices_are_added_to_those_of_the_request() -> None:
    body = plain_body(ENGINE_28, config=cri.ContainerConfig(CDI_devices=[cri.CDIDevice(name="vendor.com/gpu=0")]))
    reply = answer(CDI_devices=[api.CDIDevice(name="vendor.com/gpu=1"), api.CDIDevice(name="vendor.com/gpu=0")])
    made = make(reply, body=body)
    names = ["vendor.com/gpu=0", "vendor.com/gpu=1"]
    assert made.host_config["DeviceRequests"] == [{"Driver": "cdi", "DeviceIDs": names}]
    assert cdi_names(reply.adjust) == ("vendor.com/gpu=1", "vendor.com/gpu=0")


def test_cdi_devices_are_edits_on_an_engine_without_cdi() -> None:
    node = DeviceNode("x", "/dev/gpu", "/dev/gpu", "", None, None, None, None, "rw")
    reply = answer(CDI_devices=[api.CDIDevice(name="vendor.com/gpu=1")])
    made = make(reply, features=ENGINE_20, cdi_edits=Edits(env=("GPU=1",), nodes=(node,)))
    assert made.body["Env"][-1] == "GPU=1"
    assert made.extra.envs == 2
    assert made.host_config["Devices"][0]["PathInContainer"] == "/dev/gpu"


def test_limits_of_processes() -> None:
    infinite = 2**64 - 1
    made = make(
        answer(
            rlimits=[
                api.POSIXRlimit(type="RLIMIT_NOFILE", hard=2048, soft=1024),
                api.POSIXRlimit(type="RLIMIT_MEMLOCK", hard=infinite, soft=infinite),
            ]
        )
    )
    assert made.host_config["Ulimits"] == [
        {"Name": "nofile", "Soft": 1024, "Hard": 2048},
        {"Name": "memlock", "Soft": -1, "Hard": -1},
    ]
    for bad in ({"type": "RLIMIT_AS", "hard": 1}, {"type": "RLIMIT_CPU", "hard": 2**63}):
        with pytest.raises(InvalidArgument, match=rf"^plugin '{A}': rlimits\[{bad['type']}\]"):
            make(answer(rlimits=[api.POSIXRlimit(**bad)]))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("reply", "fields"),
    [
        # The kubelet's limit is without swap, and stays so.
        (memory(limit=64 << 20), {"Memory": 64 << 20, "MemorySwap": 64 << 20}),
        (memory(limit=-1), {"Memory": 0, "MemorySwap": 0}),
        (memory(limit=0), {}),
        (memory(swap=256 << 20), {"MemorySwap": 256 << 20}),
        (memory(swap=-1), {"MemorySwap": -1}),
        (memory(reservation=1 << 20), {"MemoryReservation": 1 << 20}),
        (quota(7000), {"CpuQuota": 7000}),
        (quota(0), {"CpuQuota": -1}),
        (quota(-1), {"CpuQuota": -1}),
        (limits(cpu=api.LinuxCPU(shares=api.OptionalUInt64(value=0))), {}),
        (limits(cpu=api.LinuxCPU(cpus="0-1", mems="0")), {"CpusetCpus": "0-1", "CpusetMems": "0"}),
        (limits(pids=api.LinuxPids(limit=9)), {"PidsLimit": 9}),
        (limits(pids=api.LinuxPids(limit=0)), {"PidsLimit": -1}),
        (linux(oom_score_adj=api.OptionalInt(value=0)), {"OomScoreAdj": 0}),
        (linux(oom_score_adj=api.OptionalInt(value=-900)), {"OomScoreAdj": -500}),
        (linux(cgroups_path="a.slice:docker:x"), {"CgroupParent": "a.slice"}),
        (linux(cgroups_path="/a.slice/a-b.slice:docker:x"), {"CgroupParent": "a-b.slice"}),
    ],
)
def test_one_field_changes_only_its_own(reply: api.CreateContainerResponse, fields: dict[str, Any]) -> None:
    made = make(reply)
    assert made.host_config == {**made.before["HostConfig"], **fields}


def test_an_engine_that_cannot_limit_swap_is_asked_for_none() -> None:
    features = replace(ENGINE_28, swap_limit=False)
    assert "MemorySwap" not in make(memory(limit=64 << 20), features=features).host_config


def test_swap_without_a_limit_of_memory_is_refused() -> None:
    body = plain_body(ENGINE_28)
    body["HostConfig"].update({"Memory": 0, "MemorySwap": 0})
    with pytest.raises(Unsupported, match=f"^plugin '{A}': linux.resources.memory.swap: .* memory limit"):
        make(memory(swap=1 << 20), body=body)
    both = make(memory(swap=64 << 20, limit=32 << 20), body=body)
    assert (both.host_config["Memory"], both.host_config["MemorySwap"]) == (32 << 20, 64 << 20)


def test_files_of_the_cgroup_are_added_to_those_of_the_kubelet() -> None:
    before = make().extra.cgroup_files
    pages = api.HugepageLimit(page_size="2MB", limit=1 << 21)
    made = make(limits(unified={"memory.high": "5"}, hugepage_limits=[pages]))
    assert made.extra.cgroup_files == {**before, "memory.high": "5", "hugetlb.2MB.max": str(1 << 21)}


def test_swap_that_a_plugin_sets_is_not_undone_by_the_kubelets_file() -> None:
    assert "memory.swap.max" in make().extra.cgroup_files
    assert "memory.swap.max" not in make(memory(swap=256 << 20)).extra.cgroup_files
    both = memory(swap=256 << 20)
    both.adjust.linux.resources.unified["memory.swap.max"] = "7"
    made = make(both)
    assert made.extra.cgroup_files["memory.swap.max"] == "7"


def test_a_reservation_that_a_plugin_sets_is_not_undone_by_the_kubelets_file() -> None:
    """The engine's runtime writes it into memory.low, for which a kubelet of 1.37 asks for 0."""
    assert make().extra.cgroup_files["memory.low"] == "0"
    reserved = memory(reservation=5 << 20)
    made = make(reserved, features=UNIFIED)
    assert (made.host_config["MemoryReservation"], "memory.low" in made.extra.cgroup_files) == (5 << 20, False)
    assert "memory.low" not in specified_files(made.host_config)
    reserved.adjust.linux.resources.unified["memory.low"] = "7"
    assert make(reserved).extra.cgroup_files["memory.low"] == "7"


def test_the_specification_has_what_plugins_made_of_the_kubelets_files() -> None:
    hooks = answer(hooks=api.Hooks(poststop=[api.Hook(path="/z")]))
    made = make(limits(unified={"memory.high": "5"}), hooks, features=UNIFIED)
    kubelets = {"memory.min": "0", "memory.low": "0", "memory.oom.group": "1"}
    assert specified_files(made.host_config) == {**kubelets, "memory.high": "5"}
    assert list(read_members(made.host_config)["hooks"]) == ["poststop"]
    assert made.host_config["Runtime"] == "ours"


def test_mounts_of_a_pod_with_users_of_its_own_keep_its_other_annotations() -> None:
    body = plain_body(UNIFIED)
    body["HostConfig"]["Annotations"] |= {ANNOTATION: OURS.to_annotation([]), "other": "x"}
    made = make(mount("/m"), body=body, features=UNIFIED)
    assert specified_files(made.host_config)["memory.oom.group"] == "1"
    assert made.host_config["Annotations"]["other"] == "x"
    assert made.host_config["Annotations"][ANNOTATION] == OURS.to_annotation([])


def test_the_whole_path_of_a_slice_is_kept() -> None:
    assert make(linux(cgroups_path="/a.slice/a-b.slice:docker:x")).extra.cgroup_parent == "/a.slice/a-b.slice"
    made = make(linux(cgroups_path="/pods/a/x"), features=V1)
    assert (made.host_config["CgroupParent"], made.extra.cgroup_parent) == ("/pods/a", "")


@pytest.mark.parametrize(
    ("path", "features"),
    [
        ("/a/b", ENGINE_28),
        (":docker:x", ENGINE_28),
        ("a:docker:x", ENGINE_28),
        ("../a.slice:docker:x", ENGINE_28),
        ("a", V1),
        ("/a", V1),
        ("/a/../../x/y", V1),
        ("/a.slice/x", V1),
    ],
)
def test_paths_of_cgroups_that_the_engine_has_no_place_for(path: str, features: Capabilities) -> None:
    with pytest.raises(InvalidArgument, match=f"^plugin '{A}': linux.cgroups_path"):
        make(linux(cgroups_path=path), features=features)


def test_rules_for_devices() -> None:
    rules = [
        api.LinuxDeviceCgroup(
            allow=True, type="c", major=api.OptionalInt64(value=10), minor=api.OptionalInt64(value=-1), access="rw"
        ),
        api.LinuxDeviceCgroup(allow=True, access="rwm"),
    ]
    assert make(limits(devices=rules)).host_config["DeviceCgroupRules"] == ["c 10:* rw", "a *:* rwm"]
    with pytest.raises(Unsupported, match="but not deny"):
        make(limits(devices=[api.LinuxDeviceCgroup(type="c", access="r")]))


def test_a_seccomp_policy_is_the_profile() -> None:
    body = plain_body(ENGINE_28)
    body["HostConfig"]["SecurityOpt"] = ["seccomp=unconfined", "apparmor=x"]
    options = make(linux(seccomp_policy=POLICY), body=body).host_config["SecurityOpt"]
    assert options[0] == "apparmor=x"
    assert json.loads(options[1].removeprefix("seccomp=")) == {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": 38,
        "architectures": ["SCMP_ARCH_X86_64"],
        "flags": ["SECCOMP_FILTER_FLAG_LOG"],
        "listenerPath": "/run/x",
        "listenerMetadata": "y",
        "syscalls": [
            {
                "names": ["mkdir"],
                "action": "SCMP_ACT_ERRNO",
                "errnoRet": 1,
                "args": [{"index": 1, "value": 2, "valueTwo": 3, "op": "SCMP_CMP_EQ"}],
            }
        ],
    }


@pytest.mark.parametrize("field", ["default_errno", "flags", "listener_path", "listener_metadata"])
def test_what_an_old_engine_drops_of_a_policy_is_refused(field: str) -> None:
    policy = api.LinuxSeccomp(default_action="SCMP_ACT_ALLOW")
    make(linux(seccomp_policy=policy), features=ENGINE_20)
    value = getattr(POLICY, field)
    policy.MergeFrom(api.LinuxSeccomp(**{field: value}))
    with pytest.raises(Unsupported, match=f"seccomp_policy.{field}: requires Docker 23"):
        make(linux(seccomp_policy=policy), features=ENGINE_20)


def test_policies_that_would_not_be_in_force() -> None:
    allow = linux(seccomp_policy=api.LinuxSeccomp(default_action="SCMP_ACT_ALLOW"))
    body = plain_body(ENGINE_20)
    body["HostConfig"]["Privileged"] = True
    with pytest.raises(Unsupported, match="privileged"):
        make(allow, features=ENGINE_20, body=body)
    with pytest.raises(InvalidArgument, match="default_action"):
        make(linux(seccomp_policy=api.LinuxSeccomp()))
    with pytest.raises(FailedPrecondition, match="without seccomp"):
        make(allow, features=replace(ENGINE_28, seccomp=False))


@pytest.mark.parametrize(
    ("kind", "mode", "own"),
    [
        ("network", "NetworkMode", "none"),
        ("ipc", "IpcMode", "private"),
        ("pid", "PidMode", ""),
        ("uts", "UTSMode", ""),
        ("cgroup", "CgroupnsMode", "private"),
    ],
)
def test_a_namespace_is_the_containers_own_or_the_nodes(kind: str, mode: str, own: str) -> None:
    body = plain_body(ENGINE_28)
    body["HostConfig"][mode] = "other"
    assert make(linux(namespaces=[api.LinuxNamespace(type=kind)]), body=body).host_config[mode] == own
    assert make(linux(namespaces=[api.LinuxNamespace(type=f"-{kind}")]), body=body).host_config[mode] == "host"


def test_namespaces_that_the_engine_has_not() -> None:
    assert make(linux(namespaces=[api.LinuxNamespace(type="mount")])).body == make().body
    for namespace in (
        api.LinuxNamespace(type="-mount"),
        api.LinuxNamespace(type="mount", path="/x"),
        api.LinuxNamespace(type="user"),
        api.LinuxNamespace(type="time"),
        api.LinuxNamespace(type="pid", path="/proc/1/ns/pid"),
    ):
        with pytest.raises(Unsupported, match=rf"^plugin '{A}': linux.namespaces\[{namespace.type}\]"):
            make(linux(namespaces=[namespace]))


def test_sysctls_are_added_and_removed() -> None:
    body = plain_body(ENGINE_28)
    body["HostConfig"]["Sysctls"] = {"kernel.domainname": "x"}
    made = make(linux(sysctl={"net.ipv4.ip_forward": "1", "-kernel.domainname": "", "-net.x": ""}), body=body)
    assert made.host_config["Sysctls"] == {"net.ipv4.ip_forward": "1"}


@pytest.mark.parametrize(
    ("modes", "key"),
    [
        ({}, "vm.overcommit_memory"),
        ({}, "kernel.hostname"),
        ({"UTSMode": "host"}, "net.ipv4.ip_forward"),
        ({"IpcMode": "host"}, "kernel.shmmax"),
        ({"UTSMode": "host"}, "kernel.domainname"),
    ],
)
def test_sysctls_of_the_node_are_refused(modes: dict[str, str], key: str) -> None:
    body = plain_body(ENGINE_28)
    body["HostConfig"].update(modes)
    with pytest.raises(InvalidArgument, match=f"^plugin '{A}': linux.sysctl: {key}"):
        make(linux(sysctl={key: "1"}), body=body)


def test_a_namespace_that_is_given_away_takes_its_sysctls_along() -> None:
    """The pod is on the node's network: a UTS namespace of its own does not make the network the container's."""
    body = plain_body(ENGINE_28)
    body["HostConfig"]["UTSMode"] = "host"
    own_uts = linux(namespaces=[api.LinuxNamespace(type="uts")])
    sysctl = linux(sysctl={"net.ipv4.ip_forward": "1"})
    with pytest.raises(InvalidArgument, match="node's network"):
        make(own_uts, sysctl, body=body)
    make(own_uts, sysctl, linux(namespaces=[api.LinuxNamespace(type="network")]), body=body)
    with pytest.raises(InvalidArgument, match="node's network"):
        make(sysctl, linux(namespaces=[api.LinuxNamespace(type="-network")]))
    assert make(sysctl).host_config["NetworkMode"] == f"container:{SANDBOX_ID}"


def test_hooks_and_priorities_are_given_by_the_runtime() -> None:
    hook = api.Hook(path="/bin/x", args=["x", "y"], env=["A=b"], timeout=api.OptionalInt(value=5))
    hooks = answer(hooks=api.Hooks(prestart=[hook], create_runtime=[api.Hook(path="/z")]))
    priorities = (EXAMPLES["linux.io_priority"], EXAMPLES["linux.scheduler"])
    made = make(hooks, *priorities, answer(annotations={"k": "v"}), features=MEMBERS)
    assert made.host_config["Runtime"] == "ours"
    assert made.host_config["Annotations"]["k"] == "v"
    assert read_members(made.host_config) == {
        "hooks": {
            "prestart": [{"path": "/bin/x", "args": ["x", "y"], "env": ["A=b"], "timeout": 5}],
            "createRuntime": [{"path": "/z", "args": [], "env": [], "timeout": 60}],
        },
        "ioPriority": {"class": "IOPRIO_CLASS_BE", "priority": 1},
        "scheduler": {"policy": "SCHED_BATCH", "nice": 1, "flags": []},
    }


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (answer(hooks=api.Hooks(poststop=[api.Hook(path="x")])), r"hooks.poststop: 'x' is not an absolute path"),
        (
            answer(hooks=api.Hooks(poststart=[api.Hook(path="/x", timeout=api.OptionalInt(value=0))])),
            r"hooks.poststart: '/x' has a timeout of 0 s",
        ),
        (linux(io_priority=api.LinuxIOPriority(priority=1)), r"linux\.io_priority\.class"),
        (linux(scheduler=api.LinuxScheduler(nice=1)), r"linux\.scheduler\.policy"),
    ],
)
def test_half_a_hook_or_priority_is_refused(reply: api.CreateContainerResponse, words: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^plugin '{A}': {words}"):
        make(reply, features=MEMBERS)


def test_no_other_runtime_is_replaced_for_hooks() -> None:
    body = plain_body(MEMBERS)
    body["HostConfig"]["Runtime"] = "kata"
    with pytest.raises(Unsupported, match="ours is runc, and cannot be used instead of the runtime kata"):
        make(EXAMPLES["hooks"], features=MEMBERS, body=body)


def test_an_error_names_the_plugin_that_owns_the_field() -> None:
    hooks = EXAMPLES["hooks"]
    with pytest.raises(Unsupported, match=f"^plugins '{A},1-more': hooks.prestart"):
        make(hooks, hooks)
    with pytest.raises(Unsupported, match=r"^plugin '1-more': linux\.io_priority"):
        make(env(A="b"), EXAMPLES["linux.io_priority"])


@pytest.mark.parametrize(
    "reply",
    [
        linux(net_devices={"-eth1": api.LinuxNetDevice()}),
        linux(rdt=api.LinuxRdt(remove=True)),
        linux(rdt=api.LinuxRdt(enable_monitoring=api.OptionalBool(value=False))),
        linux(io_priority=api.LinuxIOPriority()),
        linux(scheduler=api.LinuxScheduler()),
        limits(blockio_class=api.OptionalString(), rdt_class=api.OptionalString()),
        answer(hooks=api.Hooks()),
        answer(args=[""]),
    ],
)
def test_what_asks_for_nothing_is_no_error(reply: api.CreateContainerResponse) -> None:
    made = make(reply)
    assert made.body == made.before


@given(st.lists(st.sampled_from([row for row in TABLE if TABLE[row] == "honoured"]), unique=True, max_size=6))
def test_any_honoured_fields_go_together(rows: list[str]) -> None:
    features = V1 if any(row in ENGINES for row in rows) else ENGINE_28
    try:
        made = make(*(EXAMPLES[row] for row in rows), features=features)
    except ShimError:
        # A path of one cgroup driver, or unified, on the other node.
        assert features is V1
        return
    assert (made.body != made.before) == bool(rows)


@given(
    st.lists(st.sampled_from([row for row in TABLE if TABLE[row] == "honoured"]), unique=True, max_size=4),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=6),
    st.sampled_from([ENGINE_28, ENGINE_20, V1]),
)
def test_no_damaged_adjustment_does_anything_but_fail(
    rows: list[str], damages: list[tuple[int, int]], features: Capabilities
) -> None:
    data = bytearray(b"".join(EXAMPLES[row].SerializeToString() for row in rows))
    for place, byte in damages:
        if data:
            data[place % len(data)] = byte
    with contextlib.suppress(DecodeError, ShimError):
        made = make(api.CreateContainerResponse.FromString(bytes(data)), features=features)
        json.dumps(made.body)
        assert made.extra.keys is not None


# Updates.


def updated(reply: api.CreateContainerResponse, features: Capabilities = ENGINE_28) -> Any:
    before = cri.LinuxContainerResources(memory_limit_in_bytes=1 << 20, memory_swap_limit_in_bytes=2 << 20)
    where = blame(api.OwningPlugins(), ID)
    return update_body(reply.adjust.linux.resources, where, before=before, features=features)


@pytest.mark.parametrize(
    ("reply", "fields", "files"),
    [
        (memory(limit=3 << 20), {"Memory": 3 << 20, "MemorySwap": 4 << 20}, {}),
        (memory(reservation=5), {"MemoryReservation": 5}, {}),
        (quota(0), {"CpuQuota": -1}, {}),
        (limits(cpu=api.LinuxCPU(cpus="1")), {"CpusetCpus": "1"}, {}),
        (limits(pids=api.LinuxPids(limit=3)), {"PidsLimit": 3}, {}),
        (limits(unified={"memory.high": "1"}), {}, {"memory.high": "1"}),
        (limits(), {}, {}),
    ],
)
def test_the_body_of_an_update(reply: api.CreateContainerResponse, fields: Any, files: Any) -> None:
    assert updated(reply) == (fields, files)


@pytest.mark.parametrize(
    ("reply", "features", "name"),
    [
        (memory(limit=-1), ENGINE_28, "memory.limit"),
        (memory(reservation=-1), ENGINE_28, "memory.reservation"),
        (memory(kernel=1), ENGINE_28, "memory.kernel"),
        (EXAMPLES["linux.resources.memory.swappiness"], V1, "memory.swappiness"),
        (EXAMPLES["linux.resources.memory.disable_oom_killer"], V1, "memory.disable_oom_killer"),
        (EXAMPLES["linux.resources.devices"], ENGINE_28, "devices"),
        (EXAMPLES["linux.resources.rdt_class"], ENGINE_28, "rdt_class"),
        (EXAMPLES["linux.resources.unified"], V1, "unified"),
    ],
)
def test_updates_that_the_engine_cannot_make(
    reply: api.CreateContainerResponse, features: Capabilities, name: str
) -> None:
    with pytest.raises(Unsupported, match=f"linux.resources.{name}"):
        updated(reply, features)


# Nodes of the host.


def test_nodes_are_found_by_the_names_that_the_kernel_gave(tmp_path: Path) -> None:
    for folder, text in (
        ("char/1:3", "MAJOR=1\nDEVNAME=null\n"),
        ("block/7:0", "DEVNAME=mapper/x\n"),
        ("char/5:5", ""),
    ):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "uevent").write_text(text)
    wanted = [NULL, ("b", 7, 0), ("c", 5, 5), ("c", 9, 9)]
    assert find_nodes(wanted, devices=tmp_path) == {NULL: "/dev/null", ("b", 7, 0): "/dev/mapper/x"}
    assert find_nodes([NULL]) == {NULL: "/dev/null"}


def test_removals_by_another_plugin_reach_the_body() -> None:
    made = make(env(EMPTY="x"), answer(env=[api.KeyValue(key="-EMPTY")]), plugin=B)
    assert made.body["Env"] == ["KUBERNETES_SERVICE_HOST=10.96.0.1", "EMPTY"]
