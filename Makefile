# Two commands: `make demo` shows the main job, `make test` runs everything that must hold.
# Each makes the virtual environment it needs; afterwards .venv/bin/commtax and .venv/bin/pytest serve by hand.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint clean

demo: .venv/.installed
	$(BIN)/commtax plan llama-3.1-70b --cluster 2x8xh100-sxm --ttft 500ms --tpot 30ms
	$(BIN)/commtax bill llama-3.1-8b --cluster 8xh100-sxm -tp 8

test: .venv/.installed lint
	$(BIN)/python -m pytest -n 2 --dist loadfile

lint: .venv/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.venv/.installed: pyproject.toml constraints-cpu.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints-cpu.txt -e '.[test]'
	touch $@

clean:
	rm -rf .venv build dist
