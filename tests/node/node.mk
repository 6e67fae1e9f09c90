# The targets that need a Docker Engine: each runs in a test node, never on the machine's own engine.

ENGINE ?= 20
# Each has critest. The newest one has all tests, the oldest those that depend on the engine's version (pyproject.toml,
# markers).
ENGINES := 20 28 29
OLDEST := $(firstword $(ENGINES))
NEWEST := $(lastword $(ENGINES))
# 29 with the image store of the engines before it, too.
EVERY_ENGINE := $(ENGINES) 29-overlay2
# The environment carries it to the commands: it may hold characters that a shell would act on.
export FOCUS

NODE = $(BIN)/python -m tests.node --engine
# Without pytest's cache, two nodes at once do not write over each other's.
ENGINE_TESTS = $(BIN)/python -m pytest -p no:cacheprovider $(if $(FOCUS),-k "$$FOCUS") tests/engine
# All of them are shared among so many nodes: the tests mostly wait. Each node's Python is a worker of pytest-xdist.
NODES ?= 2
# $(call run_engine_tests,engine,options of pytest)
# One that fails beside others is run once more, alone.
run_engine_tests = $(if $(FOCUS),$(NODE) $1 -- $(ENGINE_TESTS) $2,$(ENGINE_TESTS) $2 --dist worksteal \
  --tx '$(NODES)*popen//python=$(NODE) $1 -- $(BIN)/python' -p tests.node.again --again='$(NODE) $1 -- $(BIN)/python')
# So many specs of critest run at the same time.
PROCESSES ?= 4
CONFORMANCE = $(BIN)/python -m tests.conformance $(if $(FOCUS),--focus "$$FOCUS") --processes $(PROCESSES) --engine

# The tests of what runs the other tests.
NODE_TESTS := tests/node tests/conformance tests/e2e_node

##@ Test

.PHONY: test
ifdef FOCUS
test: install ## Run everything: lint, unit, node and engine tests, simulation, critest, a guest (FOCUS=name runs only tests of that name)
	@found=; \
	run() { "$$@" && found=1 || test $$? -eq 5; }; \
	run $(BIN)/python -m pytest -k "$$FOCUS" tests/unit $(NODE_TESTS); \
	for engine in $(ENGINES); do run $(NODE) $$engine -- $(ENGINE_TESTS); done; \
	test -n "$$found" || { echo "no test has a name that contains $$FOCUS"; exit 1; }
else
test: install assemblers
	@failed=; \
	$(MAKE) --no-print-directory --jobs=$(STAGES) --output-sync=target --old-file=assemblers stages || failed=1; \
	$(MAKE) --no-print-directory $(ALONE) || failed=1; \
	$(MAKE) --no-print-directory guest ALONGSIDE=yes || failed=1; \
	test -z "$$failed"
endif

# So many stages at the same time, as the tests of engines mostly wait. A stage shows its output when it ends. (A stage
# with a step before it, as `assemblers`, would be begun last.)
STAGES ?= 2

# The longest one is begun first, and the others beside it, one by one.
.PHONY: stages
stages: ALONGSIDE = not alone
test-engine-$(NEWEST): NODES = $(if $(ALONGSIDE),3,2)
stages: test-engine-$(NEWEST) lint sim test-unit test-marked-$(OLDEST)
stages: $(ENGINES:%=conformance-%) conformance-websocket-$(NEWEST) test-replacement test-node

# What measures times, or keeps every core busy.
ALONE := test-alone-$(OLDEST) test-alone-$(NEWEST)
.PHONY: $(ALONE)
$(ALONE): test-alone-%: install
	$(NODE) $* -- $(ENGINE_TESTS) -m '$(if $(filter $(OLDEST),$*),every_engine and )alone'

# All of these engines can read one image store.
.PHONY: test-replacement
test-replacement: install ## Put another version of the engine under pods that run: 20 to 28, 28 to 29, and back
	$(NODE) 29-overlay2 -- $(BIN)/python -m pytest -p no:cacheprovider -k replacement tests/engine/test_outages.py

.PHONY: test-node
test-node: install ## Run the tests of the test node and of the conformance runner
	$(BIN)/python -m pytest $(if $(FOCUS),-k "$$FOCUS") $(SHARED) $(if $(ALONGSIDE),$(RUN_AGAIN)) $(NODE_TESTS)

.PHONY: test-engine
test-engine: test-engine-$(ENGINE) ## Run the tests that need an engine (ENGINE=20|28|29|29-overlay2, FOCUS=name)

.PHONY: $(EVERY_ENGINE:%=test-engine-%)
$(EVERY_ENGINE:%=test-engine-%): test-engine-%: install
	$(call run_engine_tests,$*,-m '$(ALONGSIDE)')

.PHONY: test-marked
test-marked: test-marked-$(ENGINE) ## Run those of them that are marked every_engine (ENGINE=20|28|29|29-overlay2)

.PHONY: $(EVERY_ENGINE:%=test-marked-%)
$(EVERY_ENGINE:%=test-marked-%): test-marked-%: install
	$(call run_engine_tests,$*,-m 'every_engine$(if $(ALONGSIDE), and $(ALONGSIDE))')

# The randomized test of the inventory, as long as it has to be to find what is rare; test-engine has it short.
OPERATIONS ?= 2000
SEED ?= 1

.PHONY: test-inventory
test-inventory: install ## Compare the inventory with the engine after random operations (ENGINE=20|28, OPERATIONS=, SEED=)
	$(NODE) $(ENGINE) -- $(BIN)/python -m pytest -p no:cacheprovider -s --operations=$(OPERATIONS) \
	  --operations-seed=$(SEED) tests/engine/test_random_operations.py

# test-engine has it for 5 seconds.
STALL ?= 60

.PHONY: test-stall
test-stall: install ## Let a client of exec read nothing for a while, and look at the memory (ENGINE=20|28, STALL=seconds)
	$(NODE) $(ENGINE) -- $(BIN)/python -m pytest -p no:cacheprovider --stall=$(STALL) -k reader_that_stops \
	  tests/engine/test_streaming.py

# Fault injection with every case there is; test-engine runs a sample.
.PHONY: faults
faults: install ## Take five calls through every fault at every step (ENGINE=20|28; EARLY=yes: one call, with --early-network)
	$(NODE) $(ENGINE) -- $(BIN)/python -m pytest -p no:cacheprovider -s --faults=0 $(if $(EARLY),--faults-early) \
	  tests/engine/test_faults.py

# bash counts in a variable of the name SECONDS: only one that make was given is meant.
SOAK := $(if $(filter command line,$(origin SECONDS)),$(SECONDS),600)

.PHONY: soak
soak: install ## Let pods come and go for ten minutes while server, log process and engine are killed (ENGINE=20|28, SECONDS=600, SEED=)
	$(NODE) $(ENGINE) -- $(BIN)/python -m pytest -p no:cacheprovider -s --soak=$(SOAK) --soak-seed=$(SEED) \
	  tests/engine/test_soak.py

.PHONY: conformance
conformance: conformance-$(ENGINE) ## Run critest (ENGINE=20|28|29|29-overlay2, FOCUS=regular expression, PROCESSES=4)

.PHONY: $(EVERY_ENGINE:%=conformance-%)
$(EVERY_ENGINE:%=conformance-%): conformance-%: install
	$(CONFORMANCE) $*

.PHONY: conformance-guest
conformance-guest: guest-supplies ## Run critest in a virtual machine, with AppArmor and cgroup v2 (GUEST=uml|qemu, GUEST_ENGINE=29|28, FOCUS=regular expression)
	$(CONFORMANCE) $(GUEST_ENGINE) --guest=$(GUEST)

# SPDY is critest's own choice; the same specs once more over WebSocket.
.PHONY: $(EVERY_ENGINE:%=conformance-websocket-%)
$(EVERY_ENGINE:%=conformance-websocket-%): conformance-websocket-%: install
	$(BIN)/python -m tests.conformance --websocket --focus Streaming --processes $(PROCESSES) --engine $*

# With the engine's own bridge, as cri-tools has it, and with user namespaces.
.PHONY: conformance-cri-dockerd
conformance-cri-dockerd: install ## Run critest as cri-tools does for cri-dockerd, without its skips, with the program of that name (ENGINE=28, FOCUS=)
	$(CONFORMANCE) $(ENGINE) --cri-dockerd

RESTART_EVERY ?= 30

.PHONY: conformance-restarts
conformance-restarts: install ## Run critest while the engine is restarted every 30 s (ENGINE=20|28, RESTART_EVERY=seconds)
	$(CONFORMANCE) $(ENGINE) --processes 1 --restart-every $(RESTART_EVERY)

# KUBELET=1.34 takes an older kubelet than the API server; three minor versions older are supported.
KUBELET ?=

# Kubernetes is built from source for it, so it is not part of `make test`.
.PHONY: cluster
cluster: install ## Run pods by a real kubelet, and kubectl into them (ENGINE=20|28, FOCUS=name, KUBELET=1.34; builds for ten minutes once)
	$(BIN)/python -m tests.cluster $(if $(FOCUS),--focus "$$FOCUS") $(if $(KUBELET),--kubelet $(KUBELET)) --engine $(ENGINE)

# ATTACK='--seconds 30 --only logs' has its options.
ATTACK ?=

.PHONY: attack
attack: install ## Attack the server as tenants, clients and neighbours may, beside a pod that must not feel it (ENGINE=20|28)
	$(NODE) $(ENGINE) -- $(BIN)/python -m tests.attack $(ATTACK)

FUZZING ?= 600

comma := ,

$(VENV)/.fuzz: $(INSTALLED_FROM) $(IF_CUT_SHORT)
	$(call pip_install,.[dev$(comma)fuzz],$(VENV)/.server $(VENV)/.installed $@)

.PHONY: fuzz
fuzz: $(VENV)/.fuzz ## Feed random bytes to SPDY, NRI, the readers of /proc and of the engine (FUZZING=seconds for each)
	for machine in spdy nri proc engine; do \
	  mkdir -p build/fuzz/$$machine; \
	  $(BIN)/python -m tests.fuzz.$$machine -max_total_time=$(FUZZING) -max_len=4096 \
	    -artifact_prefix=build/fuzz/ build/fuzz/$$machine tests/fuzz/corpus/$$machine; \
	done

##@ Develop

.PHONY: node
node: install ## Open a shell in a test node with the server running (ENGINE=20|28; 29 or 29-overlay2 is built once, no part of test)
	$(NODE) $(ENGINE)
