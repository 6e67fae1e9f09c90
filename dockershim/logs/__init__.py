"""Container logs in the CRI's format.

The engine's json-file stays the source of truth. A small process beside the server, the follower (``python -m
dockershim.logs``), reads the engine's files and writes the CRI logs; ``container_logs`` starts and controls it. Every
node pays for it in memory, so its modules import little: no asyncio, no gRPC, no HTTP.
"""
