"""The server's own metrics, in Prometheus' text format. Loaded only where they are served (``--metrics-bind-addr``).

``families`` is the table of what there is, ``instruments`` what calls are counted with, ``state`` what is read when
somebody asks, ``service`` the HTTP server in front of them.
"""
