"""One plugin: its registration, its subscription, and what its failures mean."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message

import dockershim
from dockershim.api.nri.v1alpha1 import api_pb2 as api
from dockershim.errors import HookFailure, ShimError
from dockershim.nri.connection import Connection, Lost, Refused, TooLong
from dockershim.nri.wire import Code

logger = logging.getLogger(__name__)

#: The version of NRI whose messages and rules are built here.
NRI_VERSION: Final = "v0.12.5"
_NAME: Final = re.compile(r"[A-Za-z0-9_.+-]{1,253}")
_INDEX: Final = re.compile(r"[0-9]{2}")
_VALID_EVENTS: Final = (1 << api.LAST - 1) - 1
#: Events that plugins of NRI before 0.12 know as StateChange only.
_STATE_CHANGES: Final = frozenset(
    (
        *(api.RUN_POD_SANDBOX, api.STOP_POD_SANDBOX, api.REMOVE_POD_SANDBOX, api.POST_UPDATE_POD_SANDBOX),
        *(api.POST_CREATE_CONTAINER, api.START_CONTAINER, api.POST_START_CONTAINER, api.POST_UPDATE_CONTAINER),
        api.REMOVE_CONTAINER,
    )
)
#: With so few objects in a message that is still too long, a plugin is given up, as in containerd.
_FEWEST_OBJECTS: Final = 8

M = TypeVar("M", bound=Message)

#: Carries out the updates that a plugin asks for at any time; returns those that failed.
Update = Callable[["Plugin", api.UpdateContainersRequest], Awaitable[list[api.ContainerUpdate]]]


@dataclass(frozen=True, slots=True)
class Timeouts:
    """In seconds."""

    registration: float
    request: float


class Rejected(Exception):
    """A plugin cannot be used; the text says why."""


class Plugin:
    """A plugin at the other end of ``sock``, which it owns.

    ``name`` is ``<index>-<base>``: that of the file if we started the plugin, else it is empty until it registers.
    """

    def __init__(self, sock: socket.socket, timeouts: Callable[[], Timeouts], update: Update, name: str = "") -> None:
        self.name = name
        self.events = 0
        self.policy = api.FailurePolicy()
        #: Whether it was closed because it did not answer in time.
        self.was_late = False
        self._timeouts = timeouts
        self._update = update
        self._started_here = bool(name)
        self._only_state_changes = False
        self._connection = Connection(sock, self._serve)
        self._registered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # -- its life --------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Read what it sends until the connection ends; to be run as a task."""
        await self._connection.run()
        if not self._registered.done():
            self._registered.set_exception(Rejected(self.end or ""))

    def close(self, reason: str) -> None:
        """End the connection."""
        self._connection.close(reason)

    @property
    def end(self) -> str | None:
        """Why its connection has ended; None while it has not."""
        return self._connection.end

    async def register(self, config: str) -> None:
        """Wait for its registration and configure it. Raises Rejected."""
        limits = self._timeouts()
        try:
            async with asyncio.timeout(limits.registration):
                await self._registered
        except TimeoutError as error:
            raise Rejected(f"it did not register within {limits.registration:g} s") from error
        request = api.ConfigureRequest(
            config=config,
            runtime_name="dockershim",
            runtime_version=dockershim.__version__,
            registration_timeout=round(limits.registration * 1000),
            request_timeout=round(limits.request * 1000),
            NRI_version=NRI_VERSION,
        )
        try:
            answer = await self._connection.call("Configure", request, api.ConfigureResponse, limits.request)
        except (Refused, Lost, TooLong) as error:
            raise Rejected(f"Configure: {error}") from error
        except TimeoutError as error:
            raise Rejected(f"it did not respond to Configure within {limits.request:g} s") from error
        if answer.events & ~_VALID_EVENTS:
            raise Rejected(f"it subscribes to unknown events (mask {answer.events:#x})")
        self.events = answer.events or _VALID_EVENTS
        self.policy = answer.failure_policy

    async def synchronize(
        self, pods: Sequence[api.PodSandbox], containers: Sequence[api.Container]
    ) -> Sequence[api.ContainerUpdate]:
        """Tell it what exists; returns the updates that it wants. All messages share one limit. Raises Rejected."""
        limit = self._timeouts().request
        try:
            async with asyncio.timeout(limit):
                return await self._synchronize(pods, containers, limit)
        except TimeoutError as error:
            self.was_late = True
            raise Rejected(f"it did not respond to Synchronize within {limit:g} s") from error
        except (Refused, Lost) as error:
            raise Rejected(f"Synchronize: {error}") from error

    async def _synchronize(
        self, pods: Sequence[api.PodSandbox], containers: Sequence[api.Container], limit: float
    ) -> Sequence[api.ContainerUpdate]:
        most_pods, most_containers = len(pods), len(containers)
        while True:
            more = len(pods) > most_pods or len(containers) > most_containers
            request = api.SynchronizeRequest(pods=pods[:most_pods], containers=containers[:most_containers], more=more)
            try:
                answer = await self._connection.call("Synchronize", request, api.SynchronizeResponse, limit)
            except TooLong as error:
                if most_pods + most_containers <= _FEWEST_OBJECTS:
                    raise Rejected("the pods and containers of the node do not fit into its messages") from error
                most_pods, most_containers = _fewer(most_pods), _fewer(most_containers)
                continue
            if not more:
                return answer.update
            if answer.update or not answer.more:
                raise Rejected("it does not support Synchronize in several messages, which this node needs")
            pods, containers = pods[most_pods:], containers[most_containers:]

    # -- events ----------------------------------------------------------------------------------------------

    def wants(self, event: api.Event) -> bool:
        """Whether it is subscribed to an event."""
        return self.end is None and bool(self.events >> event - 1 & 1)

    async def send(self, event: api.Event, request: Message, response: type[M]) -> M | None:
        """Send it an event and return the answer; None if there is none and the request goes on without it.

        Raises HookFailure if the plugin answers with an error, or if it fails and its policy says so.
        """
        method = request.DESCRIPTOR.name.removesuffix("Request")
        was_silent = self._connection.silent
        try:
            return await self._send(event, method, request, response, self._timeouts().request)
        except Refused as error:
            raise HookFailure(f"NRI plugin {self.name}: {method}: {error}") from error
        except TooLong as error:
            raise HookFailure(f"NRI plugin {self.name}: {method}: {error}") from error
        except TimeoutError as error:
            failure = str(error)
            self._is_late(failure)
        except Lost as error:
            failure = f"{method}: {error}"
        if self.policy.fail_request:
            raise HookFailure(f"NRI plugin {self.name}: {failure}")
        if self.end is None and not was_silent:
            logger.warning("NRI plugin %s: %s; continuing without it until it responds", self.name, failure)
        return None

    def _is_late(self, failure: str) -> None:
        if not self.policy.keep_connected:
            self.was_late = True
            self.close(failure)

    async def validate(
        self, question: api.ValidateContainerAdjustmentRequest
    ) -> api.ValidateContainerAdjustmentResponse:
        """Ask a validator. Raises HookFailure if it fails, whatever its policy is: it has not agreed."""
        limit = self._timeouts().request
        response = api.ValidateContainerAdjustmentResponse
        try:
            return await self._connection.call("ValidateContainerAdjustment", question, response, limit)
        except TimeoutError as error:
            self._is_late(str(error))
            raise HookFailure(f"validator {self.name!r} failed: {error}") from error
        except (Refused, Lost, TooLong) as error:
            raise HookFailure(f"validator {self.name!r} failed: {error}") from error

    async def _send(self, event: api.Event, method: str, request: Message, response: type[M], limit: float) -> M:
        if not self._only_state_changes or event not in _STATE_CHANGES:
            try:
                return await self._connection.call(method, request, response, limit)
            except Refused as error:
                if error.code != Code.UNIMPLEMENTED or event not in _STATE_CHANGES:
                    raise
        answer = await self._connection.call("StateChange", _to_state_change(event, request), api.Empty, limit)
        if not self._only_state_changes:
            self._only_state_changes = True
            logger.info("NRI plugin %s uses NRI before 0.12: sending it StateChange", self.name)
        return response.FromString(answer.SerializeToString())

    # -- what it asks of us ----------------------------------------------------------------------------------

    async def _serve(self, method: str, payload: bytes) -> bytes:
        try:
            if method == "RegisterPlugin":
                self._register(api.RegisterPluginRequest.FromString(payload))
                return b""
            if method == "UpdateContainers":
                request = api.UpdateContainersRequest.FromString(payload)
                if not self.events:
                    raise Refused(Code.UNKNOWN, "the plugin is not registered yet")
                try:
                    failed = await self._update(self, request)
                except ShimError as error:
                    raise Refused(Code.UNKNOWN, str(error)) from error
                return api.UpdateContainersResponse(failed=failed).SerializeToString()
        except DecodeError as error:
            raise Refused(Code.INVALID_ARGUMENT, f"not the request of {method}") from error
        raise Refused(Code.UNIMPLEMENTED, f"method {method[:80]}")

    def _register(self, request: api.RegisterPluginRequest) -> None:
        waiting = self._registered
        if waiting.done():
            raise Refused(Code.UNKNOWN, "the plugin is already registered")
        if not self._started_here:
            problem = ""
            if not _INDEX.fullmatch(request.plugin_idx):
                problem = f"index {request.plugin_idx[:80]!r} is not of two digits"
            elif not _NAME.fullmatch(request.plugin_name):
                problem = f"name {request.plugin_name[:80]!r} is not of letters, digits and . _ + -"
            if problem:
                waiting.set_exception(Rejected(problem))
                raise Refused(Code.UNKNOWN, problem)
            self.name = f"{request.plugin_idx}-{request.plugin_name}"
        waiting.set_result(None)


def _fewer(objects: int) -> int:
    return max(_FEWEST_OBJECTS // 2, objects // 2)


def _to_state_change(event: api.Event, request: Message) -> api.StateChangeEvent:
    pod, container = getattr(request, "pod", None), getattr(request, "container", None)
    return api.StateChangeEvent(event=event, pod=pod, container=container)
