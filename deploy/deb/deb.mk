# Packages and releases. What builds them is locked with hashes in deploy/locks and has a virtualenv of its own.

RELEASE := build/release

$(RELEASE)/.installed: deploy/locks/release.txt
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  apt-get -o DPkg::Lock::Timeout=300 update -q; \
	  apt-get -o DPkg::Lock::Timeout=300 install -q -y --no-install-recommends python3 python3-venv; }
	$(PYTHON) -m venv --clear $(RELEASE)
	$(RELEASE)/bin/python -m pip install -q --require-hashes -r $<
	touch $@

##@ Release

# The oldest Python decides: a lock for all later ones too, on Linux only (pyproject.toml, tool.uv).
# What is younger than a week may not have been looked at by anybody yet.
LOCK = $(RELEASE)/bin/uv pip compile -q --universal --python-version 3.11 --generate-hashes --upgrade \
  --exclude-newer '7 days' --custom-compile-command 'make lock' --no-annotate

.PHONY: lock
lock: $(RELEASE)/.installed ## Renew deploy/locks: the newest versions that pyproject.toml allows, with hashes
	$(LOCK) pyproject.toml --extra tracing -o deploy/locks/server.txt
	$(LOCK) --group release -o deploy/locks/release.txt

# SUITE=bookworm|trixie, ARCHITECTURE=amd64|arm64: the machine's own if left out. REVISION counts packages of a version.
REVISION ?= 1
DEB = $(RELEASE)/bin/python -m deploy.deb --revision $(REVISION) \
  $(if $(SUITE),--suite $(SUITE)) $(if $(ARCHITECTURE),--architecture $(ARCHITECTURE))

.PHONY: deb
deb: $(RELEASE)/.installed debian-tools ## Build the Debian package in dist (SUITE=bookworm|trixie, ARCHITECTURE=amd64|arm64)
	$(DEB)

.PHONY: release-check
release-check: $(RELEASE)/.installed debian-tools ## Say what keeps this checkout from being a release; build all its files in dist
	$(RELEASE)/bin/python -m deploy.release

.PHONY: debian-tools
debian-tools:
	@type dh scdoc lintian >/dev/null 2>&1 || { \
	  apt-get -o DPkg::Lock::Timeout=300 update -q; \
	  apt-get -o DPkg::Lock::Timeout=300 install -q -y --no-install-recommends debhelper scdoc lintian; }

##@ Test

# Of the other architecture only the command is started, by an emulator.
.PHONY: test-deb
test-deb: install deb ## Install, upgrade and purge the package on a clean Debian (SUITE=, ENGINE=28, FOCUS=name, ARCHITECTURE=arm64)
ifeq ($(ARCHITECTURE),arm64)
	$(BIN)/python -m tests.deb.foreign $(if $(SUITE),--suite $(SUITE))
else
	$(BIN)/python -m tests.deb $(if $(SUITE),--suite $(SUITE)) --focus "$$FOCUS" \
	  --engine $(if $(filter command line,$(origin ENGINE)),$(ENGINE),$(NEWEST))
endif
