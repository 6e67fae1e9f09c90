"""Attacks that a pod's user, a client or a neighbour of the server may try, each beside a pod that must not feel it."""
