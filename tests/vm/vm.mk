# A virtual machine as a test node, for what a node of namespaces does not have: systemd, AppArmor, a reboot.

##@ Test

# Without KVM it takes a quarter of an hour, so it is no part of `make test`.
.PHONY: vm
vm: install ## Run the server under systemd in a virtual machine: AppArmor, slices, units, reboot, power cut (FOCUS=name)
	$(BIN)/python -m pytest -p no:cacheprovider $(if $(FOCUS),-k "$$FOCUS") tests/vm

##@ Develop

.PHONY: vm-shell
vm-shell: install ## Open a shell in that virtual machine
	$(BIN)/python -m tests.vm
