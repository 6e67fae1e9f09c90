"""docs/first-pod.md, command by command, on a Debian 13 in a virtual machine that has nothing of ours yet."""
