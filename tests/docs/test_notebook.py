"""The notebook in docs: its cells run, and what it keeps is what they show now (else ``make figures``)."""

import json
import sys
from importlib.util import find_spec

import pytest

from paths import DOCUMENTS, ROOT

NOTEBOOK = ROOT / "docs" / "notebook.ipynb"
NEEDED = {"to_frame": "pandas", "frame[": "pandas"}


@pytest.fixture
def runner(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCUMENTS))
    monkeypatch.chdir(NOTEBOOK.parent)
    yield __import__("notebook")
    sys.modules.pop("notebook")


def test_cells_run_and_show_what_is_kept(runner):
    scope = {}
    for number, cell in enumerate(runner.code_cells(json.loads(NOTEBOOK.read_text())), 1):
        source = "".join(cell["source"])
        if any(name in source and not find_spec(library) for name, library in NEEDED.items()):
            continue
        shown = runner.outputs(*runner.run_cell(source, scope), number)
        assert [own(output) for output in cell["outputs"]] == [own(output) for output in shown], source


def own(output):
    """Text and pages of ours to the letter; of tables and figures by others which forms there are."""
    data = output.get("data", {})
    if "image/svg+xml" in data or "dataframe" in "".join(data.get("text/html", ())):
        return sorted(data)
    return output


def test_it_is_a_notebook_that_any_theme_can_show():
    kept = json.loads(NOTEBOOK.read_text())
    assert (kept["nbformat"], kept["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in kept["cells"]}) == len(kept["cells"])
    pages = ["".join(o["data"].get("text/html", ())) for cell in kept["cells"] for o in cell.get("outputs", ()) if "data" in o]
    assert not [page for page in pages if "<script" in page or "color:black" in page or "background:white" in page]
