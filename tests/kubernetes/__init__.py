"""Programs of Kubernetes, built from the Go modules of this folder into the cache."""
