"""NRI's wire format without I/O: frames in both directions, mistakes of plugins, and random bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockershim.api.nri.v1alpha1 import api_pb2 as nri
from dockershim.api.ttrpc.v1 import api_pb2 as ttrpc
from dockershim.nri.wire import (
    LONGEST_MESSAGE,
    Answer,
    BadCall,
    Call,
    Channel,
    Code,
    Connection,
    Event,
    LocalProtocolError,
    RemoteProtocolError,
)
from tests.fuzz import nri as fuzz

CORPUS = Path(fuzz.__file__).parent / "corpus" / "nri"
PLUGIN, RUNTIME = "nri.pkg.api.v1alpha1.Plugin", "nri.pkg.api.v1alpha1.Runtime"


def trunk(channel: int, payload: bytes) -> bytes:
    return struct.pack(">LL", channel, len(payload)) + payload


def frame(kind: int, stream_id: int, data: bytes = b"", flags: int = 0) -> bytes:
    return struct.pack(">LLBB", len(data), stream_id, kind, flags) + data


def request(stream_id: int, method: str = "RegisterPlugin", payload: bytes = b"") -> bytes:
    return frame(1, stream_id, ttrpc.Request(service=RUNTIME, method=method, payload=payload).SerializeToString())


def response(stream_id: int, payload: bytes = b"", code: int = 0, message: str = "") -> bytes:
    status = ttrpc.Status(code=code, message=message) if code else None
    return frame(2, stream_id, ttrpc.Response(payload=payload, status=status).SerializeToString())


def feed(machine: Connection, received: bytes, size: int) -> list[Event]:
    events = []
    for at in range(0, len(received), size):
        machine.receive_data(received[at : at + size])
        while (event := machine.next_event()) is not None:
            events.append(event)
    return events


def calling(calls: int) -> Connection:
    machine = Connection()
    for _ in range(calls):
        machine.call(PLUGIN, "Configure", b"", 2.0)
    return machine


@pytest.mark.parametrize("size", [1, 7, 4096])
@pytest.mark.parametrize(
    ("received", "expected"),
    [
        pytest.param(
            trunk(2, request(1, payload=b"x")), [Call(1, RUNTIME, "RegisterPlugin", b"x")], id="a call of the plugin"
        ),
        pytest.param(
            trunk(2, request(1)) + trunk(2, request(7)),
            [Call(1, RUNTIME, "RegisterPlugin", b""), Call(7, RUNTIME, "RegisterPlugin", b"")],
            id="ids may have gaps",
        ),
        pytest.param(
            trunk(1, response(3, b"c") + response(1, b"a")),
            [Answer(3, b"c", 0, ""), Answer(1, b"a", 0, "")],
            id="two answers in one frame of the trunk, out of order",
        ),
        pytest.param(
            b"".join(trunk(1, response(1, b"abc")[at : at + 3]) for at in range(0, 20, 3)),
            [Answer(1, b"abc", 0, "")],
            id="an answer in several frames of the trunk",
        ),
        pytest.param(trunk(1, response(1)), [Answer(1, b"", 0, "")], id="an empty answer is only a header"),
        pytest.param(
            trunk(1, response(1, code=2, message="no")), [Answer(1, b"", 2, "no")], id="an answer with an error"
        ),
        pytest.param(
            trunk(1, response(1, b"a")[:12]) + trunk(2, request(1)) + trunk(1, response(1, b"a")[12:]),
            [Call(1, RUNTIME, "RegisterPlugin", b""), Answer(1, b"a", 0, "")],
            id="the other channel in between",
        ),
        pytest.param(trunk(1, response(99, b"x") + response(3)), [Answer(3, b"", 0, "")], id="an answer nobody awaits"),
        pytest.param(trunk(1, response(1) * 2), [Answer(1, b"", 0, "")], id="an answer that comes twice"),
        pytest.param(trunk(1, request(1)), [], id="a call on the channel of answers"),
        pytest.param(trunk(2, frame(3, 1, b"data") + frame(9, 1)), [], id="other types of frames"),
        pytest.param(trunk(0, b"abc") + trunk(77, request(1)) + trunk(2, b""), [], id="other channels"),
        pytest.param(
            trunk(2, request(2)),
            [BadCall(2, Code.INVALID_ARGUMENT, "2 is not a valid id of a new stream")],
            id="an even id",
        ),
        pytest.param(
            trunk(2, frame(1, 1, b"\xff")),
            [BadCall(1, Code.INVALID_ARGUMENT, "not a ttRPC Request")],
            id="not a request",
        ),
        pytest.param(
            trunk(2, frame(1, 1, flags=2)),
            [BadCall(1, Code.UNIMPLEMENTED, "streaming is not supported")],
            id="a stream of messages",
        ),
    ],
)
def test_received_frames(received: bytes, expected: list[Event], size: int) -> None:
    assert feed(calling(2), received, size) == expected
    assert feed(calling(2), received + trunk(0, b"after"), size) == expected


@pytest.mark.parametrize("size", [1, 4096])
@pytest.mark.parametrize(
    ("received", "reason"),
    [
        pytest.param(struct.pack(">LL", 1, LONGEST_MESSAGE + 11), "a frame of 4194315 bytes", id="a long frame"),
        pytest.param(struct.pack(">LL", 77, 2**32 - 1), "a frame of 4294967295 bytes", id="of another channel, too"),
        pytest.param(
            trunk(2, struct.pack(">LLBB", LONGEST_MESSAGE + 1, 1, 1, 0)),
            "a message of 4194305 bytes",
            id="a long message",
        ),
        pytest.param(trunk(1, frame(2, 1, b"\xff")), "the answer is not a ttRPC Response", id="not a response"),
        pytest.param(trunk(2, request(1) * 2), "stream 1 is used twice", id="an id twice at once"),
    ],
)
def test_bytes_after_which_nothing_can_be_read(received: bytes, reason: str, size: int) -> None:
    with pytest.raises(RemoteProtocolError, match=reason):
        feed(calling(2), received, size)


def test_the_bytes_of_the_go_implementation() -> None:
    """Recorded from its stub: the registration as it arrived, and the answers as it takes them."""
    payload = nri.RegisterPluginRequest(plugin_name="gostub", plugin_idx="20", NRI_version="v0.12.1")
    machine = Connection()
    begin = bytes.fromhex("00000002 00000055 0000004b 00000001 01 00")
    sent = ttrpc.Request(service=RUNTIME, method="RegisterPlugin", payload=payload.SerializeToString())
    sent.timeout_nano = 4_999_900_000  # of five seconds
    [call] = feed(machine, begin + sent.SerializeToString(), 4096)
    assert call == Call(1, RUNTIME, "RegisterPlugin", payload.SerializeToString())
    assert machine.answer(1, b"") == bytes.fromhex("00000002 0000000a 00000000 00000001 02 00")
    assert feed(machine, trunk(2, request(5)), 4096)
    assert machine.fail(5, 2, "refuse P1")[8:] == bytes.fromhex(
        "0000000f 00000005 02 00 0a0d 0802 1209 726566757365205031"
    )


def test_calls_have_odd_ids_and_carry_their_time() -> None:
    machine = Connection()
    for stream_id in (1, 3, 5):
        number, data = machine.call(PLUGIN, "Configure", b"p", 1.5)
        channel, length, size, shown, kind, flags = struct.unpack_from(">LLLLBB", data)
        assert (number, channel, length, size, shown) == (
            stream_id,
            Channel.PLUGIN,
            len(data) - 8,
            len(data) - 18,
            number,
        )
        assert (kind, flags) == (1, 0)
        assert ttrpc.Request.FromString(data[18:]) == ttrpc.Request(
            service=PLUGIN, method="Configure", payload=b"p", timeout_nano=1_500_000_000
        )


@pytest.mark.parametrize("size", [4085, 4086, 4087, 200_000, LONGEST_MESSAGE - 100])
def test_a_long_message_is_cut_as_a_go_reader_needs_it(size: int) -> None:
    _, data = Connection().call(PLUGIN, "Synchronize", bytes(size), 2.0)
    pieces = []
    while data:
        _, length = struct.unpack_from(">LL", data)
        pieces.append(data[8 : 8 + length])
        data = data[8 + length :]
    whole = b"".join(pieces)
    assert [len(piece) for piece in pieces] == ([4096, len(whole) - 4096] if len(whole) > 4096 else [len(whole)])
    assert ttrpc.Request.FromString(whole[10:]).payload == bytes(size)


def test_a_message_that_is_too_long_is_not_sent() -> None:
    machine = Connection()
    with pytest.raises(LocalProtocolError, match="4194304 are allowed"):
        machine.call(PLUGIN, "Synchronize", bytes(LONGEST_MESSAGE), 2.0)
    assert feed(machine, trunk(2, request(1)), 4096)
    with pytest.raises(LocalProtocolError, match="4194304 are allowed"):
        machine.answer(1, bytes(LONGEST_MESSAGE))
    assert machine.fail(1, Code.RESOURCE_EXHAUSTED, "too long")


def test_only_a_call_that_waits_is_answered_and_only_once() -> None:
    machine = Connection()
    with pytest.raises(LocalProtocolError, match="stream 1 is not a pending call"):
        machine.answer(1, b"")
    feed(machine, trunk(2, request(1)), 4096)
    machine.answer(1, b"")
    with pytest.raises(LocalProtocolError, match="stream 1 is not a pending call"):
        machine.fail(1, 2, "again")


def test_the_answer_to_an_abandoned_call_is_skipped_without_memory() -> None:
    machine = calling(2)
    machine.abandon(1)
    assert feed(machine, trunk(1, response(1, bytes(1 << 20)) + response(3)), 1 << 16) == [Answer(3, b"", 0, "")]


def test_events_are_taken_out_before_more_is_fed() -> None:
    machine = calling(1)
    machine.receive_data(trunk(1, response(1)))
    with pytest.raises(LocalProtocolError, match="events of earlier bytes"):
        machine.receive_data(b"x")


frames = st.one_of(
    st.binary(max_size=40),
    st.builds(
        trunk,
        st.integers(0, 3),
        st.one_of(
            st.binary(max_size=40),
            st.builds(frame, st.integers(0, 4), st.integers(0, 9), st.binary(max_size=30), st.integers(0, 4)),
            st.builds(request, st.integers(0, 9)),
            st.builds(response, st.integers(0, 9), st.binary(max_size=9), st.integers(0, 2)),
        ),
    ),
)


@given(st.integers(0, 255), st.lists(frames, max_size=10))
def test_any_bytes_end_in_events_or_a_protocol_error(way: int, parts: Iterable[bytes]) -> None:
    fuzz.run(bytes([way]) + b"".join(parts))


@pytest.mark.parametrize("path", sorted(CORPUS.iterdir()), ids=lambda path: path.name)
def test_the_corpus_of_the_fuzzer(path: Path) -> None:
    assert fuzz.run(path.read_bytes()) or path.name.startswith("to-")


def test_a_recorded_plugin_in_go_is_understood_byte_for_byte() -> None:
    """Its answers come out of its bytes, and the calls that it answered are made of the same bytes again."""
    calls = parse_trunk((CORPUS / "to-go-plugin").read_bytes()[1:])
    registered, *asked = [
        (stream_id, kind, ttrpc.Request.FromString(data) if kind == 1 else None) for kind, stream_id, data in calls
    ]
    assert registered[:2] == (1, 2)
    machine = Connection()
    written = b""
    waiting = []
    for stream_id, kind, call in asked:
        assert kind == 1
        assert call is not None
        given, data = machine.call(call.service, call.method, call.payload, call.timeout_nano / 1e9)
        assert given == stream_id
        waiting.append(call.method)
        written += data
    registration, *answers = feed(machine, (CORPUS / "go-plugin").read_bytes()[1:], 1)
    assert isinstance(registration, Call)
    assert registration.method == "RegisterPlugin"
    wanted = nri.RegisterPluginRequest(plugin_name="recorded", plugin_idx="10", NRI_version="v0.12.5")
    assert nri.RegisterPluginRequest.FromString(registration.payload) == wanted
    assert machine.answer(1, b"") + written == (CORPUS / "to-go-plugin").read_bytes()[1:]
    payloads = {}
    for method, answer in zip(waiting, answers, strict=True):
        assert isinstance(answer, Answer)
        assert answer.code == 0
        payloads[method] = answer.payload
    assert nri.ConfigureResponse.FromString(payloads["Configure"]).events == 0x67F
    adjust = nri.CreateContainerResponse.FromString(payloads["CreateContainer"]).adjust
    assert ([(one.key, one.value) for one in adjust.env], adjust.linux.oom_score_adj.value) == (
        [("ADDED", "by a plugin")],
        7,
    )
    assert waiting[:3] == ["Configure", "Synchronize", "RunPodSandbox"]
    assert waiting[-1] == "RemovePodSandbox"


def parse_trunk(data: bytes) -> list[tuple[int, int, bytes]]:
    """The kind, the stream and the message of each frame that the runtime wrote."""
    channels: dict[int, bytes] = {}
    found = []
    while data:
        channel, length = struct.unpack_from(">LL", data)
        buffer = channels.get(channel, b"") + data[8 : 8 + length]
        data = data[8 + length :]
        while len(buffer) >= 10:
            size, stream_id, kind, _ = struct.unpack_from(">LLBB", buffer)
            if len(buffer) < 10 + size:
                break
            found.append((kind, stream_id, buffer[10 : 10 + size]))
            buffer = buffer[10 + size :]
        channels[channel] = buffer
    return found
