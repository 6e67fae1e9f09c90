"""Runtime hooks: hook servers are programs beside the server that see, and may change, requests of the kubelet.

The protocol is that of koordinator's koord-runtime-proxy. docs/hooks.md says when each hook is called, and what an
answer may change. Only ``config`` and ``folder`` are imported before a hook server is configured.
"""
