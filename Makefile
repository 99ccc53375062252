# make venv | run | test | lint | bench | develop | clean
#
# .venv holds the built wheel and the test tools. build/env holds stock, which the wheel is made from,
# and build/stock its wheel, which test/wheel installs.

PYTHON ?= python3
BIN := .venv/bin
BUILD := build/env/bin
PIP := pip --disable-pip-version-check --quiet

# Folders stand in the list too: their time changes when a file goes away.
SOURCES := $(shell find torch_xla -name __pycache__ -prune -o \( -type d -o -name '*.py' \) -print) \
  overlay.py build_api.py build_overlay.py setup.py pyproject.toml LICENSE README.md
WHEEL = $(wildcard dist/torch_xla-*.whl)
SUITES := test/unit test/wheel test/pjrt test/hosts test/aot
CODE := torch_xla test benchmarks examples overlay.py build_api.py build_overlay.py setup.py

.PHONY: venv run test lint bench develop clean
.DELETE_ON_ERROR:

venv: .venv/installed

# The build environment that pyproject.toml's build-system asks for, kept so that a rebuild fetches nothing.
build/env/ready: pyproject.toml
	$(PYTHON) -m venv build/env
	$(BUILD)/$(PIP) download --no-deps --dest build/stock torch_xla==2.9.0
	$(BUILD)/$(PIP) install --no-deps build/stock/*.whl 'setuptools>=77'
	touch $@

dist/built: build/env/ready $(SOURCES)
	rm -rf dist && mkdir dist
	$(BUILD)/$(PIP) wheel --no-deps --no-build-isolation --wheel-dir dist .
	touch $@

# Once, and when pyproject.toml changes: torch and the tools.
.venv/tools: pyproject.toml | dist/built
	$(PYTHON) -m venv .venv
	$(BIN)/$(PIP) install "$$(echo dist/torch_xla-*.whl)[test]"
	test -e $@ || touch .venv/fresh
	touch $@

# When a source changes: our wheel alone.
.venv/installed: dist/built .venv/tools
	test .venv/fresh -nt dist/built || $(BIN)/$(PIP) install --no-deps --force-reinstall dist/torch_xla-*.whl
	rm -f .venv/fresh && touch $@

run: venv
	$(BIN)/python examples/per_rank.py

test: lint
	$(BIN)/pytest $(wildcard $(SUITES))

lint: venv
	$(BIN)/ruff format --check $(wildcard $(CODE))
	$(BIN)/ruff check $(wildcard $(CODE))
	$(BIN)/mypy

bench: venv
	$(BIN)/python -m benchmarks

# Makes .venv import the checkout. Again after a new file or a graft; `make venv` puts the wheel back.
develop: .venv/tools build/env/ready
	ls .venv/lib/*/site-packages/torch_xla_editable.pth || $(BIN)/$(PIP) install --no-deps --editable .
	rm -f .venv/installed .venv/fresh
	$(BUILD)/python build_overlay.py build/editable

clean:
	rm -rf .venv build dist LICENSE.torch_xla .pytest_cache .mypy_cache .ruff_cache .hypothesis
