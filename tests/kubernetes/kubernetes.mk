# Kubernetes' own suites. They are built from source for some ten minutes once, so they are no part of `make test`.

# So many specs of e2e_node run at the same time.
SPECS ?= 6
# GATES=PodAndContainerStatsFromCRI=true turns features of the kubelet on.
GATES ?=
E2E_NODE = $(BIN)/python -m tests.e2e_node $(if $(FOCUS),--focus "$$FOCUS") $(if $(GATES),--feature-gates $(GATES)) \
  --processes $(SPECS) --engine

##@ Test

.PHONY: e2e-node
e2e-node: e2e-node-$(ENGINE) ## Run Kubernetes' node conformance suite (ENGINE=20|28|29|29-overlay2, FOCUS=regular expression, SPECS=6)

.PHONY: $(EVERY_ENGINE:%=e2e-node-%)
$(EVERY_ENGINE:%=e2e-node-%): e2e-node-%: install
	$(E2E_NODE) $*
