# Every target works on a fresh Debian; `make help` lists them.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PROTOS := $(addprefix dockershim/api/,cri/v1/api.proto hooks/v1alpha1/api.proto nri/v1alpha1/api.proto ttrpc/v1/api.proto)
STUBS := $(PROTOS:.proto=_pb2.py)
SOURCES := $(wildcard dockershim background cni checkpoints loopio streaming deploy tests bench examples hatch_build.py)

# The tests start the server some hundred times: compiled again each time, it would begin a third later.
unexport PYTHONDONTWRITEBYTECODE

# FOCUS=name runs the tests whose name contains it.
PYTEST = $(BIN)/pytest $(if $(FOCUS),-k '$(FOCUS)')

##@ Develop

.PHONY: help
help: ## Show this list
	@awk 'BEGIN { FS = ":.*## " } \
	  /^##@ / { section = substr($$0, 5) } \
	  /^[a-zA-Z0-9_-]+:.*## / { rows[section] = rows[section] sprintf("  %-20s %s\n", $$1, $$2) } \
	  END { count = split("Use Develop Test Measure Release", order, " "); \
	    for (n = 1; n <= count; n++) printf "%s%s\n%s", (n > 1 ? "\n" : ""), order[n], rows[order[n]] }' $(MAKEFILE_LIST)

.PHONY: install
install: $(VENV)/.installed ## Make .venv with the server and the tools (apt-get brings python3-venv when it is missing)

# The server without the tools.
.PHONY: install-server
install-server: $(VENV)/.server

INSTALLED_FROM := pyproject.toml hatch_build.py $(PROTOS)

# $(call pip_install,what,stamps,in words): one at a time, as `make run` and `make demo` may be begun together in two terminals.
# What is cut short leaves no .whole, and the next one starts again, as pip takes what it has half installed for
# installed. An install that fails by itself has changed nothing, or undone it; what worked before is kept.
COMMA := ,
define pip_install
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  apt-get -o DPkg::Lock::Timeout=300 update -q; \
	  apt-get -o DPkg::Lock::Timeout=300 install -q -y --no-install-recommends python3 python3-venv; }
	@exec 9<Makefile; flock 9; trap 'exit 1' HUP INT TERM; \
	if test -e $(VENV)/.whole -a -e $@ && test -z "$$(find $(INSTALLED_FROM) -newer $@)"; then exit; fi; \
	if ! test -e $(VENV)/.whole -a -x $(BIN)/python; then \
	  echo '$(PYTHON) -m venv --clear $(VENV)'; $(PYTHON) -m venv --clear $(VENV); \
	fi; \
	rm -f $(VENV)/.whole; \
	echo "pip install -e '$(1)': $(3)"; \
	$(BIN)/python -m pip install -q -e '$(1)' || { code=$$?; test $$code -gt 128 || touch $(VENV)/.whole; exit $$code; }; \
	touch $(VENV)/.whole $(2)
endef

.PHONY: cut-short
IF_CUT_SHORT := $(if $(wildcard $(VENV)/.whole),,cut-short)

$(VENV)/.server: $(INSTALLED_FROM) $(IF_CUT_SHORT)
	$(call pip_install,.,$@,the server with its libraries$(COMMA) 100 MB in $(VENV)$(COMMA) in a minute or two)

$(VENV)/.installed: $(INSTALLED_FROM) $(IF_CUT_SHORT)
	$(call pip_install,.[dev],$(VENV)/.server $@,the server and the tools$(COMMA) 240 MB in $(VENV)$(COMMA) in one to three minutes)

# Where tests keep what they make once (tests/node/cache.py); what mypy keeps there is good for every clone.
TESTS_CACHE := $(or $(TEST_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/dockershim-tests)

.PHONY: lint
lint: install ## Check style, types and the layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --cache-dir '$(TESTS_CACHE)/mypy' $(SOURCES)
	$(BIN)/lint-imports

.PHONY: format
format: install ## Rewrite the sources in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: tables
tables: install ## Write the tables of docs that are made of the code: fields.md (from fields.toml), configuration.md, and that of install.md
	$(BIN)/python -m tests.fields
	$(BIN)/python -m tests.options
	$(BIN)/python -m deploy.targets

.PHONY: runc
runc: assemblers ## Compile dockershim-runc, which gives pods user namespaces, for both architectures
	$(PYTHON) -m deploy.runc

.PHONY: clean
clean: ## Remove everything that was built in this clone (not ~/.cache/dockershim-tests, which all clones share)
	rm -rf $(VENV) build dist .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -f $(STUBS) $(STUBS:.py=.pyi)
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

##@ Test

# pytest-xdist's: the tests are shared among so many processes.
SHARED = -n $$(nproc)
# Added by `make test`, whose stages run at the same time: a test that fails is run once more, alone.
RUN_AGAIN = -p tests.node.again --again='$(BIN)/python'

.PHONY: test-unit
test-unit: install assemblers ## Run the tests that need no engine (FOCUS=name runs some)
	$(PYTEST) $(SHARED) $(if $(ALONGSIDE),$(RUN_AGAIN)) tests/unit

.PHONY: test-fast
test-fast: lint assemblers ## Run what takes a minute: lint, and the tests that need no engine and are not marked slow
	$(PYTEST) $(SHARED) -m 'not slow' tests/unit

# Not part of `make test`: the package's test on Debian 13 and this one tell enough about them now and then.
.PHONY: test-pythons
test-pythons: install ## Run the unit tests with Python 3.13 and 3.14 of Debian (PYTHONS="3.14 /path/to/python"): five minutes each
	$(BIN)/python -m tests.pythons $(PYTHONS)

# It takes 23 minutes of two cores, so it is not part of `make test`.
.PHONY: mutants
mutants: install ## Put mistakes into copies of the code, one by one, and see which no unit test notices (FOCUS=package, or text)
	$(BIN)/python -m tests.mutants $(if $(FOCUS),--focus "$$FOCUS")

# The infra image's program and dockershim-runc are made and run again for both architectures.
.PHONY: assemblers
assemblers:
	@type as aarch64-linux-gnu-as gcc aarch64-linux-gnu-gcc qemu-aarch64-static >/dev/null 2>&1 || { \
	  apt-get -o DPkg::Lock::Timeout=300 update -q; \
	  apt-get -o DPkg::Lock::Timeout=300 install -q -y --no-install-recommends \
	    binutils binutils-aarch64-linux-gnu gcc libc6-dev gcc-aarch64-linux-gnu qemu-user-static; }

-include tests/node/node.mk tests/sim/sim.mk tests/vm/vm.mk tests/first_pod/first_pod.mk tests/kubernetes/kubernetes.mk tests/kubelets/kubelets.mk tests/kubeedge/kubeedge.mk tests/two_nodes/two_nodes.mk bench/bench.mk deploy/run.mk deploy/deb/deb.mk
