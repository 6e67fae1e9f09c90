# Pods by KubeEdge. Go builds it for minutes, once, so it is not part of `make test`.

##@ Test

.PHONY: kubeedge
kubeedge: install ## Run a pod that comes through KubeEdge, and take the cloud away (ENGINE=20|28|29|29-overlay2, FOCUS=name)
	$(BIN)/python -m tests.kubeedge --engine $(ENGINE) $(if $(FOCUS),--focus "$$FOCUS")
