# Every target that a person would type has a `##` comment: `make` lists them.
#
# `build`, `demo` and `up` need Go alone. The others call developer tools that
# are pinned in test/tools/go.mod; their first run compiles them, later runs
# come from Go's build cache.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:

VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
FUZZTIME ?= 60s
BENCH    ?= .
CHAOS_TIME ?= 1h
CHAOS_SEED ?= 0
CHAOS_RATE ?= 0
CHAOS_FLAGS ?=
PEERS_FLAGS ?=
# The race detector needs a C compiler. Without one the tests run without it, and say so.
RACE     ?= $(shell command -v "$$(go env CC)" >/dev/null 2>&1 && echo -race)

# A program with the race detector waits for a second as it ends, for what its last
# threads may still report: fifty packages, and every process that tests start, need less.
export GORACE := $(strip $(GORACE) atexit_sleep_ms=20)

# RERUN=1 runs the few tests again that failed, once, and says which they were:
# for a machine that is shared. A data race fails at once.
RERUN    ?=
rerun     = $(if $(RERUN),--rerun-fails=1 --rerun-fails-max-failures=8 --rerun-fails-abort-on-data-race --rerun-fails-report=bin/reruns)

# The version comes from VERSION; asking Git again fails in a clone that
# belongs to another user.
export GOFLAGS := $(strip $(shell go env GOFLAGS) -buildvcs=false)

tool    := go tool -modfile=test/tools/go.mod
nats    := $(CURDIR)/bin/nats
# The module's test files; unlike grep -r, go list leaves out nested modules.
testfiles = go list -f '{{$$d := .Dir}}{{range .TestGoFiles}}{{$$d}}/{{.}}{{"\n"}}{{end}}{{range .XTestGoFiles}}{{$$d}}/{{.}}{{"\n"}}{{end}}' ./...

.PHONY: help
help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build bin/parley
	go build -trimpath -ldflags "-X main.version=$(VERSION)" -o bin/parley ./cmd/parley

.PHONY: demo
demo: build ## Build, then run a whole fleet on this machine and watch it work
	bin/parley demo

.PHONY: up
up: build ## Build, then start a fleet on this machine
	bin/parley up

.PHONY: check
check: fmt-check vet lint fix-check test charts ## All that must hold before a commit

.PHONY: test
test: bin/nats ## Run all tests under the race detector
	@[ -n "$(RACE)" ] || echo "NOTE: no C compiler found: running without the race detector" >&2
	@mkdir -p bin && rm -f bin/reruns
	PARLEY_NATS_CLI=$(nats) $(tool) gotestsum --format pkgname --format-hide-empty-pkg $(rerun) --packages ./... -- $(RACE) -timeout 60m
	@[ ! -s bin/reruns ] || { echo "FLAKY: these failed first and passed when they were run again:" >&2; cat bin/reruns >&2; }

.PHONY: charts
charts: ## Render the Helm chart, load the compose file, check both
	cd test/charts && go test ./...

.PHONY: fmt
fmt: ## Format all Go files (gofumpt, goimports)
	$(tool) golangci-lint fmt ./...

.PHONY: fmt-check
fmt-check: ## Fail, with a diff, where a file is not formatted
	$(tool) golangci-lint fmt --diff ./...

.PHONY: vet
vet: ## Run go vet
	go vet ./...
	cd test/peers && go vet ./...

.PHONY: lint
lint: ## Run the linters of .golangci.yml
	$(tool) golangci-lint config verify
	$(tool) golangci-lint run ./...

.PHONY: fix-check
fix-check: ## Fail, with a diff, where `go fix` would modernise the code
	@diff=$$(go fix -diff ./...) && [ -z "$$diff" ] || { echo "$$diff"; echo "run: go fix ./..." >&2; exit 1; }

.PHONY: deadcode
deadcode: ## List functions that nothing reaches, tests included
	$(tool) deadcode -test ./...

.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME each (60s), one after the other
	@$(testfiles) | xargs -r grep -l '^func Fuzz' | while read -r file; do \
		for name in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' "$$file"); do \
			echo "== $$(dirname "$$file") $$name"; \
			go test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 1x "$$(dirname "$$file")" </dev/null || exit 1; \
		done || exit 1; \
	done

.PHONY: bench
bench: ## Run the benchmarks that match BENCH, then the benchmark program if there is one
	@packages=$$($(testfiles) | xargs -r grep -l '^func Benchmark' | xargs -r dirname | sort -u); \
	[ -z "$$packages" ] || go test -run '^$$' -bench '$(BENCH)' -benchmem $$packages
	@[ ! -d test/bench ] || go run ./test/bench

.PHONY: chaos
chaos: ## Break a cluster for CHAOS_TIME (1h) and prove that nothing is lost; CHAOS_SEED repeats a run
	go run ./test/chaos -time $(CHAOS_TIME) -seed $(CHAOS_SEED) -rate $(CHAOS_RATE) $(CHAOS_FLAGS)

.PHONY: chaos-planted
chaos-planted: ## Plant every known bug in turn, and see that the chaos suite finds it
	go test ./test/chaos -run TestPlantedBugs -count=1 -chaos.planted -timeout 2h -v

.PHONY: bench-peers
bench-peers: ## Do the same work with Parley, asynq on Redis, River on PostgreSQL and Temporal; PEERS_FLAGS add to it
	@command -v redis-server >/dev/null && ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || \
		{ [ "$$(id -u)" = 0 ] && apt-get install -y --no-install-recommends redis-server postgresql; } || \
		{ echo "install redis-server and postgresql first (Debian's packages)" >&2; exit 1; }
	cd test/peers && go build -trimpath -o $(CURDIR)/bin/peers .
	@$(MAKE) --no-print-directory bin/temporal || echo "NOTE: bin/temporal cannot be built here: no row for Temporal" >&2
	go run ./test/bench -only peers -peers $(CURDIR)/bin/peers $$([ ! -x bin/temporal ] || echo -temporal $(CURDIR)/bin/temporal) $(PEERS_FLAGS)

.PHONY: docs
docs: ## Regenerate the generated documentation
	go generate ./...

.PHONY: release
release: ## Build dist/: archives for all platforms, bills of materials, checksums
	go run ./cmd/release -version "$(VERSION)" -epoch "$$(git log -1 --format=%ct)"

.PHONY: clean
clean: ## Remove what was built
	rm -rf bin dist coverage.*

# The stock NATS command line, which the end-to-end tests drive the fleet with.
bin/nats: test/natscli/go.mod test/natscli/go.sum
	cd test/natscli && go build -trimpath -o $(nats) github.com/nats-io/natscli/nats

# Temporal's command line, whose dev server is one of the peers.
bin/temporal: test/peers/temporald/go.mod test/peers/temporald/go.sum
	cd test/peers/temporald && go build -trimpath -o $(CURDIR)/bin/temporal github.com/temporalio/cli/cmd/temporal
