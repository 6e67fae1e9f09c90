"""The command itself: reads the server's state every two seconds, and shows it.

It uses the CRI alone, so that access to the socket is enough, and nothing has to be enabled before. Four calls make one
view, however many pods there are.
"""

from __future__ import annotations

import contextlib
import io
import signal
import sys
import time
from types import FrameType
from typing import Final, TextIO

import grpc
import msgspec
from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.common.text import escape, escape_json
from dockershim.debug.overview import Answers, Overview, to_overview
from dockershim.server.cri_calls import call, connect, reason
from dockershim.status.table import render

#: Seconds between two views, and of one call.
_INTERVAL: Final = 2.0
_DEADLINE: Final = 5.0
#: Columns if the output is not a terminal, so that a program that reads the output gets whole names.
_WIDE: Final = 400


class NoServer(Exception):
    """There is nothing to show; the text has the reason in one line."""


def status(endpoint: str, *, once: bool, as_json: bool) -> int:
    """Show the state of the node until Ctrl-C; once if asked or if the output is no terminal. Returns the exit code.

    0, or 1 if no server answers at first.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    with connect(endpoint) as channel:
        try:
            overview = look(channel, endpoint)
        except NoServer as error:
            sys.stderr.write(f"dockershim: {error}\n")
            return 1
        if as_json:
            sys.stdout.write(to_json(overview))
        elif once or not sys.stdout.isatty():
            console(sys.stdout).print(render(overview))
        else:
            _watch(channel, endpoint, overview)
    return 0


def look(channel: grpc.Channel, endpoint: str) -> Overview:
    """Ask the server for one view. Raises NoServer."""
    try:
        answer = call(channel, cri.StatusRequest(verbose=True), cri.StatusResponse, _DEADLINE)
    except grpc.RpcError as error:
        raise NoServer(
            f"no server responds on {endpoint}: start dockershim, or set --container-runtime-endpoint"
            f" ({escape(reason(error))})"
        ) from error
    return to_overview(_with_pods(channel, answer), time.time())


def _with_pods(channel: grpc.Channel, answer: cri.StatusResponse) -> Answers:
    try:
        return Answers(
            answer,
            call(channel, cri.ListPodSandboxRequest(), cri.ListPodSandboxResponse, _DEADLINE).items,
            call(channel, cri.ListContainersRequest(), cri.ListContainersResponse, _DEADLINE).containers,
            call(channel, cri.ListPodSandboxStatsRequest(), cri.ListPodSandboxStatsResponse, _DEADLINE).stats,
        )
    except grpc.RpcError as error:
        return Answers(answer, problem=f"cannot list the pods: {reason(error)}")


def to_json(overview: Overview) -> str:
    """The view for programs; docs/status.md has its form."""
    return escape_json(msgspec.json.format(msgspec.json.encode(overview), indent=2).decode()) + "\n"


def console(stream: TextIO) -> Console:
    """A console that takes texts as they are. Colours only on a terminal, and not with NO_COLOR."""
    width = None if stream.isatty() else _WIDE
    return Console(file=stream, width=width, highlight=False, markup=False, emoji=False)


def _watch(channel: grpc.Channel, endpoint: str, first: Overview) -> None:
    """Show views until SIGINT or SIGTERM, which must not leave the terminal in its other screen."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    screen = console(sys.stdout)
    try:
        with (
            contextlib.suppress(KeyboardInterrupt),
            Live(render(first, screen.height), console=screen, screen=True, auto_refresh=False) as live,
        ):
            while True:
                time.sleep(_INTERVAL)
                live.update(_next_view(channel, endpoint, screen.height), refresh=True)
    finally:
        signal.signal(signal.SIGTERM, before)


def _next_view(channel: grpc.Channel, endpoint: str, height: int) -> RenderableType:
    try:
        return render(look(channel, endpoint), height)
    except NoServer as error:
        return Text(str(error), style="bold red")
