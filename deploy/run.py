"""`make run`: serve on this machine, with no configuration and an engine that is brought if there is none."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from collections.abc import Sequence

from deploy import cri, engine
from deploy.packages import SetupError
from deploy.terminal import say

NEXT = """
dockershim serves on {endpoint}. Try, in another terminal:

  make demo                                             the life of a pod, step by step
  crictl --runtime-endpoint {endpoint} info
  kubelet --container-runtime-endpoint={endpoint} ...   make this machine a node

Pods get their network from the engine's own bridge; a cluster wants CNI: make run ARGS=--network-plugin=cni
Ctrl-C stops dockershim; the engine and the pods stay.
"""


def main(arguments: Sequence[str]) -> int:
    """Serve until a signal, and return the server's exit code. ``arguments`` are flags of the server."""
    parser = argparse.ArgumentParser(prog="python -m deploy.run", description=__doc__)
    parser.add_argument("--container-runtime-endpoint", default=cri.USUAL_ENDPOINT)
    known, flags = parser.parse_known_args(arguments)
    if cri.answers(known.container_runtime_endpoint):
        sys.exit(f"make run: a server answers on {known.container_runtime_endpoint} already; try: make demo")
    try:
        engine.ensure()
    except SetupError as error:
        sys.exit(f"make run: {error}")
    return _serve(known.container_runtime_endpoint, flags)


def _serve(endpoint: str, flags: Sequence[str]) -> int:
    command = [sys.executable, "-m", "dockershim", "serve"]
    usual = [f"--container-runtime-endpoint={endpoint}", f"--docker-endpoint={engine.endpoint()}"]
    server = subprocess.Popen([*command, *usual, "--network-plugin=docker", *flags])
    # Ctrl-C in a terminal reaches the server too, which then ends; SIGTERM reaches only this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: server.terminate())
    if cri.wait_ready(endpoint, server):
        say(NEXT.format(endpoint=endpoint))
    return server.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
