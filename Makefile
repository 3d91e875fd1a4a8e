# `make run` and `make test` prepare the machine themselves; see deploy/setup for what that is.
.DEFAULT_GOAL := help
.PHONY: help page run restart test unit integration nightly bench chaos faults lint format demo setup image clean

# How many of each process `make run` starts.
WEB ?= 1
WORKER ?= 1
FLOWER ?= 1

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r name text; do printf '  make %-11s %s\n' "$$name" "$$text"; done

run: ## Start the service in the foreground (WEB=2 WORKER=1: how many of each)
	@exec deploy/run web=$(WEB) worker=$(WORKER) flower=$(FLOWER)

page: ## Fetch the web page, Agent Canvas: `make run` serves it from then on
	@deploy/setup page

restart: ## While `make run` runs: restart workers and API one by one, without a failed request
	@deploy/setup
	@.venv/bin/agent-workspace migrate
	@exec .venv/bin/python -m deploy.service.restart

demo: ## While `make run` runs: one conversation with a scripted model, live
	@deploy/setup
	@exec .venv/bin/python -m deploy.demo

test: ## Run all tests, as continuous integration does: lint, unit tests, real parts, drills, chaos (15 minutes)
	@deploy/setup test
	@exec .venv/bin/python -m tests.stages ci

unit: ## Run the tests that need no engine, on SQLite (a minute and a quarter)
	@deploy/setup unit
	@exec .venv/bin/python -m tests.stages unit

integration: ## Run the tests of real engines, sandboxes and processes (5 minutes)
	@deploy/setup test
	@exec .venv/bin/python -m tests.stages integration

nightly: ## Run what takes too long for each change, or one PART= of it (each takes an hour at most)
	@deploy/setup test
	@exec .venv/bin/python -m tests.stages nightly $(PART)

bench: ## Measure everything beside its baseline (ONLY=warm,lists DATABASE=sqlite RUNS=5 SIZE=100000 JSON=file PEER=url SECONDS=3)
	@deploy/setup test
	@deploy/image/build sandbox tiny
	@exec .venv/bin/python -m tests.bench $(if $(ONLY),--only $(ONLY)) $(if $(DATABASE),--database $(DATABASE)) \
		$(if $(RUNS),--runs $(RUNS)) $(if $(SIZE),--size $(SIZE)) $(if $(LIST),--list '$(LIST)') \
		$(if $(JSON),--json $(JSON)) $(if $(PEER),--peer $(PEER)) $(if $(SECONDS),--seconds $(SECONDS))

chaos: ## Break everything on purpose for SECONDS=60, with real parts (SEED=, DATABASE=sqlite, OPERATIONS=, REPORT=file)
	@deploy/setup test
	@deploy/image/build tiny
	@exec .venv/bin/python -m tests.drills.chaos $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED)) \
		$(if $(DATABASE),--database $(DATABASE)) $(if $(OPERATIONS),--operations $(OPERATIONS)) \
		$(if $(DEFAULT_SETTINGS),--default-settings) $(if $(REPORT),--report $(REPORT))

faults: ## Kill processes at pairs of points (PAIRS=20 or all, of each of OPERATIONS=, SEED=, DATABASE=, THOROUGH=1, REPORT=file)
	@deploy/setup test
	@deploy/image/build tiny
	@exec .venv/bin/python -m tests.drills.faults $(if $(PAIRS),--pairs $(PAIRS)) $(if $(SEED),--seed $(SEED)) \
		$(if $(DATABASE),--database $(DATABASE)) $(if $(OPERATIONS),--operations $(OPERATIONS)) \
		$(if $(THOROUGH),--thorough) $(if $(REPORT),--report $(REPORT))

lint: ## Check style, types and the borders between the parts
	@deploy/setup
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	.venv/bin/lint-imports

format: ## Put the code into shape
	@deploy/setup
	.venv/bin/ruff check --fix
	.venv/bin/ruff format

setup: ## Only prepare the machine: packages, the engine, the Python environment
	@deploy/setup

image: ## Only build the sandbox image
	@deploy/setup
	@deploy/image/build

clean: ## Remove the Python environment and caches; var/, with the data, stays
	rm -rf .venv *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
