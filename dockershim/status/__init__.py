"""``dockershim status``: the pods of a node and the state of its server, read through the CRI socket alone."""
