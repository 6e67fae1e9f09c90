"""CDI specifications as CreateContainer asks for them, with the real process that reads them."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dockershim.cri import cdi
from dockershim.cri.cdi import CdiSpecs
from dockershim.errors import FailedPrecondition
from dockershim.host_paths.server_side import HostPaths
from dockershim.translate.cdi import NO_EDITS

NAME = "v.com/c=0"


@pytest.fixture
async def host_paths() -> AsyncIterator[HostPaths]:
    async with HostPaths() as made:
        yield made


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cdi, "FOLDERS", (str(tmp_path),))
    return tmp_path


def write(path: Path, **edits: object) -> None:
    devices = [{"name": "0", "containerEdits": {"env": ["A=b"], **edits}}]
    path.write_text(json.dumps({"cdiVersion": "0.5.0", "kind": "v.com/c", "devices": devices}))


async def test_without_devices_nothing_is_done(host_paths: HostPaths) -> None:
    assert await CdiSpecs(host_paths).edits(()) == NO_EDITS
    assert host_paths.pid == 0


async def test_a_changed_specification_counts_at_once(host_paths: HostPaths, folder: Path) -> None:
    specs = CdiSpecs(host_paths)
    with pytest.raises(FailedPrecondition, match="no CDI specification"):
        await specs.edits((NAME,))
    write(folder / "a.json")
    assert (await specs.edits((NAME,))).env == ("A=b",)
    write(folder / "a.json", env=["A=c"])
    assert (await specs.edits((NAME,))).env == ("A=c",)
    write(folder / "a.json", deviceNodes=[{"path": "/none"}])
    with pytest.raises(FailedPrecondition, match="'/none' does not exist on the host"):
        await specs.edits((NAME,))


async def test_a_malformed_file_is_told_of_once(
    host_paths: HostPaths, folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = CdiSpecs(host_paths)
    write(folder / "a.json")
    (folder / "b.json").write_text('["v.com/c=0"]')
    with caplog.at_level(logging.WARNING, cdi.__name__):
        for _ in range(2):
            await specs.edits((NAME,))
        assert len(caplog.messages) == 1
        (folder / "b.json").write_text('{"v.com/c": "0"}')
        await specs.edits((NAME,))
        monkeypatch.setattr(cdi, "_MOST_TOLD", 0)
        await specs.edits((NAME,))
    unknown = f"CDI specification '{folder}/b.json' Object contains unknown field `v.com/c`; its devices cannot be used"
    assert caplog.messages[1:] == [unknown, unknown]


async def test_a_folder_that_is_none(host_paths: HostPaths, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "file").touch()
    monkeypatch.setattr(cdi, "FOLDERS", (str(folder / "file"),))
    with pytest.raises(FailedPrecondition, match=r"CDI_devices: .*Not a directory.*file"):
        await CdiSpecs(host_paths).edits((NAME,))
