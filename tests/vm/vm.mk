# A machine of their own as a test node, for what a node of namespaces does not have: systemd, cgroup v2, AppArmor, a
# reboot. GUEST=uml is User Mode Linux, a kernel that runs as a process; GUEST=qemu is a whole computer. Without KVM the
# second takes several times as long.

GUEST ?= uml
GUEST_ENGINE ?= 29
VM_TESTS = $(BIN)/python -m pytest -p no:cacheprovider --guest=$(GUEST) --guest-engine=$(GUEST_ENGINE) $(if $(FOCUS),-k "$$FOCUS")
OF_KUBEADM = tests/vm/test_migrate.py

##@ Test

# A quarter of an hour with qemu, so it is not part of `make test`.
.PHONY: vm
vm: guest-supplies ## Run the server under systemd in a virtual machine: AppArmor, slices, units, reboot, power cut (GUEST=uml|qemu, GUEST_ENGINE=29|28, FOCUS=name)
	$(VM_TESTS) --ignore=$(OF_KUBEADM) tests/vm

# Go builds kubeadm, the control plane and cri-dockerd for some ten minutes the first time.
.PHONY: migrate
migrate: guest-supplies ## Move a node of kubeadm with 20 pods from cri-dockerd in a virtual machine, and back; kill the command on the way (GUEST_ENGINE=29|28)
	$(BIN)/python -m tests.vm.cri_dockerd
	$(VM_TESTS) $(OF_KUBEADM)

# What is made once is made before the tests, which have a time limit.
.PHONY: guest-supplies
guest-supplies: install
	$(BIN)/python -m tests.vm.supplies --guest=$(GUEST) --engine=$(GUEST_ENGINE)

# Those of them that have the mark `guest`.
.PHONY: guest
guest: guest-supplies ## Run a part of them in three minutes: pods of a real kubelet, limits, restarts, a reboot; a kernel and a kubelet are built once (GUEST=uml|qemu)
	$(VM_TESTS) -m guest --ignore=$(OF_KUBEADM) tests/vm $(if $(ALONGSIDE),$(RUN_AGAIN))

.PHONY: guest-kernel
guest-kernel: install ## Build the kernel of User Mode Linux once, and check that it has what Docker, kubelet and kube-proxy need
	$(BIN)/python -m tests.vm.kernel

##@ Develop

.PHONY: vm-shell
vm-shell: install ## Open a shell in such a virtual machine (GUEST=uml|qemu)
	$(BIN)/python -m tests.vm --guest=$(GUEST) --engine=$(GUEST_ENGINE)
