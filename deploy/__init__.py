"""Tools to use dockershim on a machine: `make run`, `make demo`, and systemd units. Not a part of the server."""
