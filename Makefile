# `make` prints the targets. `make demo PYTHON=/path/to/python` uses an environment of your own.
VENV := .venv
BASE_PYTHON ?= python3

ifeq ($(origin PYTHON),undefined)
PYTHON := $(VENV)/bin/python
ENV := $(VENV)/.complete
endif

.DEFAULT_GOAL := help
.PHONY: help env demo test test-fast lint format clean

help:  ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

env: $(ENV)  ## create .venv with pinned versions (done by the other targets when absent)

$(VENV)/.complete: requirements/base.txt requirements/dev.txt requirements/detectron2.txt tools/create_env.sh
	tools/create_env.sh $(VENV) $(BASE_PYTHON)
	touch $@

test: $(ENV)  ## run the tests
	$(PYTHON) -m pytest

test-fast: $(ENV)  ## run the tests that take seconds
	$(PYTHON) -m pytest -m "not slow"

lint: $(ENV)  ## check style and format
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .

format: $(ENV)  ## rewrite to the project's format
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .
