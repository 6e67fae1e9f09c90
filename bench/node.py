"""The test node of a benchmark: that it runs in one, the server in it, and that it is left as it was."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

import docker
from docker import DockerClient

from tests.node.server import Server
from tests.node.state import capture


def options(parser: argparse.ArgumentParser, arguments: Sequence[str], target: str) -> argparse.Namespace:
    """What was asked of a benchmark. SystemExit with 2 outside a test node, where ``target`` of make starts one."""
    parser.add_argument("--check", action="store_true", help="exit with 1 when a limit is missed")
    given = parser.parse_args(arguments)
    if os.environ.get("TEST_NODE") != "1":
        parser.error(f"it runs in a test node: make {target} ENGINE=20 (or 28)")
    return given


@contextmanager
def measured_server() -> Iterator[Server]:
    """The server, for the length of a block. Raises RuntimeError where the node is not as before at its end."""
    with closing(docker.from_env()) as api:
        before = capture(api)
        with _images_removed(api), Server() as server:
            yield server
        left = capture(api).gained(before)
    if left:
        raise RuntimeError(f"the run left behind: {left}")


@contextmanager
def _images_removed(api: DockerClient) -> Iterator[None]:
    """The images that came meanwhile are gone at the end."""
    before = {image.id for image in api.images.list()}
    try:
        yield
    finally:
        for image in api.images.list():
            if image.id not in before:
                api.images.remove(image.id, force=True)
