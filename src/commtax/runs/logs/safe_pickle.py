"""Pickles that hold data alone, read without running anything: numbers, text and containers, and no name of any code.

Python's own reader runs whatever a pickle names. This one knows the instructions that write plain data, counts them, and stops at
any other. A file that breaks off gives what is whole before.
"""

import pickletools
import warnings
from collections.abc import Callable, Mapping

from commtax.statement import Refusal
from commtax.thresholds import counts

COUNT = counts(__name__)
_MARK = object()
Stack = list[object]
_TEXTS = ("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE", "BINSTRING", "SHORT_BINSTRING", "STRING")
_BYTES = ("BINBYTES", "SHORT_BINBYTES", "BINBYTES8")
_NUMBERS = ("BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "LONG4", "BINFLOAT", "FLOAT")
_PUSHED = frozenset((*_TEXTS, *_BYTES, *_NUMBERS))
_MADE: Mapping[str, Callable[[], object]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_TUPLE": tuple,
    "MARK": lambda: _MARK,
}
_GETS, _PUTS = frozenset(("BINGET", "LONG_BINGET", "GET")), frozenset(("BINPUT", "LONG_BINPUT", "PUT"))
_GATHERED: Mapping[str, Callable[[Stack], object]] = {
    "TUPLE": tuple,
    "LIST": list,
    "DICT": lambda items: dict(zip(items[::2], items[1::2], strict=False)),
}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def loads(raw: bytes, name: str) -> tuple[object, str]:
    """What a pickle holds, and why it was not read to its end ("": it was).

    >>> import pickle
    >>> loads(pickle.dumps({"entries": [1, (2.5, None)]}), "x")
    ({'entries': [1, (2.5, None)]}, '')
    >>> loads(pickle.dumps(print), "x")
    Traceback (most recent call last):
    commtax.statement.Refusal: x: a pickle of more than plain data (STACK_GLOBAL), which is not run
    """
    stack, memo, partial = Stack(), dict[int, object](), ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of escapes in a damaged text
            for count, (op, arg, _) in enumerate(pickletools.genops(raw)):
                if op.name == "STOP":
                    break
                if count >= COUNT.most_instructions:
                    partial = f"more than {COUNT.most_instructions:,} instructions"
                    break
                _run(op.name, arg, stack, memo, name)
    except Refusal:
        raise
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, AttributeError) as error:
        partial = f"it breaks off or is damaged ({error})"[:200]
    if partial:
        _close(stack)
    if not stack or stack[0] is _MARK:
        raise Refusal(f"{name}: a pickle without anything readable{f': {partial}' if partial else ''}")
    return stack[0], partial


def _run(op: str, arg: object, stack: Stack, memo: dict[int, object], name: str) -> None:
    if op in _PUSHED:
        stack.append(arg)
    elif op in _MADE:
        stack.append(_MADE[op]())
    elif op in _GETS:
        stack.append(memo[int(str(arg))])
    elif op in _PUTS:
        memo[int(str(arg))] = stack[-1]
    elif op == "MEMOIZE":
        memo[len(memo)] = stack[-1]
    elif op in _TUPLES:
        stack[-_TUPLES[op] :] = [tuple(stack[-_TUPLES[op] :])]
    elif op in _GATHERED:
        stack.append(_GATHERED[op](_pop_to_mark(stack)))
    elif op in ("APPENDS", "APPEND"):
        items = _pop_to_mark(stack) if op == "APPENDS" else [stack.pop()]
        if not isinstance(held := stack[-1], list):
            raise TypeError(f"'{type(held).__name__}' object has no attribute 'extend'")
        held.extend(items)
    elif op in ("SETITEMS", "SETITEM"):
        items = _pop_to_mark(stack) if op == "SETITEMS" else [stack.pop(-2), stack.pop()]
        if not isinstance(held := stack[-1], dict):
            raise TypeError(f"'{type(held).__name__}' object has no attribute 'update'")
        held.update(zip(items[::2], items[1::2], strict=False))
    elif op == "POP":
        stack.pop()
    elif op not in ("PROTO", "FRAME"):
        raise Refusal(f"{name}: a pickle of more than plain data ({op}), which is not run")


def _pop_to_mark(stack: Stack) -> Stack:
    at = len(stack) - 1
    while stack[at] is not _MARK:
        at -= 1
        if at < 0:
            raise ValueError("no mark")
    items = stack[at + 1 :]
    del stack[at:]
    return items


def _close(stack: Stack) -> None:
    """Give open containers what was read of their contents; of an entry that broke off what is whole."""
    for _ in range(sum(held is _MARK for held in stack)):
        items = _pop_to_mark(stack)
        held = stack[-1] if stack else None
        if isinstance(held, list):
            held.extend(items)
        elif isinstance(held, dict):
            keys = [key if isinstance(key, str) else "" for key in items[::2]]
            held.update(zip(keys, items[1::2], strict=False))
