"""A virtual machine as a test node: Debian 13 with systemd, where the server runs as on a node of a cluster."""
