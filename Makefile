# Every target works from a fresh clone: it makes .venv/ and installs what it needs first.

PYTHON ?= $(shell for each in python3.11 python3.12 python3.13 python3 python; do \
	$$each -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null \
	&& echo $$each && break; done)
BIN := .venv/bin
READY := .venv/.installed
# what the demo alone needs: `make setup` and the tests add to the same .venv/
DEMO := .venv/.demo

# four silos with two OpenMP threads each spin against one another, 30 times slower
export OMP_NUM_THREADS := 1

# where a shell keeps no bytecode, each process of tests would compile every module again
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo examples test test-gates cluster-test host-test lint typecheck bench proto reference docs soak fuzz \
	locks release verify-release

help: ## say what each target does
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 16

setup: $(READY) ## make .venv/ with the exact versions of constraints.txt

demo: $(if $(wildcard $(READY)),$(READY),$(DEMO)) ## a federation of processes on this machine; ARGS="--silos 6 --drop 1"
	$(BIN)/chorale demo $(ARGS)

examples: $(READY) ## docs/examples/own in simulation, each with its pooled figure; ARGS="survival vision"
	$(BIN)/python -m tools.examples $(ARGS)

PYTEST := $(BIN)/python -m pytest --numprocesses auto --dist worksteal

test: $(READY) ## every failure class once, a test a core; ARGS="tests/unit -k ring"
	$(PYTEST) $(ARGS)

test-gates: $(READY) ## convergence, benchmarks and guides: what takes long and fails seldom
	$(PYTEST) -m "gate and not soak" $(ARGS)

cluster-test: $(READY) ## the guide and faults on a real Kubernetes, which it builds once; root on Debian 12
	$(BIN)/python -m tests.cluster $(ARGS)

host-test: $(READY) ## the guide of one machine on a real systemd; root on Debian 12
	$(BIN)/python -m tests.host $(ARGS)

lint: $(READY) ## ruff: rules and format; idioms that a stranger reads twice
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m tools.prose

typecheck: $(READY) ## mypy --strict
	$(BIN)/mypy

bench: $(READY) ## every benchmark against its target and the last figures, into build/bench/; ARGS="setup growth"
	$(BIN)/python -m bench.suite $(ARGS)

proto: $(READY) ## generate the stubs in chorale/v1/ from proto/
	cd proto && PATH="$(CURDIR)/$(BIN):$$PATH" python -m grpc_tools.protoc -I . \
		--python_out=.. --grpc_python_out=.. --mypy_out=.. --mypy_grpc_out=.. chorale/v1/*.proto

reference: $(READY) ## write the README.md of each chart from the code
	$(BIN)/python -m tools.reference $(ARGS)

docs: $(READY) ## the documentation as a site, into build/site; every link has to lead somewhere
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

soak: $(READY) ## protocol and fault tests with a thousand examples each, and what takes minutes
	HYPOTHESIS_PROFILE=soak $(BIN)/python -m pytest tests/protocol tests/faults -m "soak or not soak" --timeout 3600 $(ARGS)
	$(BIN)/python -m pytest tests/unit tests/integration tests/deployment -m soak --timeout 3600 $(ARGS)
	$(BIN)/python -m tests.cluster

locks: $(READY) ## write deploy/requirements-*.txt from constraints.txt; needs uv, of PyPI
	$(BIN)/python -m tools.release.locks

OUT ?= build/release

release: $(READY) ## wheel, images, charts and what is said of them, into OUT=; KEY=minisign.key ARGS="--build-arg PYTHON_DIGEST=sha256:..."
	$(BIN)/python -m tools.release --out $(OUT) $(if $(KEY),--key $(KEY)) $(ARGS)

DIR ?= build/release

# nothing is installed for it: whoever verifies has not yet reason to trust what would be
verify-release: ## check signature and content of DIR=; KEY=minisign.pub, or ARGS=--unsigned
	@test -n "$(PYTHON)" || { echo "chorale: error: Python 3.11, 3.12 or 3.13 is needed" >&2; exit 1; }
	@$(PYTHON) -m tools.release.verify $(DIR) $(if $(KEY),--key $(KEY)) $(ARGS)

FUZZ_SECONDS ?= 60

fuzz: $(READY) ## parsers of foreign bytes, FUZZ_SECONDS=60 a target; ARGS="chunk state"
	@$(BIN)/python -c 'import atheris' 2>/dev/null \
		|| said=$$($(BIN)/python -m pip install --quiet --only-binary :all: -c constraints.txt atheris 2>&1) \
		|| case "$$said" in \
			*"No matching distribution"*) echo "fuzz: skipped, atheris has no wheel for this Python and machine"; exit 0;; \
			*) echo "$$said" >&2; exit 1;; \
		esac; \
	! $(BIN)/python -c 'import atheris' 2>/dev/null || $(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS) $(ARGS)

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "chorale: error: Python 3.11, 3.12 or 3.13 is needed; name one: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -m venv .venv || { echo "chorale: error: $(PYTHON) cannot make a virtual environment; install its venv package" >&2; exit 1; }

# torch goes first and by itself, so that the machine's own choice of build stands
INSTALL := $(BIN)/python -m tools.install -c constraints.txt

$(DEMO): pyproject.toml constraints.txt | $(BIN)/python
	@$(INSTALL) --no-compile torch
	@$(INSTALL) --no-compile -e '.[demo]'
	@touch $@

$(READY): pyproject.toml constraints.txt | $(BIN)/python
	@$(INSTALL) torch torchvision
	@$(INSTALL) -e '.[silo,tables,export,examples,ray,otel,dev,docs]'
	@touch $@
