"""A gRPC server that gives every call of RuntimeService the bytes it was started with: what gRPC alone costs.

`python -m bench.canned SOCKET FOLDER`: a file in the folder for each call, named after it, is its answer.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc

from dockershim.server.grpc_server import SERVER_OPTIONS

_SERVES = b"serves\n"


@dataclass(frozen=True, slots=True)
class Canned:
    pid: int
    target: str


@contextmanager
def canned_server(answers: Mapping[str, bytes]) -> Iterator[Canned]:
    """The server, for the length of a block, in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="canned-") as name:
        folder = Path(name)
        socket = folder / "socket"
        for call, answer in answers.items():
            (folder / call).write_bytes(answer)
        command = [sys.executable, "-m", __name__, str(socket), str(folder)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            try:
                assert process.stdout is not None, "it is a pipe"
                if process.stdout.readline() != _SERVES:
                    raise RuntimeError("the server of canned answers does not start")
                yield Canned(process.pid, f"unix://{socket}")
            finally:
                process.terminate()


async def _serve(socket: str, folder: Path) -> None:
    server = grpc.aio.server(options=SERVER_OPTIONS)
    answers = await asyncio.to_thread(lambda: {path.name: path.read_bytes() for path in folder.iterdir()})
    handlers = {name: _handler(answer) for name, answer in answers.items()}
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("runtime.v1.RuntimeService", handlers),),
    )
    server.add_insecure_port(f"unix://{socket}")
    await server.start()
    sys.stdout.buffer.write(_SERVES)
    sys.stdout.buffer.flush()
    await server.wait_for_termination()


def _handler(answer: bytes) -> grpc.RpcMethodHandler[bytes, bytes]:
    async def give(_request: bytes, _context: object) -> bytes:
        return answer

    return grpc.unary_unary_rpc_method_handler(give)


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], Path(sys.argv[2])))
