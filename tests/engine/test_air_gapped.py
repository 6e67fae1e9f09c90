"""docs/air-gapped.md: images that came from a file, on a node that reaches no registry."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from docker import DockerClient

from dockershim.api.cri.v1 import api_pb2 as api
from tests.cri_client import CRI
from tests.engine.pods import BUSYBOX, container_config, pod, pull, refused, sandbox_config, start

#: Nobody answers there.
NOWHERE = "127.0.0.1:9/shop/web"


async def test_an_image_of_a_file_starts_without_a_registry(cri: CRI, engine_api: DockerClient, tmp_path: Path) -> None:
    await pull(cri)
    name = f"{NOWHERE}:{uuid.uuid4().hex}"
    engine_api.images.get(BUSYBOX).tag(name)
    with (tmp_path / "images.tar").open("wb") as file:
        for piece in engine_api.images.get(name).save(named=name):
            file.write(piece)
    engine_api.images.remove(name)
    engine_api.images.load((tmp_path / "images.tar").read_bytes())
    try:
        listed = await cri.images.ListImages(api.ListImagesRequest())
        assert name in [tag for image in listed.images for tag in image.repo_tags]
        config = sandbox_config()
        async with pod(cri, config) as sandbox_id:
            container = container_config("exec sleep 1000", image=api.ImageSpec(image=name))
            assert await start(cri, sandbox_id, container, config)
        # What the page warns of: a pull, and a name by digest.
        async with refused("INTERNAL", "connection refused"):
            await cri.images.PullImage(api.PullImageRequest(image=api.ImageSpec(image=name)))
        (image,) = [image for image in listed.images if name in image.repo_tags]
        has_digest = any(digest.startswith(NOWHERE) for digest in image.repo_digests)
        assert has_digest is (os.environ["TEST_NODE_ENGINE"] == "29")
    finally:
        engine_api.images.remove(name)
