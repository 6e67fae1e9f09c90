from __future__ import annotations

import json
from typing import Any

import pytest

from dockershim.api.cri.v1 import api_pb2
from dockershim.errors import InvalidArgument
from dockershim.translate.image import (
    MOST_ADDED,
    ImageConfig,
    ImageRecord,
    ListedImage,
    check_added,
    is_named,
    to_cri_image,
    to_cri_image_info,
    to_image_record,
    to_image_records,
)
from dockershim.translate.reference import parse_reference

ID = "sha256:" + "0123456789abcdef" * 4
DIGEST = "sha256:" + "fedcba9876543210" * 4
RECORD = ImageRecord(ID, ("nginx:1",), (f"nginx@{DIGEST}",), 1234, "")


@pytest.mark.parametrize(
    ("inspected", "expected"),
    [
        pytest.param(
            {
                "Id": ID,
                "RepoTags": ["nginx:1"],
                "RepoDigests": [f"nginx@{DIGEST}"],
                "Size": 1234,
                "Config": {"User": "1002"},
            },
            ImageRecord(ID, ("nginx:1",), (f"nginx@{DIGEST}",), 1234, "1002", 15),
            id="whole",
        ),
        pytest.param({"Id": ID, "RepoTags": None}, ImageRecord(ID, (), (), 0), id="nothing-but-an-id"),
        pytest.param({"Id": ID, "Config": None, "Size": 5}, ImageRecord(ID, (), (), 5), id="no-configuration"),
    ],
)
def test_an_inspected_image_is_read(inspected: dict[str, Any], expected: ImageRecord) -> None:
    assert to_image_record(inspected) == expected


def test_a_list_is_read_with_the_users_that_are_known() -> None:
    other = "sha256:" + "0" * 64
    listed: list[ListedImage] = [
        {"Id": ID, "RepoTags": ["<none>:<none>"], "RepoDigests": ["<none>@<none>"], "Size": 1},
        {"Id": DIGEST, "RepoTags": None, "RepoDigests": ["<none>@<none>", f"nginx@{DIGEST}"], "Size": 2},
        {"Id": other, "RepoTags": ["gone:1"], "RepoDigests": [], "Size": 3},
    ]
    assert to_image_records(listed, {ID: ImageConfig("", 0), DIGEST: ImageConfig("www-data", 7)}) == [
        ImageRecord(ID, (), (), 1),
        ImageRecord(DIGEST, (), (f"nginx@{DIGEST}",), 2, "www-data", 7),
    ]


@pytest.mark.parametrize(
    ("user", "uid", "username"),
    [
        pytest.param("", None, "", id="root-by-default"),
        pytest.param("0", 0, "", id="root-by-number"),
        pytest.param("1002", 1002, "", id="number"),
        pytest.param("1003:users", 1003, "", id="number-and-group"),
        pytest.param("www-data", None, "www-data", id="name"),
        pytest.param("www-data:www-data", None, "www-data", id="name-and-group"),
        pytest.param("-1", None, "-1", id="not-a-uid"),
        pytest.param("²", None, "²", id="a-digit-that-is-no-number"),
        pytest.param("9" * 30, None, "9" * 30, id="beyond-the-field"),
    ],
)
def test_the_user_is_a_number_or_a_name(user: str, uid: int | None, username: str) -> None:
    image = to_cri_image(ImageRecord(ID, (), (), 0, user), pinned=False)
    assert (image.uid.value if image.HasField("uid") else None) == uid
    assert image.username == username


@pytest.mark.parametrize("inspected", [True, False])
@pytest.mark.parametrize(
    ("tags", "digests", "expected"),
    [
        pytest.param([f"nginx@{DIGEST}"], [f"nginx@{DIGEST}"], ((), (f"nginx@{DIGEST}",)), id="pulled-by-digest"),
        pytest.param(
            [f"nginx@{DIGEST}", "nginx:1"], [f"nginx@{DIGEST}"], (("nginx:1",), (f"nginx@{DIGEST}",)), id="and-by-tag"
        ),
        pytest.param(["chart:1"], [DIGEST], (("chart:1",), ()), id="an-artifact"),
    ],
)
def test_names_of_containerds_image_store(
    tags: list[str], digests: list[str], expected: tuple[tuple[str, ...], tuple[str, ...]], inspected: bool
) -> None:
    image: ListedImage = {"Id": ID, "RepoTags": tags, "RepoDigests": digests}
    record = to_image_record(image) if inspected else to_image_records([image], {ID: ImageConfig("", 0)})[0]
    assert (record.tags, record.digests) == expected


@pytest.mark.parametrize(
    ("tags", "digests", "expected"),
    [
        pytest.param(["a:1", "b:1"], [f"b@{DIGEST}"], (f"a@{DIGEST}", f"b@{DIGEST}"), id="of-one-name"),
        pytest.param(["a:1", "a:2"], [f"a@{DIGEST}"], (f"a@{DIGEST}",), id="two-tags-of-a-name"),
        pytest.param([f"c@{DIGEST}", "a:1"], [], (f"a@{DIGEST}", f"c@{DIGEST}"), id="pulled-by-digest"),
        pytest.param(["reg:5000/chart:1"], [DIGEST], (f"reg:5000/chart@{DIGEST}",), id="an-artifact"),
        pytest.param([], [f"a@{DIGEST}"], (f"a@{DIGEST}",), id="without-tags"),
    ],
)
def test_a_list_of_containerds_image_store_has_a_digest_for_each_name(
    tags: list[str], digests: list[str], expected: tuple[str, ...]
) -> None:
    image: ListedImage = {"Id": DIGEST, "RepoTags": tags, "RepoDigests": digests, "Descriptor": {"digest": DIGEST}}
    assert to_image_records([image], {DIGEST: ImageConfig("", 0)})[0].digests == expected


def test_an_image_is_told_whole() -> None:
    assert to_cri_image(RECORD, pinned=True) == api_pb2.Image(
        id=ID,
        repo_tags=["nginx:1"],
        repo_digests=[f"nginx@{DIGEST}"],
        size=1234,
        spec=api_pb2.ImageSpec(image="nginx:1"),
        pinned=True,
    )


@pytest.mark.parametrize(
    ("record", "name"),
    [
        pytest.param(RECORD, "nginx:1", id="by-tag"),
        pytest.param(ImageRecord(ID, (), RECORD.digests, 0), f"nginx@{DIGEST}", id="by-digest"),
        pytest.param(ImageRecord(ID, (), (), 0), ID, id="by-id"),
    ],
)
def test_the_spec_names_the_image_as_well_as_can_be(record: ImageRecord, name: str) -> None:
    assert to_cri_image(record, pinned=False).spec.image == name


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        pytest.param("nginx:1", True, id="familiar"),
        pytest.param("docker.io/library/nginx:1", True, id="whole"),
        pytest.param(f"nginx@{DIGEST}", True, id="digest"),
        pytest.param(f"nginx:9@{DIGEST}", True, id="digest-with-a-tag"),
        pytest.param("nginx", False, id="other-tag"),
        pytest.param("gcr.io/nginx:1", False, id="other-registry"),
        pytest.param(f"nginx:1@{ID}", False, id="other-digest"),
    ],
)
def test_an_image_is_known_by_its_names(reference: str, expected: bool) -> None:
    assert is_named(RECORD, parse_reference(reference)) is expected


def test_verbose_information_is_json() -> None:
    assert json.loads(to_cri_image_info({"Id": ID, "Size": 1})["info"]) == {"Id": ID, "Size": 1}


def test_what_an_image_adds_to_each_container_is_counted() -> None:
    config = {"Labels": {"a": "x" * 100}, "Env": ["A=" + "y" * 50]}
    record = to_image_record({"Id": ID, "Config": config, "ContainerConfig": config})
    assert 150 < record.added < 200
    assert to_image_record({"Id": ID, "Config": config}, left_out=1000).added == record.added + 1000


def test_an_image_that_adds_too_much_is_refused_by_name() -> None:
    check_added(ImageRecord(ID, (), (), 1, added=MOST_ADDED), "app:1")
    with pytest.raises(InvalidArgument, match=r"image 'app:1' has 1048577 bytes of labels.*at most"):
        check_added(ImageRecord(ID, (), (), 1, added=MOST_ADDED + 1), "app:1")


def test_the_user_of_an_image_has_a_length() -> None:
    assert to_image_record({"Id": ID, "Config": {"User": "0" * 10_000}}).user == "0" * 256
