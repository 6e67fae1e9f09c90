"""Makes the image of the demo, and serves it from a local registry, so that no other registry is needed."""

from __future__ import annotations

import http.client
import io
import json
import shutil
import socket
import subprocess
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from docker import DockerClient

from deploy.packages import SetupError, unpack

REPOSITORY = "dockershim-demo"
TAG = "1"
APPLETS = ("sh", "sleep")
_START_TIMEOUT = 15.0
_POLL = 0.05


@contextmanager
def own_registry(client: DockerClient, folder: Path) -> Iterator[str]:
    """The name of an image that only our own registry has, on a free port of 127.0.0.1, until the block ends.

    Registry and content are Debian's docker-registry and busybox-static, unpacked in ``folder``. The engine pushes the
    image and does not keep it. Raises SetupError.
    """
    program = _program(unpack("docker-registry", folder), "docker-registry")
    busybox = _program(unpack("busybox-static", folder), "busybox")
    with _registry(program, folder) as host:
        name = f"{host}/{REPOSITORY}"
        _push(client, name, _root_file_system(busybox.read_bytes()))
        yield f"{name}:{TAG}"


def _program(package: Path, name: str) -> Path:
    for folder in ("usr/bin", "bin", "usr/sbin", "sbin"):
        if (package / folder / name).is_file():
            return package / folder / name
    raise SetupError(f"the package {package.name} holds no program {name!r}")


def _root_file_system(busybox: bytes) -> bytes:
    """A tar archive with a static busybox and links for the commands that the demo runs."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        program = tarfile.TarInfo("bin/busybox")
        program.mode, program.size = 0o755, len(busybox)
        tar.addfile(program, io.BytesIO(busybox))
        for applet in APPLETS:
            link = tarfile.TarInfo(f"bin/{applet}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
    return archive.getvalue()


def _push(client: DockerClient, name: str, content: bytes) -> None:
    client.api.import_image_from_data(content, repository=name, tag=TAG)
    try:
        # Without credentials, even empty ones, an older engine expects a request in an older format.
        for line in client.api.push(name, tag=TAG, stream=True, decode=True, auth_config={}):
            if "error" in line:
                raise SetupError(f"the engine cannot push to {name}: {line['error']}")
    finally:
        client.api.remove_image(f"{name}:{TAG}", force=True)


@contextmanager
def _registry(program: Path, folder: Path) -> Iterator[str]:
    """``host:port`` of a registry that keeps its images in ``folder``."""
    port = _free_port()
    config = folder / "registry.json"  # YAML, of which JSON is a part
    config.write_text(json.dumps(_registry_config(port, folder / "registry")))
    log = folder / "registry.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [program, "serve", config], stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    try:
        _wait(port, process, log)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(folder / "registry", ignore_errors=True)


def _registry_config(port: int, storage: Path) -> dict[str, object]:
    return {
        "version": 0.1,
        "log": {"level": "warn"},
        "storage": {"filesystem": {"rootdirectory": str(storage)}},
        "http": {"addr": f"127.0.0.1:{port}"},
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_TIMEOUT
    while not _serves(port):
        if process.poll() is not None or time.monotonic() > deadline:
            raise SetupError(f"the demo's registry does not serve; its log:\n{log.read_text(errors='replace')}")
        time.sleep(_POLL)


def _serves(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/v2/")
        return connection.getresponse().status == http.HTTPStatus.OK
    except OSError:
        return False
    finally:
        connection.close()
