"""What all parts stand on: records, patterns of checkpoints, tables written and kept parsed, numbers that people read."""

import dataclasses
import json
import math
import os
import pickle
import re
import shutil
import subprocess
import sys
import time
import tomllib
from contextlib import suppress
from copy import copy
from dataclasses import FrozenInstanceError, asdict, field, fields
from dataclasses import dataclass as standard
from dataclasses import replace as standard_replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli_run import refusal, run_here
from commtax import shipped_tables
from commtax.catalog import config
from commtax.patterns import modules
from commtax.records import dataclass, replace
from commtax.statement import Refusal
from commtax.toml_text import shorten_all, write_toml
from commtax.units import DAY_S, DURATIONS, format_duration, format_money, format_seconds, format_tokens, parse_tokens
from each import each
from paths import SOURCE
from tables import tables


@dataclass(frozen=True, slots=True)
class Base:
    a: int
    b: tuple[int, ...] = ()
    c: dict[str, int] = dataclasses.field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class Below(Base):
    d: float = 0.5
    double: int = dataclasses.field(default=0, init=False)

    def __post_init__(self):
        object.__setattr__(self, "double", 2 * self.a)


@dataclass(frozen=True, slots=True)
class Named:
    a: int
    z: int = dataclasses.field(default=3, kw_only=True)


class Plain(Below):
    """A class below one that is no record itself, as an exception or a view would be."""


@dataclass
class Open:
    a: int
    b: int = 1


optional = {"b": st.tuples(st.integers()), "c": st.dictionaries(st.text(), st.integers())}
values = st.fixed_dictionaries({"a": st.integers()}, optional=optional)


@pytest.mark.parametrize("kind", [Base, Below, Plain])
@given(first=values, then=values)
def test_replace_is_the_standard_library_s(kind, first, then):
    record = kind(**first)
    ours, theirs = replace(record, **then), dataclasses.replace(record, **then)
    assert type(record) is type(ours) is type(theirs) is kind
    assert (ours, dataclasses.asdict(ours), hash(ours)) == (theirs, dataclasses.asdict(theirs), hash(theirs))
    assert (pickle.loads(pickle.dumps(ours)), replace(record)) == (ours, record)


def test_records_have_fields_by_keyword_and_defaults_of_their_own():
    assert (replace(Named(1, z=2), a=5), replace(Named(1), z=4)) == (Named(5, z=2), Named(1, z=4))
    assert replace(Open(1, 2), b=7) == Open(1, 7)
    assert Base(1).c is not Base(1).c
    assert Plain(1).c is not Plain(1).c
    assert Below(3).double == Plain(3).double == 6
    assert (pickle.loads(pickle.dumps(Sent(1, "x"))), {Sent(1): 2}[Sent(1)]) == (Sent(1, "x"), 2)


@pytest.mark.parametrize("record", [Base(1), Below(1), Named(1), Plain(1)])
def test_a_record_is_frozen(record):
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.a = 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        del record.a
    with pytest.raises(TypeError):
        replace(record, nobody=1)


DATA = tables(__file__)
NAMES = DATA["names"]


@each("text", DATA["real"] + DATA["patterns_that_look_ahead"])
def test_real_patterns_match_as_python_has_it(text):
    for name in NAMES:
        assert modules((f"re:{text}",)).hold(name) == bool(re.match(text, name)), name


@given(st.text("ab.*+?|(){1,}[]^$\\\\d", max_size=12))
def test_any_pattern_is_compiled_or_refused(text):
    with suppress(Refusal):
        assert modules((f"re:{text}",)).hold("ab1.b") == bool(re.match(text, "ab1.b"))


@each(
    ("text", "why"),
    [
        (r"(a)\1", "refers to a group"),
        ("((", "unterminated"),
        ("*a", "nothing to repeat"),
        ("(" * 495 + ")" * 495, "recursion"),
        ("((((a{99}){99}){99}){99})", "repeats a group"),
        ("(?:(?:){99}){99}", "repeats a group"),
        ("(.+)+!", "repeats a group"),
        ("(a|aa)*b", "repeats a group"),
        ("(a|aa)" * 40, "ways to match"),
        ("a?" * 40 + "b", "ways to match"),
        (".*.*.*.*.*x", "ways to match"),
        ("a" * 2000, "longer than"),
    ],
)
def test_what_may_try_for_ever_is_refused_with_the_rule(text, why):
    with pytest.raises(Refusal, match=why):
        modules((f"re:{text}",))


@each("text", [".*.*.*x", "(a.|.a|aa)" * 11 + "x", ".?" * 18 + "x", "a*a*a*b"])
def test_the_worst_of_what_is_matched_is_answered(text):
    began = time.process_time()
    assert not modules((f"re:{text}",)).hold("a" * 60)
    assert time.process_time() - began < 2


def test_wildcards_and_names():
    named = modules(("lm_head", "model.layers.1*", "re:.*gate$", "*.layers.[!0-4].mlp"))
    assert [
        named.hold(n) for n in ("lm_head.weight", "model.layers.12.x", "a.gate", "model.layers.7.mlp.up", "model.layers.2.mlp")
    ] == [True, True, True, True, False]


def test_a_hostile_checkpoint_is_refused(tmp_path):
    table = config("llama-3.2-1b") | {"quantization_config": {"quant_method": "fp8", "ignore": ["re:(.+)+!"]}}
    (tmp_path / "config.json").write_text(json.dumps(table))
    assert "repeats a group" in refusal(run_here("fit", tmp_path, "-c", "8xh100-sxm"))


NUMBERS = st.integers(-(10**13), 10**13) | st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.one_of(st.booleans(), NUMBERS, st.text(max_size=20))
TREES = st.dictionaries(
    st.text(max_size=8),
    st.recursive(
        st.one_of(SCALARS, st.lists(SCALARS, max_size=3)),
        lambda inner: st.one_of(
            st.dictionaries(st.text(max_size=8), inner, max_size=4),
            st.lists(st.dictionaries(st.text(max_size=8), inner, max_size=3), max_size=3),
        ),
        max_leaves=12,
    ),
    max_size=5,
)


@given(TREES, st.lists(st.text(max_size=30), max_size=3))
def test_what_is_written_is_read_as_it_was(tree, comments):
    """… with the digits that are written, whatever keys, texts and comments hold."""
    text = write_toml(tree, comments)
    assert tomllib.loads(text) == shorten_all(tree)
    assert write_toml(tomllib.loads(text), comments).count("\n") == text.count("\n")


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_keeps_six_digits_and_is_short(x):
    line = write_toml({"x": x}).strip().removeprefix("x = ")
    assert abs(float(line) - x) <= 5.01e-6 * abs(x)
    assert len(line) <= len("-1.23457e-308") + 2


def test_tables_are_laid_out_for_people_with_every_digit():
    tree = {
        "chip": {"key": "h100-sxm", "flops_per_s": {"bf16": 9e14}},
        "kernels": {"tables": {"gemm.bf16": {"t0": 2e-6}, "long": {f"constant_{i}": i / 7 for i in range(9)}}},
        "run": [{"clients": 8, "tpot": {"slopes": {"host_s": 0.1}}}],
        "name": "box",
    }
    lines = write_toml(tree, ["two\nlines"]).splitlines()
    assert lines[:3] == ["# two lines", "", 'name = "box"']
    assert "flops_per_s = { bf16 = 9e14 }" in lines
    assert "[kernels]" not in lines
    assert lines[lines.index("[kernels.tables]") + 1] == '"gemm.bf16" = { t0 = 2e-6 }'
    assert "  [kernels.tables.long]" in lines
    assert lines[-4:] == ["clients = 8", "", "  [run.tpot]", "  slopes = { host_s = 0.1 }"]
    assert write_toml({"bytes": float(2**33), "rate": 3.35e12, "ranks": 8.0}) == "bytes = 8589934592\nrate = 3.35e12\nranks = 8\n"
    assert [format_duration(x * DAY_S) for x in (0.02, 0.1, 3.2, 185, 9.4 * 365.25)] == [
        "29 minutes", "2.4 hours", "3.2 days", "185 days", "9.4 years",
    ]  # fmt: skip
    assert [format_tokens(x) for x in (15e12, 300e9, 7.5e6, 1500)] == ["15T", "300B", "7.5M", "1,500"]
    assert [format_money(x) for x in (1.2e6, 559_238, 63.84, 0.018)] == ["$1.2 million", "$559,238", "$63.84", "$0.018"]


UNITS = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "second": 1.0, **DURATIONS}
WORDS = {"": 1.0, "million": 1e6, "billion": 1e9}
TIMES = st.floats(1e-9, 1e12)
DOLLARS = st.floats(0.01, 1e12)


def seconds(text):
    figure, unit = text.split()
    return float(figure.replace(",", "")) * UNITS[unit if unit in UNITS else unit.removesuffix("s")]


def dollars(text):
    figure, _, word = text.removeprefix("$").partition(" ")
    return float(figure.replace(",", "")) * WORDS[word]


@given(TIMES, TIMES)
def test_a_longer_time_never_reads_shorter(a, b):
    low, high = sorted((a, b))
    for write in (format_seconds, format_duration):
        assert seconds(write(low)) <= seconds(write(high)) * (1 + 1e-12)


@given(TIMES)
def test_a_time_reads_as_it_was_in_few_digits(a):
    assert math.isclose(seconds(format_seconds(a)), a, rel_tol=0.051)
    if a >= 90:
        assert math.isclose(seconds(format_duration(a)), a, rel_tol=0.051)
    assert len(format_seconds(a).split()[0].replace(",", "").replace(".", "")) <= 3 or a > 999 * DURATIONS["year"]


@given(DOLLARS, DOLLARS)
def test_more_money_never_reads_as_less_and_is_what_it_was(a, b):
    low, high = sorted((a, b))
    assert dollars(format_money(low)) <= dollars(format_money(high)) * (1 + 1e-12)
    assert math.isclose(dollars(format_money(a)), a, rel_tol=0.0051)


@given(st.floats(1, 1e16))
def test_tokens_are_read_back(tokens):
    read = parse_tokens(format_tokens(tokens), "tokens")
    assert math.isclose(read, tokens, rel_tol=0.0051) or abs(read - tokens) <= 0.5


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


def test_a_cache_counts_changes_and_needs_no_place(old_package):
    first = asked(old_package)
    chip = old_package / "commtax" / "catalog" / "chips" / "h100-sxm.toml"
    before = chip.stat()
    slower(old_package)
    os.utime(chip, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert chip.stat().st_size == before.st_size
    assert float(asked(old_package)) > float(first)
    (old_package / "file").write_text("")
    nowhere = str(old_package / "file" / "below")  # a folder cannot be made there, whoever asks
    assert asked(old_package, XDG_CACHE_HOME=nowhere) == asked(old_package, XDG_CACHE_HOME=nowhere)
    assert not list(old_package.glob("**/*.json-*"))


def test_a_damaged_or_just_written_cache_is_left_alone(package):
    asked(package)
    first = float(asked(package))
    slower(package)
    assert float(asked(package)) > first
    first = asked(package)
    place = package / "cache" / "commtax"
    place.mkdir(parents=True, exist_ok=True)
    for damage in (b"", b"not json", b'{"package": "PLACE", "tables": {"x": [1]}}\n'):
        (place / shipped_tables.NAME).write_bytes(damage.replace(b"PLACE", str(package / "commtax").encode()))
        assert asked(package) == first, damage


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
    assert (repr(one), asdict(one)) == (repr(two), asdict(two))
    assert [f.name for f in fields(one)] == [f.name for f in fields(two)]
    assert (one == ours(**values)) == (two == theirs(**values))
    assert (one == standard_replace(one, a=other)) == (two == standard_replace(two, a=other))
    assert repr(standard_replace(one, a=other)) == repr(standard_replace(two, a=other))
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
