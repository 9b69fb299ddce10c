# Every target sets up what it needs in a virtual environment of its own.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=
SEEDS ?= 50
FIRST ?= 0
MINUTES ?= 10
SEED ?=

# Clusters and tests start hundreds of processes. Without cached bytecode each would compile every module first.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo up test system check lint unit sim soak fuzz mutations model compose-test bench docs gen clean help

demo: $(VENV)/.user ## a stream of events through live resizes, then the audit, on a local cluster
	$(BIN)/anabranch demo $(ARGS)

up: $(VENV)/.user ## a local cluster in the foreground
	$(BIN)/anabranch up $(ARGS)

# The workers end together when what is short comes last.
LONGEST_FIRST := tests/sim tests/model tests/integration tests/interop tests/component \
	tests/contract tests/history tests/property tests/fuzz

test: ## everything: lint, types, unit, property, contract, integration, interop, containers
	$(SIDE_BY_SIDE) system lint $(UNIT)
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder $(LONGEST_FIRST) $(ARGS)
	$(MAKE) compose-test BESIDE=tests/soak

# Packages and images are fetched while Python packages are, and beside the linters.
system: $(VENV)/bin/python
	PYTHON=$(BIN)/python tests/setup-system

# Each part of the unit tests is one process, which imports only the modules of its own tests. The last part has what no
# other has.
UNIT_CLIENT := $(addprefix tests/unit/,client blocking demo export)
UNIT_BROKER := $(addprefix tests/unit/,broker coordinator log)
UNIT_TOOLS := $(addprefix tests/unit/,audit cli console controller)
UNIT_REST := tests/golden $(filter-out $(UNIT_CLIENT) $(UNIT_BROKER) $(UNIT_TOOLS),$(wildcard tests/unit/[a-z]*))
UNIT := unit-client unit-broker unit-tools unit-rest
# All at once: some tests wait for time-outs. The output of each is shown at its end, if this make can do that.
SIDE_BY_SIDE := $(MAKE) --no-print-directory -j6 $(if $(filter output-sync,$(.FEATURES)),--output-sync)

check: $(VENV)/.dev ## under a minute: ruff, import-linter, mypy, tidy, unit, golden
	$(SIDE_BY_SIDE) lint $(UNIT)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy

unit: $(VENV)/.dev
	$(SIDE_BY_SIDE) $(UNIT)

$(UNIT): unit-%: $(VENV)/.dev
	$(BIN)/python -m pytest $(UNIT_$(shell echo $* | tr a-z A-Z))

sim: $(VENV)/.dev ## the simulation tests, for SEEDS seeds from FIRST on
	ANABRANCH_SIM_SEEDS=$(SEEDS) ANABRANCH_SIM_FIRST=$(FIRST) $(BIN)/python -m pytest tests/sim $(ARGS)

soak: $(VENV)/.dev ## MINUTES of faults on real processes, by a schedule from SEED; ARGS=--kills: only kill -9
	$(BIN)/python -m tests.soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(ARGS)

fuzz: $(VENV)/.dev ## MINUTES of hostile frames from SEED to a real broker and a real controller
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

mutations: $(VENV)/.dev ## each rule switched off in turn, in models, simulation, histories and the audit: a check must find it
	$(BIN)/python -m tests.support.mutation_list
	$(BIN)/python -m pytest -n 2 -m mutation $$(cut -d: -f1 tests/mutations.txt | sort -u) $(ARGS)

model: $(VENV)/.dev ## the TLA+ models of docs/model, every configuration, or one with ARGS=NAME; needs Java
	nice $(BIN)/python docs/model/run.py $(ARGS)

# The same tests as elsewhere, against brokers in containers and a real ZooKeeper in one.
IN_CONTAINERS := tests/integration/test_client_cluster.py tests/integration/test_testing_plugin.py \
	tests/interop/test_python_clients.py \
	tests/interop/test_groups.py::test_a_group_of_different_libraries_survives_join_leave_and_crash

# What runs beside them in `make test`: tests that start processes of their own.
BESIDE :=

compose-test: $(VENV)/.dev ## docker-compose.yml, and the cluster of anabranch.testing; sets up a container engine if none answers
	PYTHON=$(BIN)/python tests/with-engine tests/with-images sh -ec '\
		docker info >/dev/null 2>&1 || exec $(BIN)/python -m pytest $(BESIDE) tests/compose $(ARGS); \
		$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder --anabranch-engine=docker \
			$(BESIDE) tests/compose $(IN_CONTAINERS) $(ARGS)'

bench: $(VENV)/.dev ## side by side with Kafka (where Maven is present) and with other clients
	$(BIN)/python -m bench $(ARGS)

docs: $(VENV)/.dev ## the documentation as a site, in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict $(ARGS)

gen: $(VENV)/.dev ## generate the message classes, codecs, the references of keys, metrics, wire and names, sync.pyi, options.py, pictures, the ledger, and the counts of cost
	$(BIN)/python -m anabranch.protocol.generate
	$(BIN)/python -m anabranch.config_reference
	$(BIN)/python -m anabranch.wire_reference
	$(BIN)/python -m anabranch.sync_types
	$(BIN)/python docs/site/python_names.py
	$(BIN)/python docs/site/split_picture.py
	$(BIN)/python -m tests.support.seen.metrics_page
	$(BIN)/python -m tests.support.seen.ledger
	$(BIN)/python -m tests.support.mutation_list
	$(BIN)/python -m tests.support.cost.work

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-13s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

clean: ## remove the virtual environment, caches and built files
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# What a user needs: the cluster, the embedded ZooKeeper, the audit.
$(VENV)/.user: pyproject.toml | $(VENV)/bin/python
	@echo "installing into $(VENV), about 900 MB: this takes some minutes the first time"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[local,audit,console]'
	touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	@echo "installing into $(VENV), about 1.3 GB: this takes some minutes the first time"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@ $(VENV)/.user
