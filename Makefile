# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint bench clean

demo: .venv/installed
	$(BIN)/python -m examples.demo out/demo

test: lint
	$(BIN)/python -m pytest
	mkdir -p out/notebooks
	for path in notebooks/*.py; do \
	    $(BIN)/jupytext --quiet --to ipynb --output out/notebooks/$$(basename $$path .py).ipynb $$path || exit 1; \
	done
	$(BIN)/python -m pytest --nbmake --nbmake-timeout=300 out/notebooks

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[torch,test]'
	touch .venv/installed

clean:
	rm -rf .venv out build dist
