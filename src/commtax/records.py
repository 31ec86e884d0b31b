"""Data classes whose methods are compiled when they are first called.

``dataclasses`` compiles six methods of every class when its module is imported, a millisecond each: most of what a command
would spend before its first figure. Here they are compiled at the first call, and most never are. Fields, slots, ``fields``
and ``asdict`` are the standard library's own, and to a type checker this is its ``dataclass``.
Change here how data classes are made, and nothing that knows a model or a price.
"""

import dataclasses
from collections.abc import Callable, Mapping
from functools import cache
from operator import attrgetter
from types import MemberDescriptorType
from typing import TYPE_CHECKING, TypeVar, cast

T = TypeVar("T")
Method = Callable[..., object]
_IN = {"__builtins__": __builtins__, "object_set": object.__setattr__, "FACTORY": object()}
"""What compiled methods may name."""

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass

    import numpy as np

    Number = float | np.ndarray  # what fields hold: the same formula serves both
    Condition = bool | np.bool | np.ndarray  # whether something holds, for one or for each
else:
    Number, Condition = int | float, bool | int  # no reason to import NumPy; other than float and bool, which tell fields apart

    def dataclass(cls=None, /, *, frozen=False, slots=False, eq=True, kw_only=False):
        """Make a data class as ``dataclasses.dataclass`` does, with those of its options that are used here."""

        def wrap(cls):
            cls.__doc__ = cls.__doc__ or cls.__name__  # else its signature is looked for
            written = set(cls.__dict__)
            cls = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)(cls)
            for name, method in _methods(cls, frozen, slots, eq).items():
                if name not in written or (name == "__hash__" and cls.__dict__.get(name) is None):
                    setattr(cls, name, method)
            return cls

        return wrap if cls is None else wrap(cls)


def _methods(cls: type, frozen: bool, slots: bool, eq: bool) -> dict[str, Method | None]:
    """Return the methods that a class gets unless it defines them itself."""
    write = _init_frozen if frozen else _init
    methods: dict[str, Method | None] = {"__init__": _compile_on_call(cls, "__init__", write), "__repr__": _repr}
    if eq:
        methods["__eq__"] = _compile_on_call(cls, "__eq__", _eq)
        methods["__hash__"] = _compile_on_call(cls, "__hash__", _hash) if frozen else None
    if frozen:
        methods |= {"__setattr__": _refuse_set, "__delattr__": _refuse_delete}
    if frozen and slots:
        methods |= {"__getstate__": lambda self: [getattr(self, f.name) for f in _fields(type(self))], "__setstate__": _restore}
    return methods


def _compile_on_call(cls: type, name: str, write: Callable[[type], str]) -> Method:
    """Return a method that is compiled, and takes its own place, when it is called."""

    def method(self: object, *args: object, **kwargs: object) -> object:
        made = dict[str, Method]()
        slots = {f"set_{f.name}": getattr(cls, f.name).__set__ for f in _fields(cls) if _is_slot(cls, f.name)}
        exec(write(cls), _IN | ({f"default_{f.name}": _default(f) for f in _fields(cls)} | slots), made)
        made[name].__qualname__, made[name].__module__ = f"{cls.__qualname__}.{name}", cls.__module__
        setattr(cls, name, made[name])
        return made[name](self, *args, **kwargs)

    method.__name__, method.__qualname__ = name, f"{cls.__qualname__}.{name}"
    return method


_fields = cast(Callable[[type], tuple[dataclasses.Field[object], ...]], cache(dataclasses.fields))


def _is_slot(cls: type, name: str) -> bool:
    return isinstance(getattr(cls, name, None), MemberDescriptorType)


def _default(f: dataclasses.Field[object]) -> object:
    return f.default if f.default_factory is dataclasses.MISSING else f.default_factory


def _init(cls: type, assign: Callable[[str, str], str] = "self.{} = {}".format) -> str:
    """Write ``__init__`` with its arguments in the order of the fields, those by keyword alone last."""
    parts = [f for f in _fields(cls) if f.init]
    named = [_argument(f) for f in parts if f.kw_only]
    arguments = ", ".join(["self", *(_argument(f) for f in parts if not f.kw_only), *(["*"] if named else []), *named])
    lines = [assign(f.name, _value(f)) for f in _fields(cls) if f.init or _default(f) is not dataclasses.MISSING]
    lines += ["self.__post_init__()"] if hasattr(cls, "__post_init__") else []
    return "\n ".join([f"def __init__({arguments}):", *(lines or ["pass"])])


def _init_frozen(cls: type) -> str:
    def assign(name: str, value: str) -> str:
        return f"set_{name}(self, {value})" if _is_slot(cls, name) else f"object_set(self, {name!r}, {value})"

    return _init(cls, assign)


def _argument(f: dataclasses.Field[object]) -> str:
    if f.default_factory is not dataclasses.MISSING:
        return f"{f.name}=FACTORY"
    return f.name if f.default is dataclasses.MISSING else f"{f.name}=default_{f.name}"


def _value(f: dataclasses.Field[object]) -> str:
    if f.default_factory is dataclasses.MISSING:
        return f.name if f.init else f"default_{f.name}"
    return f"default_{f.name}() if {f.name} is FACTORY else {f.name}" if f.init else f"default_{f.name}()"


def _repr(self: object) -> str:
    parts = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in _fields(type(self)) if f.repr)
    return f"{type(self).__qualname__}({parts})"


def _eq(cls: type) -> str:
    mine, theirs = (_tuple([f.name for f in _fields(cls) if f.compare], whose) for whose in ("self", "other"))
    return f"def __eq__(self, other):\n if other.__class__ is self.__class__:\n  return {mine} == {theirs}\n return NotImplemented"


def _hash(cls: type) -> str:
    names = [f.name for f in _fields(cls) if (f.compare if f.hash is None else f.hash)]
    return f"def __hash__(self):\n return hash({_tuple(names, 'self')})"


def _tuple(names: list[str], whose: str) -> str:
    return f"({''.join(f'{whose}.{name},' for name in names)})"


def _refuse_set(self: object, name: str, value: object) -> None:  # noqa: ARG001
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_delete(self: object, name: str) -> None:  # noqa: ARG001
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _restore(self: object, state: list[object]) -> None:
    for f, value in zip(_fields(type(self)), state, strict=True):
        object.__setattr__(self, f.name, value)


def record_from(record: type[T], values: Mapping[str, object]) -> T:
    """Return a record with those of the values that are its fields, and its defaults for the others."""
    return record(**{f.name: values[f.name] for f in _fields(record) if f.name in values})


def replace(record: T, /, **values: object) -> T:
    """Copy a record with some fields changed, as ``dataclasses.replace`` does, in half the time: steps make thousands."""
    cls: type = type(record)
    make: Callable[..., T] = type(record)
    place_of, read = _arguments(cls)
    if not place_of or not values.keys() <= place_of.keys():  # by keyword alone, or no field: then ``make`` says so
        return make(**({f.name: getattr(record, f.name) for f in _fields(cls) if f.init} | values))
    arguments = list(read(record))
    for name, value in values.items():
        arguments[place_of[name]] = value
    return make(*arguments)


def recast(record: object, kind: Callable[..., T]) -> T:
    """Return a record of another class with the same fields."""
    cls: type = type(record)
    return kind(*_arguments(cls)[1](record))


@cache
def _arguments(cls: type) -> tuple[dict[str, int], Callable[[object], tuple[object, ...]]]:
    """Return the places of a record's arguments and a reader of them all, none where some are passed by keyword alone."""
    parts = [f for f in _fields(cls) if f.init]
    names = [] if any(f.kw_only for f in parts) else [f.name for f in parts]
    one_by_one = lambda record: tuple(getattr(record, name) for name in names)  # noqa: E731
    return {name: i for i, name in enumerate(names)}, attrgetter(*names) if len(names) > 1 else one_by_one


def with_fields(record: T, values: Mapping[str, object]) -> T:
    """Return the same record with some of its fields, by name, otherwise."""
    return record_from(type(record), {**{f.name: getattr(record, f.name) for f in _fields(type(record))}, **values})
