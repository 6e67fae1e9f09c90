"""Each CRI call beside the bare engine and plugin calls that it needs, in one run: the ratio is the limit.

Runs inside a test node; `make bench` starts one.
"""

from dockershim.server.cli import set_up_grpc

# The client has gRPC as the server has it: how often its own threads wake each other is not what is measured.
set_up_grpc()
