"""Mounts and devices: what is asked becomes the engine's, and is read back from any shim's container."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.errors import InvalidArgument, Unsupported
from dockershim.translate.mounts import (
    check_mounts,
    container_path,
    to_cri_mounts,
    to_engine_binds,
    to_engine_devices,
    to_engine_mounts,
)
from tests.unit.translate.kubelet import ENGINE_20, ENGINE_28, IMAGE_ID

SELINUX = replace(ENGINE_28, selinux=True)


def mount(**fields: Any) -> cri.Mount:
    return cri.Mount(**{"host_path": "/host", "container_path": "/data", **fields})


def image_mount(**fields: Any) -> cri.Mount:
    return cri.Mount(
        **{"image": cri.ImageSpec(image="app:1"), "container_path": "/data", "readonly": True, **fields},
    )


@pytest.mark.parametrize(
    ("fields", "error", "field"),
    [
        pytest.param({"image_sub_path": "a"}, InvalidArgument, ".image_sub_path", id="a folder of no image"),
        pytest.param({"mount_options": ["noexec"]}, Unsupported, ".mount_options", id="mount options"),
        pytest.param({"host_path": "host"}, InvalidArgument, ".host_path", id="a relative host path"),
        pytest.param({"host_path": ""}, InvalidArgument, ".host_path", id="no host path"),
        pytest.param({"host_path": "/a\nb"}, InvalidArgument, "host_path", id="a line end in a host path"),
        pytest.param({"container_path": ""}, InvalidArgument, ".container_path", id="no container path"),
        pytest.param({"container_path": "/a\0"}, InvalidArgument, "container_path", id="a NUL in a container path"),
        pytest.param({"recursive_read_only": True}, InvalidArgument, ".recursive_read_only", id="but writable"),
        pytest.param(
            {"recursive_read_only": True, "readonly": True, "propagation": cri.PROPAGATION_HOST_TO_CONTAINER},
            InvalidArgument,
            ".recursive_read_only",
            id="recursively read-only with propagation",
        ),
    ],
)
def test_what_cannot_be_is_refused(fields: dict[str, Any], error: type[Exception], field: str) -> None:
    with pytest.raises(error, match=field) as caught:
        check_mounts([mount(**fields)], ENGINE_28)
    assert type(caught.value) is error


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        pytest.param({"image": cri.ImageSpec()}, InvalidArgument, r"image\.image: ", id="without a name"),
        pytest.param(
            {"image": cri.ImageSpec(image="a", runtime_handler="none")},
            InvalidArgument,
            r"image\.runtime_handler: the engine has no runtime 'none'",
            id="for a runtime that the engine lacks",
        ),
        pytest.param({"host_path": "/host"}, InvalidArgument, r"host_path: must be empty", id="with a host path"),
        pytest.param({"readonly": False}, InvalidArgument, r"readonly: must be true", id="writable"),
        pytest.param(
            {"propagation": cri.PROPAGATION_BIDIRECTIONAL}, Unsupported, r"propagation: ", id="propagated to the host"
        ),
        pytest.param({"image_sub_path": "/etc"}, InvalidArgument, "image_sub_path: '/etc'", id="an absolute folder"),
        pytest.param({"image_sub_path": "a/../.."}, InvalidArgument, "image_sub_path: ", id="a folder outside"),
        pytest.param({"image_sub_path": "a\0"}, InvalidArgument, "image_sub_path: ", id="a NUL in a folder"),
    ],
)
def test_an_image_volume_that_cannot_be_is_refused(
    fields: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        check_mounts([image_mount(**fields)], ENGINE_28)
    assert type(caught.value) is error


def test_an_engine_without_image_volumes_refuses_them() -> None:
    check_mounts([image_mount()], replace(ENGINE_28, api=(1, 48)))
    with pytest.raises(Unsupported, match=r"mounts\[/data\]\.image: .* Docker 28"):
        check_mounts([image_mount()], replace(ENGINE_28, api=(1, 47)))


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({}, id="a whole image"),
        pytest.param({"image_sub_path": "etc/ssl"}, id="a folder of it"),
        pytest.param({"container_path": "data/"}, id="at a relative path"),
        pytest.param({"selinux_relabel": True}, id="with a label, which the image has anyway"),
        pytest.param({"recursive_read_only": True}, id="recursively read-only, as there is nothing below it"),
        pytest.param({"propagation": cri.PROPAGATION_HOST_TO_CONTAINER}, id="where the host mounts nothing"),
    ],
)
def test_an_image_volume_is_mounted_by_the_images_id_and_told_with_it(fields: dict[str, Any]) -> None:
    asked = image_mount(**fields)
    check_mounts([asked], SELINUX)

    made = to_engine_mounts([asked], "kata", SELINUX, {"app:1": IMAGE_ID})

    options = {"ImageOptions": {"Subpath": fields["image_sub_path"]}} if "image_sub_path" in fields else {}
    assert made == [{"Type": "image", "Source": IMAGE_ID, "Target": "/data", "ReadOnly": True, **options}]
    assert to_engine_binds([asked], SELINUX) == []
    image = cri.ImageSpec(image=IMAGE_ID, image_ref=IMAGE_ID)
    told = cri.Mount(container_path="/data", readonly=True, image=image, image_sub_path=asked.image_sub_path)
    assert to_cri_mounts({"Mounts": made}) == [told]


def test_an_image_is_mounted_by_another_name_each_time() -> None:
    other_id = f"sha256:{'b' * 64}"
    asked = [image_mount(container_path=f"/{number}") for number in range(4)]
    asked.insert(1, image_mount(container_path="/other", image=cri.ImageSpec(image="other")))

    made = to_engine_mounts(asked, "", ENGINE_28, {"app:1": IMAGE_ID, "other": other_id})

    names = [mount["Source"] for mount in made]
    digits = IMAGE_ID.removeprefix("sha256:")
    assert names == [IMAGE_ID, other_id, digits, digits[:-1], digits[:-2]]
    told = [mount.image.image_ref for mount in to_cri_mounts({"Mounts": made})]
    assert told == [IMAGE_ID, other_id, IMAGE_ID, IMAGE_ID, IMAGE_ID]


@pytest.mark.parametrize("again", ["/data", "/data/", "data", "//data", "/x/../data"])
def test_two_mounts_at_one_place_are_refused(again: str) -> None:
    with pytest.raises(InvalidArgument, match="same container_path"):
        check_mounts([mount(), mount(container_path=again)], ENGINE_28)


@pytest.mark.parametrize(
    ("handler", "features"),
    [
        pytest.param("", ENGINE_20, id="an engine before 25"),
        pytest.param("kata", ENGINE_28, id="a runtime that cannot"),
        pytest.param("", replace(ENGINE_28, default_runtime="kata"), id="a default runtime that cannot"),
    ],
)
def test_recursively_read_only_needs_engine_and_runtime(handler: str, features: Any) -> None:
    asked = mount(recursive_read_only=True, readonly=True)
    check_mounts([asked], features)
    assert to_engine_mounts([asked], "", ENGINE_28, {})

    with pytest.raises(Unsupported, match=r"recursive_read_only: requires Docker 25.*(runc|kata) does not"):
        to_engine_mounts([asked], handler, features, {})


@pytest.mark.parametrize(
    ("fields", "features", "read_only", "options"),
    [
        pytest.param({}, ENGINE_28, False, {"Propagation": "rprivate"}, id="writable and private"),
        pytest.param(
            {"propagation": cri.PROPAGATION_HOST_TO_CONTAINER}, ENGINE_28, False, {"Propagation": "rslave"}, id="slave"
        ),
        pytest.param(
            {"propagation": cri.PROPAGATION_BIDIRECTIONAL}, ENGINE_28, False, {"Propagation": "rshared"}, id="shared"
        ),
        pytest.param(
            {"readonly": True},
            ENGINE_28,
            True,
            {"Propagation": "rprivate", "ReadOnlyNonRecursive": True},
            id="read-only: from 25 on not recursively",
        ),
        pytest.param({"readonly": True}, ENGINE_20, True, {"Propagation": "rprivate"}, id="read-only before 25"),
        pytest.param(
            {"readonly": True, "recursive_read_only": True},
            ENGINE_28,
            True,
            {"Propagation": "rprivate", "ReadOnlyForceRecursive": True},
            id="recursively read-only",
        ),
        pytest.param(
            {"selinux_relabel": True}, ENGINE_28, False, {"Propagation": "rprivate"}, id="a label without SELinux"
        ),
    ],
)
def test_mounts_of_the_engine(fields: dict[str, Any], features: Any, read_only: bool, options: dict[str, Any]) -> None:
    expected = {
        "Type": "bind",
        "Source": "/host",
        "Target": "/data",
        "ReadOnly": read_only,
        "BindOptions": options,
    }

    assert to_engine_mounts([mount(**fields)], "", features, {}) == [expected]
    assert to_engine_binds([mount(**fields)], features) == []


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({}, "/host:/data:rw,Z,rprivate", id="writable"),
        pytest.param({"readonly": True}, "/host:/data:ro,Z,rprivate", id="read-only"),
        pytest.param({"propagation": cri.PROPAGATION_BIDIRECTIONAL}, "/host:/data:rw,Z,rshared", id="shared"),
    ],
)
def test_a_label_is_asked_for_by_a_bind(fields: dict[str, Any], expected: str) -> None:
    asked = [mount(selinux_relabel=True, **fields)]

    assert to_engine_binds(asked, SELINUX) == [expected]
    assert to_engine_mounts(asked, "", SELINUX, {}) == []


@pytest.mark.parametrize(
    ("path", "left"),
    [
        pytest.param("/", True, id="all"),
        pytest.param("/var", True, id="above"),
        pytest.param("/var/lib/", True, id="above, with a slash"),
        pytest.param("/var/lib/docker", True, id="the very place"),
        pytest.param("/var/lib/docker/", True, id="the very place, with a slash"),
        pytest.param("/var/lib/docker/containers", True, id="within"),
        pytest.param("/var/lib/docker-data", True, id="beside, and it begins alike: engines refuse that too"),
        pytest.param("/var/lib/doc", True, id="what the root begins with: likewise"),
        pytest.param("/var/lib/kubelet", False, id="beside"),
        pytest.param("/data/var/lib/docker", False, id="elsewhere"),
        pytest.param("/var/../var/lib/docker", False, id="the same by a detour, which engines do not look through"),
    ],
)
def test_private_propagation_is_left_to_the_engine_at_its_data_root(path: str, left: bool) -> None:
    asked = [mount(host_path=path, propagation=one) for one in cri.MountPropagation.values()]
    made = to_engine_mounts(asked, "", ENGINE_28, {})
    labelled = mount(host_path=path, selinux_relabel=True)

    assert [one["BindOptions"]["Propagation"] for one in made] == ["" if left else "rprivate", "rslave", "rshared"]
    assert to_engine_binds([labelled], SELINUX) == [f"{path}:/data:rw,Z" + ("" if left else ",rprivate")]
    assert to_cri_mounts({"Mounts": made}) == asked


def test_an_engine_that_does_not_tell_its_data_root() -> None:
    [made] = to_engine_mounts([mount()], "", replace(ENGINE_28, root_dir=""), {})
    assert made["BindOptions"]["Propagation"] == "rprivate"


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"host_path": "/a:b"}, id="a host path with a colon"),
        pytest.param({"container_path": "/a:b"}, id="a container path with a colon"),
        pytest.param({"readonly": True, "recursive_read_only": True}, id="recursively read-only"),
    ],
)
def test_a_label_that_a_bind_cannot_ask_for_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(Unsupported, match="selinux_relabel"):
        to_engine_binds([mount(selinux_relabel=True, **fields)], SELINUX)


@given(
    st.lists(
        st.builds(
            cri.Mount,
            host_path=st.sampled_from(["/a", "/b/c", "/d:e"]),
            container_path=st.sampled_from(["/x", "/y z", "/v:w"]),
            readonly=st.just(True),
            propagation=st.sampled_from([0, 1, 2]),
            recursive_read_only=st.booleans(),
        )
    )
)
def test_mounts_come_back(mounts: list[cri.Mount]) -> None:
    assert to_cri_mounts({"Mounts": to_engine_mounts(mounts, "", ENGINE_28, {})}) == mounts


@given(
    st.lists(
        st.builds(
            cri.Mount,
            host_path=st.sampled_from(["/a", "/b/c"]),
            container_path=st.sampled_from(["/x", "/y z"]),
            readonly=st.booleans(),
            selinux_relabel=st.just(True),
            propagation=st.sampled_from([0, 1, 2]),
        )
    )
)
def test_binds_come_back(mounts: list[cri.Mount]) -> None:
    assert to_cri_mounts({"Binds": to_engine_binds(mounts, SELINUX)}) == mounts


@pytest.mark.parametrize(
    ("bind", "expected"),
    [
        pytest.param("/a:/b", {}, id="nothing but the paths"),
        pytest.param("/a:/b:ro", {"readonly": True}, id="read-only"),
        pytest.param("/a:/b:z", {"selinux_relabel": True}, id="a shared label"),
        pytest.param(
            "/a:/b:rslave", {"propagation": cri.PROPAGATION_HOST_TO_CONTAINER}, id="as cri-dockerd has it before 0.3.12"
        ),
    ],
)
def test_binds_of_other_shims_are_read(bind: str, expected: dict[str, Any]) -> None:
    assert to_cri_mounts({"Binds": [bind]}) == [cri.Mount(host_path="/a", container_path="/b", **expected)]


@pytest.mark.parametrize("host_config", [{}, {"Mounts": None, "Binds": None}, {"Mounts": [], "Binds": []}])
def test_a_container_without_mounts(host_config: dict[str, Any]) -> None:
    assert to_cri_mounts(host_config) == []


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        pytest.param("/data", "/data", id="as it is"),
        pytest.param("data", "/data", id="relative: from the root"),
        pytest.param("//data", "/data", id="two slashes are one"),
        pytest.param("/a/./b/../c/", "/a/c", id="cleaned"),
        pytest.param("/../..", "/", id="never above the root"),
    ],
)
def test_container_paths(path: str, expected: str) -> None:
    assert container_path(path) == expected


def test_devices() -> None:
    devices = [
        cri.Device(host_path="/dev/fuse", container_path="/dev/fuse0", permissions="mrw"),
        cri.Device(host_path="/dev/kvm"),
    ]

    assert to_engine_devices(devices) == [
        {"PathOnHost": "/dev/fuse", "PathInContainer": "/dev/fuse0", "CgroupPermissions": "mrw"},
        {"PathOnHost": "/dev/kvm", "PathInContainer": "/dev/kvm", "CgroupPermissions": "rwm"},
    ]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        pytest.param({"host_path": "fuse"}, "absolute path", id="a relative path"),
        pytest.param({"host_path": ""}, "absolute path", id="no path"),
        pytest.param({"host_path": "/dev/fuse", "permissions": "rx"}, "permissions", id="a permission that is none"),
    ],
)
def test_a_device_that_cannot_be_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"devices.*{message}"):
        to_engine_devices([cri.Device(**fields)])
