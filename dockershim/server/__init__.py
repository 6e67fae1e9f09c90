"""The process: its configuration, its sockets, its log, and the border to gRPC."""
