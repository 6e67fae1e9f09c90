"""The CRI server that lets Kubernetes use Docker Engine as its container runtime."""

__version__ = "0.1.0"
