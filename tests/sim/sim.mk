# The simulation of the whole server. SEEDS=10000 runs so many seeds, SEED=17 one of them with its whole trace.

SEEDS ?= 500
# Other targets have a SEED by default: only one that make was given is meant.
ONE_SEED := $(if $(filter command line environment,$(origin SEED)),$(SEED))

.PHONY: sim
sim: install ## Run the server in a simulation under many seeds, each with other faults (SEEDS=10000, SEED=17)
	$(BIN)/python -m tests.sim $(if $(ONE_SEED),--seed $(ONE_SEED),--seeds $(SEEDS) --processes $(shell nproc))

.PHONY: sim-mutants
sim-mutants: install ## Put mistakes into a copy of the code, one by one, and see which of them the simulation finds (SEEDS=60)
	$(BIN)/python -m tests.sim.mutants --seeds $(SEEDS)
