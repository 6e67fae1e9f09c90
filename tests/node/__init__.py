"""The test node: a process tree in namespaces of its own, with its own Docker Engine, registry and CNI set-up.

Nothing in it can reach the machine's engine, firewall, hosts file or cgroups, and nothing of it outlives it.
`python -m tests.node --help` starts one; a test that runs in it finds the variable TEST_NODE set.
"""
