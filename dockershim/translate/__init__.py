"""Pure functions between CRI messages and the engine's JSON, both ways.

Nothing here waits, asks a clock or opens a file: ids, file contents and what the engine can do are passed in.
"""
