"""docs/fields.toml has a verdict for each field of a request, and the verdict is what the code does."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.engine.credentials import from_cri
from dockershim.errors import ShimError
from dockershim.translate.accounts import Account, unsettled_user
from dockershim.translate.container import log_path
from dockershim.translate.names import container_name, sandbox_container_name
from dockershim.translate.network import to_capability_args
from dockershim.translate.reference import lookup_name, parse_reference
from dockershim.translate.resources import check_resources, to_cgroup_files, to_engine_resources
from dockershim.translate.sandbox import sandbox_name, to_resolv_conf
from dockershim.translate.security import seccomp_profile_path
from tests.fields import DOCUMENT, REQUESTS, ROOT, TABLE, Row, fields_of, read_rows, row_of, to_markdown
from tests.unit.translate import kubelet
from tests.unit.translate.engine_bodies import POD, to_engine, to_infra

ROWS = read_rows(TABLE.read_text())
BY_REQUEST = {request: {row.field: row for row in ROWS if row.request == request} for request in REQUESTS}
ENGINE = replace(kubelet.ENGINE_28, selinux=True)
each_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.request}.{row.field}")


@pytest.mark.parametrize("request_name", REQUESTS)
def test_every_field_has_a_row(request_name: str) -> None:
    rows = BY_REQUEST[request_name]
    assert [path for path in fields_of(request_name) if row_of(path, rows) is None] == []


@pytest.mark.parametrize("request_name", REQUESTS)
def test_every_row_names_a_field(request_name: str) -> None:
    paths = fields_of(request_name)
    assert [
        name for name in BY_REQUEST[request_name] if not any(f"{path}.".startswith(f"{name}.") for path in paths)
    ] == []
    assert {row.request for row in ROWS} == set(REQUESTS)


@each_row
def test_every_row_has_a_verdict_that_a_test_shows(row: Row) -> None:
    assert bool(row.ignored) != bool(row.honoured or row.refused)
    assert bool(row.tests) != bool(row.ignored)
    assert [test for test in row.tests if test not in _tests_of(test.partition("::")[0])] == []
    if row.refused:
        code = row.refused.split()[0].rstrip(":,;")
        assert code in grpc.StatusCode.__members__
        assert code != "UNIMPLEMENTED", "there is no request of a call that is not built"


@functools.cache
def _tests_of(file: str) -> frozenset[str]:
    names = re.findall(r"^ *(?:async )?def (test_\w+)\(", (ROOT / "tests" / file).read_text(), re.MULTILINE)
    return frozenset(f"{file}::{name}" for name in names)


def test_the_document_is_made_of_the_rows() -> None:
    assert DOCUMENT.read_text() == to_markdown(ROWS), "run make tables"


# What the code does with each field. A change of one field in a request has to show in what becomes of the request.


class AnyFile(dict[str, str]):
    """The content of each file is its own path, and so is the id of each image."""

    def __missing__(self, path: str) -> str:
        return path


def run_pod_sandbox() -> cri.RunPodSandboxRequest:
    return cri.RunPodSandboxRequest(config=kubelet.sandbox_config())


def create_container() -> cri.CreateContainerRequest:
    config = kubelet.container_config()
    config.devices.add(host_path="/dev/null")
    return cri.CreateContainerRequest(
        pod_sandbox_id=kubelet.SANDBOX_ID, config=config, sandbox_config=kubelet.sandbox_config()
    )


def update() -> cri.UpdateContainerResourcesRequest:
    return cri.UpdateContainerResourcesRequest(container_id="1c" * 32, linux=kubelet.container_config().linux.resources)


def pull() -> cri.PullImageRequest:
    auth = cri.AuthConfig(username="u", password="p")
    return cri.PullImageRequest(image=cri.ImageSpec(image="gcr.io/app:1"), auth=auth)


def made_of_sandbox(request: cri.RunPodSandboxRequest) -> Any:
    config = request.config
    path = seccomp_profile_path(config.linux.security_context)
    body = to_infra(config, ENGINE, runtime_handler=request.runtime_handler, profiles={path: path}, publish_ports=True)
    name = sandbox_container_name(sandbox_name(config.metadata))
    return name, body, to_resolv_conf(config.dns_config), to_capability_args(config, ())


def made_of_container(request: cri.CreateContainerRequest) -> Any:
    config, path = request.config, seccomp_profile_path(request.config.linux.security_context)
    user = unsettled_user(config.linux.security_context, "")
    body = to_engine(
        config,
        ENGINE,
        sandbox=request.sandbox_config,
        sandbox_id=request.pod_sandbox_id,
        image=lookup_name(config.image.image),
        profiles={path: path},
        volumes=AnyFile(),
        account=Account(user, 5, 7, (8,)) if user else None,
    )
    name = container_name(config.metadata.name, config.metadata.attempt, POD)
    return name, body, log_path(config, request.sandbox_config)


def made_of_update(request: cri.UpdateContainerResourcesRequest) -> Any:
    check_resources(request.linux, "linux")
    fields, files = to_engine_resources(request.linux), to_cgroup_files(request.linux, ENGINE.cgroup_version)
    return request.container_id, fields, files, request.linux.oom_score_adj


def made_of_pull(request: cri.PullImageRequest) -> Any:
    reference = parse_reference(request.image.image)
    ENGINE.check_handler(request.image.runtime_handler, "image.runtime_handler")
    return reference, from_cri(request.auth, reference.domain)


#: How a request begins, and what becomes of it. Tests of the calls show it for the others.
MADE: Mapping[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "RunPodSandboxRequest": (run_pod_sandbox, made_of_sandbox),
    "CreateContainerRequest": (create_container, made_of_container),
    "UpdateContainerResourcesRequest": (update, made_of_update),
    "PullImageRequest": (pull, made_of_pull),
}
#: Checked by the calls themselves, which need an engine: tests/engine shows what becomes of these.
BY_THE_CALL = {
    "UpdateContainerResourcesRequest.windows",
    "UpdateContainerResourcesRequest.annotations",
}
LOCALHOST = cri.SecurityProfile(profile_type=cri.SecurityProfile.Localhost, localhost_ref="/old")
IMAGE = cri.Mount(container_path="/volume", readonly=True, image=cri.ImageSpec(image="volume:1"))
READ_ONLY = cri.Mount(container_path="/volume", readonly=True, host_path="/volume")
#: What must be there for a field to mean something, by the end of the field's path, from the same place; None for
#: what must not be there.
BESIDE: Mapping[str, Mapping[str, Any]] = {
    "config.linux.security_context.seccomp.localhost_ref": {"config.linux.security_context.seccomp": LOCALHOST},
    "config.linux.security_context.apparmor.localhost_ref": {"config.linux.security_context.apparmor": LOCALHOST},
    "config.linux.security_context.seccomp_profile_path": {"config.linux.security_context.seccomp": None},
    "config.linux.security_context.apparmor_profile": {"config.linux.security_context.apparmor": None},
    "config.linux.security_context.run_as_group": {
        "config.linux.security_context.run_as_user": cri.Int64Value(value=7)
    },
    "config.linux.security_context.run_as_username": {"config.linux.security_context.run_as_user": None},
    "CreateContainerRequest.sandbox_config.linux.security_context.privileged": {
        "config.linux.security_context.privileged": True
    },
    "CreateContainerRequest.config.linux.security_context.namespace_options.target_id": {
        "config.linux.security_context.namespace_options.pid": cri.TARGET
    },
    "CreateContainerRequest.config.linux.resources.memory_swap_limit_in_bytes": {
        "config.linux.resources.unified": None
    },
    "UpdateContainerResourcesRequest.linux.memory_swap_limit_in_bytes": {"linux.unified": None},
    "config.mounts.image.image": {"config.mounts": [IMAGE]},
    "config.mounts.image.annotations": {"config.mounts": [IMAGE]},
    "config.mounts.image.user_specified_image": {"config.mounts": [IMAGE]},
    "config.mounts.image.runtime_handler": {"config.mounts": [IMAGE]},
    "config.mounts.image.image_ref": {"config.mounts": [IMAGE]},
    "config.mounts.image_sub_path": {"config.mounts": [IMAGE]},
    "config.mounts.recursive_read_only": {"config.mounts": [READ_ONLY]},
    "auth.auth": {"auth.username": None, "auth.password": None},
}
#: Values that a field can have, by the end of its path; of other texts it is "x".
VALUES: Mapping[str, Any] = {
    "cgroup_parent": "/kubepods.slice/kubepods-x.slice",
    "CreateContainerRequest.sandbox_config.annotations": {"rdt.resources.beta.kubernetes.io/pod": "x"},
    "sysctls": {"kernel.domainname": "x"},
    "unified": {"memory.min": "5"},
    "log_directory": "/var/log/pods/x",
    "host_ip": "10.0.0.1",
    "seccomp.localhost_ref": "/x",
    "seccomp_profile_path": "localhost//x",
    "apparmor_profile": "localhost/x",
    "image.image": "other:1",
    "working_dir": "/x",
    "host_path": "/x",
    "permissions": "r",
    "page_size": "64KB",
    "auth.auth": "dTpw",
    "server_address": "gcr.io",
    "RunPodSandboxRequest.runtime_handler": "kata",
}


def by_end(path: str, table: Mapping[str, Any]) -> Any:
    return next((value for end, value in table.items() if f".{path}".endswith(f".{end}")), None)


def place(request: Message, path: str) -> tuple[Message, str]:
    """The message that has the field, and the field's name in it; of repeated messages the first one."""
    here: Any = request
    *above, name = path.split(".")
    for part in above:
        below = getattr(here, part)
        here = (below[0] if len(below) else below.add()) if here.DESCRIPTOR.fields_by_name[part].is_repeated else below
    return here, name


def put(request: Message, path: str, value: Any) -> None:
    here, name = place(request, path)
    here.ClearField(name)
    if value is not None:
        here.MergeFrom(type(here)(**{name: value}))


def another(request: Message, path: str, given: Any) -> Any:
    """A value for the field that it does not have yet."""
    here, name = place(request, path)
    field, now = here.DESCRIPTOR.fields_by_name[name], getattr(here, name)
    if field.enum_type is not None:
        return next(number for number in field.enum_type.values_by_number if number != now)
    if field.message_type is not None:
        below = field.message_type
        return (given or {"x": "x"}) if below.GetOptions().map_entry else cri.Int64Value(value=5)
    kinds = {field.TYPE_BOOL: True, field.TYPE_BYTES: b"x", field.TYPE_STRING: given or "x"}
    value = kinds.get(field.type, 3)
    if field.is_repeated:
        return [value]
    return not now if field.type == field.TYPE_BOOL else value


def outcome(made: Callable[[Any], Any], request: Message) -> tuple[str, Any]:
    try:
        return "made", made(request)
    except ShimError as error:
        return "refused", str(error)


def each_field() -> Iterator[Any]:
    for request_name in MADE:
        for path in fields_of(request_name):
            row = row_of(path, BY_REQUEST[request_name])
            if row is not None and f"{request_name}.{row.field}" not in BY_THE_CALL:
                yield pytest.param(request_name, path, row, id=f"{request_name}.{path}")


@pytest.mark.parametrize(("request_name", "path", "row"), list(each_field()))
def test_the_verdict_is_what_happens(request_name: str, path: str, row: Row) -> None:
    begin, made = MADE[request_name]
    request, full = begin(), f"{request_name}.{path}"
    for neighbour, value in (by_end(full, BESIDE) or {}).items():
        put(request, neighbour, value)
    before = outcome(made, request)
    put(request, path, another(request, path, by_end(full, VALUES)))
    after = outcome(made, request)

    if row.ignored:
        assert after == before
    elif row.honoured:
        assert after != before
    else:
        assert after[0] == "refused"
        assert any(part in after[1] for part in row.field.split(".")[-2:])
