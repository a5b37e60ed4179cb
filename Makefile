# `make` lists the targets. PYTHON=python3.12 chooses the interpreter of a new .venv;
# ARGS="-k name" is handed to pytest.

VENV := .venv
ARGS ?=
BENCH ?= core --rows 2000000 --memory 1%,5% --skew 0,1

# Empty unless given, so that scripts/setup.sh looks for one itself.
PYTHON ?=
export PYTHON

.DEFAULT_GOAL := help
.PHONY: help install java demo test check soak bench profile lint format lock clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: ## Set up .venv, a Java runtime where missing, and the compiled kernels
	@scripts/setup.sh

java: ## Look for a Java runtime and install one where that is possible
	@scripts/setup.sh java

demo: install ## Run the whole pipeline on Spark for 30 seconds and verify it
	$(VENV)/bin/semistream demo

test: install ## Run the tests
	$(VENV)/bin/pytest --numprocesses=2 -m "not slow and not spark" $(ARGS) || [ $$? -eq 5 ]
	$(VENV)/bin/pytest -m "spark and not slow" $(ARGS) || [ $$? -eq 5 ]

check: lint test ## Everything that continuous integration runs

soak: install ## Run the slow tests: large masters, memory limits, all combinations and examples
	SEMISTREAM_TESTS=thorough $(VENV)/bin/pytest -m "slow or not spark" $(ARGS)

bench: install ## Measure the joins on a master of two million rows
	$(VENV)/bin/semistream bench run $(BENCH)

profile: install ## Show where the time of a join goes, kernel by kernel (needs Linux's perf)
	$(VENV)/bin/python scripts/profile.py $(ARGS)

lint: install ## Check style, formatting, types and the import contracts
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

format: install ## Format the code and apply the fixes that are safe
	$(VENV)/bin/ruff check --fix
	$(VENV)/bin/ruff format

# The lock serves every supported Python and platform with one version of each package. Settings
# of the machine it is made on stay out of it; the last line makes sure.
lock: install ## Write requirements.lock anew from pyproject.toml (LOCK=--upgrade for newer versions)
	$(VENV)/bin/uv pip compile pyproject.toml --all-extras --universal --fork-strategy fewest \
		--python-version 3.11 --generate-hashes --no-header --no-emit-index-url \
		--no-emit-find-links --output-file requirements.lock --quiet $(LOCK)
	@! grep -nE '://|^ *--(index|extra-index|find-links|trusted)| @ |file:' requirements.lock

clean: ## Remove caches and build output; .venv stays
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	rm -rf spark-warehouse metastore_db derby.log $(VENV)/.kernels
	find src tests scripts -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
