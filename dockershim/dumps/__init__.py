"""Dumps of containers, for CheckpointContainer: what a process has in memory, and the files that it changed.

A process makes one dump and ends. It imports neither gRPC nor asyncio. What it looks at may hang, and what it copies
may be large, so none of this is a thread of the server.
"""
