"""One life of a pod by a kubelet of each minor version that users have, without an API server."""
