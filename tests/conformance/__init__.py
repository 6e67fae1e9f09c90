"""critest, the CRI's conformance suite, against the server in a test node."""
