"""One file with the name of cri-dockerd, for tools that copy one program to a node."""
