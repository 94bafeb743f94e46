# make demo: everything a newcomer needs. make test: everything the tests need.
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
EXTRAS := all
DATA ?= ../shared/data/eval

.PHONY: help demo test lint types bench recall wheel clean

help: ## Show the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12

# One environment, installed again only when what it is made from changes.
.venv/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[$(EXTRAS)]" --group dev
	touch $@

demo: .venv/.installed ## Index long documents found on this machine and answer questions about them
	$(BIN)/lmk-rag demo

test: .venv/.installed ## Run all tests, a file at a time on each core
	$(BIN)/python -m pytest --numprocesses=auto --dist=loadfile

lint: .venv/.installed ## Check style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/.installed ## Check types
	$(BIN)/mypy

bench: .venv/.installed ## Measure encoding speed beside sentence-transformers
	$(BIN)/python benchmarks/encode_speed.py --json benchmarks/encode_speed.json

recall: .venv/.installed ## Measure what the first stage of retrieval keeps (needs a folder of evaluation sets)
	$(BIN)/python benchmarks/stage1_recall.py --data $(DATA) --output benchmarks

wheel: .venv/.installed ## Build the wheel into dist/
	$(BIN)/python -m build --wheel --no-isolation

clean: ## Remove what was built, but not the environment
	rm -rf dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
