"""The two speeds of the tests: what ``make test`` leaves to ``make test-all`` is listed, and every name of the list exists."""

import ast
import tomllib

from paths import ROOT
from texts import lacking

GROUPS = tomllib.loads((ROOT / "tests" / "slow.toml").read_text())


def exists(name):
    file, _, test = name.partition("::")
    path = ROOT / file
    return path.is_file() and (not test or test in {getattr(node, "name", "") for node in ast.parse(path.read_text()).body})


def test_every_slow_test_exists_and_is_listed_once():
    names = [name for group in GROUPS.values() for name in group["tests"]]
    assert ([name for name in names if not exists(name)], len(names)) == ([], len(set(names)))


def test_make_runs_each_test_at_one_of_two_speeds():
    make = (ROOT / "Makefile").read_text()
    assert not lacking(make, '-m "not slow" --hypothesis-profile few', '-m "slow or law"')


def test_contributors_read_what_is_left_out():
    page = " ".join((ROOT / "CONTRIBUTING.md").read_text().split())
    assert [group for group in GROUPS if group.replace("-", " ") not in page] == []
