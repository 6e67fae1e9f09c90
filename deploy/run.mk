##@ Use

.PHONY: run
run: install-server ## Serve on this machine; an engine is installed and started if there is none (ARGS=flags of the server)
	$(BIN)/python -m deploy.run $(ARGS)

.PHONY: demo
demo: install-server ## Show the life of a pod through the CRI socket, step by step (IMAGE=name for an image of yours)
	$(BIN)/python -m deploy.demo $(if $(IMAGE),'--image=$(IMAGE)')
