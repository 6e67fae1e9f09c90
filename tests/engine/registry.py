"""A registry for tests, with invented images. A test can make it stall, answer slowly or refuse."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import json
import os
import tarfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"
INDEX_TYPE = "application/vnd.docker.distribution.manifest.list.v2+json"
CONFIG_TYPE = "application/vnd.docker.container.image.v1+json"
LAYER_TYPE = "application/vnd.docker.image.rootfs.diff.tar"


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@dataclass(slots=True)
class Image:
    """One layer with one file of random content, so that no two images share anything."""

    manifest: bytes
    config: bytes
    layer: bytes
    kind: str = MANIFEST_TYPE

    @property
    def digest(self) -> str:
        return digest(self.manifest)

    @property
    def id(self) -> str:
        """What the node's engine calls it: containerd's image store takes the digest of the manifest."""
        return self.digest if os.environ["TEST_NODE_ENGINE"] == "29" else digest(self.config)


OWN_ARCHITECTURE, OTHER_ARCHITECTURE = ("amd64", "arm64") if os.uname().machine == "x86_64" else ("arm64", "amd64")


def make_index(images: Mapping[str, Image]) -> Image:
    """One name for images of several architectures. They have to be in the registry, too, under names of their own."""
    manifests = [
        {
            "mediaType": one.kind,
            "digest": one.digest,
            "size": len(one.manifest),
            "platform": {"os": "linux", "architecture": architecture},
        }
        for architecture, one in images.items()
    ]
    index = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": manifests}
    return Image(json.dumps(index).encode(), b"", b"", INDEX_TYPE)


def make_image(size: int = 1000, user: str = "", architecture: str = OWN_ARCHITECTURE) -> Image:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        member = tarfile.TarInfo("content")
        member.size = size
        tar.addfile(member, io.BytesIO(os.urandom(size)))
    layer = archive.getvalue()
    described = {
        "architecture": architecture,
        "os": "linux",
        "config": {"User": user, "Cmd": ["/content"]},
        "rootfs": {"type": "layers", "diff_ids": [digest(layer)]},
    }
    config = json.dumps(described).encode()
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": {"mediaType": CONFIG_TYPE, "size": len(config), "digest": digest(config)},
        "layers": [{"mediaType": LAYER_TYPE, "size": len(layer), "digest": digest(layer)}],
    }
    return Image(json.dumps(manifest).encode(), config, layer)


@dataclass(slots=True)
class Registry:
    """Serves ``images`` by "name:tag". ``requests`` are the paths that were asked for, without HEAD requests.

    ``refuse`` maps "manifests" or "blobs" to a status, a registry's error code and its message; without a code it
    answers with a page, as a proxy does. ``credentials`` are asked for if set. A layer is sent in pieces of ``piece``
    bytes with ``pause`` seconds between them; ``hold`` stops it after the first one until it is set. ``sending`` is how
    many layers are being sent, ``broken`` how many the engine did not wait for.
    """

    address: str = ""
    images: dict[str, Image] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    refuse: dict[str, tuple[int, str, str]] = field(default_factory=dict)
    credentials: str = ""
    piece: int = 1 << 20
    pause: float = 0.0
    hold: asyncio.Event | None = None
    sending: int = 0
    broken: int = 0

    def add(self, image: Image, *names: str) -> Image:
        for name in names:
            self.images[name] = image
        return image

    def name(self, name: str) -> str:
        return f"{self.address}/{name}"

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            self.requests.append(request.path)
        if self.credentials and request.headers.get("Authorization") != self._basic():
            return self._refusal(401, "UNAUTHORIZED", "no", {"WWW-Authenticate": 'Basic realm="test"'})
        if request.path == "/v2/":
            return web.Response(text="{}")
        name, kind, reference = request.path.removeprefix("/v2/").rsplit("/", 2)
        if kind in self.refuse and not self._is_config(reference):
            return self._refusal(*self.refuse[kind])
        if kind == "manifests":
            return self._manifest(name, reference)
        return await self._blob(request, reference)

    def _basic(self) -> str:
        return f"Basic {base64.b64encode(self.credentials.encode()).decode()}"

    def _refusal(
        self, status: int, code: str, message: str = "no", headers: Mapping[str, str] | None = None
    ) -> web.Response:
        if not code:
            return web.Response(text=f"<html>{message}</html>", content_type="text/html", status=status)
        return web.json_response({"errors": [{"code": code, "message": message}]}, status=status, headers=headers)

    def _is_config(self, reference: str) -> bool:
        return any(digest(image.config) == reference for image in self.images.values())

    def _manifest(self, name: str, reference: str) -> web.Response:
        for known, image in self.images.items():
            if known == f"{name}:{reference}" or (known.startswith(f"{name}:") and reference == image.digest):
                headers = {"Docker-Content-Digest": image.digest}
                return web.Response(body=image.manifest, content_type=image.kind, headers=headers)
        return self._refusal(404, "MANIFEST_UNKNOWN")

    async def _blob(self, request: web.Request, reference: str) -> web.StreamResponse:
        for image in self.images.values():
            if digest(image.config) == reference:
                return web.Response(body=image.config)
            if digest(image.layer) == reference:
                return await self._send(request, image.layer)
        return self._refusal(404, "BLOB_UNKNOWN")

    async def _send(self, request: web.Request, layer: bytes) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": str(len(layer))})
        await response.prepare(request)
        self.sending += 1
        try:
            for start in range(0, len(layer), self.piece):
                if start > 0:
                    await asyncio.sleep(self.pause)
                    if self.hold is not None:
                        await self.hold.wait()
                await response.write(layer[start : start + self.piece])
        except (asyncio.CancelledError, ConnectionError):
            self.broken += 1
            raise
        finally:
            self.sending -= 1
        return response


@asynccontextmanager
async def running_registry() -> AsyncIterator[Registry]:
    registry = Registry()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", registry.answer)
    runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    registry.address = "{}:{}".format(*runner.addresses[0][:2])
    try:
        yield registry
    finally:
        if registry.hold is not None:
            registry.hold.set()
        await runner.cleanup()
