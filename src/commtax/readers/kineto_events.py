"""Events of a PyTorch profiler's trace, and what the arguments of one tell of a collective: its kind, group and tensor."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from commtax.files import Json
from commtax.readers.collective_names import call_op, operator_op

_SIZES = {
    **dict.fromkeys(("double", "long", "longint", "int64", "float64"), 8),
    **dict.fromkeys(("float", "int", "int32", "float32", "unsignedint", "uint32"), 4),
    **dict.fromkeys(("half", "bfloat16", "short", "float16", "int16", "shortint", "uint16"), 2),
    **dict.fromkeys(("byte", "char", "bool", "unsignedchar", "signedchar", "uint8", "int8"), 1),
}
_GROUP_ARGUMENT = {  # operators that are given the size of their group, and as which argument
    "vllm::all_gather": 2,
    "vllm::reduce_scatter": 2,
    "_c10d_functional::all_gather_into_tensor": 1,
    "_c10d_functional::reduce_scatter_tensor": 2,
}
_PRODUCT = re.compile(r"matmul|gemm|linear|_mm")  # fused with a collective: what is given is not what is sent


@dataclass(frozen=True, slots=True, eq=False)
class Event:
    """One complete event; seconds since the trace's first."""

    name: str
    category: str
    start_s: float
    end_s: float
    thread: object
    process: object
    args: Json

    @property
    def span(self) -> tuple[float, float]:
        return self.start_s, self.end_s

    @property
    def collective(self) -> str:
        """The collective that its metadata names, or ""."""
        return call_op(str(self.args.get("Collective name", "")))

    @property
    def ranks(self) -> int:
        """The size of its group, or 0."""
        if told := int(self.args.get("Group size", 0) or 0):
            return told
        given, at = self.args.get("Concrete Inputs") or (), _GROUP_ARGUMENT.get(self.name)
        word = str(given[at]) if at is not None and len(given) > at else ""
        return int(word) if word.isascii() and word.isdigit() and len(word) < 9 else 0

    def nbytes(self, op: str, ranks: int) -> float | None:
        """The full tensor: from the message metadata, else from the shapes of a call's input (a shard, in an all-gather)."""
        args, name = self.args, self.name
        if "In msg nelems" in args and "dtype" in args:
            count, size = args.get("Out msg nelems" if op == "all-gather" else "In msg nelems"), _size(str(args["dtype"]))
            return None if size is None or count is None else float(count) * size
        output_first = name.startswith("c10d::_allgather_base")
        if name.startswith(("c10d::", "record_param")) and not output_first:
            return None  # torch's calls have several tensors, or lists without a type: the record inside has the one that counts
        inputs = zip(args.get("Input Dims") or (), args.get("Input type") or (), strict=False)
        tensors = [float(_elements(dims) * size) for dims, kind in inputs if dims and (size := _size(str(kind)))]
        if operator_op(name):
            return _operator_bytes(name, tensors, op, ranks)
        shares = ranks if op == "all-gather" and not output_first else 1
        return tensors[0] * shares if tensors and shares else None


def event_of(raw: Json, origin_ns: int) -> Event:
    start, seconds = ns(raw["ts"]) - origin_ns, max(0, ns(raw.get("dur", 0)))
    ends = start * 1e-9, (start + seconds) * 1e-9
    return Event(str(raw["name"]), raw.get("cat") or "", *ends, raw.get("tid"), raw.get("pid"), raw.get("args") or {})


def ns(microseconds: object) -> int:
    """Nanoseconds from microseconds, exactly, whether whole or with a fraction kept as text."""
    if isinstance(microseconds, int):
        return microseconds * 1000
    text = str(microseconds)
    whole, point, fraction = text.partition(".")
    if not point or "e" in fraction or "E" in fraction:
        return round(float(text) * 1000)
    return int(whole) * 1000 + (-1 if whole.startswith("-") else 1) * int((fraction + "000")[:3])


def _operator_bytes(name: str, tensors: list[float], op: str, ranks: int) -> float | None:
    """An operator's full tensor: its first where all ranks hold all of it; of input and output the larger; else its shard's sum."""
    if not tensors or _PRODUCT.search(name[-200:]):
        return None
    if op not in ("all-gather", "reduce-scatter"):
        return tensors[0]
    if len(tensors) > 1 and tensors[0] != tensors[1]:
        return max(tensors[:2])
    shares = ranks if op == "all-gather" else 1
    return tensors[0] * shares if shares else None


def _size(dtype: str) -> int | None:
    name = re.sub(r"[^a-z0-9]", "", dtype.lower().removeprefix("c10::").removeprefix("torch."))
    return 1 if name.startswith("float8") else _SIZES.get(name)


def _elements(dims: Any) -> int:
    """Elements of a tensor by its shape, or of a list of tensors."""
    if dims and isinstance(dims[0], list):
        return sum(_elements(d) for d in dims)
    return math.prod(int(d) for d in dims)
