# make demo    train on the built-in data with a proven ε, about a minute after the first install
# make test    the test suite
# make lint    ruff and mypy
# make docs    the documentation site, in site/; warnings are errors
# make bench   time of accounting, of features, and of a step as a ratio to plain SGD, beside Opacus

PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint docs bench clean

demo: .venv/ready
	$(BIN)/dpdt train digits

test: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadscope --no-loadscope-reorder

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: .venv/ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

bench: .venv/ready
	$(BIN)/python benchmarks/accounting.py
	$(BIN)/python benchmarks/features.py
	$(BIN)/python benchmarks/step.py

.venv/ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv build dist site src/*.egg-info
