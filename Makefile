# Everything a developer or a curious admin types. `make` alone explains itself.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
BENCH ?=
PYTEST_ARGS ?=
# Tests wait for kubelets more than they compute, so three workers keep two cores busy. A file stays with one worker,
# because its tests share nodes.
PYTEST_WORKERS ?= 3

.PHONY: help
help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "; print "Usage: make TARGET\n"} \
	  /^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@printf '\nVariables: GPUPOLICY_CACHE (built tools, default ~/.cache/gpupolicy), KUBE_BIN (ready-made Kubernetes\nbinaries instead of building), PYTEST_ARGS (e.g. "-k planner"), PYTEST_WORKERS, BENCH (one benchmark by name).\n'

$(VENV)/.ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/pip install --quiet --editable '.[controller,agent,cli]' --group test --group lint
	@touch $@

.PHONY: venv
venv: $(VENV)/.ready ## Make the virtual environment with everything that tests and checks need

.PHONY: kube
kube: ## Build Kubernetes, etcd, containerd, Helm and other tools into the cache (once, 10 to 20 minutes)
	$(PYTHON) tests/cluster/build.py

.PHONY: demo
demo: venv ## Start the cluster of 8 x 8 simulated H100s and show policies at work
	$(BIN)/python -m tests.demo up

.PHONY: demo-down
demo-down: ## Stop the demo and remove everything that it made
	@test ! -x $(BIN)/python || $(BIN)/python -m tests.demo down

.PHONY: test
test: venv lint kube ## Run all checks and all tests
	$(BIN)/pytest -n $(PYTEST_WORKERS) --dist loadfile $(PYTEST_ARGS)

.PHONY: unit
unit: venv ## Run the tests that need neither the simulator nor a cluster
	$(BIN)/pytest tests/unit $(PYTEST_ARGS)

.PHONY: search
search: venv kube ## Run the property tests with new random examples (the tests use the same on every run)
	GPUPOLICY_EXAMPLES=search $(BIN)/pytest -n $(PYTEST_WORKERS) --dist loadfile -m hypothesis $(PYTEST_ARGS)

.PHONY: lint
lint: venv verify ## Check style, types, layers and spelling
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHONPATH=operator $(BIN)/lint-imports --no-logo
	$(BIN)/codespell README.md CHANGELOG.md CONTRIBUTING.md docs operator tests tools examples charts simulator

.PHONY: verify
verify: venv ## Fail if a generated file is out of date
	$(BIN)/python tools/generate.py --check

.PHONY: generate
generate: venv ## Write the generated files (CRDs)
	$(BIN)/python tools/generate.py

.PHONY: fmt
fmt: venv ## Format the code
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

.PHONY: bench
bench: venv ## Run the benchmarks, one JSON object a line (BENCH=name for one)
	@$(BIN)/python -m bench $(BENCH)

.PHONY: clean
clean: ## Remove what was built in the checkout (not the cache)
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
