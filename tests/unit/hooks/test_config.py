"""A hook server's file is read, or refused with the reason; what is in force survives a file that is refused."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockershim.hooks.config import ConfigError, FailurePolicy, Hook, HookServer, Reading, parse, read_folder

KOORDLET = {
    "remote-endpoint": "/var/run/koordlet/koordlet.sock",
    "failure-policy": "Ignore",
    "runtime-hooks": ["PreRunPodSandbox", "PreStartContainer"],
}


def write(folder: Path, name: str, **changes: object) -> None:
    (folder / name).write_text(json.dumps({**KOORDLET, **changes}))


def test_every_key_is_read() -> None:
    assert parse("koordlet.json", json.dumps(KOORDLET).encode()) == HookServer(
        "koordlet.json",
        "/var/run/koordlet/koordlet.sock",
        FailurePolicy.IGNORE,
        frozenset({Hook.PRE_RUN_POD_SANDBOX, Hook.PRE_START_CONTAINER}),
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({"failure-policy": "Fail"}, (FailurePolicy.FAIL, 2, ()), id="policy Fail"),
        pytest.param({"failure-policy": ""}, (FailurePolicy.NONE, 2, ()), id="empty policy"),
        pytest.param({"failure-policy": None}, (FailurePolicy.NONE, 2, ()), id="null is as good as absent"),
        pytest.param({"runtime-hooks": None}, (FailurePolicy.IGNORE, 0, ()), id="no hooks"),
        pytest.param({"runtime-hooks": [hook.value for hook in Hook]}, (FailurePolicy.IGNORE, 7, ()), id="all hooks"),
        pytest.param({"more": {"of": "it"}}, (FailurePolicy.IGNORE, 2, ()), id="an unknown key"),
        pytest.param(
            {"runtime-hooks": ["PreRemoveRunPodSandbox", "PreRunPodSandbox"]},
            (FailurePolicy.IGNORE, 1, ("PreRemoveRunPodSandbox",)),
            id="a hook that is never fired",
        ),
    ],
)
def test_what_may_differ(changes: dict[str, object], expected: tuple[FailurePolicy, int, tuple[str, ...]]) -> None:
    server = parse("a.json", json.dumps({**KOORDLET, **changes}).encode())
    assert (server.policy, len(server.hooks), server.unknown) == expected


@pytest.mark.parametrize(
    ("changes", "mentions"),
    [
        pytest.param({"remote-endpoint": ""}, "remote-endpoint", id="no endpoint"),
        pytest.param({"remote-endpoint": "unix:///run/a.sock"}, "remote-endpoint", id="an endpoint with a scheme"),
        pytest.param({"remote-endpoint": "run/a.sock"}, "remote-endpoint", id="a relative endpoint"),
        pytest.param({"remote-endpoint": "/run/\0"}, "remote-endpoint", id="a NUL in the endpoint"),
        pytest.param({"remote-endpoint": "/" + "a" * 107}, "at most 107", id="an endpoint too long for a socket"),
        pytest.param({"remote-endpoint": "/\ud800"}, "not JSON", id="an endpoint that no encoding has"),
        pytest.param({"remote-endpoint": 1}, r"`str.*remote-endpoint", id="an endpoint that is a number"),
        pytest.param({"failure-policy": "fail"}, "failure-policy", id="a policy in other letters"),
        pytest.param({"failure-policy": True}, r"`str.*failure-policy", id="a policy that is a boolean"),
        pytest.param({"runtime-hooks": "PreRunPodSandbox"}, r"`array.*runtime-hooks", id="hooks that are one text"),
        pytest.param({"runtime-hooks": [1]}, r"`str.*runtime-hooks", id="hooks that are numbers"),
    ],
)
def test_what_is_refused(changes: dict[str, object], mentions: str) -> None:
    with pytest.raises(ConfigError, match=mentions):
        parse("a.json", json.dumps({**KOORDLET, **changes}).encode())


@given(
    st.one_of(st.binary(), st.text().map(str.encode), st.recursive(st.none(), st.lists).map(json.dumps).map(str.encode))
)
def test_no_bytes_do_anything_else(content: bytes) -> None:
    with contextlib.suppress(ConfigError):
        parse("a.json", content)


def test_nested_too_deeply() -> None:
    with pytest.raises(ConfigError, match="not JSON"):
        parse("a.json", b'{"a":' * 100_000)


def read(folder: Path, before: Reading | None = None) -> Reading:
    return read_folder(folder, before or Reading())


def names(reading: Reading) -> list[str]:
    return [server.name for server in reading.servers]


def test_files_are_taken_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name in ("b.json", "a.json", "10json", "c.json.bak", "json", ".d.json"):
        write(tmp_path, name)
    (tmp_path / "folder.json").mkdir()
    write(tmp_path / "folder.json", "e.json")
    assert names(read(tmp_path)) == [".d.json", "10json", "a.json", "b.json", "json"]
    assert read(tmp_path).problems == ()


def test_a_folder_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert read(tmp_path / "none") == Reading()
    (tmp_path / "file").touch()
    assert read(tmp_path / "file") == Reading()


def test_what_a_file_said_before_stays_in_force(tmp_path: Path) -> None:
    write(tmp_path, "a.json")
    write(tmp_path, "b.json")
    before = read(tmp_path)
    (tmp_path / "a.json").write_text('{"remote-endpoint": ')
    (tmp_path / "c.json").write_text("")
    after = read(tmp_path, before)
    assert after.servers == before.servers
    assert [line.rpartition("; ")[2] for line in after.problems] == [
        "its earlier content remains in effect",
        "it is ignored",
    ]
    assert str(tmp_path / "a.json") in after.problems[0]
    (tmp_path / "a.json").unlink()
    assert names(read(tmp_path, after)) == ["b.json"]


@pytest.mark.parametrize("kind", ["fifo", "loop", "large", "unreadable"])
def test_files_that_are_none(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "large":
        path.write_bytes(b" " * (1 << 20) + b"{}")
    else:
        path.symlink_to("/proc/self/mem")
    write(tmp_path, "b.json")
    reading = read(tmp_path)
    assert names(reading) == ["b.json"]
    assert len(reading.problems) == 1


def test_hooks_that_do_not_exist_are_reported(tmp_path: Path) -> None:
    write(tmp_path, "a.json", **{"runtime-hooks": ["PreRunPodSandbox", "Pre\nX"]})
    reading = read(tmp_path)
    assert names(reading) == ["a.json"]
    assert reading.problems == (f"{tmp_path}/a.json: runtime-hooks: unknown hook 'Pre\\nX'",)
