"""The server's own metrics, in Prometheus' text format. Imported only if they are served (``--metrics-bind-addr``).

``families`` is the table of all metrics. ``instruments`` counts calls, ``state`` reads the other values when a client
asks, and ``metrics_server`` is the HTTP server.
"""
