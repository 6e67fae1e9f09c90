"""A cluster that kubeadm makes in a test node, and Kubernetes' conformance suite on it."""
