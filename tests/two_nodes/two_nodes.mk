# A cluster of two guests. It takes some twenty minutes, and needs what Go and the guests' kernel are built in before, so
# it is not part of `make test`.

##@ Test

.PHONY: two-nodes
two-nodes: install ## Make a cluster of two virtual machines with kubeadm and flannel; drain, upgrade and cut the power of one (FOCUS=name)
	$(BIN)/python -m tests.two_nodes $(if $(FOCUS),--focus "$$FOCUS")

.PHONY: conformance-cluster
conformance-cluster: install ## Run all of Kubernetes' conformance suite on such a cluster (GUEST_ENGINE=29|28, FOCUS=regular expression, CLUSTER_SPECS=4)
	$(BIN)/python -m tests.two_nodes.conformance --engine=$(GUEST_ENGINE) --processes $(CLUSTER_SPECS) \
	  $(if $(FOCUS),--focus "$$FOCUS")

##@ Develop

.PHONY: two-nodes-shell
two-nodes-shell: install ## Make such a cluster, and open a shell with kubectl in it
	$(BIN)/python -m tests.two_nodes --shell
