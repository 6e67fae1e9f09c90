"""Records from the engine's JSON, and the CRI's messages from records."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.hooks.requests import Pod, to_container_request, to_pod, to_pod_request
from dockershim.translate.image import ImageRecord
from dockershim.translate.labels import EXTRA_LABEL, ContainerExtra, SandboxExtra
from dockershim.translate.names import ContainerName, SandboxName, sandbox_container_name
from dockershim.translate.records import (
    ContainerRecord,
    SandboxRecord,
    Unreadable,
    is_mixed,
    is_sandbox,
    read_bare,
    read_container,
    read_container_summary,
    read_record,
    read_sandbox,
    read_sandbox_summary,
    read_summary,
    to_cri_container,
    to_cri_container_status,
    to_cri_sandbox,
    to_cri_sandbox_status,
    to_nanoseconds,
    to_verbose_info,
)
from tests.unit.state.fake_pods import pod_of
from tests.unit.translate.kubelet import SANDBOX_ID, UID, container_config, sandbox_config
from tests.unit.translate.records import (
    CREATED,
    FINISHED,
    NEVER,
    STARTED,
    container_inspect,
    container_record,
    sandbox_inspect,
    sandbox_record,
)

POD = SandboxName("web-0", "default", UID, 0)
CREATED_NS = 1767323045 * 10**9 + 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("1970-01-01T00:00:00Z", 0, id="the epoch"),
        pytest.param("2026-01-02T03:04:05Z", 1767323045 * 10**9, id="whole seconds"),
        pytest.param("2026-01-02T03:04:05.5Z", 1767323045 * 10**9 + 500_000_000, id="a short fraction"),
        pytest.param("2026-01-02T03:04:05.123456789Z", 1767323045_123456789, id="nanoseconds"),
        pytest.param("2026-01-02T05:04:05.000000001+02:00", CREATED_NS, id="east of Greenwich"),
        pytest.param("2026-01-01T21:34:05.000000001-05:30", CREATED_NS, id="west of Greenwich"),
        pytest.param(NEVER, 0, id="Go's zero time: never"),
        pytest.param("", 0, id="no time"),
        pytest.param("yesterday", 0, id="no time at all"),
        pytest.param("2026-02-30T00:00:00Z", 0, id="a day that no month has"),
        pytest.param("2026-01-02 03:04:05Z", 0, id="another format"),
    ],
)
def test_times(text: str, expected: int) -> None:
    assert to_nanoseconds(text) == expected


@given(
    st.datetimes(datetime(1970, 1, 1), datetime(9999, 1, 1)),  # noqa: DTZ001 - the zone is drawn apart
    st.integers(-14 * 60, 14 * 60),
    st.integers(0, 999),
)
def test_every_time_comes_back(moment: datetime, offset: int, nanoseconds: int) -> None:
    local = moment.replace(tzinfo=timezone(timedelta(minutes=offset)))
    date, zone = local.isoformat(timespec="microseconds")[:-6], local.isoformat()[-6:]
    since = local - datetime(1970, 1, 1, tzinfo=UTC)
    expected = (since // timedelta(microseconds=1)) * 1000 + nanoseconds

    assert to_nanoseconds(f"{date}{nanoseconds:03d}{zone}") == expected


@given(st.text())
def test_no_text_is_more_than_no_time(text: str) -> None:
    assert isinstance(to_nanoseconds(text), int)


def test_a_sandbox_is_read_as_it_was_asked_for() -> None:
    asked, record = sandbox_config(), sandbox_record()

    assert record.name == POD
    assert (dict(record.labels), dict(record.annotations)) == (dict(asked.labels), dict(asked.annotations))
    assert (record.runtime_handler, record.log_directory) == ("kata", asked.log_directory)
    assert (record.running, record.made_here, record.host_network, record.pid) == (True, True, False, 77)
    assert record.created_at == CREATED_NS
    assert record.netns_path == "/var/run/docker/netns/5a"
    assert record.addresses == ()


def test_a_container_is_read_as_it_was_asked_for() -> None:
    asked, record = container_config(), container_record()

    assert record.name == ContainerName("nginx", 1, POD)
    assert (dict(record.labels), dict(record.annotations)) == (dict(asked.labels), dict(asked.annotations))
    assert (record.sandbox_id, record.image) == (SANDBOX_ID, "nginx:1.27")
    assert record.log_path == f"{sandbox_config().log_directory}/nginx/1.log"
    assert record.extra.cgroup_files["memory.swap.max"] == "0"


def summary_of(inspect: dict[str, Any], status: str) -> dict[str, Any]:
    return {
        "Id": inspect["Id"],
        "Names": [inspect["Name"]],
        "Labels": inspect["Config"]["Labels"],
        "State": status,
        "Created": 1767323045,
        "Image": "nginx:1.27",
        "ImageID": inspect.get("Image", ""),
        "HostConfig": {"NetworkMode": inspect["HostConfig"]["NetworkMode"]},
    }


def test_a_list_and_an_inspect_agree() -> None:
    sandbox = read_sandbox_summary(summary_of(sandbox_inspect(), "running"))
    container = read_container_summary(summary_of(container_inspect(), "created"))
    assert sandbox is not None
    assert container is not None

    listed, inspected = to_cri_sandbox(sandbox, ready=True), to_cri_sandbox(sandbox_record(), ready=True)
    listed.created_at = inspected.created_at
    assert listed == inspected
    found, known = to_cri_container(container), to_cri_container(container_record())
    found.created_at = known.created_at
    assert found == known


@pytest.mark.parametrize(("status", "expected"), [("created", True), ("running", False), ("exited", False)])
def test_a_list_tells_of_a_sandbox_that_never_ran(status: str, expected: bool) -> None:
    """An engine that is busy with its start answers no inspect, and a stop has to wait for the start."""
    listed = read_sandbox_summary(summary_of(sandbox_inspect(), status))
    assert listed is not None
    assert listed.never_ran is expected


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda inspect: inspect.update(Name="/portainer"), id="a name of nobody's pod"),
        pytest.param(lambda inspect: inspect["Config"].update(Labels=None), id="no labels"),
        pytest.param(lambda inspect: inspect["Config"]["Labels"].pop("io.kubernetes.sandbox.id"), id="of no sandbox"),
    ],
)
def test_what_is_no_shims_container_is_left_out(change: Any) -> None:
    inspect = container_inspect()
    inspect["Config"]["Labels"].pop("io.dockershim.cri")
    change(inspect)

    assert read_container(inspect) is None
    assert read_container_summary(summary_of(inspect, "running")) is None


def test_a_sandbox_is_no_container_and_a_container_no_sandbox() -> None:
    assert read_container(sandbox_inspect()) is None
    assert is_sandbox(sandbox_inspect()["Config"]["Labels"])
    assert not is_sandbox(container_inspect()["Config"]["Labels"])


def test_a_sandbox_of_cri_dockerd_is_adopted() -> None:
    record = read_sandbox(
        {
            "Id": SANDBOX_ID,
            "Name": "/k8s_POD_web-0_default_uid_3_1f2e3d4c",
            "Created": CREATED,
            "Config": {
                "Labels": {
                    "annotation.kubernetes.io/config.source": "api",
                    "app": "web",
                    "io.kubernetes.container.name": "POD",
                    "io.kubernetes.docker.type": "podsandbox",
                }
            },
            "HostConfig": {"NetworkMode": "host", "IpcMode": "host", "PidMode": "host", "CgroupParent": "/kubepods"},
            "State": {"Status": "exited"},
            "NetworkSettings": {"Networks": {"host": None}},
        }
    )

    assert record is not None
    assert record.name == SandboxName("web-0", "default", "uid", 3)
    assert (dict(record.labels), dict(record.annotations)) == ({"app": "web"}, {"kubernetes.io/config.source": "api"})
    assert (record.made_here, record.running, record.host_network) == (False, False, True)


def test_addresses_of_the_engines_network() -> None:
    inspect = sandbox_inspect()
    inspect["NetworkSettings"]["Networks"] = {"bridge": {"IPAddress": "172.17.0.2", "GlobalIPv6Address": "fd00::2"}}

    record = read_sandbox(inspect)

    assert record is not None
    assert record.addresses == ("172.17.0.2", "fd00::2")


@pytest.mark.parametrize(
    ("state", "expected", "reason"),
    [
        pytest.param({"Status": "created"}, cri.CONTAINER_CREATED, "", id="created"),
        pytest.param({"Status": "running", "StartedAt": STARTED}, cri.CONTAINER_RUNNING, "", id="running"),
        pytest.param({"Status": "paused", "StartedAt": STARTED}, cri.CONTAINER_RUNNING, "", id="paused"),
        pytest.param(
            {"Status": "exited", "StartedAt": STARTED, "FinishedAt": FINISHED},
            cri.CONTAINER_EXITED,
            "Completed",
            id="ended well",
        ),
        pytest.param(
            {"Status": "exited", "StartedAt": STARTED, "FinishedAt": FINISHED, "ExitCode": 2},
            cri.CONTAINER_EXITED,
            "Error",
            id="ended badly",
        ),
        pytest.param(
            {"Status": "exited", "StartedAt": STARTED, "FinishedAt": FINISHED, "ExitCode": 137, "OOMKilled": True},
            cri.CONTAINER_EXITED,
            "OOMKilled",
            id="out of memory",
        ),
        pytest.param(
            {"Status": "created", "ExitCode": 127, "Error": "exec: no such file"},
            cri.CONTAINER_EXITED,
            "ContainerCannotRun",
            id="its start failed",
        ),
        pytest.param(
            {"Status": "created", "ExitCode": 128, "Error": "Canceled: context canceled"},
            cri.CONTAINER_CREATED,
            "",
            id="its start was cut short",
        ),
        pytest.param(
            {"Status": "exited", "StartedAt": STARTED, "FinishedAt": FINISHED, "ExitCode": 1, "Error": "log driver"},
            cri.CONTAINER_EXITED,
            "Error",
            id="it ran, and the engine failed",
        ),
        pytest.param({"Status": "created", "ExitCode": 128}, cri.CONTAINER_EXITED, "Error", id="failed, without words"),
        pytest.param(
            {"Status": "dead", "StartedAt": STARTED, "FinishedAt": FINISHED},
            cri.CONTAINER_EXITED,
            "Completed",
            id="dead",
        ),
        pytest.param({"Status": "hibernating"}, cri.CONTAINER_UNKNOWN, "", id="a state of a later engine"),
    ],
)
def test_states(state: dict[str, Any], expected: cri.ContainerState, reason: str) -> None:
    status = to_cri_container_status(container_record(**state), None)

    assert (status.state, status.reason) == (expected, reason)


@pytest.mark.parametrize(
    ("state", "times"),
    [
        pytest.param({"Status": "created"}, (0, 0), id="never started"),
        pytest.param({"Status": "running", "StartedAt": STARTED}, (1, 0), id="running"),
        pytest.param(
            {"Status": "running", "StartedAt": FINISHED, "FinishedAt": STARTED}, (2, 0), id="running again: no end yet"
        ),
        pytest.param({"Status": "exited", "StartedAt": STARTED, "FinishedAt": FINISHED}, (1, 2), id="ended"),
    ],
)
def test_times_of_a_container(state: dict[str, Any], times: tuple[int, int]) -> None:
    status = to_cri_container_status(container_record(**state), None)
    expected = tuple(CREATED_NS + seconds * 10**9 if seconds else 0 for seconds in times)

    assert status.created_at == CREATED_NS
    assert (status.started_at, status.finished_at) == expected


def test_a_failed_start_ended_when_it_was_made() -> None:
    """A kubelet orders containers by their end; without one it would never remove this one."""
    status = to_cri_container_status(container_record(Status="created", ExitCode=127, Error="no such file"), None)

    assert (status.finished_at, status.exit_code, status.message) == (CREATED_NS, 127, "no such file")


def test_a_status_has_no_exit_of_a_running_container() -> None:
    status = to_cri_container_status(container_record(Status="running", ExitCode=3, Error="old"), None)

    assert (status.exit_code, status.message, status.reason) == (0, "", "")


def test_a_long_error_is_cut() -> None:
    status = to_cri_container_status(container_record(Status="exited", Error="x" * 5000, ExitCode=1), None)

    assert len(status.message) == 1024


def test_a_status_says_what_was_asked() -> None:
    asked, status = container_config(), to_cri_container_status(container_record(), None)

    assert status.metadata == asked.metadata
    assert list(status.mounts) == list(asked.mounts)
    assert status.stop_signal == cri.SIGNAL_SIGQUIT
    assert status.image.image == "nginx:1.27"
    assert status.image_id == status.image_ref == asked.image.image
    resources = status.resources.linux
    assert (resources.cpu_quota, resources.memory_limit_in_bytes, resources.oom_score_adj) == (50000, 128 << 20, 996)


def test_without_a_signal_of_the_image_a_stop_is_a_term() -> None:
    inspect = container_inspect()
    inspect["Config"].pop("StopSignal")
    record = read_container(inspect)

    assert record is not None
    assert to_cri_container_status(record, None).stop_signal == cri.SIGNAL_SIGTERM


def test_a_sandbox_status() -> None:
    status = to_cri_sandbox_status(sandbox_record(), ready=True, addresses=("10.0.0.2", "fd00::2"))

    assert status.state == cri.SANDBOX_READY
    assert (status.network.ip, [one.ip for one in status.network.additional_ips]) == ("10.0.0.2", ["fd00::2"])
    assert status.metadata == sandbox_config().metadata
    options = status.linux.namespaces.options
    assert (options.network, options.pid, options.ipc) == (cri.POD, cri.CONTAINER, cri.POD)


def test_a_sandbox_status_without_addresses_still_has_a_network() -> None:
    """A kubelet takes a missing network for a pod that needs no address."""
    status = to_cri_sandbox_status(sandbox_record(Status="exited"), ready=False, addresses=())

    assert status.state == cri.SANDBOX_NOTREADY
    assert status.HasField("network")
    assert status.network.ip == ""


def test_verbose_info_is_one_json_object() -> None:
    info = to_verbose_info({"pid": 7})

    assert json.loads(info["info"]) == {"pid": 7}
    assert list(info) == ["info"]


DIGEST, OTHER_DIGEST = ("sha256:" + digit * 64 for digit in "ab")


@pytest.mark.parametrize(
    ("asked", "tags", "digests", "name", "ref"),
    [
        pytest.param("nginx:1", ["nginx:1"], [f"nginx@{DIGEST}"], "nginx:1", f"nginx@{DIGEST}", id="by a tag"),
        pytest.param(
            "docker.io/library/nginx", [], [f"nginx@{DIGEST}"], None, f"nginx@{DIGEST}", id="by its whole name"
        ),
        pytest.param("nginx:1", ["nginx:1"], [], "nginx:1", None, id="that no registry has"),
        pytest.param(
            "b.io/x:1",
            ["a.io/x:1"],
            [f"a.io/x@{DIGEST}", f"b.io/x@{OTHER_DIGEST}"],
            None,
            f"b.io/x@{OTHER_DIGEST}",
            id="of the repository that was asked",
        ),
        pytest.param(
            f"x@{OTHER_DIGEST}",
            [],
            [f"x@{DIGEST}", f"x@{OTHER_DIGEST}"],
            None,
            f"x@{OTHER_DIGEST}",
            id="by a digest, of two that it has there",
        ),
        pytest.param(
            "c.io/x:1",
            [],
            [f"b.io/x@{DIGEST}", f"a.io/x@{DIGEST}"],
            None,
            f"a.io/x@{DIGEST}",
            id="of another repository",
        ),
        pytest.param(
            f"sha256:{'1' * 64}",
            ["nginx:1"],
            [f"nginx@{DIGEST}"],
            "nginx:1",
            f"nginx@{DIGEST}",
            id="by its id, as other shims do",
        ),
        pytest.param("1" * 64, [], [f"nginx@{DIGEST}"], None, f"nginx@{DIGEST}", id="by its id, which has no name now"),
    ],
)
def test_the_image_of_a_container(
    asked: str, tags: list[str], digests: list[str], name: str | None, ref: str | None
) -> None:
    """``image_ref`` is what a registry knows the image by, ``image_id`` what lists of images have."""
    record = dataclasses.replace(container_record(), image=asked)
    status = to_cri_container_status(record, ImageRecord(record.image_id, tuple(tags), tuple(digests), 1))

    assert (status.image.image, status.image_ref) == (name or asked, ref or record.image_id)
    assert status.image_id == record.image_id


def test_an_image_that_is_gone_is_told_by_its_id() -> None:
    status = to_cri_container_status(container_record(), None)

    assert status.image_ref == status.image_id == container_record().image_id


def with_label(inspect: dict[str, Any], extra: str) -> dict[str, Any]:
    inspect["Config"]["Labels"][EXTRA_LABEL] = extra
    return inspect


@pytest.mark.parametrize("made", [sandbox_inspect, container_inspect], ids=["sandbox", "container"])
@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param('["a","b","c",99999999999]', id="an attempt that CRI cannot say"),
        pytest.param('["a",99999999999,"b","c","d",0]', id="a container's attempt that CRI cannot say"),
        pytest.param('["\\ud800","b","c",0]', id="half of a character"),
    ],
)
def test_an_image_cannot_make_a_record_that_cannot_be_sent(made: Any, metadata: str) -> None:
    inspect = with_label(made(), f'{{"v":1,"metadata":{metadata}}}')

    record = read_record(inspect)

    assert record is not None
    assert record.name in (POD, ContainerName("nginx", 1, POD)), "the engine's name says it, too"


@pytest.mark.parametrize("made", [sandbox_inspect, container_inspect], ids=["sandbox", "container"])
def test_a_container_of_somebody_else_is_no_shims_by_labels_of_its_image(made: Any) -> None:
    """What ours may be removed for is decided by its record: no image may have a say in that."""
    metadata: list[Any] = ["web-0", "default", UID, 0] if made is sandbox_inspect else ["x", 0, "a", "b", UID, 0]
    inspect = with_label({**made(), "Name": "/quirky_hopper"}, json.dumps({"v": 1, "metadata": metadata}))

    assert read_record(inspect) is None
    assert read_summary(summary_of(inspect, "created")) is None


def test_what_is_named_after_its_metadata_is_a_shims() -> None:
    odd = SandboxName("my_web", "default", UID, 0)
    metadata = json.dumps({"v": 1, "metadata": [odd.name, odd.namespace, odd.uid, odd.attempt]})
    inspect = with_label({**sandbox_inspect(), "Name": "/" + sandbox_container_name(odd)}, metadata)

    record = read_record(inspect)

    assert record is not None
    assert record.name == odd


def test_an_older_containers_label_of_ours_is_not_its_images() -> None:
    """Where another shim made it, the only such label is that of the image."""
    extra = json.dumps({"image": "trusted:1", "log": "cri", "labels": {"annotation.x": "y"}})
    inspect = with_label(container_inspect(), extra)

    ours, images = read_container(inspect), read_container(inspect, {EXTRA_LABEL: extra})

    assert ours is not None
    assert images is not None
    assert (ours.image, ours.has_cri_log) == ("trusted:1", True)
    assert (images.image, images.has_cri_log, images.extra) == (inspect["Config"]["Image"], False, ContainerExtra())


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"Created": "9999-12-31T23:59:59Z"}, id="a time beyond the field"),
        pytest.param({"Name": "/k8s_nginx_a_b_c_" + "9" * 5000}, id="a number longer than can be read"),
        pytest.param({"Image": "\ud800"}, id="half of a character"),
        pytest.param({"Image": 7}, id="a number for a text"),
        pytest.param({"State": None}, id="no state"),
        pytest.param({"LogPath": "/a\0b"}, id="a path that is none"),
        pytest.param({"HostConfig": {"Memory": 2**70}}, id="more memory than the field holds"),
        pytest.param({"HostConfig": {"Binds": [5]}}, id="a bind that is none"),
    ],
)
def test_what_cannot_be_sent_is_found_when_it_is_read(change: dict[str, Any]) -> None:
    with pytest.raises(Unreadable):
        read_record(container_inspect() | change)


def test_more_than_a_client_takes_is_found_when_it_is_read() -> None:
    inspect = container_inspect()
    inspect["Config"]["Labels"]["app"] = "x" * (5 << 20)
    with_label(inspect, "{}")

    with pytest.raises(Unreadable, match=r"524[0-9]+ bytes"):
        read_record(inspect)
    bare = read_bare(inspect)
    assert isinstance(bare, ContainerRecord)
    assert (bare.name, bare.sandbox_id, bare.log_path) == (
        ContainerName("nginx", 1, POD),
        SANDBOX_ID,
        container_record().log_path,
    )
    asked = container_config()
    kept = {key: value for key, value in asked.labels.items() if key.startswith("io.kubernetes.")}
    assert dict(bare.labels) == kept
    assert bare.annotations.items() <= asked.annotations.items()
    assert "io.kubernetes.container.hash" in bare.annotations


def test_a_stop_signal_that_an_image_made_up_hides_no_container() -> None:
    inspect = container_inspect()
    inspect["Config"]["StopSignal"] = "\0"

    assert isinstance(read_record(inspect), ContainerRecord)


texts = st.text(st.characters(), max_size=6) | st.sampled_from(["k8s_POD_a_b_c_1", "k8s_x_a_b_c_1", "podsandbox"])
scalars = st.none() | st.booleans() | st.integers() | st.floats() | texts
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=3), max_leaves=6
)
keys = sorted({key for kind in (SandboxExtra, ContainerExtra) for key in kind.__struct_encode_fields__})
extras = st.dictionaries(st.sampled_from(keys) | texts, values, max_size=4)


def places(document: Any) -> list[tuple[Any, Any]]:
    """Each key of each object in it."""
    found = []
    if isinstance(document, dict):
        for key, value in document.items():
            found += [(document, key), *places(value)]
    return found


@settings(max_examples=300)
@given(st.data())
def test_whatever_an_engine_says_can_be_sent_or_is_left_out(data: st.DataObject) -> None:
    inspect = data.draw(st.sampled_from([sandbox_inspect, container_inspect]))(Status=data.draw(st.text(max_size=9)))
    if data.draw(st.booleans()):
        with_label(inspect, json.dumps(data.draw(extras)))
    for _ in range(data.draw(st.integers(0, 3))):
        if found := places(inspect):
            document, key = data.draw(st.sampled_from(found))
            document[key] = data.draw(values)
    for read, source in (
        (is_mixed, inspect),
        (read_record, inspect),
        (read_bare, inspect),
        (read_summary, summary_or_nothing(inspect)),
    ):
        try:
            record = read(source)
        except Unreadable:
            continue
        if isinstance(record, SandboxRecord):
            to_cri_sandbox(record, ready=True).SerializeToString()
            to_cri_sandbox_status(record, ready=True, addresses=record.addresses).SerializeToString()
            to_pod_request(to_pod(pod_of(record))).SerializeToString()
        elif isinstance(record, ContainerRecord):
            to_cri_container(record).SerializeToString()
            to_cri_container_status(record, None).SerializeToString()
            to_container_request(record, Pod(POD)).SerializeToString()


def summary_or_nothing(inspect: dict[str, Any]) -> dict[str, Any]:
    try:
        return summary_of(inspect, "running")
    except (LookupError, TypeError, AttributeError):
        return {}
