# The commands of this repository; `make help` lists them.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
WORKERS ?= 2
# One thread a worker: two that each start a thread a core take twice the time.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --durations 25 --durations-min 4
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help setup test test-slow check format demo docs example bench-data bench-engine bench-train bench-transfer bench-step clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

# Installed again only when pyproject.toml changes.
$(VENV)/.installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --progress-bar off -e '.[dev]'
	@touch $@

setup: $(VENV)/.installed  ## create .venv and install harness into it

test: setup  ## every test that runs on a CPU in minutes
	$(PYTEST)

test-slow: setup  ## the long ones too
	$(PYTEST) -m 'not gpu'

check: setup  ## lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup  ## format the code and fix what lint can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

demo: setup  ## real images to a verdict: data, study, report (about 10 minutes on 2 cores)
	@PATH="$(abspath $(BIN)):$$PATH" sh -c 'set -e; for words in "data pack glyphs" "run pocket" "report pocket"; do \
		echo; echo "$$ harness $$words"; harness $$words; done'
	@echo; echo "The commands above are in $(BIN); go on with: . $(BIN)/activate && harness --help"

docs: setup  ## write what is made from the code: docs/results.md, the counts that ship
	$(BIN)/python -m harness.results_schema > docs/results.md
	$(BIN)/python -m harness.models.ship_counts

bench-engine: setup  ## the study engine: overhead, side by side, 1,000 cells: benchmarks/results/engine.md
	$(BIN)/python benchmarks/engine.py

example: setup  ## the published studies' reports from their run folders; docs/example is the pocket study's
	for words in pocket "pocket data=fashion_mnist" pocket_compute crossover crossover_rates icons; do HARNESS_RUNS=results $(BIN)/harness report $$words; done
	mkdir -p docs/example
	cp results/pocket@glyphs/report/*.png docs/example/
	sed 's#href="\.\./#href="../../results/pocket@glyphs/#g' results/pocket@glyphs/report/index.html > docs/example/index.html
	cp results/pocket@glyphs/report/report.md docs/example/report.md

bench-data: setup  ## loading and packing beside other loaders: benchmarks/results/data.md
	$(BIN)/pip install --quiet --progress-bar off -e '.[bench]'
	$(BIN)/python benchmarks/data.py

bench-train: setup  ## the training loop beside PyTorch, timm, Lightning, accelerate: benchmarks/results/train.md
	$(BIN)/pip install --quiet --progress-bar off -e '.[bench]'
	$(BIN)/python benchmarks/train.py

bench-transfer: setup  ## the few-shot grid beside scikit-learn, features beside a bare loop: benchmarks/results/transfer.md
	$(BIN)/python benchmarks/transfer.py

bench-step: setup  ## the training step of the crossover study's networks on one core: benchmarks/results/step.md
	$(BIN)/python benchmarks/step.py

clean:  ## remove caches; data, runs and .venv stay
	rm -rf .pytest_cache .ruff_cache .mypy_cache .hypothesis build dist
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -exec rm -rf {} +
