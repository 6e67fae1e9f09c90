"""The life of one pod in CRI calls. Prints each call with its result and its time."""

from __future__ import annotations

import signal
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import grpc
from google.protobuf.message import Message

from deploy.cri import CRI
from deploy.terminal import say
from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.server.cri_calls import reason

NAME = "dockershim-demo"
NAMESPACE = "default"
# These need only what any image with a shell has. The shell is PID 1, which SIGTERM ends only with a trap.
MAIN = ("sh", "-c", 'read host </etc/hostname; trap "exit 0" TERM; echo "hello from $host"; sleep 3600 & wait')
COMMAND = ("sh", "-c", 'read main </proc/1/comm; echo "in the container, whose process 1 is $main"; exit 7')
EXIT_CODE = 7

# The kubelet's default: each container sees only its own processes.
_NAMESPACES = cri.NamespaceOption(pid=cri.CONTAINER)
_GRACE = 10
_LOG_TIMEOUT = 5.0
_LOG = "main.log"
_PROBE_TIMEOUT = 5.0
# discard (RFC 863): nothing in the demo's container listens there.
_CLOSED_PORT = 9


class DemoError(Exception):
    """Something is not as expected; the message says what."""


class Pod:
    """A pod with one container, with logs in ``logs``. Its ids are kept after its end."""

    def __init__(self, connection: CRI, logs: Path) -> None:
        self._cri = connection
        self._steps = 0
        self.logs = logs
        self.uid = str(uuid.uuid4())
        self.image = ""
        self.image_was_there = False
        self.image_id = ""
        self.sandbox_id = ""
        self.container_id = ""

    def live(self, image: str) -> None:
        """Run the pod, from the pull to the removal. Raises DemoError, after it has removed everything."""
        self.image = image
        try:
            self._make()
            self._use()
            self._end()
        except BaseException:
            self._clear()
            raise

    def _make(self) -> None:
        self._pull()
        config = self._pod_config()
        request = cri.RunPodSandboxRequest(config=config)
        with _interrupted_later():
            self.sandbox_id = self._step("RunPodSandbox", request).pod_sandbox_id
        _result(f"pod {NAMESPACE}/{NAME}: {self.sandbox_id}")
        self.container_id = self._step(
            "CreateContainer",
            cri.CreateContainerRequest(
                pod_sandbox_id=self.sandbox_id, config=self._container_config(), sandbox_config=config
            ),
        ).container_id
        _result(f"container: {self.container_id}")
        self._step("StartContainer", cri.StartContainerRequest(container_id=self.container_id))

    def _use(self) -> None:
        self._show_state()
        self._show_address()
        self._show_output()
        self._show_command()

    def _end(self) -> None:
        self._step("StopContainer", cri.StopContainerRequest(container_id=self.container_id, timeout=_GRACE))
        status = self._container_status()
        _check(status.state == cri.CONTAINER_EXITED, "the container still runs")
        _result(f"exited with {status.exit_code}")
        self._step("RemoveContainer", cri.RemoveContainerRequest(container_id=self.container_id))
        # The runtime does not remove the log: the kubelet does, and here the demo is the kubelet.
        self._remove_log()
        self._step("StopPodSandbox", cri.StopPodSandboxRequest(pod_sandbox_id=self.sandbox_id))
        self._step("RemovePodSandbox", cri.RemovePodSandboxRequest(pod_sandbox_id=self.sandbox_id))
        if not self.image_was_there:
            self._step("RemoveImage", cri.RemoveImageRequest(image=cri.ImageSpec(image=self.image)))

    def _clear(self) -> None:
        """Remove what exists after a failure. Errors are only printed; ``left_behind`` reports what is left."""
        for sandbox_id in self._own_sandboxes():
            self._try("RemovePodSandbox", cri.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id))
        self._remove_log()
        if self.image_id and not self.image_was_there:
            self._try("RemoveImage", cri.RemoveImageRequest(image=cri.ImageSpec(image=self.image)))

    def _remove_log(self) -> None:
        self._log.unlink(missing_ok=True)

    @property
    def _log(self) -> Path:
        return self.logs / _LOG

    def _own_sandboxes(self) -> list[str]:
        """The demo's sandboxes, from the list: a RunPodSandbox that failed has returned no id."""
        listed = self._try("ListPodSandbox", cri.ListPodSandboxRequest())
        return [one.id for one in listed.items if one.metadata.uid == self.uid] if listed else []

    def _try(self, name: str, request: Message) -> Any:
        try:
            return self._cri.call(name, request)
        except grpc.RpcError as error:
            say(f"     cannot tidy up: {_words(name, error)}")
            return None

    # -- steps -----------------------------------------------------------------------------------------------

    def _pull(self) -> None:
        status = self._step("ImageStatus", cri.ImageStatusRequest(image=cri.ImageSpec(image=self.image)))
        self.image_was_there = status.HasField("image")
        _result(f"{self.image} is {'there already, and stays' if self.image_was_there else 'not there'}")
        if not self.image_was_there:
            pulled = self._step("PullImage", cri.PullImageRequest(image=cri.ImageSpec(image=self.image)))
            _result(pulled.image_ref)
            status = self._call("ImageStatus", cri.ImageStatusRequest(image=cri.ImageSpec(image=self.image)))
            _check(status.HasField("image"), f"{self.image} was pulled and is not there")
        self.image_id = status.image.id

    def _show_state(self) -> None:
        status = self._container_status()
        _check(status.state == cri.CONTAINER_RUNNING, f"the container does not run: {status.reason} {status.message}")
        pods = self._step(
            "ListPodSandbox", cri.ListPodSandboxRequest(filter=cri.PodSandboxFilter(id=self.sandbox_id))
        ).items
        _check([pod.state for pod in pods] == [cri.SANDBOX_READY], "the pod is not listed as ready")
        _result("the pod is ready, its container runs")

    def _show_address(self) -> None:
        request = cri.PodSandboxStatusRequest(pod_sandbox_id=self.sandbox_id)
        address = self._step("PodSandboxStatus", request).status.network.ip
        _check(bool(address), "the pod has no address")
        _result(f"address {address}, {_reach(address)}")

    def _show_output(self) -> None:
        log = self._log
        deadline = time.monotonic() + _LOG_TIMEOUT
        while not (log.exists() and f"hello from {NAME}" in log.read_text()):
            _check(time.monotonic() < deadline, f"the container's output is not in {log}")
            time.sleep(0.05)
        _result(f"its output, in {log}:")
        for line in log.read_text().splitlines():
            _result(f"  {line}")

    def _show_command(self) -> None:
        request = cri.ExecSyncRequest(container_id=self.container_id, cmd=COMMAND, timeout=10)
        done = self._step("ExecSync", request)
        _result(f"{done.stdout.decode().rstrip()}; exit code {done.exit_code}")
        _check(done.stdout.startswith(b"in the container") and done.exit_code == EXIT_CODE, f"wrong: {done}")

    # -- parts of the steps ----------------------------------------------------------------------------------

    def _step(self, name: str, request: Message) -> Any:
        started = time.monotonic()
        response = self._call(name, request)
        self._steps += 1
        say(f"{self._steps:3}. {name:18}{(time.monotonic() - started) * 1000:6.0f} ms")
        return response

    def _call(self, name: str, request: Message) -> Any:
        try:
            return self._cri.call(name, request)
        except grpc.RpcError as error:
            raise DemoError(_words(name, error)) from error

    def _container_status(self) -> cri.ContainerStatus:
        status: cri.ContainerStatus = self._call(
            "ContainerStatus", cri.ContainerStatusRequest(container_id=self.container_id)
        ).status
        return status

    def _pod_config(self) -> cri.PodSandboxConfig:
        return cri.PodSandboxConfig(
            metadata=cri.PodSandboxMetadata(name=NAME, namespace=NAMESPACE, uid=self.uid),
            hostname=NAME,
            log_directory=str(self.logs),
            linux=cri.LinuxPodSandboxConfig(
                security_context=cri.LinuxSandboxSecurityContext(namespace_options=_NAMESPACES)
            ),
        )

    def _container_config(self) -> cri.ContainerConfig:
        return cri.ContainerConfig(
            metadata=cri.ContainerMetadata(name="main"),
            image=cri.ImageSpec(image=self.image),
            command=MAIN,
            log_path=_LOG,
            linux=cri.LinuxContainerConfig(
                security_context=cri.LinuxContainerSecurityContext(namespace_options=_NAMESPACES)
            ),
        )


@contextmanager
def _interrupted_later() -> Iterator[None]:
    """Raise the KeyboardInterrupt of a signal at the end of the block, or at once for the second signal.

    A server may make a pod although its client has gone, and until it is made the pod is in no list.
    """
    signals: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if signals:
            raise KeyboardInterrupt
        signals.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if signals:
            raise KeyboardInterrupt


def _reach(address: str) -> str:
    """How the pod answers a connection from the node, like that of a kubelet's probe. Raises DemoError if it does not.

    Nothing listens in the pod, so its network answers by refusing the connection.
    """
    try:
        with socket.create_connection((address, _CLOSED_PORT), _PROBE_TIMEOUT):
            return "which takes connections"
    except ConnectionRefusedError:
        return "which answers this machine (nothing listens in it yet)"
    except OSError as error:
        raise DemoError(f"the pod does not respond at {address}: {error}") from error


def _words(name: str, error: grpc.RpcError) -> str:
    return f"{name}: {reason(error)}"


def _result(text: str) -> None:
    say(f"     {text}")


def _check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise DemoError(otherwise)
