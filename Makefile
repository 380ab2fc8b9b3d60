# The two commands of the README, and what they are made of. Each does its own set-up, asks nothing, and may be repeated.
.DEFAULT_GOAL := help
.PHONY: help test lint golden clean

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

help:            ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable '.[test]'
	@touch $@

lint: $(READY)   ## ruff and mypy --strict, tests too
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint       ## Everything CI runs
	scripts/prepare-tests
	$(BIN)/pytest

golden: $(READY) ## Rewrite the goldens from what the program prints now; read the diff before you commit it
	GOLDEN=rewrite $(BIN)/pytest -q tests/unit

clean:           ## Remove what make made
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
