# A pod's life by each kubelet that users have. Go builds each of them for minutes, once, so it is not part of `make test`.

# WRITE=1 writes what was seen into the table of README.md.
WRITE ?=

##@ Test

.PHONY: kubelets
kubelets: install ## Run a pod by a kubelet of each minor version from 1.29 on, with Docker 28 (FOCUS=1.33, WRITE=1 writes README's table)
	$(BIN)/python -m tests.kubelets $(if $(FOCUS),--focus "$$FOCUS") $(if $(WRITE),--write)
