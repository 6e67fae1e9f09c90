"""Statistics of pods and containers, read from the kernel. The engine only counts layers that this process cannot."""
