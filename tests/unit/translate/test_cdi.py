"""CDI devices: which specification has one, which edits it gives, and what no create call can make."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.errors import FailedPrecondition, InvalidArgument, Unsupported
from dockershim.translate.cdi import (
    BindMount,
    DeviceNode,
    Edits,
    HostPath,
    SpecFile,
    cdi_names,
    check_host,
    kind_and_name,
    to_device_requests,
    to_edits,
    with_edits,
)
from tests.unit.translate.kubelet import ENGINE_20, ENGINE_28

KIND = "v.com/c"
NAME = f"{KIND}=0"
ETC, RUN = 0, 1


def device(name: str = "0", **edits: Any) -> dict[str, Any]:
    return {"name": name, "containerEdits": edits or {"env": [f"NAME={name}"]}}


def file(path: str = "/etc/cdi/a.json", priority: int = ETC, **fields: Any) -> SpecFile:
    spec = {"cdiVersion": "1.1.0", "kind": KIND, "devices": [device()], **fields}
    return SpecFile(priority, path, json.dumps(spec))


def edits_of(**edits: Any) -> Edits:
    made, problems = to_edits([NAME], [file(devices=[device(**edits)])])
    assert problems == {}
    return made


# Names


def asked(*devices: str, **annotations: str) -> cri.ContainerConfig:
    return cri.ContainerConfig(
        CDI_devices=[cri.CDIDevice(name=name) for name in devices],
        annotations={key.replace("__", "/"): value for key, value in annotations.items()},
    )


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        pytest.param({}, [], id="none"),
        pytest.param(
            {"cdi.k8s.io/b": "v.com/c=2,v.com/c=3", "cdi.k8s.io/a": "v.com/c=1"}, ["1", "2", "3"], id="several"
        ),
        pytest.param({"cdi.k8s.io/a": "v.com/c=0"}, [], id="one that the field has, too"),
        pytest.param({"cdi.k8s.io": "v.com/c=1", "x/cdi.k8s.io/a": "v.com/c=1"}, [], id="other keys"),
    ],
)
def test_devices_of_the_field_and_of_annotations(annotations: dict[str, str], expected: list[str]) -> None:
    names = cdi_names(asked(NAME, **annotations))

    assert names == tuple(f"{KIND}={name}" for name in ("0", *expected))
    assert to_device_requests(names) == [{"Driver": "cdi", "DeviceIDs": list(names)}]
    assert cdi_names(asked()) == ()
    assert to_device_requests(()) == []


NO_NAMES = ["", "gpu0", "v.com/c", "v.com/c=", "=0", "/c=0", "v.com=0", "v.com/c/d=0", "9v.com/c=0", "v.com/c=-0"]


@pytest.mark.parametrize("name", [*NO_NAMES, "v.com/c=a b"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument, match="CDI_devices: "):
        cdi_names(asked(name))
    with pytest.raises(InvalidArgument, match="CDI_devices: "):
        cdi_names(asked(**{"cdi.k8s.io/a": f"{NAME},{name}"}))


def test_a_name_has_a_kind_and_a_name() -> None:
    assert kind_and_name("a.b-c_d.com/e.f=0:1.g_h-i") == ("a.b-c_d.com/e.f", "0:1.g_h-i")
    assert cdi_names(asked("a.b-c_d.com/e.f=0:1.g_h-i")) == ("a.b-c_d.com/e.f=0:1.g_h-i",)


# Which specification


def test_a_later_folder_counts_more() -> None:
    files = [file(), file("/var/run/cdi/a.json", RUN, devices=[device(env=["FROM=run"])])]

    assert to_edits([NAME], files)[0].env == to_edits([NAME], files[::-1])[0].env == ("FROM=run",)


@pytest.mark.parametrize("more", [pytest.param([], id="alone"), pytest.param([file("/r", RUN)], id="a better folder")])
def test_two_files_of_a_folder_with_the_same_device_are_a_conflict(more: list[SpecFile]) -> None:
    rivals = [file(), file("/etc/cdi/b.json", devices=[device(), device("1")])]

    with pytest.raises(FailedPrecondition, match=r"v\.com/c=0\]: both '/etc/cdi/a.json' and '/etc/cdi/b.json'"):
        to_edits([NAME], [*rivals, *more])
    assert to_edits([f"{KIND}=1"], [*rivals, *more])[0].env == ("NAME=1",)


def test_a_device_that_nobody_has_is_refused_with_the_files_that_may_have_had_it() -> None:
    files = [
        file(devices=[device("1")]),
        file("/etc/cdi/b.json", kind="v.com/d"),
        SpecFile(ETC, "/etc/cdi/c.json", "{"),
        SpecFile(RUN, "/d.yaml", problem="is no YAML"),
    ]
    with pytest.raises(FailedPrecondition) as caught:
        to_edits([NAME], files)
    assert str(caught.value) == (
        "CDI_devices[v.com/c=0]: no CDI specification in /etc/cdi or /var/run/cdi has this device;"
        " '/etc/cdi/c.json' Input data was truncated; '/d.yaml' is no YAML"
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("", "truncated", id="empty"),
        pytest.param("[" * 100_000, "array", id="many levels"),
        pytest.param('{"annotations": ' * 100_000, "object", id="many levels of a field"),
        pytest.param(file(devices=[{"name": "0", "containerEdits": 1}]).json, r"\$.devices\[0\]", id="a wrong type"),
        pytest.param(file(x=1).json, "unknown field `x`", id="an unknown field"),
        pytest.param('{"\\n' + "x" * 1000 + '": 1}', "unknown field `x{100}", id="a long unknown field"),
        pytest.param(file(cdiVersion="1.2.0").json, "1.2.0.*0.3.0 to 1.1.0", id="an unknown version"),
        pytest.param(file(cdiVersion="0.2.0").json, "0.2.0", id="an old version"),
        pytest.param(file(kind="c").json, "kind 'c'", id="no kind"),
        pytest.param(file(devices=[]).json, "no devices", id="no devices"),
        pytest.param(file(devices=[device("a b")]).json, "'a b'", id="no name"),
        pytest.param(file(devices=[device(), device()]).json, "'0' twice", id="a device twice"),
        pytest.param(file(devices=[{"name": "0"}]).json, "no containerEdits for the device '0'", id="no edits"),
    ],
)
def test_a_file_that_is_no_specification(text: str, problem: str) -> None:
    bad = SpecFile(ETC, "/etc/cdi/bad.json", text)

    made, problems = to_edits([NAME], [file(), bad])
    assert made.env == ("NAME=0",)
    with pytest.raises(FailedPrecondition, match=rf"has this device; '/etc/cdi/bad.json' .*{problem}"):
        to_edits([NAME], [bad])
    assert list(problems) == [bad.path]
    assert problems[bad.path].isprintable()
    assert len(problems[bad.path]) <= 200


@pytest.mark.parametrize("version", ["0.3.0", "v0.3.0", "1.1.0"])
def test_versions(version: str) -> None:
    """Fields of a later version are taken, too."""
    edits, problems = to_edits([f"{KIND}=0"], [file(cdiVersion=version, containerEdits={"additionalGids": [1]})])

    assert (edits.groups, problems) == ((1,), {})


def like_a_specification(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    fields = ["env", "deviceNodes", "path", "mounts", "options", "hostPath"]
    return st.lists(inner) | st.dictionaries(st.sampled_from(fields), inner)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), like_a_specification))
def test_any_content_is_edits_or_a_failure_that_names_the_device(content: Any) -> None:
    for text in json.dumps(content), file(devices=[{"name": "0", "containerEdits": content}]).json:
        try:
            to_edits([NAME], [SpecFile(ETC, "/etc/cdi/a.json", text)])
        except (FailedPrecondition, InvalidArgument) as error:
            assert str(error).startswith(f"CDI_devices[{NAME}]: ")  # noqa: PT017 - it may as well be right


# Edits


def test_the_edits_of_a_specification_come_once_and_before_those_of_its_devices() -> None:
    one = file(devices=[device(), device("1")], containerEdits={"env": ["ALL=a"], "additionalGids": [7]})
    other = file("/etc/cdi/b.json", kind="v.com/d", containerEdits={"env": ["ALL=b"]})

    made, _ = to_edits([f"{KIND}=1", "v.com/d=0", NAME], [other, one])
    assert made.env == ("ALL=a", "NAME=1", "ALL=b", "NAME=0", "NAME=0")
    assert made.groups == (7,)


NODE = DeviceNode("", "/dev/x", "/dev/x", "", None, None, None, None, "rwm")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({}, {}, id="path only"),
        pytest.param({"hostPath": "/dev/y"}, {"host_path": "/dev/y"}, id="another path"),
        pytest.param({"permissions": "wr"}, {"permissions": "rw"}, id="permissions"),
        pytest.param({"permissions": ""}, {}, id="empty permissions"),
        pytest.param({"type": "b"}, {"type": "block"}, id="block"),
        pytest.param({"type": "c", "major": 1, "minor": 3}, {"type": "character", "number": (1, 3)}, id="number"),
        pytest.param({"major": 0, "minor": 3}, {}, id="a minor number alone counts as none"),
        pytest.param({"fileMode": 438, "uid": 0, "gid": 5}, {"file_mode": 438, "uid": 0, "gid": 5}, id="owner"),
        pytest.param({"fileMode": "0666", "uid": "10"}, {"file_mode": 438, "uid": 10}, id="texts"),
        pytest.param({"fileMode": "0x1b6"}, {"file_mode": 438}, id="a hexadecimal text"),
        pytest.param({"fileMode": "0o666"}, {"file_mode": 438}, id="another octal text"),
    ],
)
def test_nodes(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    [node] = edits_of(deviceNodes=[{"path": "/dev/x", **fields}]).nodes

    assert replace(node, where="") == replace(NODE, **expected)


MOUNT = BindMount("", "/h", "/c", False, True, "rprivate", ())


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({}, {}, id="paths only"),
        pytest.param({"containerPath": "/c/./d/"}, {"path": "/c/d"}, id="another form of a path"),
        pytest.param({"options": ["ro", "rbind"]}, {"readonly": True}, id="ro"),
        pytest.param({"options": ["ro", "rw"]}, {}, id="the last counts"),
        pytest.param({"options": ["bind"], "type": "none"}, {"recursive": False}, id="bind"),
        pytest.param({"options": ["bind", "rbind"], "type": "bind"}, {}, id="bind and rbind"),
        pytest.param({"options": ["rslave"]}, {"propagation": "rslave"}, id="propagation"),
        pytest.param({"options": ["noexec", "nosuid"]}, {"flags": ("nosuid", "noexec")}, id="flags"),
    ],
)
def test_mounts(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    [mount] = edits_of(mounts=[{"hostPath": "/h", "containerPath": "/c", **fields}]).mounts

    assert replace(mount, where="") == replace(MOUNT, **expected)


def test_group_0_counts_as_none() -> None:
    assert edits_of(additionalGids=[0, 5, "6"]).groups == (5, 6)


def node(**fields: Any) -> dict[str, Any]:
    return {"deviceNodes": [{"path": "/dev/x", **fields}]}


def mount(**fields: Any) -> dict[str, Any]:
    return {"mounts": [{"hostPath": "/h", "containerPath": "/c", **fields}]}


@pytest.mark.parametrize(
    ("edits", "error", "message"),
    [
        pytest.param(
            {"hooks": [{"hookName": "createContainer", "path": "/bin/h"}]},
            Unsupported,
            r"hooks\['createContainer' '/bin/h'\]: .*Docker 25.*runtime of the vendor",
            id="hook",
        ),
        pytest.param({"intelRdt": {"closID": "a"}}, Unsupported, "intelRdt: .*Docker 25", id="RDT"),
        pytest.param(
            {"netDevices": [{"hostInterfaceName": "a", "name": "b"}]}, Unsupported, "netDevices: ", id="network device"
        ),
        pytest.param({"env": ["A"]}, FailedPrecondition, "env: 'A' must be", id="no variable"),
        pytest.param({"env": ["=a"]}, FailedPrecondition, "env: '=a' must be", id="no name of a variable"),
        pytest.param({"env": ["A=\0"]}, FailedPrecondition, "env: ", id="a NUL in a variable"),
        pytest.param({"additionalGids": [2**31]}, Unsupported, "additionalGids: 2147483648", id="a great group"),
        pytest.param({"additionalGids": ["x"]}, FailedPrecondition, "additionalGids: 'x'", id="no group"),
        pytest.param(node(type="p"), Unsupported, r"deviceNodes\['/dev/x'\].type: 'p'", id="a pipe"),
        pytest.param(node(permissions="none"), Unsupported, "permissions: ", id="no permissions"),
        pytest.param(node(permissions="rx"), FailedPrecondition, "permissions: 'rx'", id="wrong permissions"),
        pytest.param(node(major=-1), FailedPrecondition, "major: -1", id="a negative number"),
        pytest.param(node(fileMode="0888"), FailedPrecondition, "fileMode: '0888'", id="no octal number"),
        pytest.param(node(hostPath="x"), FailedPrecondition, "hostPath: 'x' must be an absolute", id="a relative path"),
        pytest.param(node(hostPath="/x\n"), InvalidArgument, "hostPath: control", id="a path with a line feed"),
        pytest.param(mount(type="tmpfs"), Unsupported, r"mounts\['/c'\].type: 'tmpfs'", id="another file system"),
        pytest.param(mount(options=["rro"]), Unsupported, "options: 'rro'", id="another option"),
        pytest.param(mount(hostPath="h"), FailedPrecondition, "hostPath: 'h'", id="a mount of a relative path"),
        pytest.param(mount(containerPath="c"), FailedPrecondition, "containerPath: 'c'", id="at a relative path"),
    ],
)
def test_what_a_create_call_cannot_make_is_refused(edits: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=rf"^CDI_devices\[v.com/c=0\]: '/etc/cdi/a.json': devices\[0\]\..*{message}"):
        edits_of(**edits)
    with pytest.raises(error, match=rf"^CDI_devices\[v.com/c=0\]: '/etc/cdi/a.json': containerEdits\..*{message}"):
        to_edits([NAME], [file(containerEdits=edits)])
    # The other devices of a specification can be used.
    assert to_edits([NAME], [file(devices=[device(), device("1", **edits)])])[0].env == ("NAME=0",)


# The host


NULL = HostPath(mode=stat.S_IFCHR | 0o666, uid=0, gid=5, major=1, minor=3, flags=0)


@pytest.mark.parametrize(
    ("fields", "host"),
    [
        pytest.param({}, NULL, id="nothing said"),
        pytest.param({"type": "c", "major": 1, "minor": 3, "fileMode": 0o666, "uid": 0, "gid": 5}, NULL, id="the same"),
        pytest.param({"fileMode": stat.S_IFCHR | 0o666}, NULL, id="a mode with the type"),
        pytest.param({"type": "b"}, replace(NULL, mode=stat.S_IFBLK | 0o660), id="block"),
    ],
)
def test_a_node_that_the_engine_can_copy(fields: dict[str, Any], host: HostPath) -> None:
    check_host(edits_of(**node(**fields)), {"/dev/x": host})


@pytest.mark.parametrize(
    ("fields", "host", "error", "message"),
    [
        pytest.param({}, None, FailedPrecondition, "'/dev/x' does not exist", id="nothing there"),
        pytest.param({}, replace(NULL, mode=stat.S_IFLNK | 0o777), FailedPrecondition, "a symbolic link", id="a link"),
        pytest.param({}, replace(NULL, mode=stat.S_IFREG | 0o666), FailedPrecondition, "is not a device", id="a file"),
        pytest.param({"type": "b"}, NULL, Unsupported, "type block differs from character", id="type"),
        pytest.param(
            {"major": 1, "minor": 4}, NULL, Unsupported, r"major and minor \(1, 4\) differs from \(1, 3\)", id="number"
        ),
        pytest.param({"fileMode": 0o600}, NULL, Unsupported, "fileMode 0o600 differs from 0o666", id="mode"),
        pytest.param({"uid": 1}, NULL, Unsupported, "uid 1 differs from 0 of '/dev/x'.*Docker 25", id="user"),
        pytest.param({"gid": 0}, NULL, Unsupported, "gid 0 differs from 5", id="group"),
    ],
)
def test_a_node_that_would_differ_is_refused(
    fields: dict[str, Any], host: HostPath | None, error: type[Exception], message: str
) -> None:
    there = {} if host is None else {"/dev/x": host}

    where = r"^CDI_devices\[v.com/c=0\]: '/etc/cdi/a.json': devices\[0\].deviceNodes\['/dev/x'\]: "
    with pytest.raises(error, match=f"{where}.*{message}"):
        check_host(edits_of(**node(**fields)), there)


@pytest.mark.parametrize(
    ("options", "flags", "message"),
    [
        pytest.param([], 0, "", id="none"),
        pytest.param(["nosuid", "nodev"], os.ST_NOSUID | os.ST_NODEV, "", id="those of the host"),
        pytest.param(["nosuid", "nodev"], os.ST_NOSUID, "nodev that '/h' does not have", id="one of them missing"),
        pytest.param(["noexec", "ro"], os.ST_NOEXEC, "noexec of a read-only mount", id="a mount that is made anew"),
    ],
)
def test_flags_of_mounts(options: list[str], flags: int, message: str) -> None:
    edits, there = edits_of(**mount(options=options)), {"/h": replace(NULL, flags=flags)}

    if not message:
        check_host(edits, there)
    else:
        with pytest.raises(Unsupported, match=rf"mounts\['/c'\].options: the engine cannot set {message}; remove it"):
            check_host(edits, there)
    with pytest.raises(FailedPrecondition, match="'/h' does not exist on the host"):
        check_host(edits, {})


# The engine

BODY: dict[str, Any] = {
    "Env": ["A=1", "B=2", "A=3"],
    "Image": "i",
    "HostConfig": {
        "Devices": [{"PathOnHost": "/dev/a", "PathInContainer": "/dev/x", "CgroupPermissions": "rwm"}],
        "Mounts": [{"Target": "/c"}, {"Target": "/d"}],
        "Binds": ["/a:/c:Z", "/a:/e:Z"],
        "GroupAdd": ["5"],
        "Privileged": False,
    },
}


def test_edits_replace_what_is_at_their_place() -> None:
    edits = Edits(
        env=("C=4", "A=5", "C=6"),
        nodes=(replace(NODE, host_path="/dev/y"), replace(NODE, permissions="r"), replace(NODE, path="/dev/z")),
        mounts=(MOUNT, replace(MOUNT, readonly=True, recursive=False, propagation="rslave")),
        groups=(5, 6),
    )

    body = with_edits(BODY, edits, ENGINE_28)
    assert body == {
        # A label says how many of the first ones are the request's.
        "Env": ["A=5", "B=2", "A=3", "C=6"],
        "Image": "i",
        "HostConfig": {
            "Devices": [
                {"PathOnHost": "/dev/x", "PathInContainer": "/dev/x", "CgroupPermissions": "r"},
                {"PathOnHost": "/dev/x", "PathInContainer": "/dev/z", "CgroupPermissions": "rwm"},
            ],
            "Mounts": [
                {
                    "Type": "bind",
                    "Source": "/h",
                    "Target": "/c",
                    "ReadOnly": True,
                    "BindOptions": {"Propagation": "rslave", "ReadOnlyNonRecursive": True, "NonRecursive": True},
                },
                {"Target": "/d"},
            ],
            "Binds": ["/a:/e:Z"],
            "GroupAdd": ["5", "6"],
            "Privileged": False,
        },
    }


def test_mounts_of_an_old_engine_and_at_its_data_root() -> None:
    edits = Edits(mounts=(replace(MOUNT, host_path="/var/lib/docker", readonly=True),))

    [mount, _] = with_edits(BODY, edits, ENGINE_20)["HostConfig"]["Mounts"]
    assert mount["BindOptions"] == {"Propagation": ""}
