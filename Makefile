# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test suite quick fast lint docs trainers clean

demo: .venv/installed
	$(BIN)/python -m examples.demo out/demo

test: .venv/installed
	$(MAKE) --jobs=2 --no-print-directory lint suite

# The ranks of one module share processes, so that a module stays with one worker.
suite: .venv/installed
	mkdir -p out/notebooks
	for path in notebooks/*.py; do \
	    $(BIN)/jupytext --quiet --to ipynb --output out/notebooks/$$(basename $$path .py).ipynb $$path || exit 1; \
	done
	$(BIN)/python -m pytest --numprocesses=2 --dist=loadfile --durations=20 --nbmake --nbmake-timeout=300 out/notebooks tests

# Linters, types and the tests that take no processes of ranks, no profiling and no long search.
QUICK := $(addprefix costmodel/test_,files costs_file cluster catalogue collectives work) \
    $(addprefix simulator/test_,engine engine_laws engine_memory bubbles lowering schedules \
        schedules_closed_forms schedule_validation charts trace) \
    $(addprefix planner/test_,checker prepare explain compare)
quick: .venv/installed
	$(MAKE) --jobs=2 --output-sync lint fast

fast: .venv/installed
	$(BIN)/python -m pytest $(QUICK:%=tests/%.py)

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The documentation as a site; any warning fails.
docs: .venv/installed
	$(BIN)/python -m sphinx -b html -W --keep-going -n -q docs out/docs

# The search's kernels are compiled with the installation, so that no search is without them.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[torch,test,docs]'
	$(BIN)/python -m planner.search.solvers.compile_kernels
	touch .venv/installed

# The adapters in the trainers that they are for, each in an environment of its own; no part of `make test`.
TRAINERS := accelerate lightning automodel torchtitan deepspeed megatron
trainers: $(TRAINERS:%=.trainers/%/checked)

.PRECIOUS: .trainers/%/installed
.trainers/%/installed: tests/executor/adapters/needs/%.txt pyproject.toml constraints.txt
	$(PYTHON) -m venv .trainers/$*
	.trainers/$*/bin/pip install --quiet --constraint constraints.txt --editable '.[torch]' pytest pytest-timeout setuptools
	.trainers/$*/bin/pip install --quiet --constraint constraints.txt --no-build-isolation --requirement $<
	touch $@

.trainers/%/checked: .trainers/%/installed FORCE
	.trainers/$*/bin/python -m pytest tests/executor/adapters/test_adapter_$*.py

FORCE:

clean:
	rm -rf .venv .trainers out build dist
