# Caldera. `make help` lists the targets; the work is done by the scripts in scripts/.

SHELL := /bin/sh
GO    ?= $(shell command -v go 2>/dev/null || { [ -x /usr/local/go/bin/go ] && echo /usr/local/go/bin/go; } || echo go)

# Arguments for `make run` and `make bench`, for instance: make run ARGS='-p "Capital of France?"'
ARGS ?=

# How long `make fuzz` runs each target.
FUZZTIME ?= 30s
export FUZZTIME

# Homebrew's folders are not searched by macOS's compiler.
ifeq ($(shell uname -s),Darwin)
BREW := $(shell brew --prefix 2>/dev/null)
export CGO_CFLAGS  += -I$(BREW)/include
export CGO_LDFLAGS += -L$(BREW)/lib
endif

# CALDERA_RIG=1 runs programs in the third rig (make rig).
ifeq ($(CALDERA_RIG),1)
WITH_RIG := scripts/with-rig
EXEC_RIG := -exec $(CURDIR)/scripts/with-rig
RIG_DEP  := rig
endif

.DEFAULT_GOAL := help
.PHONY: help run build test race oracle shaders rig bench gpu-check fuzz fmt vet setup setup-test clean clean-rig FORCE

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  Variables: ARGS='...' for run, bench and gpu-check, CALDERA_RIG=1, TESTFLAGS='...', PKGS='...', FUZZTIME=30s"

run: setup build ## set this machine up, build, and run the built-in demo model
	bin/caldera run $(ARGS)

build: bin/caldera ## build bin/caldera

# Go's own build cache decides what to compile, so this always runs.
bin/caldera: FORCE
	$(GO) build -o $@ ./cmd/caldera

setup:
	@scripts/setup run

setup-test:
	@scripts/setup test

test: setup-test ## set this machine up for tests and run them all: vet, staticcheck, the suite on two drivers
	scripts/test

race: setup-test ## the suite under the race detector
	scripts/in-test-env $(GO) test -race -count=1 -timeout 30m $(TESTFLAGS) $(or $(PKGS),./...)

oracle: setup-test $(RIG_DEP) ## compare every oracle case on every device and print the table of worst errors
	scripts/in-test-env $(GO) run $(EXEC_RIG) ./tools/oracle $(ARGS)

shaders: ## compile what changed among the kernels' sources to SPIR-V (needs glslc, and the rig for cooperative matrices)
	@scripts/setup shaders
	$(GO) run ./tools/shaders $(ARGS)

rig: ## fetch the optional third rig (Mesa 26, validation 1.4, newer glslc; 77 MB) into .rig, used with CALDERA_RIG=1
	@scripts/rig

bench: setup build $(RIG_DEP) ## measure the demo model, or what ARGS says, on this machine's device
	$(WITH_RIG) bin/caldera bench $(ARGS)

gpu-check: ## on a machine with a GPU: kernel tests, verify and a fixed set of measurements, results to bench/results
	scripts/gpu-check $(ARGS)

fuzz: ## run every fuzz target for FUZZTIME each
	scripts/fuzz

fmt: ## format the Go sources
	$(GO) fmt ./...

vet: ## go vet
	$(GO) vet ./...

clean: ## remove what was built, and the shader caches
	rm -rf bin .rig/cache

clean-rig: ## also remove SwiftShader, the third rig and the fetched tools
	rm -rf bin .rig

FORCE:
