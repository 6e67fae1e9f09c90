"""Handlers of calls that a test serves itself."""

from __future__ import annotations

import re

from google.protobuf.message_factory import GetMessageClass

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.cri.handlers import Handler


def snake_case(call: str) -> str:
    """The name of the method that serves a call of the CRI."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", call).lower()


def handlers_of(service: str, implementation: object) -> list[Handler]:
    """The handlers of an object with a method, by its name in snake case, for each call that it serves."""
    return [
        Handler(GetMessageClass(one.input_type), GetMessageClass(one.output_type), serve, one.server_streaming)
        for one in cri.DESCRIPTOR.services_by_name[service].methods
        if (serve := getattr(implementation, snake_case(one.name), None)) is not None
    ]
