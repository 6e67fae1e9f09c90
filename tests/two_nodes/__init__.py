"""A Kubernetes cluster of two nodes, each a guest: kubeadm with its default settings, flannel, kube-proxy, CoreDNS."""
