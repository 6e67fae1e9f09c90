"""`make demo`: the life of a pod through the CRI socket, and a look that nothing of it is left.

A server that serves on the usual socket is used; without one the demo starts its own, with all its files in a
temporary folder. The engine is found, or installed and started, as `make run` does it.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from docker import DockerClient
from docker.errors import DockerException, ImageNotFound

from deploy import cri, engine
from deploy.images import own_registry
from deploy.left import Place, left_behind
from deploy.packages import SetupError
from deploy.pod import DemoError, Pod
from deploy.terminal import say
from dockershim.cri.infra_image import BUILTIN_INFRA_IMAGE

_STOP_TIMEOUT = 40.0


def main(arguments: Sequence[str]) -> int:
    """Run the demo. Raises SystemExit with a message if a step fails or something is left."""
    parser = argparse.ArgumentParser(prog="python -m deploy.demo", description=__doc__)
    parser.add_argument("--image", default="", help="an image with a shell, instead of one that is made on the spot")
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _interrupt)  # so that the demo cleans up on SIGTERM too
    try:
        _demo(given.image)
    except (SetupError, DemoError, DockerException) as error:
        sys.exit(f"make demo: {error}")
    except KeyboardInterrupt:
        sys.exit("make demo: interrupted")
    return 0


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _demo(image: str) -> None:
    client = engine.ensure()
    if not engine.endpoint().startswith("unix:"):
        raise SetupError("the demo needs an engine on this machine, whose pods it can reach")
    with tempfile.TemporaryDirectory(prefix="dockershim-demo-") as folder, _server(client, Path(folder)) as place:
        _live(client, place, Path(folder), image)
    if Path(folder).exists():
        raise DemoError(f"{folder} is left")
    say("Nothing is left. The engine runs on.")


def _live(client: DockerClient, place: Place, folder: Path, image: str) -> None:
    """Run the pod, and then check that nothing is left."""
    with cri.CRI(place.endpoint) as connection:
        pod = Pod(connection, folder / "logs")
        with ExitStack() as source:
            if not image:
                say("An image is made of Debian's busybox-static, and pushed to a registry on 127.0.0.1.")
                image = source.enter_context(own_registry(client, folder))
            pod.live(image)
        say("What is left:")
        found = left_behind(client, connection, place, pod)
    if found:
        raise DemoError("left behind: " + "; ".join(found))


@contextmanager
def _server(client: DockerClient, folder: Path) -> Iterator[Place]:
    """The server that serves already, or else one of our own until the block ends."""
    if cri.answers(cri.USUAL_ENDPOINT):
        say(f"The server on {cri.USUAL_ENDPOINT} is used.")
        yield Place(cri.USUAL_ENDPOINT, Path("/var/lib/dockershim"), Path("/run/dockershim"))
        return
    place = Place(f"unix://{folder}/dockershim.sock", folder / "root", folder / "state")
    say(f"No server answers on {cri.USUAL_ENDPOINT}: one is started for the demo on {place.endpoint}.")
    log = folder / "server.log"
    with _without_built_in_image(client), log.open("wb") as output:
        server = subprocess.Popen(_serve(place), stdin=subprocess.DEVNULL, stderr=output, start_new_session=True)
        try:
            if not cri.wait_ready(place.endpoint, server):
                raise SetupError(f"the server does not serve; its log:\n{log.read_text(errors='replace')}")
            yield place
        finally:
            server.terminate()
            code = server.wait(_STOP_TIMEOUT)
    # Checked only here: if the demo failed or was interrupted, that error says more than the server's exit code.
    if code != 0:
        raise DemoError(f"the server ended with {code}")


def _serve(place: Place) -> list[str]:
    return [
        *(sys.executable, "-m", "dockershim", "serve"),
        f"--container-runtime-endpoint={place.endpoint}",
        f"--root-directory={place.root}",
        f"--state-directory={place.state}",
        f"--docker-endpoint={engine.endpoint()}",
        "--network-plugin=docker",
    ]


@contextmanager
def _without_built_in_image(client: DockerClient) -> Iterator[None]:
    """At the end, remove the image that our server loads for its pods, unless the engine had it before."""
    had = bool(client.images.list(BUILTIN_INFRA_IMAGE))
    try:
        yield
    finally:
        if not had:
            with suppress(ImageNotFound):
                client.images.remove(BUILTIN_INFRA_IMAGE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
