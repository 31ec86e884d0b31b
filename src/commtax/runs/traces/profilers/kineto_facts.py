"""What the arguments of an event tell of a collective: which it is, its group, and how large its tensor is."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache

from commtax.files import Json, JsonObject, list_of, need_list, need_number, need_whole, table
from commtax.runs.evidence.collective_names import call_op, operator_op
from commtax.thresholds import counts

TABLE = table("runs/traces/profilers/kineto.toml")
_SIZES = {name: int(size) for size, names in TABLE["sizes"].items() for name in names}
_PRODUCT = re.compile(r"matmul|gemm|linear|_mm")  # fused with a collective: what is given is not what is sent
COUNT = counts(__name__)
KEYS = (
    *("Collective name", "In msg nelems", "Out msg nelems", "dtype", "Group size"),
    *("Process Group Name", "Process Group Description", "Process Group Ranks", "Input Dims", "Input type", "Concrete Inputs"),
)
"""Of arguments, those that facts are made of."""
_UNDESCRIBED = ("", "undefined")


@dataclass(frozen=True, slots=True)
class EventFacts:
    """Of one event; those of many are alike. ``taken`` and ``given``: bytes of the message; ``tensors``: of a call's inputs."""

    name: str = ""
    collective: str = ""
    ranks: int = 0  # of its group; 0: not told
    group: str = ""
    group_name: str = ""
    members: tuple[int, ...] = ()
    sized: bool = False  # the message is told, even where its type is not known
    taken: float | None = None
    given: float | None = None
    tensors: tuple[float, ...] = ()

    def nbytes(self, op: str, ranks: int) -> float | None:
        """The full tensor: from the message metadata, else from the shapes of a call's input (a shard, in an all-gather)."""
        if self.sized:
            return self.given if op == "all-gather" else self.taken
        output_first = self.name.startswith("c10d::_allgather_base")
        if self.name.startswith(("c10d::", "record_param")) and not output_first:
            return None  # torch's calls have several tensors, or lists without a type: the record inside has the one that counts
        if operator_op(self.name):
            # Its first tensor where all ranks hold all of it; of input and output the larger; else the sum of its shard.
            if not self.tensors or _PRODUCT.search(self.name[-200:]):
                return None
            if op not in ("all-gather", "reduce-scatter"):
                return self.tensors[0]
            if len(self.tensors) > 1 and self.tensors[0] != self.tensors[1]:
                return max(self.tensors[:2])
            shares = ranks if op == "all-gather" else 1
            return self.tensors[0] * shares if shares else None
        shares = ranks if op == "all-gather" and not output_first else 1
        return self.tensors[0] * shares if self.tensors and shares else None


def facts_of(name: str, args: JsonObject) -> EventFacts:
    """What an event's arguments tell."""
    described, called = str(args.get("Process Group Description", "")), str(args.get("Process Group Name", ""))
    sized = "In msg nelems" in args and "dtype" in args
    size = _size(str(args["dtype"])) if sized else None
    counts = [args.get(key) if size is not None else None for key in ("In msg nelems", "Out msg nelems")]
    taken, given = (None if size is None or count is None else need_number(count) * size for count in counts)
    inputs = zip(list_of(args.get("Input Dims")), list_of(args.get("Input type")), strict=False)
    return EventFacts(
        name=name,
        collective=call_op(str(args.get("Collective name", ""))),
        ranks=_ranks(name, args),
        group=called if described in _UNDESCRIBED else described,
        group_name=called,
        members=_members(str(args.get("Process Group Ranks", ""))),
        sized=sized,
        taken=taken,
        given=given,
        tensors=() if sized else tuple(float(_elements(dims) * n) for dims, kind in inputs if dims and (n := _size(str(kind)))),
    )


def _ranks(name: str, args: JsonObject) -> int:
    if size := need_whole(args.get("Group size", 0) or 0):
        return size
    given, at = list_of(args.get("Concrete Inputs")), TABLE["group_argument"].get(name)
    word = str(given[at]) if at is not None and len(given) > at else ""
    return int(word) if word.isascii() and word.isdigit() and len(word) < 9 else 0


@lru_cache(maxsize=4096)
def _members(text: str) -> tuple[int, ...]:
    """Ranks as they are listed; none where a long list was shortened.

    >>> _members("[0, 1]"), _members("[0, 1, ..., 7]")
    ((0, 1), ())
    """
    if "..." in text or len(text) > COUNT.most_members:
        return ()
    return tuple(int(word) for word in re.findall(r"\d{1,9}", text))


@lru_cache(maxsize=4096)
def _size(dtype: str) -> int | None:
    name = re.sub(r"[^a-z0-9]", "", dtype.lower().removeprefix("c10::").removeprefix("torch."))
    return 1 if name.startswith("float8") else _SIZES.get(name)


def _elements(dims: Json) -> int:
    """Elements of a tensor by its shape, or of a list of tensors."""
    shape = need_list(dims)
    if shape and isinstance(shape[0], list):
        return sum(map(_elements, shape))
    return math.prod(map(need_whole, shape))
