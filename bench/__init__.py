"""Each CRI call beside the bare engine and plugin calls that it needs, in one run: the ratio is the limit.

Runs inside a test node; `make bench` starts one.
"""
