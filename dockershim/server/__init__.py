"""The server process: command line, configuration, sockets, log, gRPC server."""
