"""Traces of calls for OpenTelemetry. docs/tracing.md says what they show and how they are turned on.

``environment`` reads the standard's variables. ``tracer`` makes the spans and ``export`` sends them; these two load
OpenTelemetry, so they are imported only if there are traces. ``common.spans`` has the places that call the tracer.
"""
