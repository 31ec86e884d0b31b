"""Tables that are kept parsed: the same as their files, never older, and not needed."""

import os
import pickle
import shutil
import subprocess
import sys
import time
from copy import copy
from dataclasses import FrozenInstanceError, asdict, field, fields, replace
from dataclasses import dataclass as standard

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commtax import shipped_tables
from commtax.records import dataclass
from paths import SOURCE

STEP = 'import commtax; print(commtax.bill("llama-3.1-8b", "8xh100-sxm", tp=8, batch=64).step_s)'
FACT = 'from commtax import shipped_tables; print(1 / shipped_tables.table("catalog/chips/h100-sxm.toml")["memory_Bps"][0])'
"""What a step takes, and what of it the changed file says by itself, without all that a step loads besides."""
LONG_AGO = time.time() - 1000


@pytest.fixture
def package(tmp_path):
    """A copy of the package, its bytecode with it, with files that nobody has touched of late, and a cache of its own."""
    shutil.copytree(SOURCE, tmp_path / "commtax")
    return tmp_path


@pytest.fixture(scope="module")
def old_packages(tmp_path_factory):
    """Copies for those tests whose files must be old enough to be kept: all wait once."""
    whole = tmp_path_factory.mktemp("old")
    places = [whole / str(i) for i in range(5)]
    for place in places:
        shutil.copytree(SOURCE, place / "commtax")
    time.sleep(shipped_tables.YOUNG_NS / 1e9 + 0.1)
    yield places
    shutil.rmtree(whole)


@pytest.fixture
def old_package(old_packages):
    return old_packages.pop()


def asked(package, words=FACT, **environment):
    usual = {"PYTHONPATH": str(package), "XDG_CACHE_HOME": str(package / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", words]
    ran = subprocess.run(command, env={**os.environ, **usual, **environment}, cwd=package, capture_output=True, text=True)
    assert not ran.returncode, ran.stderr
    return ran.stdout


def slower(package):
    """A catalogue file with another number of as many digits."""
    chip = package / "commtax" / "catalog" / "chips" / "h100-sxm.toml"
    text = chip.read_text()
    assert "3.35e12" in text
    chip.write_text(text.replace("3.35e12", "1.35e12"))


def test_a_changed_file_counts_at_once(old_package):
    first = asked(old_package, STEP)
    place = old_package / "cache" / "commtax" / shipped_tables.NAME
    assert place.exists()
    assert asked(old_package, STEP) == first
    slower(old_package)
    other = asked(old_package, STEP)
    assert float(other) > float(first)
    assert asked(old_package, STEP) == other


def test_a_change_that_keeps_length_and_time_counts(old_package):
    first = asked(old_package)
    chip = old_package / "commtax" / "catalog" / "chips" / "h100-sxm.toml"
    before = chip.stat()
    slower(old_package)
    os.utime(chip, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert chip.stat().st_size == before.st_size
    assert float(asked(old_package)) > float(first)


def test_files_that_were_just_written_are_not_kept(package):
    asked(package)
    first = float(asked(package))
    slower(package)
    assert float(asked(package)) > first


def test_a_damaged_cache_is_left_alone(package):
    first = asked(package)
    place = package / "cache" / "commtax"
    place.mkdir(parents=True, exist_ok=True)
    for damage in (b"", b"not json", b'{"package": "PLACE", "tables": {"x": [1]}}\n'):
        (place / shipped_tables.NAME).write_bytes(damage.replace(b"PLACE", str(package / "commtax").encode()))
        assert asked(package) == first, damage


def test_nowhere_to_keep(old_package):
    (old_package / "file").write_text("")
    nowhere = str(old_package / "file" / "below")  # a folder cannot be made there, whoever asks
    assert asked(old_package, XDG_CACHE_HOME=nowhere) == asked(old_package, XDG_CACHE_HOME=nowhere)
    assert not list(old_package.glob("**/*.json-*"))


def test_kept_beside_the_bytecode_where_that_is_wanted(old_package):
    first = asked(old_package, PYTHONDONTWRITEBYTECODE="")
    assert (old_package / "commtax" / "__pycache__" / shipped_tables.NAME).exists()
    assert asked(old_package, PYTHONDONTWRITEBYTECODE="") == first


def test_every_table_is_what_its_file_says(old_package):
    every = "import pathlib, tomllib; from commtax import shipped_tables as kept; base = pathlib.Path(kept.PACKAGE);"
    every += "paths = [*base.rglob('*.toml')];"
    same = "same = [kept.table(str(p.relative_to(base))) == tomllib.loads(p.read_text('utf-8')) for p in paths];"
    words = every + same + "print(all(same), len(same) > 100)"
    assert asked(old_package, words) == asked(old_package, words) == "True True\n"


def pair(make, **options):
    """The same class made by one of two decorators."""

    @make(**options)
    class Thing:
        a: int
        b: tuple[int, ...] = ()
        c: list[int] = field(default_factory=list, hash=False)
        d: float = field(default=1.0, kw_only=True)
        e: int = field(default=3, repr=False, compare=False)

        def __post_init__(self):
            object.__setattr__(self, "e", self.a + 1)

    return Thing


OPTIONS = [{}, {"frozen": True}, {"slots": True}, {"frozen": True, "slots": True}, {"frozen": True, "eq": False}]
WHOLE = st.integers()
MORE = {"b": st.lists(WHOLE).map(tuple), "c": st.lists(WHOLE), "d": st.floats(allow_nan=False)}


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@given(values=st.fixed_dictionaries({"a": WHOLE}, optional=MORE), other=WHOLE)
def test_records_do_what_data_classes_do(options, values, other):
    ours, theirs = pair(dataclass, **options), pair(standard, **options)
    one, two = ours(**values), theirs(**values)
    assert repr(one) == repr(two)
    assert asdict(one) == asdict(two)
    assert [f.name for f in fields(one)] == [f.name for f in fields(two)]
    assert (one == ours(**values)) == (two == theirs(**values))
    assert (one == replace(one, a=other)) == (two == replace(two, a=other))
    assert repr(replace(one, a=other)) == repr(replace(two, a=other))
    assert (ours.__hash__ is None) == (theirs.__hash__ is None)
    assert one != two
    assert copy(one).a == one.a
    if options.get("frozen") and options.get("eq", True):
        assert hash(one) == hash(two)


@pytest.mark.parametrize("make", [dataclass, standard])
def test_records_refuse_what_data_classes_refuse(make):
    frozen = pair(make, frozen=True, slots=True)
    one = frozen(1)
    for wrong in (lambda: frozen(), lambda: frozen(1, f=2), lambda: frozen(1, (), [], 2, 3.0)):
        with pytest.raises(TypeError, match="__init__"):
            wrong()
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'a'"):
        one.a = 2
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'a'"):
        del one.a


@dataclass(frozen=True, slots=True)
class Sent:
    a: int
    b: str = ""


def test_records_travel_between_processes():
    assert pickle.loads(pickle.dumps(Sent(1, "x"))) == Sent(1, "x")
    assert {Sent(1): 2}[Sent(1)] == 2
