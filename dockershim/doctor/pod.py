"""``--pod``: runs a real pod through the CRI socket, and removes it whatever happens."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any, Final, TypeVar

import grpc
from google.protobuf.message import Message

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.doctor.findings import Finding, fail, ok
from dockershim.doctor.interrupts import Interrupts
from dockershim.server.cri_calls import call, connect, reason

Response = TypeVar("Response", bound=Message)

#: The label by which our pods are found, also those of a command that was killed. Its value is the run.
LABEL: Final = "dockershim-doctor"
_NAMESPACE: Final = "dockershim-doctor"
#: Seconds after which a pod of ours is one that a killed command has left.
_LEFT_AFTER: Final = 300.0
_DEADLINE: Final = 30.0
#: Seconds for the removal. The server may still undo a start that was interrupted.
_REMOVAL: Final = 40.0
_REMOVAL_CALL: Final = 15.0
_AGAIN: Final = 0.3
#: Seconds between two looks whether a call has ended.
_PAUSE: Final = 0.002
#: Repositories whose images have a shell, by their last part; and those that only wait.
_WITH_SHELL: Final = ("busybox", "alpine", "debian", "ubuntu")
_WAITING: Final = ("pause",)
_NOBODY: Final = 65534
_SAID: Final = b"doctor\n"


@dataclass(slots=True)
class Run:
    """One run: the findings so far, and the name by which its pod is found again."""

    channel: grpc.Channel
    findings: list[Finding]
    interrupts: Interrupts
    fix: str
    name: str = field(default_factory=lambda: token_hex(8))

    def step(
        self, request: Message, response: type[Response], tell: Callable[[Response], str] = lambda _: ""
    ) -> Response:
        """One call, with its time. ``tell`` describes the response, or raises ValueError. Raises StepFailed."""
        title = f"pod: {request.DESCRIPTOR.name.removesuffix('Request')}"
        began = time.monotonic()
        try:
            answer = call(self.channel, request, response, _DEADLINE, self.pause)
            told = tell(answer)
        except (grpc.RpcError, ValueError) as error:
            why = reason(error) if isinstance(error, grpc.RpcError) else str(error)
            self.findings.append(fail(title, why, self.fix, time.monotonic() - began))
            raise StepFailed from error
        self.findings.append(ok(title, told or "done", time.monotonic() - began))
        return answer

    def pause(self) -> None:
        """Wait a moment. Raises KeyboardInterrupt if a signal comes or has come: nowhere else does one."""
        with self.interrupts.allowed():
            time.sleep(_PAUSE)


class StepFailed(Exception):
    """A call of the pod's life failed; the run has its finding."""


def run_pod(endpoint: str, findings: list[Finding], interrupts: Interrupts, fix: str) -> None:
    """Run a pod and remove it; add the ``findings``. If a signal raises KeyboardInterrupt, the pod is removed first.

    ``fix`` is what shows more of a failure.
    """
    with connect(endpoint) as channel:
        run = Run(channel, findings, interrupts, fix)
        try:
            _sweep(channel)
            _live(run)
        except StepFailed:
            pass  # its finding is there
        except grpc.RpcError as error:
            run.findings.append(fail("pod: list", reason(error), fix))
        finally:
            run.findings.append(_remove(channel, run.name))


def _live(run: Run) -> None:
    """Raises StepFailed."""
    config = cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(name=f"doctor-{run.name}", namespace=_NAMESPACE, uid=run.name),
        labels={LABEL: run.name},
        linux=cri.LinuxPodSandboxConfig(),
    )
    sandbox = run.step(cri.RunPodSandboxRequest(config=config), cri.RunPodSandboxResponse).pod_sandbox_id
    run.step(cri.PodSandboxStatusRequest(pod_sandbox_id=sandbox), cri.PodSandboxStatusResponse, _address)
    listed = call(run.channel, cri.ListImagesRequest(), cri.ListImagesResponse, _DEADLINE, run.pause).images
    image, has_shell = choose_image([tag for one in listed for tag in one.repo_tags])
    if image:
        _run_container(run, sandbox, config, image, has_shell=has_shell)
    else:
        run.findings.append(
            ok("pod: container", "skipped: the node has no busybox, alpine, debian, ubuntu or pause image")
        )


def _run_container(run: Run, sandbox: str, config: cri.PodSandboxConfig, image: str, *, has_shell: bool) -> None:
    security = cri.LinuxContainerSecurityContext(
        run_as_user=cri.Int64Value(value=_NOBODY),
        no_new_privs=True,
        capabilities=cri.Capability(drop_capabilities=["ALL"]),
    )
    container = cri.ContainerConfig(
        metadata=cri.ContainerMetadata(name="doctor"),
        image=cri.ImageSpec(image=image),
        command=["sleep", "300"] if has_shell else [],
        linux=cri.LinuxContainerConfig(security_context=security),
    )
    create = cri.CreateContainerRequest(pod_sandbox_id=sandbox, config=container, sandbox_config=config)
    created = run.step(create, cri.CreateContainerResponse, lambda _: image).container_id
    run.step(cri.StartContainerRequest(container_id=created), cri.StartContainerResponse)
    run.step(cri.ContainerStatusRequest(container_id=created), cri.ContainerStatusResponse, _running)
    if has_shell:
        command = ["sh", "-c", "echo doctor"]
        run.step(cri.ExecSyncRequest(container_id=created, cmd=command, timeout=10), cri.ExecSyncResponse, _said)
    run.step(cri.StopContainerRequest(container_id=created, timeout=0), cri.StopContainerResponse)


def _address(answer: cri.PodSandboxStatusResponse) -> str:
    if not answer.status.network.ip:
        raise ValueError("the pod has no IP address")
    return f"address {', '.join([answer.status.network.ip, *(one.ip for one in answer.status.network.additional_ips)])}"


def _running(answer: cri.ContainerStatusResponse) -> str:
    if answer.status.state != cri.CONTAINER_RUNNING:
        status = answer.status
        raise ValueError(f"the container exited with {status.exit_code}: {status.reason} {status.message}")
    return "running"


def _said(answer: cri.ExecSyncResponse) -> str:
    if answer.stdout != _SAID:
        raise ValueError(
            f"echo exited with {answer.exit_code} and printed {answer.stdout[:80]!r} {answer.stderr[:200]!r}"
        )
    return "ran a command"


def choose_image(tags: Sequence[str]) -> tuple[str, bool]:
    """An image of the node that is safe to run, and whether it has a shell; empty if there is none.

    Other images are not run, because what their programs do is unknown.
    """
    for wanted in (*_WITH_SHELL, *_WAITING):
        for tag in sorted(tags):
            if tag.rpartition("/")[2].partition(":")[0] == wanted:
                return tag, wanted in _WITH_SHELL
    return "", False


def _remove(channel: grpc.Channel, name: str) -> Finding:
    """Stop and remove the pod of this run, until the server lists none. Never raises for what the server does."""
    began = time.monotonic()
    problem, looks = "", 0
    while time.monotonic() < began + _REMOVAL:
        try:
            left = _listed(channel, {LABEL: name})
            if not left:
                looks += 1
                # An interrupted start may appear once more, before the server undoes it.
                if looks > 1:
                    return ok("pod: removal", "the pod was stopped and removed", time.monotonic() - began)
            for sandbox in left:
                looks = 0
                _stop_and_remove(channel, sandbox.id)
        except grpc.RpcError as error:
            problem = reason(error)
        time.sleep(_AGAIN)
    fix = f"crictl rmp --force $(crictl pods --quiet --label {LABEL}={name})"
    return fail("pod: removal", problem or "the pod still exists", fix, time.monotonic() - began)


def _sweep(channel: grpc.Channel) -> None:
    """Remove the pods that a killed command has left. Raises grpc.RpcError."""
    for sandbox in _listed(channel, {}):
        if LABEL in sandbox.labels and time.time() - sandbox.created_at / 1e9 > _LEFT_AFTER:
            _stop_and_remove(channel, sandbox.id)


def _listed(channel: grpc.Channel, labels: dict[str, str]) -> Any:
    wanted = cri.ListPodSandboxRequest(filter=cri.PodSandboxFilter(label_selector=labels))
    return call(channel, wanted, cri.ListPodSandboxResponse, _REMOVAL_CALL).items


def _stop_and_remove(channel: grpc.Channel, sandbox: str) -> None:
    call(channel, cri.StopPodSandboxRequest(pod_sandbox_id=sandbox), cri.StopPodSandboxResponse, _REMOVAL_CALL)
    call(channel, cri.RemovePodSandboxRequest(pod_sandbox_id=sandbox), cri.RemovePodSandboxResponse, _REMOVAL_CALL)
