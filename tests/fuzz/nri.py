"""`python -m tests.fuzz.nri CORPUS…`: any bytes of a plugin end in calls and answers or a protocol error, and bounded
memory.

The first byte says in pieces of how many bytes the rest is fed, and how many calls of ours wait for answers.
"""

from __future__ import annotations

import contextlib

from dockershim.nri import wire
from tests.fuzz.fuzzer import fuzz

SERVICE = "nri.pkg.api.v1alpha1.Plugin"


def run(data: bytes) -> list[wire.Event]:
    """The events of an input. AssertionError, or any other exception, is a finding."""
    if not data:
        return []
    way, rest = data[0], data[1:]
    machine = wire.Connection()
    waiting = {machine.call(SERVICE, "Configure", b"", 1.0)[0] for _ in range(way >> 6)}
    events: list[wire.Event] = []
    size = (way & 0x3F) + 1
    with contextlib.suppress(wire.RemoteProtocolError):
        for at in range(0, len(rest), size):
            machine.receive_data(rest[at : at + size])
            while (event := machine.next_event()) is not None:
                events.append(event)
                match event:
                    case wire.Answer(stream_id):
                        waiting.remove(stream_id)
                    case wire.Call(stream_id, _, _, payload):
                        machine.answer(stream_id, payload)
                    case wire.BadCall(stream_id, code, reason):
                        machine.fail(stream_id, code, reason)
    assert sum(len(event.payload) for event in events if not isinstance(event, wire.BadCall)) <= len(rest)
    return events


if __name__ == "__main__":
    fuzz(run, wire)
