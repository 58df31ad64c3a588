# Everything a newcomer needs: `make demo` and `make test`. `make help` lists the rest.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PIP    := $(BIN)/pip install --quiet --disable-pip-version-check -c requirements.lock
NAME   ?= all

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-hosts check bench docs clean

help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# torch goes first and pinned: any looser request would fetch gigabytes of CUDA.
$(STAMP): pyproject.toml requirements.lock
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing Abaton into $(VENV) (a few minutes the first time) ..."
	@$(PIP) torch
	@$(PIP) -e '.[dev]'
	@touch $@

demo: $(STAMP) ## Run a whole federation on embedded defaults
	@$(BIN)/abaton demo

test: $(STAMP) ## Run the quick tests
	@$(BIN)/python -m pytest -n 2

test-all: $(STAMP) ## Run every test, also the slow ones and those that need real parts
	@$(BIN)/python -m pytest -n 2 --dist loadfile -m ''

test-hosts: $(STAMP) ## Run whole federations over Flower, one after the other (needs the extra, and root for separate hosts)
	@$(PIP) -e '.[flower]'
	@$(BIN)/python -m pytest -m hosts

check: $(STAMP) ## Lint and type-check (ruff, mypy strict)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

bench: $(STAMP) ## Run the benchmarks (NAME=engine for one of them)
	@$(BIN)/abaton bench $(NAME)

docs: $(STAMP) ## Build the documentation site into site/
	@$(PIP) -e '.[docs]'
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean: ## Remove everything that was built or installed here
	rm -rf $(VENV) dist build site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
