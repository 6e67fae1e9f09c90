from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockershim.engine.errors import error_from_response
from dockershim.engine.pull_progress import MessageStream, refine
from dockershim.errors import (
    EngineFailure,
    FailedPrecondition,
    NotFound,
    ShimError,
    Unauthenticated,
    Unavailable,
)

#: An answer of Docker 29 with containerd's image store.
OF_CONTAINERD = (
    'unknown: failed to resolve reference "127.0.0.1:46339/app:1": unexpected status from HEAD request to'
    " http://127.0.0.1:46339/v2/app/manifests/1: {}"
)

LAYER_OF_CONTAINERD = (
    "failed to copy: httpReadSeeker: failed open: could not fetch content descriptor sha256:bfeb"
    " (application/vnd.docker.image.rootfs.diff.tar) from remote: {}"
)
MANIFEST_OF_CONTAINERD = "content at https://r.example/v2/app/manifests/sha256:45b6 not found: not found"
ACCESS_DENIED = "pull access denied for r.example/app, repository does not exist or may require 'docker login'"


def lines(*messages: object) -> bytes:
    return b"".join(json.dumps(message).encode() + b"\r\n" for message in messages)


def status(layer: str, text: str) -> dict[str, object]:
    return {"status": text, "progressDetail": {}, "id": layer}


def received(data: bytes, size: int) -> MessageStream:
    stream = MessageStream("pull")
    for start in range(0, len(data), size):
        stream.receive(data[start : start + size])
    return stream


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
@pytest.mark.parametrize(
    ("messages", "extracting"),
    [
        pytest.param([], False, id="nothing-yet"),
        pytest.param([status("1", "Pulling from x"), status("a", "Downloading")], False, id="downloading"),
        pytest.param([status("a", "Extracting")], True, id="extracting"),
        pytest.param([status("a", "Extracting"), status("a", "Pull complete")], False, id="extracted"),
        pytest.param([status("a", "Extracting"), status("b", "Pull complete")], True, id="another-layer-complete"),
        pytest.param([status("a", "Extracting"), {"status": "Digest: sha256:0"}], True, id="message-of-no-layer"),
        pytest.param([{"status": "Extracting", "id": 1}], False, id="layer-of-another-type"),
    ],
)
def test_unpacking_is_known_from_the_messages(messages: list[object], extracting: bool, size: int) -> None:
    assert received(lines(*messages), size).extracting is extracting


def progress(layer: str, text: str, current: object) -> dict[str, object]:
    return {"status": text, "progressDetail": {"current": current, "total": 100}, "id": layer}


@pytest.mark.parametrize(
    ("messages", "downloaded"),
    [
        pytest.param([], 0, id="nothing-yet"),
        pytest.param([progress("a", "Downloading", 10), progress("a", "Downloading", 30)], 30, id="one-layer"),
        pytest.param([progress("a", "Downloading", 10), progress("b", "Downloading", 5)], 15, id="two-layers"),
        pytest.param([progress("a", "Downloading", 90), progress("a", "Downloading", 2)], 90, id="tried-again"),
        pytest.param([progress("a", "Downloading", 9), status("a", "Download complete")], 100, id="the-rest-of-it"),
        pytest.param([progress("a", "Downloading", 9), progress("a", "Extracting", 50)], 100, id="unpacked-is-whole"),
        pytest.param([progress("a", "Downloading", 9), status("a", "Retrying in 5 seconds")], 9, id="cut-off"),
        pytest.param([status("a", "Already exists"), status("a", "Pull complete")], 0, id="it-was-there"),
        pytest.param([progress("a", "Extracting", 50)], 0, id="from-an-archive"),
        pytest.param(
            [status("a", "Download complete"), progress("a", "Extracting", 5), progress("a", "Extracting", 100)],
            100,
            id="told-only-while-it-is-unpacked",
        ),
        pytest.param([status("a", "Verifying Checksum"), progress("a", "Extracting", 5)], 100, id="verified"),
        pytest.param([progress("a", "Downloading", 9), progress("a", "Extracting", 5)], 100, id="told-twice"),
        pytest.param([progress("a", "Downloading", "many")], 0, id="no-number"),
        pytest.param([{"status": "Downloading", "id": "a", "progressDetail": 7}], 0, id="no-detail"),
    ],
)
def test_bytes_of_layers_are_summed(messages: list[object], downloaded: int) -> None:
    assert received(lines(*messages), 7).downloaded == downloaded


@pytest.mark.parametrize(
    ("messages", "unmeasured"),
    [
        pytest.param([status("a", "Pulling fs layer"), status("a", "Download complete")], {"a"}, id="at-once"),
        pytest.param([status("a", "Download complete"), status("a", "Pull complete")], {"a"}, id="and-unpacked"),
        pytest.param([progress("a", "Downloading", 9), status("a", "Download complete")], set(), id="measured"),
        pytest.param([progress("a", "Downloading", 100), status("a", "Download complete")], set(), id="to-the-end"),
        pytest.param([status("a", "Already exists"), status("a", "Pull complete")], set(), id="it-was-there"),
        pytest.param([progress("a", "Extracting", 50)], set(), id="from-an-archive"),
        pytest.param([status("a", "Download complete"), progress("a", "Extracting", 5)], set(), id="unpacked-measured"),
        pytest.param(
            [
                status("a", "Download complete"),
                {"status": "Extracting", "id": "a", "progressDetail": {"current": 1, "units": "s"}},
            ],
            {"a"},
            id="unpacked-in-seconds",
        ),
    ],
)
def test_layers_that_come_at_once_are_known(messages: list[object], unmeasured: set[str]) -> None:
    assert received(lines(*messages), 7).unmeasured == unmeasured


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
@pytest.mark.parametrize(
    ("message", "expected"),
    [
        pytest.param({"errorDetail": {"message": "unknown blob"}, "error": "unknown blob"}, NotFound, id="no-code"),
        pytest.param({"errorDetail": {"code": 404, "message": "gone"}}, NotFound, id="not-found"),
        pytest.param({"errorDetail": {"code": 401, "message": "who?"}}, Unauthenticated, id="unauthenticated"),
        pytest.param({"errorDetail": {"code": 503, "message": "later"}}, Unavailable, id="unavailable"),
        pytest.param(
            {"errorDetail": {"code": 1, "message": "exit status"}}, EngineFailure, id="code-is-no-http-status"
        ),
        pytest.param({"error": "only text"}, EngineFailure, id="old-form"),
        pytest.param({"errorDetail": {"message": "unauthorized: m"}}, Unauthenticated, id="registry-code-unauthorized"),
        pytest.param({"errorDetail": {"message": "denied: m"}}, Unauthenticated, id="registry-code-denied"),
        pytest.param({"errorDetail": {"message": "toomanyrequests: m"}}, Unavailable, id="registry-code-too-many"),
        pytest.param({"errorDetail": {"message": "tar: unauthorized: m"}}, EngineFailure, id="registry-code-elsewhere"),
        pytest.param({"errorDetail": None}, EngineFailure, id="detail-missing"),
    ],
)
def test_an_error_in_the_stream_is_typed(message: object, expected: type[ShimError], size: int) -> None:
    with pytest.raises(ShimError) as raised:
        received(lines(status("a", "Downloading"), message), size)
    assert type(raised.value) is expected
    assert "pull" in str(raised.value)


@pytest.mark.parametrize(
    ("messages", "news"),
    [
        pytest.param([], 0, id="nothing-yet"),
        pytest.param([progress("a", "Downloading", 10)] * 3, 1, id="repeated"),
        pytest.param([progress("a", "Downloading", 10), progress("a", "Downloading", 11)], 2, id="one-byte-more"),
        pytest.param([progress(one, "Downloading", 10) for one in "abab"], 2, id="two-layers-repeated-in-turn"),
        pytest.param([status("a", "Waiting"), status("a", "Verifying Checksum")], 2, id="another-phase"),
        pytest.param([{"status": "Pulling from app"}] * 2, 2, id="of-no-layer"),
    ],
)
def test_only_what_says_something_new_is_progress(messages: list[object], news: int) -> None:
    assert received(lines(*messages), 7).news == news


def test_what_was_received_before_an_error_counts() -> None:
    stream = MessageStream("pull")
    stream.receive(lines(status("a", "Extracting")))
    with pytest.raises(EngineFailure, match="bad tar"):
        stream.receive(lines({"error": "bad tar"}))


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"<html>\n", id="not-json"),
        pytest.param(b"[1]\n", id="not-an-object"),
        pytest.param(b"\xff\n", id="not-text"),
        pytest.param(b"{" * (2 << 20), id="no-line-end"),
    ],
)
def test_what_is_no_message_is_a_failure_of_the_engine(data: bytes) -> None:
    with pytest.raises(EngineFailure):
        MessageStream("pull").receive(data)


@given(
    st.binary()
    | st.lists(st.dictionaries(st.sampled_from(["id", "status", "error", "errorDetail"]), st.text())).map(
        lambda messages: lines(*messages)
    )
)
def test_any_bytes_are_taken_or_an_error_of_ours(data: bytes) -> None:
    try:
        MessageStream("pull").receive(data)
    except ShimError:
        return


@pytest.mark.parametrize(
    ("status_code", "message", "expected"),
    [
        pytest.param(500, "unauthorized: auth", Unauthenticated, id="20.10-says-500-to-a-401"),
        pytest.param(401, "unauthorized: auth", Unauthenticated, id="28-says-401"),
        pytest.param(429, "toomanyrequests: slow down", Unavailable, id="too-many"),
        pytest.param(404, "denied: m", NotFound, id="the-engines-own-status-wins"),
        pytest.param(409, "unauthorized: m", FailedPrecondition, id="any-status-with-a-type-wins"),
        pytest.param(500, "Head URL: no basic auth credentials", Unauthenticated, id="asked-for-a-password"),
        pytest.param(500, "dial tcp: refused", EngineFailure, id="no-code-at-all"),
        pytest.param(500, OF_CONTAINERD.format("401 Unauthorized"), Unauthenticated, id="containerd-401"),
        pytest.param(500, OF_CONTAINERD.format("403 Forbidden"), Unauthenticated, id="containerd-403"),
        pytest.param(500, OF_CONTAINERD.format("429 Too Many Requests"), Unavailable, id="containerd-429"),
        pytest.param(500, OF_CONTAINERD.format("503 Service Unavailable"), Unavailable, id="containerd-503"),
        pytest.param(500, OF_CONTAINERD.format("500 Oops"), EngineFailure, id="containerd-500"),
        pytest.param(500, "unexpected status from GET: 401", EngineFailure, id="another-401"),
        pytest.param(500, f"{ACCESS_DENIED}: denied: no", Unauthenticated, id="layer-denied"),
        pytest.param(404, f"{ACCESS_DENIED}: denied: no", NotFound, id="manifest-denied"),
        pytest.param(500, "unknown blob", NotFound, id="layer-missing"),
        pytest.param(500, "the file is an unknown blob", EngineFailure, id="another-blob"),
        pytest.param(500, LAYER_OF_CONTAINERD.format("not found"), NotFound, id="containerd-layer-missing"),
        pytest.param(
            500, "manifest for r.example/a:1 not found: manifest unknown: no", NotFound, id="manifest-missing"
        ),
        pytest.param(500, f"failed open: {MANIFEST_OF_CONTAINERD}", NotFound, id="containerd-manifest-missing"),
        pytest.param(500, LAYER_OF_CONTAINERD.format("EOF"), EngineFailure, id="containerd-layer-cut"),
        pytest.param(500, "received unexpected HTTP status: 502 Bad Gateway", Unavailable, id="502"),
        pytest.param(500, "received unexpected HTTP status: 500 Internal Server Error", EngineFailure, id="500"),
        pytest.param(500, 'error parsing HTTP 403 response body: "<html>"', Unauthenticated, id="20.10-page-403"),
        pytest.param(500, 'error parsing HTTP 404 response body: "<html>"', NotFound, id="20.10-page-404"),
        pytest.param(500, 'error parsing HTTP 429 response body: ""', Unavailable, id="20.10-page-429"),
        pytest.param(500, "unauthorized", Unauthenticated, id="a-code-alone"),
        pytest.param(500, "error from registry: unauthorized\nunauthorized", Unauthenticated, id="containerd-codes"),
        pytest.param(500, "error from registry: denied", Unauthenticated, id="containerd-denied"),
        pytest.param(500, "error from registry: toomanyrequests", Unavailable, id="containerd-too-many"),
        pytest.param(500, "error from registry: no code, only words", EngineFailure, id="containerd-free-text"),
        pytest.param(500, "error from registry: unauthorized people", EngineFailure, id="containerd-other-words"),
    ],
)
def test_an_answer_without_a_type_gets_that_of_the_registrys_code(
    status_code: int, message: str, expected: type[ShimError]
) -> None:
    body = json.dumps({"message": message}).encode()
    error = error_from_response(status_code, body, "POST /images/create")
    assert type(refine(error)) is expected
    assert str(refine(error)) == str(error)
