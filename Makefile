# Every target works from a fresh clone. `make` alone lists them.

PYTHON ?= /usr/bin/python3
VENV := .venv
BIN := $(VENV)/bin
# Real Slurm needs root, extra users and a clean end: all of it happens in namespaces of its own.
INSIDE := $(BIN)/python -m advisor.demo.namespace --
PYTEST_ARGS ?=
# Every worker lives in a namespace with a real Slurm of its own, and gets the tests file by file, in the order of
# tests/conftest.py: many of them wait.
WORKERS ?= 3
PYTEST := $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder --tx '$(WORKERS)*popen//python=$(INSIDE) $(BIN)/python'
MAKEFLAGS += --no-print-directory

.DEFAULT_GOAL := help
.PHONY: help venv packages demo test test-long screenshots test-logstores check bench proto lock

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(VENV)/.project ## everything that development and the demo need, into .venv

$(VENV)/.locked: requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make venv PYTHON=...")'
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || deploy/debian-packages python3-venv
	@test -x $(BIN)/python || { echo "making a virtual environment in $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing the packages that requirements.lock names into $(VENV): some minutes, the first time"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@touch $@

$(VENV)/.project: pyproject.toml $(VENV)/.locked
	@echo "installing this checkout into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

packages: ## the Debian packages of a real Slurm (as root or with sudo; otherwise it prints the command)
	@deploy/debian-packages slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge util-linux mount

.PHONY: test-packages
test-packages: packages ## also what only the tests need: Prometheus, Chromium, and Slurm's accounting with its database
	@deploy/debian-packages prometheus chromium fonts-dejavu-core libatomic1 slurmdbd mariadb-server

demo: venv packages ## a real job fails on a bad node and is recovered, live; KEEP=1 leaves it running
	@$(BIN)/advisor demo $(if $(KEEP),--keep)

test: venv test-packages ## the whole suite, real Slurm and Postgres included
	@$(INSIDE) true
	$(PYTEST) -m "not long" $(PYTEST_ARGS)

test-long: venv test-packages ## also what takes long; a later Debian's Slurm among it (NEWER_SUITES="trixie forky")
	@deploy/debian-packages mmdebstrap iptables libfaketime
	@$(INSIDE) true
	$(PYTEST) $(PYTEST_ARGS)

screenshots: venv ## the pictures of the README, anew, by the test that takes them
	@deploy/debian-packages chromium fonts-dejavu-core libatomic1
	ADVISOR_SCREENSHOTS=docs/images $(BIN)/python -m pytest tests/browser/test_screenshots.py $(PYTEST_ARGS)

test-logstores: venv ## the log-store suite on the real programs that LOKI_BIN and VICTORIA_LOGS_BIN name
	@test -n "$$LOKI_BIN$$VICTORIA_LOGS_BIN" || { echo "set LOKI_BIN, VICTORIA_LOGS_BIN or both to the programs"; exit 2; }
	$(BIN)/python -m pytest tests/contract/stores $(PYTEST_ARGS)

.PHONY: test-pyslurm
test-pyslurm: venv packages ## pyslurm against this host's Slurm, by the Python that PYSLURM_PYTHON names
	@test -n "$$PYSLURM_PYTHON" || { echo "set PYSLURM_PYTHON to a Python that has the pyslurm of this Slurm"; exit 2; }
	$(INSIDE) $(BIN)/python -m pytest tests/slurm/test_pyslurm.py $(PYTEST_ARGS)

check: venv ## style, types, import contracts, drift of stubs and OpenAPI, the wheel
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	@$(MAKE) proto-drift
	$(BIN)/python -m pytest tests/packaging $(PYTEST_ARGS)

PROTOC = PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m grpc_tools.protoc --proto_path=proto \
	--python_out=$(1) --grpc_python_out=$(1) --mypy_out=$(1) --mypy_grpc_out=$(1) proto/advisor/v1/*.proto

proto: venv ## regenerate the stubs in advisor/v1 from proto/, and docs/openapi.json from them
	@$(call PROTOC,.)
	@$(BIN)/python -m advisor.service.http.openapi > docs/openapi.json

.PHONY: cli-reference
cli-reference: venv ## docs/cli.md from the commands' own --help
	@$(BIN)/python -m advisor.cli_reference >docs/cli.md.new && mv docs/cli.md.new docs/cli.md

.PHONY: proto-drift
proto-drift: venv
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && ($(call PROTOC,$$folder)) && \
	diff -r --exclude=__init__.py --exclude=__pycache__ "$$folder/advisor/v1" advisor/v1 \
	|| { echo "advisor/v1 differs from proto/: run make proto and commit"; exit 1; }
	@$(BIN)/python -m advisor.service.http.openapi | diff - docs/openapi.json \
	|| { echo "docs/openapi.json differs from the contract: run make proto and commit"; exit 1; }

FUZZ_SECONDS ?= 300
.PHONY: fuzz
fuzz: venv ## coverage-guided fuzzing of everything that reads hostile input; FUZZ_SECONDS each (300)
	@for target in normaliser rules bundles pickles; do \
	  echo "== $$target"; $(BIN)/python -m tests.fuzz.run $$target --seconds $(FUZZ_SECONDS) || exit 1; \
	done

bench: venv packages ## the benchmarks, each beside its reference
	@for file in benchmarks/[!_]*.py; do \
	  [ -e "$$file" ] || { echo "there are no benchmarks yet"; exit 0; }; \
	  name=$$(basename "$$file" .py); echo "== $$name"; $(INSIDE) $(BIN)/python -m benchmarks.$$name || exit 1; \
	done

PIP_COMPILE = "$$folder/bin/pip-compile" --quiet --generate-hashes --allow-unsafe --strip-extras --no-header \
	--no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-emit-options

lock: venv ## renew requirements.lock from pyproject.toml, and the locks of the service and of what builds it
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && $(PYTHON) -m venv "$$folder" && \
	"$$folder/bin/pip" install --quiet --disable-pip-version-check pip-tools && \
	$(PIP_COMPILE) --all-build-deps --extra server --extra dev --output-file requirements.lock pyproject.toml && \
	$(PIP_COMPILE) --constraint requirements.lock --extra server --output-file requirements-server.lock pyproject.toml && \
	$(PIP_COMPILE) --output-file requirements-tools.lock requirements-tools.in

# The tools of the supply chain in an environment of their own: `tools` is its bin folder.
TOOLS = folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && tools="$$folder/tools/bin" && \
	$(PYTHON) -m venv "$$folder/tools" && \
	"$$tools/pip" install --quiet --disable-pip-version-check --require-hashes -r requirements-tools.lock

.PHONY: sbom
sbom: ## what the service is made of, as CycloneDX in sbom.cdx.json; the same locks give the same file
	@$(TOOLS) && $(PYTHON) -m venv --without-pip "$$folder/runtime" && \
	"$$tools/pip" --python "$$folder/runtime/bin/python" install --quiet --disable-pip-version-check --require-hashes \
	  --no-deps -r requirements-server.lock && \
	"$$tools/cyclonedx-py" environment --pyproject pyproject.toml --output-reproducible --output-file sbom.cdx.json \
	  "$$folder/runtime"

.PHONY: audit
audit: ## known holes of everything in the locks, by pip-audit (asks PyPI)
	@$(TOOLS) && for lock in requirements.lock requirements-tools.lock; do \
	  "$$tools/pip-audit" --require-hashes --disable-pip --no-deps -r "$$lock" || exit 1; done
