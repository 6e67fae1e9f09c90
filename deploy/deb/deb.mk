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
LOCK = $(RELEASE)/bin/uv pip compile -q --exclude-newer '7 days' --universal --python-version 3.11 --generate-hashes --upgrade \
  --custom-compile-command 'make lock' --no-annotate

.PHONY: lock
lock: $(RELEASE)/.installed ## Renew deploy/locks: the newest versions that pyproject.toml allows, with hashes
	$(LOCK) pyproject.toml -o deploy/locks/server.txt
	$(LOCK) --group release -o deploy/locks/release.txt
