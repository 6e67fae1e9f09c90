"""The CDI specifications of a folder: only what may concern a device is parsed, and everything has a bound."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockershim.host_paths import cdi
from dockershim.host_paths.cdi import Found, find, look_at, yaml_to_json
from dockershim.host_paths.server_side import HostPaths
from dockershim.translate.cdi import HostPath, SpecFile

DEVICES = [("v.com/c", "gpu0"), ("v.com/d", "x")]
TEXT = '{"kind": "v.com/c", "devices": [{"name": "gpu0"}]}'


@pytest.fixture
async def host_paths() -> AsyncIterator[HostPaths]:
    async with HostPaths() as made:
        yield made


def no_touch(place: str) -> None:
    """Nothing hangs here."""


def found(folder: Path) -> dict[str, tuple[str, str]]:
    """What is found of a file, by its name: its JSON and its problem."""
    return {Path(file.path).name: (file.json, file.problem) for file in find(str(folder), DEVICES, no_touch)}


async def test_the_server_gets_the_files_of_all_folders(host_paths: HostPaths, tmp_path: Path) -> None:
    for name, file in ("a", "one.json"), ("b", "two.json"), ("b", "bad.yaml"):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / file).write_text(TEXT)
    (tmp_path / "b" / "bad.yaml").write_text("- v.com/c gpu0\nx")
    folders = [str(tmp_path / name) for name in ("none", "a", "b")]

    assert await host_paths.cdi_specs(folders, DEVICES) == [
        SpecFile(1, f"{folders[1]}/one.json", TEXT),
        SpecFile(2, f"{folders[2]}/bad.yaml", problem="is not valid YAML: could not find expected ':' in line 3"),
        SpecFile(2, f"{folders[2]}/two.json", TEXT),
    ]
    with pytest.raises(OSError, match=r"one\.json"):
        await host_paths.cdi_specs([f"{folders[1]}/one.json"], DEVICES)


def test_only_files_that_may_have_the_device_are_told(tmp_path: Path) -> None:
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "to nothing.json").symlink_to("nothing")
    (tmp_path / "to a file.json").symlink_to("a.json")
    os.mkfifo(tmp_path / "pipe.json")
    for name, text in {
        "a.json": TEXT,
        "escaped.json": r'{"kind": "v.com\/c", "devices": [{"name": "gpu\u0030"}]}',
        "malformed.json": TEXT[:-2],
        "other kind.json": TEXT.replace("v.com/c", "v.com/e"),
        "other device.json": TEXT.replace("gpu0", "x"),
        "other and malformed.json": "{",
        "a.yml": TEXT,
        "a.txt": TEXT,
        ".json": TEXT,
    }.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "binary.json").write_bytes(b"\xff")

    files = found(tmp_path)
    assert files == {
        ".json": (TEXT, ""),
        "a.json": (TEXT, ""),
        "binary.json": ("", "is not UTF-8"),
        "escaped.json": ((tmp_path / "escaped.json").read_text(), ""),
        "malformed.json": (TEXT[:-2], ""),
        "pipe.json": ("", "is not a regular file"),
        "to a file.json": (TEXT, ""),
    }
    assert list(files) == sorted(files)


def test_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "long.json").write_text(TEXT + " " * 2**20)
    (tmp_path / "a.json").write_text(TEXT)
    assert found(tmp_path) == {"a.json": (TEXT, ""), "long.json": ("", "is longer than 1048576 bytes")}

    for number in range(4):
        # Nearly all of an answer's bytes are its escapes.
        (tmp_path / f"{number}.json").write_text(TEXT + "\\" * 1_000_000)
    with pytest.raises(OSError, match="of these devices must be no longer than"):
        found(tmp_path)
    for number in range(4):
        (tmp_path / f"{number}.json").unlink()
        (tmp_path / f"{number}.yaml").write_text('"v.com/c gpu0 \\q' + " " * 1_000_000)
    with pytest.raises(OSError, match="of these devices must be no longer than"):
        found(tmp_path)
    monkeypatch.setattr(cdi, "_MOST_READ", 1_500_000)
    with pytest.raises(OSError, match="longer than 1500000 characters in total"):
        found(tmp_path)
    monkeypatch.setattr(cdi, "_MOST_FILES", 5)
    with pytest.raises(OSError, match="more than 5 CDI specifications"):
        found(tmp_path)


YAML = """\
---
# made by hand
cdiVersion: 0.5.0
kind: "v.com/c"
annotations:
devices:
- name: 0
  containerEdits:
    env: [A=yes, 'B= ', "C=\\u00fc"]
    deviceNodes:
    - {path: /dev/x, fileMode: 0666, major: ~}
    mounts: []
---
second: document
"""


def test_yaml_becomes_json() -> None:
    assert json.loads(yaml_to_json(YAML)) == {
        "cdiVersion": "0.5.0",
        "kind": "v.com/c",
        "devices": [
            {
                "name": "0",
                "containerEdits": {
                    "env": ["A=yes", "B= ", "C=ü"],
                    "deviceNodes": [{"path": "/dev/x", "fileMode": "0666"}],
                    "mounts": [],
                },
            }
        ],
    }
    assert yaml_to_json("") == "null"
    assert yaml_to_json("a: ''") == '{"a": ""}'


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("a: [}", "is not valid YAML: did not find expected node content in line 1", id="an open list"),
        pytest.param(
            "a: b: c", "is not valid YAML: mapping values are not allowed in this context in line 1", id="colons"
        ),
        pytest.param(
            "\0", "is not valid YAML: control characters are not allowed at character 0", id="a control character"
        ),
        pytest.param("[" * 100, "is nested more than 16 levels deep in line 1", id="levels deep"),
        pytest.param("{a: " * 100_000, "is nested more than 16 levels deep in line 1", id="levels deep of keys"),
        pytest.param("- " * 100_000, "is nested more than 16 levels deep in line 1", id="levels deep of a block"),
        pytest.param("a: &x [1]\nb: *x", "has an alias in line 2; aliases are not supported", id="an alias"),
        pytest.param("a: !!python/name:os.system x", "has a tag in line 1; tags are not supported", id="a tag"),
        pytest.param("a: !x [1]", "has a tag in line 1; tags are not supported", id="a tag of a list"),
        pytest.param("a: 1\na: 2", "has a duplicate key before line 3", id="a duplicate key"),
        pytest.param("? [a]\n: 1", "has a key that is not a string before line 3", id="a key that is a list"),
    ],
)
def test_yaml_that_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=r"^(is not valid YAML|is nested|has)") as caught:
        yaml_to_json(text)
    assert str(caught.value) == problem


def test_so_many_levels_that_a_parser_may_refuse_them_itself() -> None:
    with pytest.raises(ValueError, match=r"more than 16 levels|exceeded maximum nesting depth"):
        yaml_to_json("[" * 100_000)


@given(st.text())
def test_any_text_is_yaml_or_refused(text: str) -> None:
    try:
        json.loads(yaml_to_json(text))
    except ValueError as error:
        assert str(error).startswith(("is not valid YAML: ", "has "))  # noqa: PT017 - it may as well be right


_LEAVES = st.text(st.characters(codec="utf-8", exclude_categories=["C"]))


@given(st.recursive(_LEAVES, lambda inner: st.lists(inner) | st.dictionaries(_LEAVES, inner), max_leaves=8))
def test_json_is_yaml(value: Any) -> None:
    assert json.loads(yaml_to_json(json.dumps(value, ensure_ascii=False))) == value


def test_what_is_at_a_path(tmp_path: Path) -> None:
    (tmp_path / "null").symlink_to("/dev/null")
    (tmp_path / "dangling").symlink_to("nothing")
    null, status = look_at("/dev/null", no_touch), Path("/dev/null").stat()

    assert null is not None
    assert stat.S_ISCHR(null["mode"])
    assert (null["major"], null["minor"]) == (1, 3)
    assert (null["uid"], null["gid"], null["mode"]) == (status.st_uid, status.st_gid, status.st_mode)
    assert null["flags"] == os.statvfs("/dev/null").f_flag
    link = look_at(str(tmp_path / "null"), no_touch)
    assert link is not None
    assert stat.S_ISLNK(link["mode"])
    assert link["flags"] == null["flags"]
    assert (link["major"], link["minor"]) == (0, 0)
    for nothing in "dangling", "none", "null/below":
        assert look_at(str(tmp_path / nothing), no_touch) is None


async def test_the_server_gets_what_is_at_paths(host_paths: HostPaths, tmp_path: Path) -> None:
    there = await host_paths.look_at(["/dev/null", str(tmp_path / "none")])

    expected = look_at("/dev/null", no_touch)
    assert expected is not None
    assert there == {"/dev/null": HostPath(**expected)}
    assert await host_paths.look_at([]) == {}


def test_yaml_is_imported_when_there_is_some() -> None:
    """A process that finds none stays small."""
    script = (
        "import sys; from dockershim.host_paths import path_process, cdi;"
        "assert 'yaml' not in sys.modules; cdi.yaml_to_json('a'); assert 'yaml' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_found_is_what_the_server_reads() -> None:
    assert SpecFile(0, *Found("path", "json", "problem")) == SpecFile(0, "path", "json", "problem")
