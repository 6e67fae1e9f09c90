"""e2e_node, Kubernetes' suite for nodes, with a kubelet and the server in a test node."""
