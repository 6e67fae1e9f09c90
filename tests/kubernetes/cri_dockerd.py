"""A real cri-dockerd on the engine of a test node."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.kubernetes.client import end
from tests.node.engine import Engine

NAME = "cri-dockerd"
ENDPOINT, STATE = f"unix:///run/{NAME}.sock", Path("/var/lib", NAME)
PAUSE = "registry.k8s.io/pause:3.10.2"
# cri-dockerd gives each infra container a score of -998, which root may be forbidden on a test node's machine.
LENIENT_RUNC = """\
#!/bin/sh
option=
for word; do
  case $option in --bundle) sed -i 's/"oomScoreAdj":-[0-9]*/"oomScoreAdj":0/' "$word/config.json" ;; esac
  option=$word
done
exec runc "$@"
"""


@contextmanager
def lenient_engine(folder: Path) -> Iterator[None]:
    """The node's engine, which starts what cri-dockerd asks for. ``folder`` is for its runtime."""
    runtime = folder / "lenient-runc"
    runtime.write_text(LENIENT_RUNC)
    runtime.chmod(0o755)
    Engine().restart(f"--add-runtime=lenient={runtime}", "--default-runtime=lenient")
    yield
    Engine().restart()


@contextmanager
def cri_dockerd(program: str, state: Path = STATE, pause: str = PAUSE) -> Iterator[int]:
    """It runs for the length of a block; its pods go on when it ends. Gives its pid."""
    command = [
        program,
        f"--container-runtime-endpoint={ENDPOINT}",
        f"--cri-dockerd-root-directory={state}",
        "--network-plugin=cni",
        f"--pod-infra-container-image={pause}",
    ]
    with Path("/var/log/old-shim.log").open("ab") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield process.pid
    finally:
        end(process)
