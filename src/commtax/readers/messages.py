"""What the arguments of a trace's event tell of a collective: its kind, its group and the size of its tensor."""

from __future__ import annotations

import math
import re
from typing import Any

from commtax.readers.collective_names import call_op

Event = dict[str, Any]
_SIZES = {
    **dict.fromkeys(("double", "long", "longint", "int64", "float64"), 8),
    **dict.fromkeys(("float", "int", "int32", "float32", "unsignedint", "uint32"), 4),
    **dict.fromkeys(("half", "bfloat16", "short", "float16", "int16", "shortint", "uint16"), 2),
    **dict.fromkeys(("byte", "char", "bool", "unsignedchar", "signedchar", "uint8", "int8"), 1),
}


def told_op(event: Event) -> str:
    """The collective that the event's metadata names, or ""."""
    return call_op(str((event.get("args") or {}).get("Collective name", "")))


def told_ranks(event: Event) -> int:
    """The size of its group, or 0."""
    return int((event.get("args") or {}).get("Group size", 0) or 0)


def told_bytes(event: Event, op: str, ranks: int) -> float | None:
    """The full tensor: from the message metadata, else from the shapes of a call's input (a shard, in an all-gather)."""
    args = event.get("args") or {}
    if "In msg nelems" in args and "dtype" in args:
        count, size = args.get("Out msg nelems" if op == "all-gather" else "In msg nelems"), _size(str(args["dtype"]))
        return None if size is None or count is None else float(count) * size
    name = str(event["name"])
    output_first = name.startswith("c10d::_allgather_base")
    if name.startswith(("c10d::", "record_param")) and not output_first:
        return None  # torch's calls have several tensors, or lists without a type: the record inside has the one that counts
    inputs = zip(args.get("Input Dims") or (), args.get("Input type") or (), strict=False)
    found = next((_elements(dims) * size for dims, kind in inputs if dims and (size := _size(str(kind)))), None)
    shares = ranks if op == "all-gather" and not output_first else 1
    return float(found * shares) if found is not None and shares else None


def _size(dtype: str) -> int | None:
    name = re.sub(r"[^a-z0-9]", "", dtype.lower().removeprefix("c10::").removeprefix("torch."))
    return 1 if name.startswith("float8") else _SIZES.get(name)


def _elements(dims: Any) -> int:
    """Elements of a tensor by its shape, or of a list of tensors."""
    if dims and isinstance(dims[0], list):
        return sum(_elements(d) for d in dims)
    return math.prod(int(d) for d in dims)
