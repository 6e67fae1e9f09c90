"""The CRI server that makes a Docker Engine a Kubernetes runtime."""

__version__ = "0.1.0"
