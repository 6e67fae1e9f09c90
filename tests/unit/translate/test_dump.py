"""The documents of a dump, in the forms that Go programs read."""

from __future__ import annotations

import json
from dataclasses import replace

from google.protobuf import json_format

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.translate.dump import to_dump_annotations, to_dump_documents
from dockershim.translate.records import to_cri_container_status
from tests.unit.translate.records import RECORD

STATUS = to_cri_container_status(RECORD, None, None)
DOCUMENTS = to_dump_documents(RECORD, STATUS, 1767323047 * 10**9)


def test_config_dump_names_container_image_and_times() -> None:
    assert DOCUMENTS["config.dump"] == {
        "id": RECORD.id,
        "name": "main",
        "rootfsImage": "registry.example/app:1",
        "rootfsImageRef": STATUS.image_ref,
        "rootfsImageName": "registry.example/app:1",
        "runtime": "runc",
        "createdTime": "2026-01-02T03:04:05.000000001Z",
        "checkpointedTime": "2026-01-02T03:04:07.000000000Z",
        "restoredTime": "0001-01-01T00:00:00Z",
        "restored": False,
    }


def test_an_adopted_container_may_have_no_runtime_named() -> None:
    documents = to_dump_documents(replace(RECORD, host_config={"Runtime": None}), STATUS, 0)
    assert documents["config.dump"]["runtime"] == ""
    assert documents["config.dump"]["checkpointedTime"] == "1970-01-01T00:00:00.000000000Z"


def test_status_dump_is_the_status_with_numbers_as_numbers() -> None:
    found = DOCUMENTS["status.dump"]
    assert (found["created_at"], found["state"]) == (RECORD.created_at, cri.CONTAINER_RUNNING)
    assert found["resources"]["linux"]["memory_limit_in_bytes"] == 1 << 40
    # The parser of protobuf takes both names and both forms of numbers.
    assert json_format.Parse(json.dumps(found), cri.ContainerStatus()) == STATUS


def test_status_is_containerds() -> None:
    assert DOCUMENTS["status"] == {
        "CreatedAt": RECORD.created_at,
        "StartedAt": RECORD.started_at,
        "FinishedAt": 0,
        "ExitCode": 0,
        "Pid": 77,
        "Reason": "",
        "Message": "",
    }


def test_the_annotations_name_the_pod() -> None:
    found = to_dump_annotations(RECORD)
    assert found["io.kubernetes.cri.container-name"] == "main"
    assert found["io.kubernetes.cri.sandbox-name"] == "web-0"
    assert found["io.kubernetes.cri.sandbox-namespace"] == "default"
    assert found["io.kubernetes.cri.sandbox-id"] == RECORD.sandbox_id
