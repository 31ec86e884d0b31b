# Two commands: `make demo` shows the main job, `make test` runs everything that must hold.
# Each installs what it needs and no more; afterwards .venv/bin/commtax and .venv/bin/pytest serve by hand.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test lint clean

demo: .venv/.demo
	$(BIN)/commtax plan llama-3.1-70b --cluster 2x8xh100-sxm --ttft 500ms --tpot 30ms
	$(BIN)/commtax bill llama-3.1-8b --cluster 8xh100-sxm -tp 8

test: .venv/.test lint
	$(BIN)/python -m pytest -n 2 --dist loadfile

lint: .venv/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.venv/.demo: pyproject.toml
	$(PYTHON) -m venv .venv
	$(PIP) -e .
	touch $@

.venv/.test: .venv/.demo constraints-cpu.txt
	$(PIP) -c constraints-cpu.txt -e '.[test]'
	touch $@

clean:
	rm -rf .venv build dist
