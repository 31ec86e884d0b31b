"""Records: what the standard library's data classes do, they do, only sooner."""

import dataclasses
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commtax.records import dataclass, replace


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


values = st.fixed_dictionaries(
    {"a": st.integers()}, optional={"b": st.tuples(st.integers()), "c": st.dictionaries(st.text(), st.integers())}
)


@pytest.mark.parametrize("kind", [Base, Below, Plain])
@given(first=values, then=values)
def test_replace_is_the_standard_library_s(kind, first, then):
    record = kind(**first)
    ours, theirs = replace(record, **then), dataclasses.replace(record, **then)
    assert type(record) is type(ours) is type(theirs) is kind
    assert ours == theirs
    assert dataclasses.asdict(ours) == dataclasses.asdict(theirs)
    assert hash(ours) == hash(theirs)
    assert pickle.loads(pickle.dumps(ours)) == ours
    assert replace(record) == record


def test_fields_by_keyword_alone_and_those_that_are_not_frozen():
    assert replace(Named(1, z=2), a=5) == Named(5, z=2)
    assert replace(Named(1), z=4) == Named(1, z=4)
    assert replace(Open(1, 2), b=7) == Open(1, 7)


@pytest.mark.parametrize("record", [Base(1), Below(1), Named(1), Plain(1)])
def test_a_record_is_frozen(record):
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.a = 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        del record.a
    with pytest.raises(TypeError):
        replace(record, nobody=1)


def test_every_record_has_defaults_of_its_own():
    assert Base(1).c is not Base(1).c
    assert Plain(1).c is not Plain(1).c
    assert Below(3).double == Plain(3).double == 6
