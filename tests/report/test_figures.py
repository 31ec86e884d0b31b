"""The table of figures: what tables list exists, has a value in its record and a unit that both surfaces write."""

import re

import pytest

from commtax.files import table
from commtax.report.documents import value_of
from commtax.report.figures import RANGE, UNITS, figure_table, figures
from paths import SOURCE

TABLES = table("report/figures.toml")["tables"]
SCRIPT = (SOURCE / "web" / "page" / "sortable.js").read_text()


@pytest.mark.parametrize("name", TABLES)
def test_tables_list_figures(name):
    shown = figure_table(name)
    keys = {key.removesuffix(RANGE) for key in (*shown.columns, *shown.page)} | shown.but.keys()
    assert keys <= figures().keys()
    assert {*shown.spare} <= {*shown.columns}
    assert {*shown.ranges, *shown.minor} <= {*shown.page}
    assert name == "step" or {*shown.large} <= {*shown.page}


@pytest.mark.parametrize("name", [name for name in TABLES if TABLES[name].get("record")])
def test_a_listed_figure_has_a_place_in_its_record(name):
    class Anything(dict):
        def __missing__(self, key):
            return None

    shown = figure_table(name)
    for key in shown.columns:
        if not key.endswith(RANGE) and not figures()[key].at:
            value_of(shown.record, key, Anything())


def test_every_figure_is_used_and_has_a_unit_that_the_page_writes():
    listed = {key.removesuffix(RANGE) for one in TABLES.values() for part in ("columns", "page") for key in one.get(part, ())}
    listed |= {row["figure"] for row in table("report/figures.toml")["changes"].values()}
    assert listed == figures().keys()
    written = set(re.search(r"const WRITTEN = \{(.*?)\}", SCRIPT)[1].replace(" ", "").split(",")) | {"setup"}
    on_page = {key for one in TABLES.values() for key in one.get("page", ())}
    for key, one in figures().items():
        assert one.unit in UNITS or one.unit == "setup"
        assert one.page_unit in written or key not in on_page
        assert one.help.endswith(".")
