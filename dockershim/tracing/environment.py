"""What the standard's environment variables say of traces, as far as the SDK leaves it to its user.

https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from urllib.parse import urlsplit


class Protocol(StrEnum):
    """How traces are sent."""

    GRPC = "grpc"
    HTTP = "http/protobuf"


#: Where a collector listens by default.
_DEFAULTS: Final = {Protocol.GRPC: "http://localhost:4317", Protocol.HTTP: "http://localhost:4318"}


class Unusable(Exception):
    """The variables ask for something that there is not. The text names the variable and what may be there."""


@dataclass(frozen=True, slots=True)
class Destination:
    """Where traces go. ``endpoint`` is for the log: a URL without user, password and query."""

    protocol: Protocol
    endpoint: str


def destination(environ: Mapping[str, str]) -> Destination | None:
    """Where the environment sends traces; None if it asks for none. Raises Unusable.

    As in containerd, an endpoint turns traces on. Without one the SDK would try the default endpoint for ever.
    """
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    exporter = environ.get("OTEL_TRACES_EXPORTER", "").strip()
    endpoint = _first(environ, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    if exporter == "none" or not (exporter or endpoint):
        return None
    if exporter not in ("", "otlp"):
        raise Unusable(f"OTEL_TRACES_EXPORTER={exporter}: must be otlp or none")
    # The standard's default, and that of the engine, which has the same variables.
    name = _first(environ, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL") or Protocol.HTTP
    if name not in list(Protocol):
        raise Unusable(f"OTEL_EXPORTER_OTLP_PROTOCOL={name}: must be one of {', '.join(Protocol)}")
    protocol = Protocol(name)
    return Destination(protocol, _shown(endpoint or _DEFAULTS[protocol]))


def _first(environ: Mapping[str, str], *names: str) -> str:
    return next((value for name in names if (value := environ.get(name, "").strip())), "")


def _shown(endpoint: str) -> str:
    try:
        parts = urlsplit(endpoint)
        address = parts.netloc.rpartition("@")[2]
    except ValueError as error:
        raise Unusable(f"OTEL_EXPORTER_OTLP_ENDPOINT: {error}") from None
    return f"{parts.scheme}://{address}{parts.path}" if address else endpoint.rpartition("@")[2]
