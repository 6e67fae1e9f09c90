"""``dockershim status``: the pods of a node and how its server is doing, asked through the CRI socket alone."""
