# Everything a developer types. Each target sets up what it needs; the first run makes .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
JOBS ?= 3
export ATOLL_CACHE ?= $(CURDIR)/$(VENV)/cache
LAYERS := guest > errors,markup > policy,types,log > guard,text > \
	files,config,availability,context,output,displays > \
	explore,retrieval,bridge,statekey,store,variables,verdict > channel,state > \
	sandbox,session,replies > sync,jail,statepipe,wire > archive > web > shell,launch > \
	backends > pool,factory > environment > rlm > aio,daemon,replserver > cli,integrations

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-llm check format spec bench soak docs clean

help: ## Show this help
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | \
		awk -F'\t' '{printf "  make %-8s %s\n", $$1, $$2}'

setup: $(STAMP) ## Make .venv with everything in it

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile \
		--editable '.[dev,bench,data,wasm,pyodide,agent,semantic]'
	@$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true  # pip would do it on one core
	@touch $(STAMP)

demo: $(STAMP) ## Run the main job: a model-written snippet over a large context, jailed
	$(BIN)/python -m examples.demo

test: $(STAMP) ## Pass the whole test-suite
	$(BIN)/python tools/suite.py $(JOBS) $(ARGS)

test-llm: $(STAMP) ## Ask a real language model on this machine (gets 1.1 GB once)
	@$(BIN)/python -c 'import xllamacpp' 2>/dev/null || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[localllm]'
	$(BIN)/python -m pytest -m llm --timeout 900 -o faulthandler_timeout=0 $(ARGS)

check: $(STAMP) ## Format, lint, types, layers, shape
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python tools/measure.py src/atoll --tests tests --no-cycles --layers "$(LAYERS)" \
		--independent backends --max-function 50 --max-file 400 --min-docs 0.95

format: $(STAMP) ## Format and mend what can be mended
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

spec: $(STAMP) ## Print every requirement with the tests that show it
	$(BIN)/python tools/spec.py $(ARGS)

bench: $(STAMP) ## Print the table of speeds, ratios first
	$(BIN)/python -m bench $(ARGS)

soak: $(STAMP) ## Run 10,000 fresh executions while zygotes are killed: none lost, nothing left
	$(BIN)/python -m bench.soak --kill-every 100 $(ARGS)

docs: $(STAMP) ## Write docs/cli.md anew and run the examples in README and docs
	$(BIN)/python tools/cli_doc.py
	$(BIN)/python -m pytest tests/docs -q

clean: ## Remove what was built
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
