"""Makes one dump: memory by the OCI runtime and criu, changed files, and the archive of both.

The layout is that of containerd and CRI-O, which checkpointctl reads:
https://github.com/checkpoint-restore/checkpointctl/blob/main/lib/metadata.go
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

from dockershim.common.beneath import open_file, open_folder
from dockershim.dumps.archive import Target
from dockershim.dumps.layer import write_layer
from dockershim.dumps.problems import Kind, Problem, of_disk
from dockershim.dumps.room import check_room
from dockershim.engine_files.bundle import Bundle, NoBundle, find_bundle

#: Of an archive, in its order.
_IMAGES: Final = "checkpoint"
_LAYER: Final = "rootfs-diff.tar"
_LOG: Final = "container.log"
_DUMP_LOG: Final = "dump.log"
_MEMBERS: Final = (
    *("config.dump", "spec.dump", "status.dump", "status", "bind.mounts", "deleted.files"),
    *("stats-dump", _DUMP_LOG, _LOG, _LAYER, _IMAGES),
)
#: Destinations of mounts that every runtime makes by itself (as CRI-O has them).
_OWN_MOUNTS: Final = frozenset({"/dev", "/dev/shm", "/proc", "/run", "/run/secrets", "/sys"})
#: By default criu lets no packet into the pod, nor out of it, while it dumps a container: with rules that stay if it is
#: killed. It needs them for open TCP connections, which it refuses.
_CRIU_CONFIG: Final = "network-lock skip\n"
_LONGEST_ORDER: Final = 16 << 20
_LONGEST_REASON: Final = 1000
_LONGEST_TEXT: Final = 4000
_BUFFER: Final = 1 << 20
#: Seconds for criu to end after SIGKILL.
_END: Final = 2.0


@dataclass(frozen=True, slots=True)
class Order:
    """What the server asks for.

    ``folder`` exists, is empty, and is the dump's until it is done. ``files`` are JSON documents for the archive by
    their names; ``annotations`` are added to the container's specification in it. ``upper`` is the folder of the
    writable layer. ``log`` is the container's log file, empty if there is none; nothing is followed below
    ``log_directory``, where it is. ``memory`` is how many bytes its memory has at least.
    """

    container_id: str
    pid: int
    location: str
    folder: str
    upper: str
    log: str
    log_directory: str
    memory: int
    files: Mapping[str, Any]
    annotations: Mapping[str, str]

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> Self:
        return cls(**json.loads(line))


def serve(control: socket.socket) -> None:
    """Make the dump that the first line asks for.

    Sends {"collected": true} when the container may run on, and then {"size": bytes} or {"problem": kind, "text": …}.
    If the server closes the connection, or ends, this process ends the runtime with criu, and itself.
    """
    with control.makefile("rb") as lines:
        order = Order.decode(lines.readline(_LONGEST_ORDER))
    runtime = Runtime()
    threading.Thread(target=_end_with_server, args=(control, runtime), daemon=True).start()

    def tell(message: Mapping[str, Any]) -> None:
        # The other thread notices that the server has exited.
        with contextlib.suppress(ConnectionError):
            control.sendall(json.dumps(message).encode() + b"\n")

    try:
        with Target(order.location) as target:
            collect(order, runtime)
            tell({"collected": True})
            tell({"size": target.write(Path(order.folder), _MEMBERS)})
    except Problem as problem:
        tell(_failure(problem))
    except OSError as error:
        tell(_failure(of_disk(f"the dump of container {order.container_id}", error)))


def _failure(problem: Problem) -> dict[str, str]:
    # A path of the container may be longer than what the server reads as a line.
    return {"problem": problem.kind, "text": str(problem)[:_LONGEST_TEXT]}


def _end_with_server(control: socket.socket, runtime: Runtime) -> None:
    with contextlib.suppress(OSError):
        control.recv(1)
    runtime.kill()
    os._exit(1)


class Runtime:
    """The OCI runtime, and criu below it, while they run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = False

    def run(self, command: list[str], output: Path, criu_config: Path) -> int:
        """Run the command to its end; the exit code. What it says goes to the file ``output``.

        criu reads ``criu_config`` before /etc/criu/runc.conf, which is the operator's. Raises OSError.
        """
        with output.open("wb") as said, self._lock:
            if self._killed:
                return -signal.SIGKILL
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                cwd="/",
                env={**os.environ, "CRIU_CONFIG_FILE": str(criu_config)},
                start_new_session=True,  # its group has criu and its helpers, and nothing else
            )
        return self._process.wait()

    def kill(self) -> None:
        """SIGKILL the runtime and criu, and wait a moment for their ends."""
        with self._lock:
            self._killed = True
            process = self._process
        if process is None or process.returncode is not None:
            return
        end = time.monotonic() + _END
        with contextlib.suppress(ProcessLookupError):
            while time.monotonic() < end:
                os.killpg(process.pid, signal.SIGKILL)
                time.sleep(0.01)


def collect(order: Order, runtime: Runtime) -> None:
    """Fill ``order.folder`` with everything that the archive is to have. Raises Problem and OSError."""
    folder = Path(order.folder)
    try:
        bundle = find_bundle(order.pid, order.container_id)
    except NoBundle as error:
        raise Problem(Kind.STATE, str(error)) from error
    mounts = bundle.spec.get("mounts") or []
    _dump_memory(order, bundle, runtime)
    hidden = {mount.get("destination", "") for mount in mounts}
    deleted = write_layer(order.upper, str(folder / _LAYER), hidden)
    annotations = {**(bundle.spec.get("annotations") or {}), **order.annotations}
    documents = {
        **order.files,
        "spec.dump": {**bundle.spec, "annotations": annotations},
        "bind.mounts": bind_mounts(mounts),
        "deleted.files": deleted,
    }
    for name, content in documents.items():
        if content:
            # Names of files may be no Unicode: as escapes they stay JSON.
            (folder / name).write_text(json.dumps(content, indent=2), encoding="ascii")
    if order.log:
        _copy_log(Path(order.log_directory), Path(order.log), folder / _LOG)


def bind_mounts(mounts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """bind.mounts, which CRI-O has: what a restore elsewhere needs to know of the sources of bind mounts.

    Raises Problem for a source that cannot be looked at.
    """
    found = []
    for mount in mounts:
        source, destination = mount.get("source", ""), mount.get("destination", "")
        if mount.get("type") != "bind" or destination in _OWN_MOUNTS:
            continue
        try:
            mode = Path(source).stat().st_mode
        except (OSError, ValueError) as error:
            raise Problem(Kind.STATE, f"the source {source!r} of the mount {destination!r}: {error}") from error
        found.append(
            {
                "source": source,
                "destination": destination,
                "file_type": "directory" if stat.S_ISDIR(mode) else "file",
                "permissions": stat.S_IMODE(mode) & 0o777,
            }
        )
    return found


def _dump_memory(order: Order, bundle: Bundle, runtime: Runtime) -> None:
    folder = Path(order.folder)
    said, config = folder / "runtime.log", folder / "criu.conf"
    # A criu that is killed may take a process along, so this is not found out on the way.
    memory = f"{folder}: the container's memory"
    check_room(folder, order.memory, memory)
    config.write_text(_CRIU_CONFIG)
    # Locks on files are common and harmless here. criu refuses open connections of TCP, as it does below containerd
    # and CRI-O; /etc/criu/runc.conf can allow them.
    command = [bundle.runtime, "--root", bundle.root, "checkpoint", "--leave-running", "--file-locks"]
    command += ["--image-path", str(folder / _IMAGES), "--work-path", str(folder), order.container_id]
    try:
        code = runtime.run(command, said, config)
    except OSError as error:
        raise Problem(Kind.STATE, f"cannot run the OCI runtime {bundle.runtime!r}: {error.strerror}") from error
    if code == 0:
        return
    check_room(folder, 0, memory)
    raise Problem(
        Kind.RUNTIME,
        f"cannot dump container {order.container_id}, which is still running: {_reason(said, folder / _DUMP_LOG)}",
    )


def _reason(said: Path, dump_log: Path) -> str:
    """Why the runtime failed: the first errors in criu's log, or else the last words of the runtime.

    Both may have texts of the container in them, so only what can be printed is told.
    """
    # criu goes on without the limit that it asks for first, and calls that an error as well.
    words = [line for line in _tail(dump_log).splitlines() if "Error (" in line and "RLIMIT_NOFILE" not in line][:3]
    if not words:
        words = [_tail(said).strip() or "the runtime reports no reason", "criu 4 or newer is required"]
    text = "; ".join(words)
    return "".join(letter if letter.isprintable() else " " for letter in text)[:_LONGEST_REASON]


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - (64 << 10)))
            return file.read(64 << 10).decode(errors="replace")
    except OSError:
        return ""


def _copy_log(directory: Path, source: Path, target: Path) -> None:
    """Copy what the container's log has now, if it is a regular file."""
    try:
        above = open_folder(directory, source.parent)
        try:
            fd = open_file(above, source, os.O_RDONLY)
        finally:
            os.close(above)
    except OSError:
        return  # the pod's log folder may be gone; the dump is worth having without it
    with os.fdopen(fd, "rb") as log, target.open("wb") as copy:
        left = os.fstat(fd).st_size
        check_room(target.parent, left, f"the container's log {str(source)!r}")
        while left and (chunk := log.read(min(left, _BUFFER))):
            left -= len(chunk)
            copy.write(chunk)
