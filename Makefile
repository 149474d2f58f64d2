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
TOOLS := .cache/uv-tool
# uv when the machine has it, else one of our own in .cache/.
UV := $(shell command -v uv || echo $(TOOLS)/bin/uv)
PROJECTS := runtime operator devkit
LOCK := $(UV) pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--custom-compile-command "make lock" --quiet $(PROJECTS:%=--no-emit-package joinery-%)

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-14s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

.PHONY: setup
setup: $(STAMP) ## create .venv with the pinned dependencies and the three distributions (done by the others when needed)

$(STAMP): requirements/dev.txt requirements/uv.txt $(PROJECTS:%=%/pyproject.toml)
	@command -v $(PYTHON) >/dev/null || { echo "joinery: $(PYTHON) is missing. Install Python 3.11 or newer, or name one: make PYTHON=/path/to/python" >&2; exit 3; }
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("joinery: $(PYTHON) is Python %d.%d. Name one that is 3.11 or newer: make PYTHON=/path/to/python" % sys.version_info[:2])'
	@command -v $(UV) >/dev/null || { $(PYTHON) -m venv $(TOOLS) && $(TOOLS)/bin/pip install --quiet --require-hashes -r requirements/uv.txt; }
	@test -x $(BIN)/python || $(UV) venv --quiet --python $(PYTHON) $(VENV)
	$(UV) pip sync --quiet --compile-bytecode --python $(BIN)/python requirements/dev.txt
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation $(PROJECTS:%=-e ./%)
	@$(BIN)/python -m joinery_devkit.environment
	@touch $@

.PHONY: lint
lint: setup ## ruff, format check, mypy --strict, import contracts, and that only its modules name a kind
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	@$(BIN)/python -m joinery_devkit.kind_names

.PHONY: format
format: setup ## let ruff fix and format every file
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

.PHONY: test
test: lint test-fast test-services ## everything that CI runs

.PHONY: test-fast
test-fast: setup ## the tests that need nothing but this process
	$(BIN)/pytest -m "not services and not node" -n 2

.PHONY: test-services
test-services: setup ## the tests that bring up Kafka, Postgres, Spark and an API server
	@$(BIN)/python -m joinery_devkit.kubernetes build api
	$(BIN)/pytest -m "services and not slow" -n 2 --dist loadfile --durations=10
	$(BIN)/pytest -m "services and slow" -n 2 --dist loadfile --no-loadscope-reorder --durations=20

.PHONY: e2e
e2e: setup ## the operator on a real Kubernetes node, brought up here (root; the first time builds its binaries)
	@$(BIN)/python -m joinery_devkit.kubernetes build node
	$(BIN)/pytest -m node --durations=10

.PHONY: soak
soak: setup ## the kill tests with every point hit three times (half an hour)
	JOINERY_KILLS=3 $(BIN)/pytest tests/e2e/test_kill.py tests/e2e/test_kill_sessions.py

KIND ?= joins

.PHONY: demo
demo: setup ## a join (KIND=sessions: sessions) on real Kafka, Spark and Postgres, checked by an independent computation
	@$(BIN)/python -m joinery_devkit.demo --kind $(KIND)

.PHONY: bench
bench: setup ## throughput beside Spark's own joins and sessions and the raw read, and latency (minutes; wants a quiet machine)
	@$(BIN)/python bench/join.py --out build/bench.json
	@$(BIN)/python bench/kinds.py --out build/kinds.json
	@$(BIN)/python bench/sessions.py --out build/sessions.json
	@$(BIN)/python bench/latency.py --out build/latency.json

.PHONY: crds
crds: setup ## write crds/ from the resource models, and deploy/ from the chart (tests fail while they differ)
	@$(BIN)/joinery crds --folder crds
	@PYTHONPATH=tests $(BIN)/python deploy/render.py --helm "$$($(BIN)/python -c 'from joinery_devkit.kubernetes.binaries import program; print(program("helm"))')"

.PHONY: lock
lock: ## recompile requirements/ from the pyproject files (UPGRADE=1 takes newer versions)
	$(LOCK) $(if $(UPGRADE),--upgrade) $(PROJECTS:%=%/pyproject.toml) --extra engine --group pyproject.toml:dev -o requirements/dev.txt
	$(LOCK) -c requirements/dev.txt runtime/pyproject.toml --extra engine -o requirements/runtime.txt
	$(LOCK) -c requirements/dev.txt operator/pyproject.toml -o requirements/operator.txt
	echo uv | $(LOCK) -c requirements/dev.txt - -o requirements/uv.txt

.PHONY: clean
clean: ## remove .venv and what tools leave behind (not the jars in ~/.cache/joinery)
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
