"""What the standard's variables say of traces."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockershim.tracing.environment import Destination, Protocol, Unusable, destination

ENDPOINT, ONLY_TRACES = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
PROTOCOL, ONLY_TRACES_PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
NODE = "http://node:4317"


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        pytest.param({}, None, id="nothing is said"),
        pytest.param({"OTEL_SERVICE_NAME": "mine", PROTOCOL: "grpc"}, None, id="no endpoint"),
        pytest.param({ENDPOINT: " "}, None, id="an empty endpoint"),
        pytest.param({ENDPOINT: NODE}, Destination(Protocol.HTTP, NODE), id="an endpoint"),
        pytest.param({ENDPOINT: "node:4317"}, Destination(Protocol.HTTP, "node:4317"), id="without a scheme"),
        pytest.param(
            {ENDPOINT: "http://other", ONLY_TRACES: NODE}, Destination(Protocol.HTTP, NODE), id="the endpoint of traces"
        ),
        pytest.param({ENDPOINT: NODE, PROTOCOL: "grpc"}, Destination(Protocol.GRPC, NODE), id="the other protocol"),
        pytest.param(
            {ENDPOINT: NODE, PROTOCOL: "http/protobuf", ONLY_TRACES_PROTOCOL: "grpc"},
            Destination(Protocol.GRPC, NODE),
            id="the protocol of traces",
        ),
        pytest.param(
            {"OTEL_TRACES_EXPORTER": "otlp"},
            Destination(Protocol.HTTP, "http://localhost:4318"),
            id="only the exporter",
        ),
        pytest.param({ENDPOINT: NODE, "OTEL_TRACES_EXPORTER": "none"}, None, id="not traces"),
        pytest.param({ENDPOINT: NODE, "OTEL_SDK_DISABLED": "TRUE"}, None, id="turned off"),
        pytest.param(
            {ENDPOINT: "https://user:secret@node:4317/here?key=secret#secret"},
            Destination(Protocol.HTTP, "https://node:4317/here"),
            id="with secrets, which the log must not have",
        ),
        pytest.param({ENDPOINT: "secret@node:4317"}, Destination(Protocol.HTTP, "node:4317"), id="with a bare secret"),
    ],
)
def test_where_traces_go(environ: Mapping[str, str], found: Destination | None) -> None:
    assert destination(environ) == found


@pytest.mark.parametrize(
    "variable",
    [("OTEL_TRACES_EXPORTER", "zipkin"), (PROTOCOL, "http/json"), (PROTOCOL, "smoke"), (ENDPOINT, "http://[")],
)
def test_what_cannot_be_done_is_told_with_its_variable(variable: tuple[str, str]) -> None:
    name, value = variable
    with pytest.raises(Unusable, match=name):
        destination({ENDPOINT: NODE, name: value})


@given(st.dictionaries(st.sampled_from([ENDPOINT, ONLY_TRACES, PROTOCOL, "OTEL_TRACES_EXPORTER"]), st.text()))
def test_any_text_is_a_destination_or_unusable(environ: Mapping[str, str]) -> None:
    with contextlib.suppress(Unusable):
        destination(environ)
