"""Runtime hooks: programs beside the server that see pods and containers on their way, and may change them.

The protocol is that of koordinator's koord-runtime-proxy; docs/hooks.md says what is fired when, and what an answer
may change. Nothing but ``config`` and ``folder`` is imported before a hook server is configured.
"""
