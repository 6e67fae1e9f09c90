##@ Measure

# The options of `python -m bench`, as in: make bench ENGINE=28 BENCH='--repetitions 100 --check'
BENCH ?=

.PHONY: bench
bench: install ## Put each CRI call beside the bare engine calls that it needs (ENGINE=20|28, BENCH=options)
	$(NODE) $(ENGINE) -- python -m bench $(BENCH)

# Go builds cri-dockerd for a minute, once.
.PHONY: bench-peer
bench-peer: install ## Put each CRI call beside cri-dockerd's on the same engine (ENGINE=20|28, BENCH=options)
	peer=$$($(BIN)/python -c 'from tests.kubernetes import programs; print(programs.provide("cri-dockerd"))'); \
	$(NODE) $(ENGINE) -- python -m bench.peer "$$peer" $(BENCH)

.PHONY: bench-early
bench-early: install ## Put a pod's start with and without --early-network beside the bare engine (ENGINE=28, BENCH=options)
	$(NODE) $(ENGINE) -- python -m bench.early $(BENCH)

.PHONY: bench-relist
bench-relist: install ## Measure relists at 10 to 200 pods beside the engine's reads (ENGINE=20|28, BENCH='--churn 1000')
	$(NODE) $(ENGINE) -- python -m bench.relist $(BENCH)

.PHONY: bench-logs
bench-logs: install ## Put lines a second into CRI logs beside the engine's own rate (ENGINE=20|28, BENCH=options)
	$(NODE) $(ENGINE) -- python -m bench.logs $(BENCH)

.PHONY: bench-stats
bench-stats: install ## Put statistics and metrics beside the engine's own stats (ENGINE=20|28, BENCH=options)
	$(NODE) $(ENGINE) -- python -m bench.stats $(BENCH)
