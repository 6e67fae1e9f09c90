"""Facts about the CRI's calls for the gRPC server and the metrics: their versions, kinds and status codes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import grpc

import cni
from dockershim import errors
from dockershim.common.timed import Timed

# The calls of runtime.v1alpha2 in Kubernetes 1.25, the last release that used it. Newer calls exist only in v1.
V1ALPHA2: Final[Mapping[str, frozenset[str]]] = {
    "RuntimeService": frozenset(
        {
            "Version",
            "Status",
            "UpdateRuntimeConfig",
            *("RunPodSandbox", "StopPodSandbox", "RemovePodSandbox", "PodSandboxStatus", "ListPodSandbox"),
            *("CreateContainer", "StartContainer", "StopContainer", "RemoveContainer", "ListContainers"),
            *("ContainerStatus", "UpdateContainerResources", "ReopenContainerLog"),
            *("ExecSync", "Exec", "Attach", "PortForward"),
            *("ContainerStats", "ListContainerStats", "PodSandboxStats", "ListPodSandboxStats"),
        }
    ),
    "ImageService": frozenset({"ListImages", "ImageStatus", "PullImage", "RemoveImage", "ImageFsInfo"}),
}

# The calls that change pods. They are logged at level info, unless they had nothing to do.
CHANGES: Final = frozenset(
    {
        *("RunPodSandbox", "StopPodSandbox", "RemovePodSandbox"),
        *("CreateContainer", "StartContainer", "StopContainer", "RemoveContainer"),
    }
)

# This call ends only when one side goes away, so a server that stops cannot wait for it.
OPEN_ENDED: Final = "GetContainerEvents"


@dataclass(frozen=True, slots=True)
class Row:
    """How a call fails with one type of error: its gRPC status code, and the level of its line in our log."""

    code: grpc.StatusCode
    level: int


STATUS: Final[Mapping[type[errors.ShimError], Row]] = {
    errors.InvalidArgument: Row(grpc.StatusCode.INVALID_ARGUMENT, logging.INFO),
    errors.Probe: Row(grpc.StatusCode.INVALID_ARGUMENT, logging.DEBUG),
    errors.Unsupported: Row(grpc.StatusCode.INVALID_ARGUMENT, logging.INFO),
    errors.NotBuilt: Row(grpc.StatusCode.UNIMPLEMENTED, logging.INFO),
    errors.NotFound: Row(grpc.StatusCode.NOT_FOUND, logging.INFO),
    errors.AlreadyExists: Row(grpc.StatusCode.ALREADY_EXISTS, logging.INFO),
    errors.FailedPrecondition: Row(grpc.StatusCode.FAILED_PRECONDITION, logging.INFO),
    errors.Unauthenticated: Row(grpc.StatusCode.UNAUTHENTICATED, logging.INFO),
    errors.ResourceExhausted: Row(grpc.StatusCode.RESOURCE_EXHAUSTED, logging.WARNING),
    errors.DeadlineExceeded: Row(grpc.StatusCode.DEADLINE_EXCEEDED, logging.WARNING),
    errors.Unavailable: Row(grpc.StatusCode.UNAVAILABLE, logging.WARNING),
    errors.EngineFailure: Row(grpc.StatusCode.INTERNAL, logging.WARNING),
    errors.NetworkFailure: Row(grpc.StatusCode.INTERNAL, logging.WARNING),
    # The code that clients of koordinator's proxy expect.
    errors.HookFailure: Row(grpc.StatusCode.UNKNOWN, logging.WARNING),
    errors.ShimError: Row(grpc.StatusCode.INTERNAL, logging.WARNING),
}


def row_of(kind: type[errors.ShimError]) -> Row:
    """The table's row for ``kind``, or for the nearest of its bases that has one."""
    return next(STATUS[base] for base in kind.__mro__ if base in STATUS)


def code_of_block(block: Timed) -> str:
    """The gRPC status that stands for how a block has ended: by its own code, its error, or OK."""
    if block.code is not None:
        return block.code
    return code_of(block.error) if block.error is not None else grpc.StatusCode.OK.name


def code_of(error: BaseException) -> str:
    """The gRPC status that stands for an error, at every border."""
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return grpc.StatusCode.CANCELLED.name
    if isinstance(error, errors.ShimError):
        return row_of(type(error)).code.name
    if isinstance(error, cni.OperationTimeout):
        return grpc.StatusCode.DEADLINE_EXCEEDED.name
    return grpc.StatusCode.INTERNAL.name
