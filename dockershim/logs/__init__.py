"""Container logs in the CRI's format.

The engine's json-file stays the source of truth. One small process beside the server (``python -m dockershim.logs``)
follows the engine's files and writes the CRI's; ``service`` is the server's hold on it. The follower is paid for by
every node in memory, so what it imports imports little: no asyncio, no gRPC, no HTTP.
"""
