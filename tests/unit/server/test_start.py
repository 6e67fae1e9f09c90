"""What an operator is told of a server that cannot start: the flag, and what is wrong with its value."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dockershim.errors import StartError
from dockershim.server import serving_process
from dockershim.server.config import Config
from dockershim.server.wiring import compose
from tests.unit.server.fakes import fake_compose


@pytest.fixture
def taken() -> Iterator[str]:
    """An address at which another one listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def config(folder: Path, **values: Any) -> Config:
    return Config(
        container_runtime_endpoint=f"unix://{folder}/cri.sock",
        docker_endpoint=f"unix://{folder}/engine.sock",
        network_plugin="docker",
        root_directory=folder / "root",
        state_directory=folder / "state",
        **values,
    )


@pytest.mark.parametrize("key", ["streaming_bind_addr", "metrics_bind_addr", "debug_bind_addr"])
async def test_an_address_that_is_taken_is_told_with_its_flag(tmp_path: Path, taken: str, key: str) -> None:
    flag = f"--{key.replace('_', '-')}={taken}"
    with pytest.raises(StartError) as failed:
        async with compose(config(tmp_path, **{key: taken})):
            raise AssertionError("it has started")
    assert str(failed.value) == f"{flag}: Address already in use"


def run(config: Config, caplog: pytest.LogCaptureFixture) -> str:
    """What a server says that cannot start."""
    assert serving_process.run(config, lambda: config, fake_compose) == 1
    return caplog.messages[-1]


def test_a_socket_that_is_taken_is_told_with_its_flag(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{tmp_path}/cri.sock")
        listener.listen()
        said = run(config(tmp_path), caplog)
    flag = f"--container-runtime-endpoint=unix://{tmp_path}/cri.sock"
    assert said == f"cannot start: {flag}: {tmp_path}/cri.sock is in use by another server"


def test_a_socket_of_images_that_cannot_be_made_is_told_with_its_flag(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    said = run(config(tmp_path, image_service_endpoint=f"unix://{tmp_path}/file/images.sock"), caplog)
    assert said.startswith(f"cannot start: --image-service-endpoint=unix://{tmp_path}/file/images.sock: ")


def test_a_folder_where_no_socket_can_be_made_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gRPC says only that it could not bind; here as the name is too long for a socket."""
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    folder = tmp_path / ("x" * 100)
    said = run(config(folder), caplog)
    assert said.endswith(f"/cri.sock: {folder} is not writable")


def test_who_is_not_root_is_told_that_root_is_needed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    (tmp_path / "root").touch()
    assert run(config(tmp_path), caplog).endswith("; dockershim must run as root")
