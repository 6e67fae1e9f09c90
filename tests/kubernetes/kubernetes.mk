# Kubernetes' own suites. They are built from source for some ten minutes once, so they are not part of `make test`.

# KUBERNETES=1.36 or 1.37 takes the suites and programs of that release. By default e2e_node is of the newest one, and
# kubeadm's clusters of the one before.
KUBERNETES ?=
# So many specs of e2e_node run at the same time.
SPECS ?= 6
# Of the suite that runs on a cluster fewer: etcd and its control plane are on the same node.
CLUSTER_SPECS ?= 4
# GATES=PodAndContainerStatsFromCRI=true turns features of the kubelet on.
GATES ?=
# SERIAL=yes runs the specs that run alone, instead of all others.
SERIAL ?=
# FEATURES=regex runs specs of features, which no conformant node need have, instead of the conformance specs.
FEATURES ?=
export FEATURES
# Of the guest: --swap, --cgroup-driver=cgroupfs, as `python -m tests.e2e_node --help` tells.
GUEST_FLAGS ?=
OF_KUBERNETES = $(if $(KUBERNETES),--kubernetes $(KUBERNETES))
E2E_NODE = $(BIN)/python -m tests.e2e_node $(OF_KUBERNETES) $(if $(FOCUS),--focus "$$FOCUS") $(if $(GATES),--feature-gates $(GATES)) \
  $(if $(FEATURES),--features "$$FEATURES") \
  $(if $(SERIAL),--serial) --processes $(SPECS) --engine

##@ Test

.PHONY: e2e-node
e2e-node: e2e-node-$(ENGINE) ## Run Kubernetes' node conformance suite: 27 minutes, builds for ten before once (ENGINE=20|28|29|29-overlay2, KUBERNETES=1.36, FOCUS=regular expression, SPECS=6)

.PHONY: $(EVERY_ENGINE:%=e2e-node-%)
$(EVERY_ENGINE:%=e2e-node-%): e2e-node-%: install
	$(E2E_NODE) $*

.PHONY: e2e-node-guest
e2e-node-guest: install ## Run it in a virtual machine, with cgroup v2 and systemd (GUEST=uml|qemu, GUEST_ENGINE=29|28, FOCUS=, FEATURES=, SERIAL=yes, GUEST_FLAGS=--swap)
	$(E2E_NODE) $(GUEST_ENGINE) --guest=$(GUEST) $(GUEST_FLAGS)

# ONLY=tests leaves the suite out, ONLY=suite all else.
ONLY ?=
KUBEADM = $(BIN)/python -m tests.kubeadm $(OF_KUBERNETES) $(if $(FOCUS),--focus "$$FOCUS") $(if $(ONLY),--$(ONLY)) \
  --processes $(CLUSTER_SPECS) --engine

.PHONY: kubeadm
kubeadm: kubeadm-$(ENGINE) ## Make clusters with kubeadm and run Kubernetes' conformance specs on one: 26 minutes (ENGINE=, KUBERNETES=1.37, FOCUS=, ONLY=tests|suite)

.PHONY: $(EVERY_ENGINE:%=kubeadm-%)
$(EVERY_ENGINE:%=kubeadm-%): kubeadm-%: install
	$(KUBEADM) $*
