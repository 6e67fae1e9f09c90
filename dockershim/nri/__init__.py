"""NRI, the Node Resource Interface: plugins are programs that see pods and containers, and may change them.

The protocol is containerd's, ttRPC over one unix socket. docs/nri.md says when each event is sent and what a plugin may
change. Only ``view`` is imported before NRI is switched on.
"""
