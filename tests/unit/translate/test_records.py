"""Records from the engine's JSON, and the CRI's messages from records."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.translate.names import ContainerName, SandboxName
from dockershim.translate.records import (
    ContainerRecord,
    SandboxRecord,
    is_sandbox,
    read_container,
    read_container_summary,
    read_sandbox,
    read_sandbox_summary,
    to_cri_container,
    to_cri_container_status,
    to_cri_sandbox,
    to_cri_sandbox_status,
    to_nanoseconds,
    to_verbose_info,
)
from tests.unit.translate.kubelet import ENGINE_28, SANDBOX_ID, UID, container_config, sandbox_config
from tests.unit.translate.test_kubelet_requests import to_engine, to_infra

POD = SandboxName("web-0", "default", UID, 0)
CONTAINER_ID = "c0" * 32
CREATED, STARTED, FINISHED = (f"2026-01-02T03:04:0{second}.000000001Z" for second in (5, 6, 7))
NEVER = "0001-01-01T00:00:00Z"
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


def sandbox_inspect(**state: Any) -> dict[str, Any]:
    """What the engine says of the infra container that our request made."""
    body = to_infra(sandbox_config(), ENGINE_28, runtime_handler="kata")
    return {
        "Id": SANDBOX_ID,
        "Name": f"/k8s_POD_web-0_default_{UID}_0",
        "Created": CREATED,
        "Config": {"Labels": body["Labels"], "Image": "infra:1"},
        "HostConfig": body["HostConfig"],
        "State": {"Status": "running", "Running": True, "Pid": 77, **state},
        "ResolvConfPath": "/var/lib/docker/containers/x/resolv.conf",
        "NetworkSettings": {"SandboxKey": "/var/run/docker/netns/5a", "Networks": {"none": {"IPAddress": ""}}},
    }


def container_inspect(**state: Any) -> dict[str, Any]:
    body = to_engine(container_config(), ENGINE_28)
    return {
        "Id": CONTAINER_ID,
        "Name": f"/k8s_nginx_web-0_default_{UID}_1",
        "Created": CREATED,
        "Image": body["Image"],
        "LogPath": "/var/lib/docker/containers/x/x-json.log",
        "Config": {"Labels": body["Labels"], "Image": body["Image"], "StopSignal": "SIGQUIT"},
        "HostConfig": body["HostConfig"],
        "State": {"Status": "created", "ExitCode": 0, "StartedAt": NEVER, "FinishedAt": NEVER, "Pid": 0, **state},
    }


def sandbox_record(**state: Any) -> SandboxRecord:
    record = read_sandbox(sandbox_inspect(**state))
    assert record is not None
    return record


def container_record(**state: Any) -> ContainerRecord:
    record = read_container(container_inspect(**state))
    assert record is not None
    return record


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
    assert record.extra["cgroupFiles"]["memory.swap.max"] == "0"


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
    status = to_cri_container_status(container_record(**state))

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
    status = to_cri_container_status(container_record(**state))
    expected = tuple(CREATED_NS + seconds * 10**9 if seconds else 0 for seconds in times)

    assert status.created_at == CREATED_NS
    assert (status.started_at, status.finished_at) == expected


def test_a_failed_start_ended_when_it_was_made() -> None:
    """A kubelet orders containers by their end; without one it would never remove this one."""
    status = to_cri_container_status(container_record(Status="created", ExitCode=127, Error="no such file"))

    assert (status.finished_at, status.exit_code, status.message) == (CREATED_NS, 127, "no such file")


def test_a_status_has_no_exit_of_a_running_container() -> None:
    status = to_cri_container_status(container_record(Status="running", ExitCode=3, Error="old"))

    assert (status.exit_code, status.message, status.reason) == (0, "", "")


def test_a_long_error_is_cut() -> None:
    status = to_cri_container_status(container_record(Status="exited", Error="x" * 5000, ExitCode=1))

    assert len(status.message) == 1024


def test_a_status_says_what_was_asked() -> None:
    asked, status = container_config(), to_cri_container_status(container_record())

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
    assert to_cri_container_status(record).stop_signal == cri.SIGNAL_SIGTERM


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
