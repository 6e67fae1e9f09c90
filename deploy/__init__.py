"""Using dockershim on a machine: `make run`, `make demo`, and the units of systemd. No part of the server."""
