"""Documents are made by one explicit mapping: every record that it names exists, and a new key for a value changes no value."""

import pkgutil
from dataclasses import fields, is_dataclass
from importlib import import_module

import pytest

import commtax
from commtax.files import table
from commtax.report import documents

MAPPED = table("report/documents.toml")
PACKAGES = ("verbs", "runs")


def records():
    """All data classes that answers are made of, by name."""
    found = {}
    for info in pkgutil.walk_packages(commtax.__path__, "commtax."):
        if info.name.split(".")[1] in PACKAGES:
            found |= {name: kind for name, kind in vars(import_module(info.name)).items() if is_dataclass(kind)}
    return found


def test_records_told_otherwise_have_these_fields():
    known = records()
    for name, changed in MAPPED["records"].items():
        assert name in known, f"{name}: renamed? its bytes would no longer be whole"
        assert changed.keys() <= {f.name for f in fields(known[name])}


@pytest.mark.parametrize("name", [name for name in MAPPED if name != "records"])
def test_every_way_to_tell_is_known(name):
    assert documents._mapping(name)


def test_the_name_of_a_key_decides_nothing(monkeypatch):
    class Thing:
        nbytes = 1.5

    for key in ("nbytes", "size", "bytes"):
        monkeypatch.setattr(
            documents, "_mappings", lambda key=key: {"record": {key: "thing.nbytes, whole", "also": "thing.nbytes"}}
        )
        documents._mapping.cache_clear()
        assert documents.record("record", thing=Thing()) == {key: 2, "also": 1.5}
    documents._mapping.cache_clear()


def test_what_is_no_number_is_null():
    assert documents.to_json({"a": float("nan"), "b": float("inf"), "c": 2.0, "d": 0.5, "bytes": 1.5}) == {
        "a": None,
        "b": None,
        "c": 2,
        "d": 0.5,
        "bytes": 1.5,
    }
