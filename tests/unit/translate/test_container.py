"""What of a container's config is refused, log paths, and the environment."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.errors import InvalidArgument, Unsupported
from dockershim.translate.container import check_container, log_path, to_env
from tests.unit.translate.changes import setting
from tests.unit.translate.engine_bodies import split_extra, to_engine
from tests.unit.translate.kubelet import ENGINE_28, LOG_DIRECTORY, container_config, sandbox_config

Change = Callable[[Any], object]


@pytest.mark.parametrize(
    ("change", "error", "field"),
    [
        pytest.param(setting("metadata.name", ""), InvalidArgument, r"config\.metadata\.name", id="no name"),
        pytest.param(setting("metadata.name", "a\r"), InvalidArgument, r"config\.metadata\.name", id="a line's end"),
        pytest.param(setting("image.image", ""), InvalidArgument, r"config\.image\.image", id="no image"),
        pytest.param(lambda config: config.windows.SetInParent(), Unsupported, r"config\.windows", id="for Windows"),
        pytest.param(
            setting("linux.security_context.capabilities.add_ambient_capabilities", ["NET_RAW"]),
            Unsupported,
            "add_ambient_capabilities",
            id="ambient capabilities",
        ),
        pytest.param(
            setting("linux.security_context.privileged", True),
            InvalidArgument,
            r"security_context\.privileged",
            id="privileged in a sandbox that is not",
        ),
        pytest.param(setting("working_dir", "srv"), InvalidArgument, r"config\.working_dir", id="a relative folder"),
        pytest.param(setting("mounts", [cri.Mount(host_path="x")]), InvalidArgument, r"mounts\[", id="a bad mount"),
        pytest.param(
            setting("linux.resources.cpu_quota", -2),
            InvalidArgument,
            r"config\.linux\.resources\.cpu_quota",
            id="limits",
        ),
        pytest.param(setting("log_path", "../x.log"), InvalidArgument, r"config\.log_path", id="a log elsewhere"),
        pytest.param(
            setting("stop_signal", 66),
            InvalidArgument,
            r"config\.stop_signal: 66 is not a valid Signal",
            id="no signal",
        ),
        pytest.param(
            setting("linux.security_context.seccomp.profile_type", 5),
            InvalidArgument,
            r"config\.linux\.security_context\.seccomp\.profile_type: 5",
            id="no kind of a profile",
        ),
        pytest.param(
            setting("mounts", [cri.Mount(host_path="/a", container_path="/b", propagation=4)]),  # type: ignore[arg-type]
            InvalidArgument,
            r"config\.mounts\.propagation: 4",
            id="no propagation",
        ),
    ],
)
def test_what_cannot_be_is_refused(change: Change, error: type[Exception], field: str) -> None:
    config = container_config()
    change(config)

    with pytest.raises(error, match=field) as caught:
        check_container(config, sandbox_config(), ENGINE_28)
    assert type(caught.value) is error


@pytest.mark.parametrize(
    ("change", "error", "field"),
    [
        pytest.param(
            lambda config: config.labels.update({"io.kubernetes.sandbox.id": "x"}),
            InvalidArgument,
            "labels: 'io.kubernetes.sandbox.id'",
            id="a label of the shim's",
        ),
        pytest.param(
            lambda config: config.devices.add(host_path="fuse"), InvalidArgument, "devices", id="a relative device"
        ),
        pytest.param(
            lambda config: config.envs.add(key="A=B", value=b""), InvalidArgument, "envs", id="a variable's name"
        ),
    ],
)
def test_what_the_translation_refuses(change: Change, error: type[Exception], field: str) -> None:
    config = container_config()
    change(config)

    with pytest.raises(error, match=field) as caught:
        to_engine(config, ENGINE_28)
    assert type(caught.value) is error


def test_a_wrong_sandbox_config_is_named_as_such() -> None:
    sandbox = sandbox_config()
    sandbox.linux.security_context.namespace_options.pid = 8  # type: ignore[assignment]

    with pytest.raises(InvalidArgument, match=r"^sandbox_config\.linux\.security_context\.namespace_options\.pid: 8"):
        check_container(container_config(), sandbox, ENGINE_28)


RDT, BLOCKIO = "rdt.resources.beta.kubernetes.io", "blockio.resources.beta.kubernetes.io"


@pytest.mark.parametrize(
    ("container", "pod", "refused"),
    [
        pytest.param({}, {f"{RDT}/pod": "gold"}, rf"^sandbox_config\.annotations\[{RDT}/pod\]: ", id="cache, pod"),
        pytest.param(
            {}, {f"{BLOCKIO}/container.nginx": "slow"}, f"{BLOCKIO}/container.nginx", id="disks, one container"
        ),
        pytest.param(
            {"io.kubernetes.cri.rdt-class": "gold"}, {}, r"^config\.annotations\[io.kubernetes.cri.rdt", id="container"
        ),
        pytest.param({}, {f"{BLOCKIO}/container.other": "slow"}, "", id="another container's"),
        pytest.param({}, {f"{RDT}/pod": "gold", f"{RDT}/container.nginx": ""}, "", id="not for this container"),
        pytest.param({"io.kubernetes.cri.blockio-class": ""}, {f"{BLOCKIO}/pod": "slow"}, "", id="taken back"),
    ],
)
def test_classes_of_cache_and_disk_access_are_refused(
    container: dict[str, str], pod: dict[str, str], refused: str
) -> None:
    config, sandbox = container_config(), sandbox_config()
    config.annotations.update(container)
    sandbox.annotations.update(pod)
    with pytest.raises(Unsupported, match=refused) if refused else contextlib.nullcontext():
        check_container(config, sandbox, ENGINE_28)


def test_unified_on_cgroup_v1_is_refused() -> None:
    with pytest.raises(Unsupported, match="unified"):
        to_engine(container_config(), replace(ENGINE_28, cgroup_version=1))


@pytest.mark.parametrize(
    ("directory", "path", "expected"),
    [
        pytest.param("/var/log/pods/p", "c/0.log", "/var/log/pods/p/c/0.log", id="a kubelet's"),
        pytest.param("/var/log/pods/p/", "c/0.log", "/var/log/pods/p/c/0.log", id="a slash at the end"),
        pytest.param("/", "0.log", "/0.log", id="in the root"),
        pytest.param("/logs", "a/../b.log", "/logs/b.log", id="cleaned"),
        pytest.param("", "0.log", "", id="no folder: no log"),
        pytest.param("/logs", "", "", id="no path: no log"),
    ],
)
def test_log_paths(directory: str, path: str, expected: str) -> None:
    config = cri.ContainerConfig(log_path=path)

    assert log_path(config, cri.PodSandboxConfig(log_directory=directory)) == expected


@pytest.mark.parametrize("path", ["..", "../x", "/etc/passwd", "a/../../x", ".", "../logs2/x", "a\nb"])
def test_a_log_never_leaves_its_folder(path: str) -> None:
    with pytest.raises(InvalidArgument, match=r"config\.log_path"):
        log_path(cri.ContainerConfig(log_path=path), cri.PodSandboxConfig(log_directory="/logs"))


@given(st.text(st.sampled_from("./ab\n"), max_size=12))
def test_whatever_is_asked_the_log_is_in_its_folder_or_refused(path: str) -> None:
    try:
        found = log_path(cri.ContainerConfig(log_path=path), cri.PodSandboxConfig(log_directory="/var/log/p"))
    except InvalidArgument:
        return
    assert found == "" or (found.startswith("/var/log/p/") and ".." not in found.split("/"))


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        pytest.param("A", b"1", "A=1", id="a value"),
        pytest.param("A", b"", "A=", id="an empty value"),
        pytest.param("a.b-c", "ü=\n".encode(), "a.b-c=ü=\n", id="any text, lines and equal signs too"),
    ],
)
def test_variables(key: str, value: bytes, expected: str) -> None:
    assert to_env(cri.ContainerConfig(envs=[cri.KeyValue(key=key, value=value)])) == [expected]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        pytest.param("", b"1", "not a valid name", id="no name"),
        pytest.param("A=B", b"1", "not a valid name", id="a name with an equal sign"),
        pytest.param("A", b"\xff", r"envs\[A\]: .*UTF-8", id="bytes that JSON cannot carry"),
        pytest.param("A", b"a\0b", r"envs\[A\]: .*NUL", id="a NUL in a value"),
        pytest.param("A\0B", b"", "NUL", id="a NUL in a name"),
    ],
)
def test_variables_that_cannot_be_are_refused(key: str, value: bytes, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        to_env(cri.ContainerConfig(envs=[cri.KeyValue(key=key, value=value)]))


def test_what_an_engine_name_cannot_hold_rides_in_our_label() -> None:
    config = container_config()
    config.metadata.name = "my_nginx"

    extra = split_extra(to_engine(config, ENGINE_28))

    assert extra["metadata"][:2] == ["my_nginx", 1]
    assert extra["metadata"][2:] == ["web-0", "default", sandbox_config().metadata.uid, 0]


def test_without_a_users_name_of_the_image_its_reference_is_kept() -> None:
    config = container_config()
    config.image.ClearField("user_specified_image")

    assert split_extra(to_engine(config, ENGINE_28))["image"] == config.image.image


def test_a_container_without_a_log() -> None:
    config = container_config()
    config.log_path = ""

    assert to_engine(config, ENGINE_28)["Labels"]["io.kubernetes.container.logpath"] == ""
    assert LOG_DIRECTORY in to_engine(container_config(), ENGINE_28)["Labels"]["io.kubernetes.container.logpath"]
