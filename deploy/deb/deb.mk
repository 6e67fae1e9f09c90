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

# SUITE=, ARCHITECTURE=amd64|arm64: the machine's own if left out. REVISION counts packages of a version.
REVISION ?= 1
FOR = --revision $(REVISION) $(if $(ARCHITECTURE),--architecture $(ARCHITECTURE))

.PHONY: deb
deb: $(RELEASE)/.installed debian-tools ## Build the Debian packages in dist (SUITE=bookworm, ARCHITECTURE=amd64|arm64; docs/install.md has all)
	$(RELEASE)/bin/python -m deploy.deb $(if $(SUITE),--target $(SUITE)) $(FOR)

.PHONY: rpm
rpm: $(RELEASE)/.installed rpm-tools ## Build the rpm packages in dist (TARGET=el9|el10|fc42|fc43, ARCHITECTURE=amd64|arm64)
	$(RELEASE)/bin/python -m deploy.rpm --target '$(TARGET)' $(FOR)

.PHONY: packages
packages: $(RELEASE)/.installed debian-tools rpm-tools ## Build and check the packages for all distributions and architectures in dist (TARGETS="el9 noble" builds some)
	$(RELEASE)/bin/python -m deploy.build --revision $(REVISION) $(TARGETS)

.PHONY: tarball
tarball: $(RELEASE)/.installed debian-tools ## Build the tarball with an offline installer in dist (ARCHITECTURE=amd64|arm64)
	$(RELEASE)/bin/python -m deploy.tarball $(if $(ARCHITECTURE),--architecture $(ARCHITECTURE))

.PHONY: single-file
single-file: $(RELEASE)/.installed ## Build one file named cri-dockerd in dist, for tools that copy one program (ARCHITECTURE=amd64|arm64)
	$(RELEASE)/bin/python -m deploy.single_file $(if $(ARCHITECTURE),--architecture $(ARCHITECTURE))

.PHONY: release-check
release-check: $(RELEASE)/.installed debian-tools rpm-tools ## Say what keeps this checkout from being a release; build all its files in dist
	$(RELEASE)/bin/python -m deploy.release

# DRAFT=1 goes on although the checkout is not ready, TARGETS= then builds some.
.PHONY: release
release: $(RELEASE)/.installed debian-tools rpm-tools release-tools ## Build, sign and lay out a release in dist (GPG_KEY=fingerprint, MINISIGN_KEY=file; docs/verify.md)
	$(RELEASE)/bin/python -m deploy.publish --gpg-key '$(GPG_KEY)' $(if $(MINISIGN_KEY),--minisign-key '$(MINISIGN_KEY)') \
	  $(if $(DRAFT),--draft $(TARGETS))

.PHONY: release-tools
release-tools:
	@type apt-ftparchive createrepo_c gpg minisign >/dev/null 2>&1 || { \
	  apt-get -o DPkg::Lock::Timeout=300 update -q; \
	  apt-get -o DPkg::Lock::Timeout=300 install -q -y --no-install-recommends apt-utils createrepo-c gpg minisign; }

.PHONY: debian-tools
debian-tools:
	@type dh scdoc lintian >/dev/null 2>&1 || { \
	  apt-get -o DPkg::Lock::Timeout=300 update -q; \
	  apt-get -o DPkg::Lock::Timeout=300 install -q -y --no-install-recommends debhelper scdoc lintian; }

.PHONY: rpm-tools
rpm-tools:
	@type rpmbuild rpmlint checkmodule semodule_package scdoc >/dev/null 2>&1 || { \
	  apt-get -o DPkg::Lock::Timeout=300 update -q; \
	  apt-get -o DPkg::Lock::Timeout=300 install -q -y --no-install-recommends \
	    rpm rpmlint checkpolicy semodule-utils scdoc; }

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

# The old packages sort before those in dist.
.PHONY: test-rpm
test-rpm: install $(RELEASE)/.installed rpm-tools ## Install, upgrade and erase the rpm packages on a Debian with their Python (TARGET=fc43, ENGINE=28, FOCUS=name)
	$(RELEASE)/bin/python -m deploy.rpm --target $(or $(TARGET),fc43)
	$(RELEASE)/bin/python -m deploy.rpm --target $(or $(TARGET),fc43) --revision 0 --output build/rpm/old
	$(BIN)/python -m tests.rpm --target $(or $(TARGET),fc43) --focus "$$FOCUS" \
	  --engine $(if $(filter command line,$(origin ENGINE)),$(ENGINE),$(NEWEST))

# Twice the time of `make packages`.
.PHONY: test-packages
test-packages: packages ## Build the packages again, from a fresh clone with other settings, and compare them (TARGETS=)
	$(RELEASE)/bin/python -m tests.twice $(TARGETS)

.PHONY: test-repositories
test-repositories: install $(RELEASE)/.installed debian-tools rpm-tools release-tools ## Make a small release with keys of the test's own, and install from it with apt and dnf (FOCUS=name)
	$(BIN)/python -m tests.repositories --builder $(RELEASE)/bin/python --focus "$$FOCUS"

# Installed, with pods, and built a second time: three minutes. Of the other architecture the commands are started, by an
# emulator.
.PHONY: test-tarball
test-tarball: install tarball single-file ## Install, upgrade and remove the tarball on a clean Debian, and start the single file (SUITE=, ENGINE=28, FOCUS=name, ARCHITECTURE=arm64)
ifeq ($(ARCHITECTURE),arm64)
	$(BIN)/python -m tests.tarball.foreign $(if $(SUITE),--suite $(SUITE))
else
	$(BIN)/python -m tests.tarball $(if $(SUITE),--suite $(SUITE)) --focus "$$FOCUS" \
	  --engine $(if $(filter command line,$(origin ENGINE)),$(ENGINE),$(NEWEST))
endif
