"""Runs the unit tests with the Pythons that this machine does not have as its own."""
