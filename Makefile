# The whole project in a few commands; `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-lowest test-sdist docs wheel check format bench clean

help: ## list the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

# Two steps, so that the demo does not wait for what only tests and documentation need.
PACKAGES := $(VENV)/lib/python3*/site-packages
INSTALL := $(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt

setup: $(VENV)/.installed ## create .venv with everything, in the tested versions

$(VENV)/.demo: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	  "constraints.txt needs Python 3.11 or newer; name one, as in: make demo PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --editable '.[report]'
	@# Packages bring their own tests, 200 MB that nothing here runs; 130 MB are torch's in C++.
	rm -rf $(PACKAGES)/torch/test $(PACKAGES)/torch/bin/test_* $(PACKAGES)/torch/bin/*Test
	find $(PACKAGES) -type d -name tests -prune -exec rm -rf {} +
	@touch $@

$(VENV)/.installed: $(VENV)/.demo
	$(INSTALL) --editable '.[dev]'
	@# Tests start many processes, which compile what they import where they may not write bytecode.
	@$(BIN)/python -m compileall -q -j 0 $(VENV)/lib > /dev/null 2>&1 || true
	@touch $@

demo: $(VENV)/.demo ## train on two moons, write figures and a report to runs/demo
	$(BIN)/density-softmax demo --seeds 1

test: setup ## run the tests
	$(BIN)/pytest

# The lowest versions that pyproject.toml allows of everything it names, extras included.
LOWEST := .venv-lowest

test-lowest: $(LOWEST)/.installed ## run the tests with the lowest versions of everything
	$(LOWEST)/bin/pytest

$(LOWEST)/.installed: pyproject.toml
	$(PYTHON) -m venv $(LOWEST)
	grep -oE '"[A-Za-z0-9-]+(\[[a-z,]+\])?>=[0-9.]+' pyproject.toml \
	  | sed -E 's/"([^[>]+)(\[.*\])?>=/\1==/' > $(LOWEST)/lowest.txt
	$(LOWEST)/bin/python -m pip install --quiet --constraint $(LOWEST)/lowest.txt --editable '.[dev]'
	@touch $@

test-sdist: setup ## build the source distribution and run its own tests
	rm -rf dist
	$(BIN)/python -m build --sdist --outdir dist
	cd dist && tar xzf *.tar.gz && rm *.tar.gz
	cd dist/* && PYTHONPATH=src $(abspath $(BIN))/pytest

docs: setup ## build the documentation into site/, with every warning an error
	@# Not --quiet: it hides warnings from --strict, too.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

wheel: setup ## build the wheel into dist/, and try it from an empty folder with each Python
	$(BIN)/python tests/try_wheel.py

check: setup docs ## format, lint, types, documentation and tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest

format: setup ## rewrite the code in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup ## run the benchmarks that need no downloaded data
	$(BIN)/python benchmarks/latency.py --backbones resffn --seconds 60
	$(BIN)/python benchmarks/training_cost.py --methods density_softmax
	$(BIN)/python benchmarks/loading_speed.py
	$(BIN)/python benchmarks/corruption_speed.py

clean: ## remove the environment and everything generated
	rm -rf $(VENV) $(LOWEST) runs site dist .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis
