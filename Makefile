# Everything a contributor runs. `make` alone lists the targets. Needs Python 3.11 or newer and Java 17 or newer.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory
# Tests and demo start hundreds of Python processes, and each would compile all that it imports.
export PYTHONDONTWRITEBYTECODE :=

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.in-step
COMPILED := $(VENV)/.compiled
TOOLS := .cache/uv-tool
# uv when the machine has it, else one of our own in .cache/.
UV := $(shell command -v uv || echo $(TOOLS)/bin/uv)
PROJECTS := runtime operator devkit
LOCK := $(UV) pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--custom-compile-command "make lock" --quiet $(PROJECTS:%=--no-emit-package joinery-%)

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "make %-14s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

.PHONY: setup
setup: $(STAMP) $(COMPILED) ## create .venv with the pinned dependencies and the three distributions (done by the others when needed)

$(STAMP): requirements/dev.txt requirements/uv.txt $(PROJECTS:%=%/pyproject.toml)
	@command -v $(PYTHON) >/dev/null || { echo "joinery: $(PYTHON) is missing. Install Python 3.11 or newer, or name one: make PYTHON=/path/to/python" >&2; exit 3; }
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("joinery: $(PYTHON) is Python %d.%d. Name one that is 3.11 or newer: make PYTHON=/path/to/python" % sys.version_info[:2])'
	@command -v $(UV) >/dev/null || { $(PYTHON) -m venv $(TOOLS) && $(TOOLS)/bin/pip install --quiet --require-hashes -r requirements/uv.txt; }
	@test -x $(BIN)/python || $(UV) venv --quiet --python $(PYTHON) $(VENV)
	$(UV) pip sync --quiet --compile-bytecode --python $(BIN)/python requirements/dev.txt
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation $(PROJECTS:%=-e ./%)
	@$(BIN)/python -m joinery_devkit.environment
	@$(BIN)/python -m joinery_runtime.hosts.class_archive
	@touch $@

# Else the first process of each test would compile them, or wait for one that does.
$(COMPILED): $(STAMP) $(wildcard runtime/src/joinery_runtime/formats/kernels/*.py)
	@$(BIN)/python -m joinery_runtime.formats.kernels
	@touch $@

.PHONY: lint
lint: setup ## style, format, types, import contracts, that only its modules name a kind, and budgets of words
	@$(MAKE) -j2 lint-types lint-style

.PHONY: lint-types
lint-types: setup
	$(BIN)/mypy

.PHONY: lint-style
lint-style: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports --no-logo
	@$(BIN)/python -m joinery_devkit.kind_names
	@$(BIN)/python -m joinery_devkit.house --check

.PHONY: house
house: setup ## how the code is written: vague names, helpers used once, retired words, and their budgets
	@$(BIN)/python -m joinery_devkit.house

.PHONY: format
format: setup ## let ruff fix and format every file
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# Every suite is one pytest process with a worker per core; a file stays with one worker, and the first ones begin first.
# (Not `--dist loadgroup`: with pytest 9.2 xdist 3.8 sees no groups and spreads a file over the workers.)
PYTEST := $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder
IN_PROCESS := not services and not node and not slow and not soak
KUBERNETES := $(BIN)/python -m joinery_devkit.kubernetes

.PHONY: test
test: lint test-fast test-search test-services ## lint, types, layers, every rule, and the product on real Kafka, Postgres, Spark and API server

.PHONY: test-all
test-all: test test-slow e2e ## all but the soak tests

.PHONY: test-fast
test-fast: setup ## the tests that need nothing but this process, without most searches
	$(PYTEST) -m "$(IN_PROCESS) and not search"

.PHONY: test-search
test-search: setup ## random histories against the oracles, faults at every call, broken versions of the code that must be found
	$(PYTEST) -m "$(IN_PROCESS) and search" tests/core tests/engine tests/inspect tests/operator tests/test_key_order_of_joins.py

BASE ?= main

.PHONY: affected
affected: setup ## the fast tests and searches that the change since BASE (main) touches, by imports
	@files=$$($(BIN)/python -m joinery_devkit.affected $(BASE)) && if [ -z "$$files" ]; then echo "No test is affected"; \
	else $(PYTEST) -m "$(IN_PROCESS)" $$files; fi

.PHONY: test-services
test-services: setup ## the tests on a Kafka, a Postgres, a Spark and an API server that they bring up
	@$(KUBERNETES) build api
	$(PYTEST) -m "services and not slow and not soak"

.PHONY: test-slow
test-slow: setup ## drivers that are killed at every point, whole examples, fencing: real parts, minutes
	@$(KUBERNETES) build api
	$(PYTEST) -m "slow and not node and not soak"

.PHONY: drill
drill: setup ## the kill drill alone: drivers that die at every named point, into Kafka exactly once
	$(PYTEST) tests/e2e/test_kill.py -m "not soak"

.PHONY: programs
programs: setup ## compile what a Kubernetes node consists of ahead (minutes, once)
	@$(KUBERNETES) build node

.PHONY: images
images: setup ## build the images ahead, as images/*.Dockerfile say (root; minutes, once)
	@$(BIN)/python -m joinery_devkit.images.build

.PHONY: e2e
e2e: setup ## the operator on a real Kubernetes node, and the images (root; minutes more the first time)
	@$(MAKE) -j2 programs images
	$(PYTEST) -m "node and not soak"

.PHONY: soak
soak: setup ## the same with large budgets: every trace in every variant, every kill three times, whole lives (hours)
	JOINERY_BUDGET=large JOINERY_KILLS=3 $(PYTEST) --timeout=3600

KIND ?= joins

.PHONY: demo
demo: setup ## a join (KIND=sessions: sessions) on real Kafka, Spark and Postgres, checked by an independent computation; KEEP=1 leaves them up
	@$(BIN)/python -m joinery_devkit.demo --kind $(KIND) $(if $(KEEP),--keep)

.PHONY: playground
playground: setup ## a Kafka and a Postgres to try jobs on, until Ctrl-C (docs/tutorial.md)
	@$(BIN)/python -m joinery_devkit.playground

ONLY ?= joins sessions latency kinds upserts state memory

.PHONY: kind
kind: ## a join that runs on a kind cluster, from nothing (Docker, kind, kubectl and helm; deploy/kind)
	@deploy/kind/kind.sh

.PHONY: bench
bench: setup ## Joinery beside raw reads, Spark, Flink and Kafka Streams, in build/bench (ROWS=, ONLY=, PEERS=, QUICK=1; hours, a quiet machine)
	@$(BIN)/python -m bench --only $(ONLY) $(if $(ROWS),--rows $(ROWS)) $(if $(PEERS),--peers $(PEERS)) $(if $(QUICK),--quick)

.PHONY: matrix
matrix: setup ## the wheels on several versions of Python, Spark and Postgres (minutes each; ARGS="--python 3.13 --spark 4.3 --postgres 14 18")
	@$(BIN)/python -m joinery_devkit.matrix $(ARGS)

.PHONY: crds
crds: setup ## write crds/ and docs/reference.md from the resource models, deploy/ from the chart, the operator's table, docs/kinds.md, pictures (tests fail while they differ)
	@$(BIN)/joinery crds --folder crds
	@$(BIN)/joinery crds --folder charts/joinery/files/crds
	@page="$$($(BIN)/python -m joinery_devkit.functions page)" && echo "$$page" > docs/functions.md
	@module="$$($(BIN)/python -m joinery_devkit.functions signatures)" && echo "$$module" > runtime/src/joinery_runtime/job/model/function_signatures.py
	@page="$$($(BIN)/python -m joinery_devkit.reference)" && echo "$$page" > docs/reference.md # a failure leaves the page as it was
	@page="$$($(BIN)/python -c 'from joinery_operator.reconcile.rollout_table import rendered; print(rendered())')" && echo "$$page" > docs/rollout-table.md
	@picture="$$($(BIN)/python -m joinery_devkit.rooms)" && echo "$$picture" > docs/pictures/rooms.svg
	@$(BIN)/python -m joinery_devkit.kinds_page
	@PYTHONPATH=tests $(BIN)/python deploy/render.py --helm "$$($(BIN)/python -c 'from joinery_devkit.kubernetes.binaries import program; print(program("helm"))')"

.PHONY: docs
docs: setup ## the documentation as a site, in build/site; a link that leads nowhere fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

.PHONY: links
links: setup ## ask the sites that the pages link to whether the links lead somewhere (a site that does not answer fails nothing)
	@$(BIN)/python -m joinery_devkit.links

.PHONY: release
release: setup ## wheels, chart, CRDs, SBOMs and sums of one version, in build/release (ARGS="--sign KEY --images REGISTRY")
	@$(BIN)/python -m joinery_devkit.release $(ARGS)

.PHONY: lock
lock: ## recompile requirements/ from the pyproject files (UPGRADE=1 takes newer versions)
	$(LOCK) $(if $(UPGRADE),--upgrade) $(PROJECTS:%=%/pyproject.toml) --extra engine --extra lakehouse --group pyproject.toml:dev -o requirements/dev.txt
	$(LOCK) -c requirements/dev.txt runtime/pyproject.toml --extra engine --extra lakehouse -o requirements/runtime.txt
	$(LOCK) -c requirements/dev.txt operator/pyproject.toml -o requirements/operator.txt
	echo uv | $(LOCK) -c requirements/dev.txt - -o requirements/uv.txt

.PHONY: clean
clean: ## remove .venv and what tools leave behind (not the jars in ~/.cache/joinery)
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
