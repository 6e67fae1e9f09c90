"""How the answers of several plugins become one."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dockershim.api.nri.v1alpha1 import api_pb2 as api
from dockershim.nri.adjustments import Conflict, CreateResult, StopResult, UpdateResult, owner_of
from dockershim.nri.replies import AdjustmentError, BadReply
from tests.unit.nri.answers import FIELDS, ID, A, B, C, answer, device, limits, linux, request

OTHER = "2d" * 32


def merge(*answers: tuple[str, api.CreateContainerResponse]) -> CreateResult:
    result = CreateResult(request())
    for plugin, reply in answers:
        result.apply(plugin, reply)
    return result


each_field = pytest.mark.parametrize(("reply", "name"), FIELDS, ids=[name for _, name in FIELDS])


def test_every_field_of_the_protocol_is_here() -> None:
    """OCI hooks add up, so nobody owns them alone."""
    assert {name.split()[0] for _, name in FIELDS} == set(api.Field.keys()) - {"NO_FIELD", "OciHooks"}


@each_field
def test_what_two_plugins_set_is_a_conflict_whoever_comes_first(reply: api.CreateContainerResponse, name: str) -> None:
    for first, second in ((A, B), (B, A), (A, A)):
        with pytest.raises(Conflict) as caught:
            merge((first, reply), (second, reply))
        error = caught.value
        assert (error.plugin, error.other, error.field, error.container_id) == (second, first, name, ID)
        assert str(error) == f"plugins '{second}' and '{first}' both tried to set {name} of container {ID}"


@each_field
def test_what_one_plugin_sets_is_in_the_adjustment_and_has_an_owner(
    reply: api.CreateContainerResponse, name: str
) -> None:
    result = merge((A, api.CreateContainerResponse()), (B, reply))
    wanted, merged = reply.adjust, api.ContainerAdjustment()
    merged.CopyFrom(result.adjustment)
    # What is always there, for plugins that look into it without asking.
    for message in (wanted.hooks, wanted.linux.resources.memory, wanted.linux.resources.cpu):
        message.SetInParent()
    assert merged == wanted
    field, _, key = name.partition(" ")
    owners = result.owners.owners[ID]
    number = api.Field.Value(field)
    assert (owners.compound[number].owners[key] if key else owners.simple[number]) == B


@each_field
def test_different_fields_are_no_conflict(reply: api.CreateContainerResponse, name: str) -> None:
    others = [other for other, its_name in FIELDS if its_name != name]
    merge((A, reply), *((f"{number + 11}-x", other) for number, other in enumerate(others)))


def test_the_request_that_was_given_stays_as_it_was() -> None:
    given = request()
    result = CreateResult(given)
    for number, (reply, _) in enumerate(FIELDS):
        result.apply(f"{number}-x", reply)
    assert given == request()


# What the next plugin sees.


def shown(*answers: tuple[str, api.CreateContainerResponse]) -> api.Container:
    return merge(*answers).request.container


def test_the_next_plugin_sees_the_result() -> None:
    result = CreateResult(request())
    for number, (reply, _) in enumerate(FIELDS):
        result.apply(f"{number}-x", reply)
    container, spec = result.request.container, result.request.container.linux
    assert dict(container.annotations) == {"there": "1", "k": "v"}
    assert [mount.destination for mount in container.mounts] == ["/there", "/m"]
    assert list(container.env) == ["PATH=/bin", "THERE=1", "BARE", "K=v"]
    assert list(container.args) == ["a", "b"]
    assert [limit.type for limit in container.rlimits] == ["RLIMIT_CORE", "RLIMIT_NOFILE"]
    assert [one.name for one in container.CDI_devices] == ["vendor.com/gpu=0"]
    assert [one.path for one in spec.devices] == ["/dev/there", "/dev/x"]
    assert (spec.cgroups_path, spec.oom_score_adj.value, spec.io_priority.priority) == ("/pods/x", 0, 1)
    assert (spec.seccomp_policy.default_action, spec.scheduler.nice) == ("SCMP_ACT_ALLOW", 1)
    assert sorted(one.type for one in spec.namespaces) == ["ipc", "pid", "uts"]
    assert dict(spec.sysctl) == {"net.there": "1", "net.x": "1"}
    assert sorted(spec.net_devices) == ["eth1", "there"]
    assert (spec.rdt.clos_id.value, list(spec.rdt.schemata.value)) == ("x", ["x"])
    assert spec.rdt.HasField("enable_monitoring")
    assert spec.resources == result.adjustment.linux.resources


def test_a_later_value_takes_the_place_of_what_was_there() -> None:
    container = shown(
        (A, answer(env=[api.KeyValue(key="THERE", value="2"), api.KeyValue(key="BARE", value="2")])),
        (A, answer(mounts=[api.Mount(destination="/there/", source="/x", type="bind")])),
        (A, answer(rlimits=[api.POSIXRlimit(type="RLIMIT_CORE", hard=2, soft=2)])),
        (A, linux(devices=[device("/dev/there", 5)], namespaces=[api.LinuxNamespace(type="ipc")])),
    )
    assert list(container.env) == ["PATH=/bin", "THERE=2", "BARE=2"]
    assert [(mount.destination, mount.source) for mount in container.mounts] == [("/there/", "/x")]
    assert [limit.hard for limit in container.rlimits] == [2]
    assert [one.minor for one in container.linux.devices] == [5]
    assert [one.path for one in container.linux.namespaces if one.type == "ipc"] == [""]


def test_messages_that_plugins_in_go_look_into_are_always_there() -> None:
    result = CreateResult(api.CreateContainerRequest())
    assert result.request.container.linux.resources.HasField("cpu")
    assert result.request.container.HasField("hooks")
    assert result.adjustment.linux.resources.HasField("memory")


# Removals.

REMOVALS: list[tuple[api.CreateContainerResponse, api.CreateContainerResponse, api.Field, str]] = [
    (answer(annotations={"-k": ""}), FIELDS[0][0], api.Annotations, "k"),
    (answer(mounts=[api.Mount(destination="-/m")]), FIELDS[1][0], api.Mounts, "/m"),
    (answer(env=[api.KeyValue(key="-K")]), FIELDS[2][0], api.Env, "K"),
    (linux(devices=[api.LinuxDevice(path="-/dev/x")]), FIELDS[6][0], api.Devices, "/dev/x"),
    (linux(sysctl={"-net.x": ""}), FIELDS[12][0], api.Sysctl, "net.x"),
    (linux(net_devices={"-eth1": api.LinuxNetDevice()}), FIELDS[13][0], api.LinuxNetDevices, "eth1"),
]
each_removal = pytest.mark.parametrize(
    ("removal", "reply", "field", "key"), REMOVALS, ids=[api.Field.Name(field) for _, _, field, _ in REMOVALS]
)


def both(*replies: api.CreateContainerResponse) -> api.CreateContainerResponse:
    merged = api.CreateContainerResponse()
    for reply in replies:
        merged.MergeFrom(reply)
    return merged


@each_removal
def test_a_plugin_that_removes_first_takes_over(
    removal: api.CreateContainerResponse, reply: api.CreateContainerResponse, field: api.Field, key: str
) -> None:
    for order in ((removal, reply), (reply, removal)):
        result = merge((A, reply), (B, both(*order)))
        assert owner_of(result.owners, ID, field, key) == B
        with pytest.raises(Conflict, match=B):
            result.apply(C, reply)


@each_removal
def test_a_removal_takes_back_what_an_earlier_plugin_has_set(
    removal: api.CreateContainerResponse, reply: api.CreateContainerResponse, field: api.Field, key: str
) -> None:
    result = merge((A, reply), (B, removal))
    assert result.adjustment == merge((B, removal)).adjustment
    assert result.request == merge((B, removal)).request
    assert owner_of(result.owners, ID, field, key) == f"-{B}"
    with pytest.raises(Conflict, match=f"plugins '{C}' and '{B}' both"):
        result.apply(C, reply)
    result = merge((A, reply), (B, removal))
    result.apply(B, reply)
    assert owner_of(result.owners, ID, field, key) == B


@each_removal
def test_what_nobody_has_set_can_be_removed_and_set(
    removal: api.CreateContainerResponse, reply: api.CreateContainerResponse, field: api.Field, key: str
) -> None:
    result = merge((A, removal), (B, reply))
    assert owner_of(result.owners, ID, field, key) == B
    assert result.request == merge((B, reply)).request


@each_removal
def test_a_removal_twice_is_one(
    removal: api.CreateContainerResponse, reply: api.CreateContainerResponse, field: api.Field, key: str
) -> None:
    assert merge((A, removal), (B, removal)).adjustment == merge((A, removal)).adjustment


def test_removals_of_what_was_there_are_seen_by_the_next_plugin() -> None:
    container = shown(
        (A, answer(annotations={"-there": ""}, mounts=[api.Mount(destination="-/there")])),
        (A, answer(env=[api.KeyValue(key="-THERE"), api.KeyValue(key="-BARE")])),
        (A, linux(devices=[api.LinuxDevice(path="-/dev/there")], sysctl={"-net.there": ""})),
        (A, linux(namespaces=[api.LinuxNamespace(type="-pid")], net_devices={"-there": api.LinuxNetDevice()})),
    )
    assert (dict(container.annotations), list(container.mounts), list(container.env)) == ({}, [], ["PATH=/bin"])
    assert (list(container.linux.devices), dict(container.linux.sysctl)) == ([], {})
    assert [one.type for one in container.linux.namespaces] == ["ipc"]
    assert dict(container.linux.net_devices) == {}


def test_arguments_are_taken_over_by_an_empty_first_one() -> None:
    result = merge((A, answer(args=["a"])), (B, answer(args=["", "b"])))
    assert list(result.adjustment.args) == ["b"]
    assert list(result.request.container.args) == ["b"]
    assert owner_of(result.owners, ID, api.Args) == B
    result = merge((A, answer(args=["a"])), (B, answer(args=[""])))
    assert list(result.adjustment.args) == []
    assert list(result.request.container.args) == ["serve"]


def test_rdt_is_taken_over_by_a_removal() -> None:
    first = linux(rdt=api.LinuxRdt(clos_id=api.OptionalString(value="a")))
    second = linux(rdt=api.LinuxRdt(remove=True, clos_id=api.OptionalString(value="b")))
    result = merge((A, first), (B, second))
    assert result.adjustment.linux.rdt == api.LinuxRdt(clos_id=api.OptionalString(value="b"))
    result = merge((A, first), (B, linux(rdt=api.LinuxRdt(remove=True))))
    assert result.adjustment.linux.rdt == api.LinuxRdt(remove=True)
    with pytest.raises(Conflict, match=B):
        result.apply(C, first)
    with pytest.raises(Conflict, match="RdtClosID"):
        merge((A, linux(rdt=api.LinuxRdt(remove=True))), (B, first))


def test_a_removed_namespace_belongs_to_who_removes_it() -> None:
    with pytest.raises(Conflict, match="Namespace pid"):
        merge(
            (A, linux(namespaces=[api.LinuxNamespace(type="-pid")])),
            (B, linux(namespaces=[api.LinuxNamespace(type="pid")])),
        )


def test_hooks_and_device_rules_of_all_plugins_add_up() -> None:
    hooks = answer(hooks=api.Hooks(prestart=[api.Hook(path="/a")], poststop=[api.Hook(path="/b")]))
    rule = limits(devices=[api.LinuxDeviceCgroup(allow=True, type="c", access="r")])
    result = merge((A, hooks), (B, hooks), (A, rule), (B, rule), (C, answer(hooks=api.Hooks())))
    assert [hook.path for hook in result.adjustment.hooks.prestart] == ["/a", "/a"]
    assert len(result.request.container.hooks.poststop) == 2
    assert owner_of(result.owners, ID, api.OciHooks) == f"{A},{B}"
    assert len(result.adjustment.linux.resources.devices) == 2


# Any answers in any order.

PLUGINS = [f"{number:02}-p" for number in range(6)]
indexes = st.lists(st.integers(0, len(FIELDS) - 1), min_size=1, max_size=6, unique=True)


@given(indexes, st.randoms())
def test_the_order_of_plugins_without_conflicts_changes_nothing(chosen: list[int], random: Any) -> None:
    pairs = [(PLUGINS[place], FIELDS[index][0]) for place, index in enumerate(chosen)]
    shuffled = random.sample(pairs, len(pairs))
    result, other = merge(*pairs), merge(*shuffled)
    assert result.adjustment == other.adjustment
    assert result.owners == other.owners


@given(st.lists(st.sampled_from(range(len(FIELDS))), max_size=8), st.lists(st.sampled_from(range(len(FIELDS)))))
def test_conflicts_are_symmetric(first: list[int], second: list[int]) -> None:
    """Whether two plugins can work together does not depend on who comes first."""
    one, two = (both(*(FIELDS[index][0] for index in sorted(set(chosen)))) for chosen in (first, second))
    outcomes = [_outcome((A, x), (B, y)) for x, y in ((one, two), (two, one))]
    assert outcomes[0] == outcomes[1]
    assert (outcomes[0] == "") == (not set(first) & set(second))


def _outcome(*answers: tuple[str, api.CreateContainerResponse]) -> str:
    try:
        merge(*answers)
    except Conflict as error:
        return error.field
    return ""


keyed = st.sampled_from("ab").flatmap(lambda key: st.sampled_from([key, f"-{key}"]))
makers: list[Callable[[list[str]], api.CreateContainerResponse]] = [
    lambda keys: answer(annotations=dict.fromkeys(keys, "v")),
    lambda keys: answer(env=[api.KeyValue(key=key, value="v") for key in keys]),
    lambda keys: answer(mounts=[api.Mount(destination=key.replace("a", "/a").replace("b", "/b")) for key in keys]),
    lambda keys: linux(
        devices=[api.LinuxDevice(path=key.replace("a", "/a").replace("b", "/b"), type="c", major=1) for key in keys]
    ),
    lambda keys: linux(sysctl=dict.fromkeys(keys, "v")),
]


@given(st.sampled_from(makers), st.lists(st.lists(keyed, unique=True, max_size=4), max_size=4))
@settings(deadline=None)
def test_what_the_next_plugin_sees_is_what_the_adjustment_makes(
    make: Callable[[list[str]], api.CreateContainerResponse], answers: list[list[str]]
) -> None:
    """To apply the whole adjustment at once to what was asked for gives what was shown step by step."""
    try:
        result = merge(*((PLUGINS[place], make(keys)) for place, keys in enumerate(answers)))
    except Conflict:
        return
    again = merge((A, api.CreateContainerResponse(adjust=result.adjustment)))
    assert again.request == result.request
    # One plugin's removal before another one's value needs not be told any more.
    assert merge((A, api.CreateContainerResponse(adjust=again.adjustment))).adjustment == again.adjustment


@given(st.sampled_from(makers), st.lists(keyed, unique=True, max_size=4))
def test_one_answer_alone_is_the_adjustment(
    make: Callable[[list[str]], api.CreateContainerResponse], keys: list[str]
) -> None:
    result = merge((A, make(keys)))
    assert merge((A, api.CreateContainerResponse(adjust=result.adjustment))).adjustment == result.adjustment


# Other containers.


def update(container_id: str = OTHER, *, ignore: bool = False, **fields: Any) -> api.ContainerUpdate:
    resources = api.LinuxResources(**fields)
    return api.ContainerUpdate(
        container_id=container_id, linux=api.LinuxContainerUpdate(resources=resources), ignore_failure=ignore
    )


def shares(number: int) -> api.LinuxCPU:
    return api.LinuxCPU(shares=api.OptionalUInt64(value=number))


PIDS = api.LinuxPids(limit=7)


def results() -> list[tuple[Any, Callable[..., Any]]]:
    changed = api.UpdateContainerRequest(container=api.Container(id=ID))
    stopped = api.StopContainerRequest(container=api.Container(id=ID))
    return [
        (CreateResult(request()), api.CreateContainerResponse),
        (UpdateResult(changed), api.UpdateContainerResponse),
        (StopResult(stopped), api.StopContainerResponse),
    ]


each_kind = pytest.mark.parametrize("kind", range(3), ids=["create", "update", "stop"])


@each_kind
def test_updates_of_another_container_are_put_together(kind: int) -> None:
    result, response = results()[kind]
    result.apply(A, response(update=[update(cpu=shares(5))]))
    result.apply(B, response(update=[update(pids=PIDS, unified={"memory.high": "1"}), update("3e", pids=PIDS)]))
    resources = api.LinuxResources(cpu=shares(5), pids=PIDS, unified={"memory.high": "1"})
    assert sorted(result.updates) == [OTHER, "3e"]
    assert result.updates[OTHER].linux.resources == resources
    assert owner_of(result.owners, OTHER, api.PidsLimit) == B
    assert owner_of(result.owners, OTHER, api.CPUShares) == A


@each_kind
def test_updates_of_one_field_are_a_conflict(kind: int) -> None:
    result, response = results()[kind]
    result.apply(A, response(update=[update(cpu=shares(5))]))
    with pytest.raises(Conflict) as caught:
        result.apply(B, response(update=[update(cpu=shares(5))]))
    assert (caught.value.plugin, caught.value.other, caught.value.container_id) == (B, A, OTHER)


@each_kind
def test_an_update_that_may_fail_leaves_nothing_behind_if_it_does(kind: int) -> None:
    result, response = results()[kind]
    result.apply(A, response(update=[update(cpu=shares(5))]))
    result.apply(B, response(update=[update(cpu=shares(6), pids=PIDS, ignore=True)]))
    bad = update(cpu=api.LinuxCPU(quota=api.OptionalInt64(value=-5)), pids=PIDS, ignore=True)
    result.apply(B, response(update=[bad, update("", ignore=True)]))
    assert result.updates[OTHER].linux.resources == api.LinuxResources(cpu=shares(5))
    assert owner_of(result.owners, OTHER, api.PidsLimit) == ""
    result.apply(C, response(update=[update(pids=PIDS)]))
    assert result.updates[OTHER].linux.resources.pids == PIDS
    assert list(result.updates) == [OTHER]


@each_kind
def test_an_update_may_fail_only_if_all_who_asked_for_it_say_so(kind: int) -> None:
    for one, two in itertools.product((False, True), repeat=2):
        result, response = results()[kind]
        result.apply(A, response(update=[update(cpu=shares(5), ignore=one)]))
        result.apply(B, response(update=[update(pids=PIDS, ignore=two)]))
        assert result.updates[OTHER].ignore_failure is (one and two)


def test_the_container_that_is_made_cannot_be_updated_or_evicted() -> None:
    for reply in (
        api.CreateContainerResponse(update=[update(ID, pids=PIDS, ignore=True)]),
        api.CreateContainerResponse(evict=[api.ContainerEviction(container_id=ID)]),
    ):
        with pytest.raises(BadReply, match="is the container being created"):
            merge((A, reply))


@pytest.mark.parametrize("response", [api.CreateContainerResponse, api.UpdateContainerResponse])
def test_evictions_are_kept_with_the_first_reason(response: Callable[..., Any]) -> None:
    result = next(result for result, kind in results() if kind is response)
    result.apply(A, response(evict=[api.ContainerEviction(container_id=OTHER, reason="noisy")]))
    result.apply(B, response(evict=[api.ContainerEviction(container_id=OTHER, reason="old")]))
    assert result.evictions == {OTHER: f"plugin '{A}': noisy"}


def test_the_updated_container_gets_what_was_asked_for_with_the_changes() -> None:
    given = api.UpdateContainerRequest(
        container=api.Container(id=ID),
        linux_resources=api.LinuxResources(cpu=shares(2), unified={"memory.min": "1"}, pids=api.LinuxPids(limit=1)),
    )
    before = api.UpdateContainerRequest()
    before.CopyFrom(given)
    result = UpdateResult(given)
    result.apply(A, api.UpdateContainerResponse(update=[update(ID, cpu=shares(9)), update(pids=PIDS)]))
    result.apply(B, api.UpdateContainerResponse(update=[update(ID, pids=PIDS)]))
    assert result.resources.cpu == shares(9)
    assert result.resources.pids == PIDS
    assert dict(result.resources.unified) == {"memory.min": "1"}
    assert result.request.linux_resources == result.resources
    assert list(result.updates) == [OTHER]
    assert given == before
    with pytest.raises(Conflict):
        result.apply(C, api.UpdateContainerResponse(update=[update(ID, cpu=shares(9))]))


def test_every_failure_is_of_one_type() -> None:
    """The caller of the CRI learns of it, whatever it is."""
    assert issubclass(Conflict, AdjustmentError)
    assert issubclass(BadReply, AdjustmentError)
