"""How a container's bundle is found, in a /proc and a state folder of the test."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dockershim.engine_files.bundle import Bundle, NoBundle, find_bundle

ID = "c0" * 32
FILES = {
    "init.pid": "77",
    "runtime": "runc",
    "options.json": '{"binary_name":"runc","root":"/run/docker/runtime-runc"}',
    "config.json": '{"ociVersion":"1.2.0"}',
}


def node(tmp_path: Path, changed: dict[str, str | None], shim_of: str = ID) -> Path:
    """A /proc with process 77, the child of the shim of ``shim_of``. ``changed`` files of the bundle may be missing."""
    proc, state = tmp_path / "proc", tmp_path / "state" / "moby"
    (proc / "77").mkdir(parents=True)
    (proc / "77" / "stat").write_text("77 (a) b) (c) S 55 77 77 0 -1")
    (proc / "55").mkdir()
    (state / shim_of).mkdir(parents=True)
    (proc / "55" / "cwd").symlink_to(state / shim_of)
    (state / ID).mkdir(exist_ok=True)
    for name, content in (FILES | changed).items():
        if content is not None:
            (state / ID / name).write_text(content)
    return proc


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        pytest.param({}, Bundle({"ociVersion": "1.2.0"}, "runc", "/run/docker/runtime-runc/moby"), id="Docker's"),
        pytest.param(
            {"options.json": ""},
            Bundle({"ociVersion": "1.2.0"}, "runc", "/run/containerd/runc/moby"),
            id="containerd's own root",
        ),
        pytest.param(
            {"runtime": "/run/docker/runtimes/crun\n"},
            Bundle({"ociVersion": "1.2.0"}, "/run/docker/runtimes/crun", "/run/docker/runtime-runc/moby"),
            id="a runtime of the operator",
        ),
    ],
)
def test_it_is_beside_the_working_folder_of_the_shim(
    tmp_path: Path, changed: dict[str, str | None], expected: Bundle
) -> None:
    assert find_bundle(77, ID, node(tmp_path, changed)) == expected


def test_a_shim_may_have_several_containers(tmp_path: Path) -> None:
    assert find_bundle(77, ID, node(tmp_path, {}, shim_of="5a" * 32)).runtime == "runc"


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"init.pid": "78"}, id="another process now"),
        pytest.param({"runtime": None}, id="another kind of shim"),
        pytest.param({"options.json": "[]"}, id="no options"),
        pytest.param({"config.json": json.dumps("x")[:2]}, id="half a file"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, changed: dict[str, str | None]) -> None:
    with pytest.raises(NoBundle, match=ID):
        find_bundle(77, ID, node(tmp_path, changed))


def test_a_process_that_has_ended_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoBundle, match="has exited"):
        find_bundle(78, ID, node(tmp_path, {}))
