"""The node's interactive shell: the server runs, crictl and docker speak to it and to the engine."""

from __future__ import annotations

import os
import sys

from tests.node.server import Server, ServerError

WELCOME = """\
A test node with Docker Engine {engine} and the server, whose log is {log}.
Try: crictl info, crictl pull registry.k8s.io/e2e-test-images/busybox:1.29-2, docker ps. `exit` ends all of it.
"""


def main() -> None:
    """Start the server and become a shell; a server that does not start leaves a shell to look into it."""
    server = Server()
    try:
        server.start()
    except ServerError as error:
        sys.stderr.write(f"node: {error}\n")
    sys.stderr.write(WELCOME.format(engine=os.environ["TEST_NODE_ENGINE"], log=server.log))
    os.environ["PS1"] = f"node-{os.environ['TEST_NODE_ENGINE']}:\\w\\$ "
    os.execlp("bash", "bash", "--norc", "--noprofile")


if __name__ == "__main__":
    main()
