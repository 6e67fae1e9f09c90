"""The networks of pods, and the namespaces that they are in."""
