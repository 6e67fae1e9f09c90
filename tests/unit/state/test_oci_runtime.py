"""The trial of --oci-runtime, with scripts for the program, and the look at what a container got."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from dockershim.cri.user_namespaces import has_ids
from dockershim.state import oci_runtime
from dockershim.state.engine_info import EngineInfo
from dockershim.state.oci_runtime import (
    config_members_support,
    early_network_support,
    unified_support,
    user_namespace_support,
)
from dockershim.translate.capabilities import (
    NO_CONFIG_MEMBERS,
    NO_EARLY_NETWORK,
    NO_UNIFIED,
    NO_USER_NAMESPACES,
    RuntimeSupport,
)
from dockershim.translate.user_namespace import UserNamespace

Support = Callable[[tuple[int, int], Mapping[str, Any], str], Awaitable[RuntimeSupport]]
FEATURES = '{"linux":{"namespaces":["user"],"mountExtensions":{"idmap":{"enabled":true}}}}'


def engine_data(folder: Path, script: str | None) -> dict[str, Any]:
    """What an engine with this program for a runtime tells of itself."""
    program = folder / "program"
    if script is not None:
        program.write_text(script)
        program.chmod(0o755)
    status = {"org.opencontainers.runtime-spec.features": FEATURES}
    return {
        "Runtimes": {"ours": {"path": str(program), "status": status}},
        "DockerRootDir": "/data",
        "KernelVersion": "6.1.0",
        "CgroupVersion": "2",
    }


async def tried(folder: Path, script: str | None, support: Support = user_namespace_support) -> tuple[str, str]:
    found = await support((1, 51), engine_data(folder, script), "ours")
    return found.runtime, found.problem


async def test_nothing_is_tried_without_the_option() -> None:
    assert await user_namespace_support((1, 51), {}, "") == NO_USER_NAMESPACES
    assert await early_network_support((1, 51), {}, "") == NO_EARLY_NETWORK
    assert await config_members_support((1, 51), {}, "") == NO_CONFIG_MEMBERS


async def test_the_program_is_asked_whether_it_is_new_enough_for_hooks(tmp_path: Path) -> None:
    script = '#!/bin/sh\ntest "$*" = --dockershim-features && echo network namespaces && echo members\n'
    assert await tried(tmp_path, script, config_members_support) == ("ours", "")
    assert await tried(tmp_path, script, early_network_support) == ("ours", "")
    runtime, problem = await tried(tmp_path, "#!/bin/sh\necho network namespaces\n", config_members_support)
    assert (runtime, "its version is too old" in problem) == ("", True)


async def test_the_program_is_asked_for_cgroup_files_on_a_node_that_has_them(tmp_path: Path) -> None:
    script = '#!/bin/sh\ntest "$*" = --dockershim-features && echo members && echo unified\n'
    assert await tried(tmp_path, script, unified_support) == ("ours", "")
    # runc refuses to start a container with such files.
    v1 = {**engine_data(tmp_path, script), "CgroupVersion": "1"}
    assert await unified_support((1, 51), v1, "ours") == NO_UNIFIED
    runtime, problem = await tried(tmp_path, "#!/bin/sh\necho members\n", unified_support)
    assert (runtime, "its version is too old" in problem) == ("", True)


async def test_the_program_is_asked_whether_it_is_new_enough_for_early_networks(tmp_path: Path) -> None:
    script = '#!/bin/sh\ntest "$*" = --dockershim-features && echo network namespaces\n'
    assert await tried(tmp_path, script, early_network_support) == ("ours", "")
    runtime, problem = await tried(tmp_path, "#!/bin/sh\necho user namespaces\n", early_network_support)
    assert (runtime, problem) == (
        "",
        f"--early-network, --oci-runtime=ours: {tmp_path}/program is not dockershim-runc, or its version is too old",
    )


async def test_the_program_is_asked_about_the_engines_folder(tmp_path: Path) -> None:
    script = '#!/bin/sh\ntest "$*" = "--dockershim-probe /data containers volumes" && echo user namespaces\n'
    assert await tried(tmp_path, script) == ("ours", "")


@pytest.mark.parametrize(
    ("script", "words"),
    [
        pytest.param("#!/bin/sh\necho dockershim-runc: no namespaces >&2; exit 1\n", "no namespaces", id="it says why"),
        pytest.param("#!/bin/sh\nexit 0\n", "is not dockershim-runc", id="no answer"),
        pytest.param("#!/bin/sh\necho No help topic >&2; exit 3\n", "is not dockershim-runc", id="another program"),
        pytest.param("#!/nowhere\n", "cannot start", id="no interpreter"),
        pytest.param(None, "No such file", id="no program"),
    ],
)
async def test_what_is_wrong_is_told(tmp_path: Path, script: str | None, words: str) -> None:
    runtime, problem = await tried(tmp_path, script)
    assert (runtime, words in problem, problem.startswith("--oci-runtime=ours: ")) == ("", True, True)


async def test_a_program_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oci_runtime, "_DEADLINE", 1.0)
    begun = time.monotonic()
    runtime, problem = await tried(tmp_path, f"#!/bin/sh\necho $$ >{tmp_path}/pid\nexec sleep 1000\n")
    assert (runtime, "did not respond within 1 s" in problem) == ("", True)
    assert time.monotonic() - begun < 10
    pid = int((tmp_path / "pid").read_text())
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() - begun < 10


async def test_it_is_asked_everything_at_the_same_time_and_once_for_all_calls(tmp_path: Path) -> None:
    """One that hangs holds calls up until it is given up: not once for each question, and with four processes."""
    (meeting := tmp_path / "meeting").mkdir()
    answers = "; ".join(
        f"echo {feature}" for feature in ("user namespaces", "network namespaces", "members", "unified")
    )
    wait = f"until test $(ls {meeting} | wc -l) = 4; do sleep 0.01; done"
    data = engine_data(tmp_path, f"#!/bin/sh\ntouch {meeting}/$$\n{wait}\n{answers}\n")
    engine: Any = AsyncMock(**{"get.return_value": data, "api_version.return_value": (1, 51)})
    follower: Any = AsyncMock(counters=SimpleNamespace(resyncs=0))
    info = EngineInfo(engine, follower, "", "ours", early_network=True)
    for found in await asyncio.gather(*(info.capabilities() for _ in range(10))):
        supports = (found.user_namespaces, found.early_network, found.config_members, found.unified)
        assert supports == (RuntimeSupport(runtime="ours"),) * 4
    assert len(list(meeting.iterdir())) == 4


OURS = UserNamespace(200, 300, 10)


@pytest.mark.parametrize(
    ("uids", "gids", "expected"),
    [
        ("         0        200         10\n", "         0        300         10\n", True),
        ("         0          0 4294967295\n", "         0          0 4294967295\n", False),
        ("         0        200         10\n", "         0        301         10\n", False),
        (
            "         0        200         10\n         10       1         1\n",
            "         0        300         10\n",
            False,
        ),
        ("", "", False),
    ],
)
def test_what_a_process_has(tmp_path: Path, uids: str, gids: str, expected: bool) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/uid_map").write_text(uids)
    (tmp_path / "7/gid_map").write_text(gids)
    assert has_ids(7, OURS, tmp_path) is expected
    assert has_ids(7, None, tmp_path)


def test_a_process_that_has_ended_has_nothing_wrong(tmp_path: Path) -> None:
    assert has_ids(0, OURS, tmp_path)
    assert has_ids(7, OURS, tmp_path)
