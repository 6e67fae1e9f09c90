"""Pure functions that convert between CRI messages and the engine's JSON, in both directions.

They do no I/O and read no clock: callers pass in ids, the content of files and the engine's capabilities.
"""
