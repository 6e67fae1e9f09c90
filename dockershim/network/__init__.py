"""The networks of pods, and their network namespaces."""
