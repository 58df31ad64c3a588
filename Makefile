# Start with `make demo` and `make test`. `make help` lists all targets.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PIP    := $(BIN)/pip install --quiet --disable-pip-version-check -c requirements.lock
NAME   ?= all
COUNT  ?= 1000000

.DEFAULT_GOAL := help
# Tests start many processes: write bytecode once, whatever the environment sets.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo test test-all test-hosts check fuzz citizen bench docs locked lock sbom clean

help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Install the pinned torch first: a looser request fetches gigabytes of CUDA.
$(STAMP): pyproject.toml requirements.lock
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing Abaton into $(VENV) (a few minutes the first time) ..."
	@$(PIP) torch
	@$(PIP) -e '.[dev]'
	@touch $@

demo: $(STAMP) ## Run a complete study at six synthetic hospitals
	@$(BIN)/abaton demo

test: $(STAMP) ## Run the quick tests
	@$(BIN)/python -m pytest -n 2 --dist worksteal

test-all: $(STAMP) ## Run every test, also slow ones and those that need servers or browsers
	@$(BIN)/python -m pytest -n 2 --dist loadfile -m ''

test-hosts: $(STAMP) ## Run complete federations over Flower, one at a time (needs root for network namespaces)
	@$(PIP) -e '.[flower]'
	@$(BIN)/python -m pytest -m hosts

check: $(STAMP) ## Lint and type-check (ruff, mypy strict)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/mypy benchmarks/*.py benchmarks/peers/*.py

fuzz: $(STAMP) ## Send a million mutated replies, requests and trellis payloads (COUNT=20000 for fewer)
	@ABATON_FUZZ=$(COUNT) $(BIN)/python -m pytest -m '' tests/attacks/test_mutated_messages.py \
	  tests/codecs/test_payload_fuzz.py -k 'mutated'

PAGE   := src/abaton/citizen/page
BUILT  := src/abaton/citizen/built

# Python for browsers comes from npm and, for one compiled module, from a wheel; both are pinned by hash.
citizen: $(STAMP) ## Build the citizen page (needs node 20 and npm)
	@cd $(PAGE) && npm ci --ignore-scripts --no-audit --no-fund --silent && npm run --silent check
	@rm -rf $(PAGE)/node_modules/.wheels
	@$(BIN)/pip download --quiet --disable-pip-version-check --no-deps --require-hashes --only-binary :all: \
	  --platform pyemscripten_2026_0_wasm32 --python-version 3.14 --implementation cp --abi cp314 \
	  --dest $(PAGE)/node_modules/.wheels --requirement $(PAGE)/wheels.txt
	@cd $(PAGE) && node build.mjs node_modules/.wheels ../built

bench: $(STAMP) ## Run the benchmarks (NAME=engine for one of them)
	@$(BIN)/abaton bench $(NAME)

docs: $(STAMP) ## Build the documentation site into site/
	@$(PIP) -e '.[docs]'
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# Everything but torch is pinned by file hash; torch has several builds of one version, see docs/adr/0208-install-dependencies-in-ci-from-a-lock-file-with-hashes.md.
locked: ## Install all locked packages by file hash and check them
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --no-deps $(AGAIN) -r requirements.hashes
	@$(PIP) torch
	@$(BIN)/python -m tools.lock check

lock: $(STAMP) ## Rewrite requirements.hashes after a change of requirements.lock
	@$(PIP) uv
	@$(BIN)/python -m tools.lock make

sbom: $(STAMP) ## Write the bill of materials (CycloneDX) to sbom.cdx.json
	@$(BIN)/python -m tools.sbom sbom.cdx.json
	@echo "sbom.cdx.json"

clean: ## Remove everything that was built or installed in this folder
	rm -rf $(VENV) $(BUILT) $(PAGE)/node_modules dist build site sbom.cdx.json .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
