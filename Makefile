# `make run` and `make test` prepare the machine themselves (deploy/setup).
.DEFAULT_GOAL := help
.PHONY: help page run restart test unit integration nightly bench chaos faults lint format demo setup image clean

# The number of processes of each kind that `make run` starts.
WEB ?= 1
WORKER ?= 1
FLOWER ?= 1

# Tests need their images in the engine that they use, which is not always the service's (deploy/setup).
BUILD_FOR_TESTS = AW_DOCKER_HOST=$(or $(DOCKER_HOST),unix:///var/run/docker.sock) deploy/image/build

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r name text; do printf '  make %-11s %s\n' "$$name" "$$text"; done

run: ## Run the service in the foreground (WEB=2 WORKER=1: number of processes)
	@exec deploy/run web=$(WEB) worker=$(WORKER) flower=$(FLOWER)

page: ## Fetch the web UI, Agent Canvas; `make run` then serves it
	@deploy/setup page

restart: ## Restart the workers and the API of a running service, without a failed request
	@deploy/setup
	@.venv/bin/agent-workspace migrate
	@exec .venv/bin/python -m deploy.service.restart

demo: ## Show one conversation with a scripted model on a running service
	@deploy/setup
	@exec .venv/bin/python -m deploy.demo

test: ## Run all tests, as continuous integration does (13 minutes)
	@deploy/setup test
	@exec .venv/bin/python -m tests.stages ci

unit: ## Run the tests that need no engine, on SQLite (90 seconds)
	@deploy/setup unit
	@exec .venv/bin/python -m tests.stages unit

integration: ## Run the tests with real engines, sandboxes and processes (5 minutes)
	@deploy/setup test
	@exec .venv/bin/python -m tests.stages integration

nightly: ## Run the long tests, or one PART= of them (each at most an hour)
	@deploy/setup test
	@exec .venv/bin/python -m tests.stages nightly $(PART)

bench: ## Run the benchmarks (ONLY=warm,lists DATABASE=sqlite RUNS=5 SIZE=100000 JSON=file PEER=url SECONDS=3)
	@deploy/setup test
	@$(BUILD_FOR_TESTS) sandbox tiny
	@exec .venv/bin/python -m tests.bench $(if $(ONLY),--only $(ONLY)) $(if $(DATABASE),--database $(DATABASE)) \
		$(if $(RUNS),--runs $(RUNS)) $(if $(SIZE),--size $(SIZE)) $(if $(LIST),--list '$(LIST)') \
		$(if $(JSON),--json $(JSON)) $(if $(PEER),--peer $(PEER)) $(if $(SECONDS),--seconds $(SECONDS))

chaos: ## Inject random faults for SECONDS=60 (SEED=, DATABASE=sqlite, OPERATIONS=, REPORT=file)
	@deploy/setup test
	@$(BUILD_FOR_TESTS) tiny
	@exec .venv/bin/python -m tests.drills.chaos $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED)) \
		$(if $(DATABASE),--database $(DATABASE)) $(if $(OPERATIONS),--operations $(OPERATIONS)) \
		$(if $(DEFAULT_SETTINGS),--default-settings) $(if $(REPORT),--report $(REPORT))

faults: ## Kill processes at pairs of failpoints (PAIRS=20 or all, OPERATIONS=, SEED=, DATABASE=, THOROUGH=1, REPORT=file)
	@deploy/setup test
	@$(BUILD_FOR_TESTS) tiny
	@exec .venv/bin/python -m tests.drills.faults $(if $(PAIRS),--pairs $(PAIRS)) $(if $(SEED),--seed $(SEED)) \
		$(if $(DATABASE),--database $(DATABASE)) $(if $(OPERATIONS),--operations $(OPERATIONS)) \
		$(if $(THOROUGH),--thorough) $(if $(REPORT),--report $(REPORT))

lint: ## Check style, types and import rules
	@deploy/setup
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	.venv/bin/lint-imports

format: ## Format the code
	@deploy/setup
	.venv/bin/ruff check --fix
	.venv/bin/ruff format

setup: ## Prepare the machine: packages, the engine, the Python environment
	@deploy/setup

image: ## Build the sandbox image
	@deploy/setup
	@deploy/image/build

clean: ## Remove the Python environment and caches, but not the data in var/
	rm -rf .venv build *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
