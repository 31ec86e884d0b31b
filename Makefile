# Three commands: `make demo` shows the main job, `make test` runs everything that must hold, `make figures` makes the figures
# and pictures of README and docs anew (a test says when they are stale; the pictures need Chromium).
# Each installs what it needs and no more; afterwards .venv/bin/commtax and .venv/bin/pytest serve by hand.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test lint figures clean

demo: .venv/.demo
	$(BIN)/commtax plan llama-3.1-70b --cluster 2x8xh100-sxm --ttft 500ms --tpot 30ms
	$(BIN)/commtax bill llama-3.1-8b --cluster 8xh100-sxm -tp 8

test: .venv/.test lint
	$(BIN)/python -m pytest -n 2 --dist loadfile

figures: .venv/.test
	$(BIN)/python benchmarks/accuracy.py
	$(BIN)/python benchmarks/pictures.py

lint: .venv/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.venv/.demo: pyproject.toml
	$(PYTHON) -m venv .venv
	$(PIP) -e .
	touch $@

.venv/.test: .venv/.demo constraints-cpu.txt laboratory/pyproject.toml
	$(PIP) -c constraints-cpu.txt -e '.[test]' -e laboratory
	touch $@

clean:
	rm -rf .venv build dist
