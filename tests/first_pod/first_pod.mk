##@ Test

# Twenty minutes with qemu and without KVM, so it is not part of `make test`.
.PHONY: first-pod
first-pod: install ## Follow docs/first-pod.md on a new Debian 13 in a virtual machine, to a pod under a kubelet and back (GUEST=uml|qemu)
	$(MAKE) deb SUITE=trixie ARCHITECTURE=amd64
	$(BIN)/python -m pytest -p no:cacheprovider --guest=$(GUEST) tests/first_pod
