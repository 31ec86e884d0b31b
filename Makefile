# Five commands: `make demo` shows the main job, `make test` runs what a contributor needs, `make test-all` runs the rest
# (mypy, tests/slow.toml, and every law on all of its examples), `make figures` makes the figures and pictures of README and docs
# anew (a test says when they are stale; the pictures need Chromium), `make docs` builds the documentation site into site/
# and follows its links.
# Each installs what it needs and no more; afterwards .venv/bin/commtax and .venv/bin/pytest serve by hand.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test test-all lint figures docs man dist clean

demo: .venv/.demo
	$(BIN)/commtax plan llama-3.1-70b --cluster 2x8xh100-sxm --ttft 500ms --tpot 30ms
	$(BIN)/commtax bill llama-3.1-8b --cluster 8xh100-sxm -tp 8

test: .venv/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow" --hypothesis-profile few

test-all: .venv/.test lint
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "slow or law"

figures: .venv/.test
	$(BIN)/python benchmarks/documents/accuracy.py
	$(BIN)/python benchmarks/documents/printed.py
	$(BIN)/python benchmarks/documents/pictures.py
	$(BIN)/python benchmarks/documents/notebook.py
	$(BIN)/python benchmarks/documents/concepts.py
	$(BIN)/python benchmarks/documents/scoreboard.py

docs: .venv/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	$(BIN)/python benchmarks/documents/links.py site

man: .venv/.demo
	$(BIN)/python benchmarks/documents/man_pages.py man

# Source archives first, and each wheel from its archive: what is published is what can be built again.
dist: man .venv/.dist
	rm -rf dist
	$(BIN)/python -m build --quiet --outdir dist .
	$(BIN)/python -m build --quiet --outdir dist laboratory
	ls -l dist

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

.venv/.dist: .venv/.demo
	$(PIP) build
	touch $@

.venv/.docs: .venv/.demo
	$(PIP) -e '.[docs]' -e laboratory
	touch $@

clean:
	rm -rf .venv build dist man site
