"""What exists on the node, as it is followed from the engine."""
