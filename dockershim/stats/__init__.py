"""Statistics of containers, read from cgroup files: no engine call for a container, and none that the engine counts."""
