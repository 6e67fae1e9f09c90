"""Programs of Kubernetes, built from the Go module of this folder into the cache."""
