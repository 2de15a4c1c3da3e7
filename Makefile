# Every command of this project. `make` alone lists them; the first one used sets the virtual environment up.
#
#   make check PYTHON=python3.13        another interpreter
#   make check VENV=/somewhere/else     another environment

PYTHON ?= python3
VENV ?= .venv
PB ?= node/pb
PYTEST_ARGS ?=
ROUNDS ?= 3
SEED ?=
COMPARE ?= .cache/compare
SMOKE_ARGS ?=
CLIS ?=

MAKEFLAGS += --no-print-directory
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

BIN := $(abspath $(VENV))/bin
# Only for `run`: elsewhere a tool is named by its path, so that no other version of it is picked up by chance.
WITH_VENV = PATH="$(BIN):$$PATH"
READY := $(VENV)/.ready
PROTO := $(sort $(patsubst proto/%,%,$(wildcard proto/iop/*/*/*.proto)))
GOLDEN := tests/node/golden/node.binpb
# Named, because the formatter would also rewrite the examples in Markdown pages, and what lies in build/.
CODE := $(wildcard node providers runtime tests bench examples)

PYTEST = $(BIN)/python -m pytest $(PYTEST_ARGS)

.PHONY: help
help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | sed -E 's/:.*## /\t/' | awk -F'\t' '{ printf "  make %-12s %s\n", $$1, $$2 }'

# --- setting up

.PHONY: setup
setup: $(READY) ## make the virtual environment and install the project with its tools, once
	@:

# The stamp depends on pyproject.toml alone: the install is editable, only a change of dependencies needs another one.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "iop-node needs Python 3.11 or newer, and '$(PYTHON)' is not: try make PYTHON=python3.11" >&2; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "'$(PYTHON) -m venv' failed: install the venv package of your system (Debian: python3-venv) and try again" >&2; exit 1; }
	@echo "installing iop-node and its tools into $(VENV) ..."
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --editable '.[dev]'
	@touch $@

# --- using

.PHONY: run
run: $(READY) ## start a node with the demo agent, dispatch a run over gRPC, print its events
	@$(WITH_VENV) examples/first_run.sh

.PHONY: smoke
smoke: $(READY) ## which agents of the catalog are ready here; executes nothing (SMOKE_ARGS='--profile ID' narrows it)
	@$(WITH_VENV) $(BIN)/iop-provider-smoke $(SMOKE_ARGS)

.PHONY: bench
bench: $(READY) ## measure the product beside its floors; prints ratios
	@$(BIN)/python -m bench

# The peers are installed by their own package managers, once; without a network what is there is measured.
.PHONY: compare
compare: $(READY) ## the same work on installable peers, side by side, into docs/comparison.md
	@mkdir -p $(COMPARE)/sandbox-agent
	@test -d $(COMPARE)/sandbox-agent/node_modules || npm install --silent --no-audit --no-fund --prefix $(COMPARE)/sandbox-agent @sandbox-agent/cli || echo "sandbox-agent could not be installed" >&2
	@test -x $(COMPARE)/a2a/bin/python || { $(PYTHON) -m venv $(COMPARE)/a2a && $(COMPARE)/a2a/bin/pip install -qq --disable-pip-version-check 'a2a-sdk[grpc,sqlite]'; } || { rm -rf $(COMPARE)/a2a; echo "a2a-sdk could not be installed" >&2; }
	@$(BIN)/python -m bench.compare --cache $(COMPARE)

# --- checking

.PHONY: test
test: $(READY) ## run the default suite: no network, no key (PYTEST_ARGS='-k name' narrows it)
	@$(PYTEST) --ignore=tests/chaos

.PHONY: chaos
chaos: $(READY) ## break nodes in every way of the failure table, then a monkey (ROUNDS=3 SEED=n); prints its books
	@$(PYTEST) tests/chaos -m "not slow"
	@$(BIN)/python -m tests.chaos.monkey --rounds $(ROUNDS) $(if $(SEED),--seed $(SEED))

.PHONY: real-cli
real-cli: $(READY) ## the vendors' CLIs behind a node, against a scripted model (CLIS='claude codex' for some of them)
	@$(BIN)/python -m tests.real_cli $(CLIS) $(PYTEST_ARGS)

.PHONY: check
check: fmt-check lint types imports proto-check test ## everything a change must pass: format, lint, types, imports, proto, tests

.PHONY: ci
ci: $(READY) ## what continuous integration runs: check, trace, chaos, two real CLIs, each with its minutes
	@for part in check trace chaos real-cli; do \
	    started=$$(date +%s); \
	    $(MAKE) $$part CLIS="claude codex" || { echo "make $$part failed" >&2; exit 1; }; \
	    awk -v name=$$part -v s=$$(( $$(date +%s) - started )) 'BEGIN { printf "== make %s: %.1f minutes\n", name, s / 60 }'; \
	done

.PHONY: fmt
fmt: $(READY) ## format the code and the protos
	@$(BIN)/ruff format --quiet $(CODE)
	@$(BIN)/buf format --write proto

.PHONY: fmt-check
fmt-check: $(READY)
	@$(BIN)/ruff format --quiet --check $(CODE)

.PHONY: lint
lint: $(READY) ## lint the code
	@$(BIN)/ruff check --quiet $(CODE)

# Under tests/ there is no __init__.py, hence the explicit bases.
.PHONY: types
types: $(READY) ## check types, strictly, tests included
	@$(BIN)/mypy --no-error-summary --explicit-package-bases runtime providers node tests

.PHONY: imports
imports: $(READY) ## check the six import contracts
	@$(BIN)/lint-imports .importlinter

.PHONY: trace
trace: $(READY) ## which test proves which requirement; fails when one has neither test nor waiver
	@mkdir -p build
	@$(BIN)/python -m tests.support.trace --list build/trace.txt

# --- the wire

# protoc has no import prefix for Python: one sed puts the generated imports under node.pb, and the files keep their
# canonical names (iop/node/v1/*.proto) in descriptors and reflection.
.PHONY: proto
proto: $(READY) ## generate node/pb from proto/
	@rm -rf $(PB)/iop && mkdir -p $(PB)
	@$(BIN)/python -m grpc_tools.protoc -I proto --python_out=$(PB) --pyi_out=$(PB) --grpc_python_out=$(PB) $(PROTO)
	@find $(PB)/iop -name '*_pb2*.py*' -exec sed -i -E 's/^(from|import) iop\./\1 node.pb.iop./' {} +

.PHONY: proto-check
proto-check: $(READY) ## is node/pb what proto/ gives; buf lint, format, and no breaking change
	@rm -rf build/pbcheck
	@$(MAKE) proto PB=build/pbcheck/node/pb
	@diff -r -x __pycache__ build/pbcheck/node/pb/iop node/pb/iop || { echo "node/pb is not what proto/ gives: run make proto" >&2; exit 1; }
	@rm -rf build/pbcheck
	@$(BIN)/buf lint proto
	@$(BIN)/buf format --diff --exit-code proto
	@$(BIN)/buf breaking proto --against $(GOLDEN)

.PHONY: descriptor
descriptor: $(READY) ## write build/iop_node.binpb, for grpcurl -protoset
	@mkdir -p build
	@$(BIN)/python -m grpc_tools.protoc -I proto --include_imports --include_source_info --descriptor_set_out=build/iop_node.binpb $(PROTO)
	@echo "build/iop_node.binpb"
