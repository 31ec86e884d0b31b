"""What is priced comes as lines that sum to the step by construction.

An ``Item`` says what is sent, exactly. A ``Line`` is an item (or a piece of compute) with its seconds. A ``Bill`` is
all lines of a step; its figures are sums over them.
Change here what a line carries and which windows there are. Prices are made in ``cost``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from functools import cached_property
from typing import Literal, get_args

import numpy as np

from commtax.arrays import holds_anywhere
from commtax.records import dataclass, replace
from commtax.spec import Experts, Number
from commtax.statement import Note, Source

Z80 = 1.2816  # standard deviations to either side that hold 80 % of a normal distribution
AXIS_OF = {"edp": "dp", "shard": "dp", "replica": "dp", "dcp": "tp"}  # groups that data and tensor parallelism are made of

_Layers = Literal["attention", "projections", "router", "routing", "experts", "shared expert", "feed-forward", "norms"]
Part = _Layers | Literal["", "adapters", "layers", "tower", "embedding", "head", "loss", "stages", "update"]
"""What of a model a kernel or a collective serves; ``layers``: both halves of a layer alike, ``stages``: what lies between them."""
_First = Literal["down-projection", "qkv", "query", "rotary", "key", "decode", "prefill", "value", "output projection", "reduced"]
_Second = Literal["router", "dispatch", "routing ids", "gate", "up", "routing", "activation", "down", "combine", "output"]
Place = _First | _Second | Literal[""]
PLACES: tuple[Place, ...] = (*get_args(_First), *get_args(_Second))
"""Where inside a layer it runs, first to last; what has no place runs behind all others."""
Stage = Literal["", "forward", "recompute", "backward", "weight-gradient", "update", "once", "draft"]
"""Which pass of a training step runs it; "": any step of serving, every pass of training. ``once``: behind all microbatches.
``draft``: a drafter's, behind the pass that checks its last drafts."""
Window = (
    Literal["", "backward", "forward", "both passes", "next forward", "every forward", "products", "attention", "layers"]
    | Literal["column input gradients", "column weight gradients"]
    | Literal["other attention", "other experts", "other experts and shared", "other attention and shared"]
    | Literal["other projections", "other core", "own shared", "own down", "own down and shared"]
    | Literal["output projection before", "down product before", "QKV projection behind", "gate product behind"]
    | Literal["tiles of output projection", "tiles of down product"]
)
"""The compute that a line may run beside."""
Via = Literal["", "custom", "hierarchical"]
"""How a collective runs: by the library's own algorithms, by kernels of the engine's own, or inside each host first."""
NO_NOTE, NO_SOURCE = Note("", ""), Source("")
FIGURES = ("fixed_s", "moving_s", "hidden_s", "flops", "window_s", "sigma", "launch_s")
"""Fields of a line that are arrays in an array bill."""


def pass_of(stage: Stage) -> str:
    """Return the pass of a stage: weight gradients are a part of backward."""
    return "backward" if stage == "weight-gradient" else stage


@dataclass(frozen=True, slots=True)
class Item:
    """One kind of collective in a step, or a kernel's launches. ``what`` and ``note`` are for people and decide nothing.
    ``nbytes`` is the full tensor: what is reduced, the gathered output, the scattered input; for all-to-all what one
    rank puts in; for send-recv what one rank sends. ``count`` is how often one step does it (0: this plan does not)."""

    what: str
    axis: str
    op: str
    nbytes: Number
    ranks: Number
    count: Number
    note: str = ""
    routed: Experts | None = None  # a token's copies go to the ranks of its experts, and between hosts once a host
    form: str = ""  # of a kernel; its ``op`` is for people
    part: Part = ""
    place: Place = ""
    stage: Stage = ""
    overlaps_with: Window = ""
    most_hosts: int = 0  # that routed bytes go to at most; 0: any number

    @property
    def during(self) -> str:
        """Return the pass that it belongs to."""
        return pass_of(self.stage)

    @property
    def sees(self) -> Place:
        """Whose earlier tokens its time grows with: those of sequences that decode, those of prompts, or ("") none."""
        return self.place if self.part == "attention" and self.place in ("decode", "prefill") else ""

    @property
    def whole_axis(self) -> str:
        """Return the parallel axis that its group belongs to."""
        return AXIS_OF.get(self.axis, self.axis)

    @property
    def is_sent(self) -> bool:
        return holds_anywhere(self.count > 0)

    @property
    def sent_bytes_per_rank(self) -> Number:
        """Bytes that one rank sends in a step at the least: all-reduce 2(n-1)/n of the tensor, send-recv all, others (n-1)/n."""
        ring = (self.ranks - 1) / self.ranks
        return {"all-reduce": 2 * ring, "send-recv": 1.0}.get(self.op, ring) * self.nbytes * self.count


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a bill: ``count`` times ``fixed_s + moving_s``, of which ``hidden_s`` (in total) costs nothing.
    ``fixed_s`` does not shrink with size (latency, launches); ``moving_s`` is bytes and FLOPs. ``algorithm`` and
    ``link`` are names, or for arrays codes into ``names``."""

    kind: str  # compute | comm | host | bubble
    item: Item
    fixed_s: Number
    moving_s: Number
    hidden_s: Number = 0.0
    link: Number | str = ""
    algorithm: Number | str = ""
    names: tuple[str, ...] = ()
    why: Note = NO_NOTE
    source: Source = NO_SOURCE
    via: Via = ""
    flops: Number = 0.0
    window_s: Number = 0.0  # compute that the collective may run beside, in total
    launch_s: Number = 0.0  # that each launch of a collective comes late without graphs, for which the host's line counts
    sigma: Number = 0.0  # standard deviation of the logarithm of its time, from the residuals of its source
    peak_flops_per_s: float = math.inf  # the datasheet's rate of the arithmetic that a kernel runs in
    priced_from: object = None  # a kernel's record (``cost.kernel``), or the field of an engine that has the host's seconds

    @property
    def each_s(self) -> Number:
        return self.fixed_s + self.moving_s

    @property
    def total_s(self) -> Number:
        return self.item.count * self.each_s

    @property
    def exposed_s(self) -> Number:
        return self.total_s - self.hidden_s

    @property
    def bound(self) -> str:
        """Name what most of one collective's time is: ``latency``, which no size changes, or ``bandwidth``."""
        return "latency" if float(self.fixed_s) > float(self.moving_s) else "bandwidth"

    def beside(self, window_s: Number, hidden: Number, sigma: Number) -> Line:
        """Return the line with its window and what hides in it (written out: a copy by name takes four times as long)."""
        same = (self.link, self.algorithm, self.names, self.why, self.source, self.via, self.flops)
        return Line(self.kind, self.item, self.fixed_s, self.moving_s, hidden, *same, window_s, self.launch_s, sigma)

    def at(self, index: int) -> Line:
        """Return the line of one element of an array bill."""
        counts = {name: _item_at(getattr(self.item, name), index) for name in ("nbytes", "ranks", "count")}
        figures = {name: _item_at(getattr(self, name), index) for name in FIGURES}
        link, algorithm = (x if isinstance(x, str) else self.names[int(_item_at(x, index))] for x in (self.link, self.algorithm))
        return replace(self, item=replace(self.item, **counts), link=link, algorithm=algorithm, **figures)


class Windows:
    """Seconds of compute that lines may run beside, less what others took of them already.
    A collective beside compute takes SMs and memory bandwidth from it: of what runs beside it the ``efficiency`` hides, and the
    rest is paid anyway. ``sure``: what collectives vary by is counted with whole steps, and not by the line."""

    def __init__(self, free: Mapping[Window, Number], efficiency: float, sure: bool = False) -> None:
        self._free, self.efficiency, self.sure = dict(free), efficiency, sure

    def of(self, window: Window) -> Number:
        return self._free["forward"] + self._free["backward"] if window == "both passes" else self._free[window]

    def hide(self, line: Line, share: Number = 1.0) -> Line:
        """Return the line with its window and its hidden part: efficiency x min(``share`` of the line, window), which lines that
        share a window take of it in turn."""
        beside = line.item.overlaps_with
        window, coverable = self.of(beside), line.total_s * share
        names: tuple[Window, ...] = ("forward", "backward") if beside == "both passes" else (beside,)
        for name in names:
            self._free[name] = np.maximum(0, self._free[name] - coverable / len(names))
        return line.beside(window, hidden_s(coverable, window, self.efficiency), 0.0 if self.sure else line.sigma)


def hidden_s(comm_s: Number, window_s: Number, efficiency: float) -> Number:
    """Return the seconds of a collective that cost nothing: what its window covers, times an efficiency.

    >>> hidden_s(2.0, 5.0, 0.9), hidden_s(2.0, 1.0, 0.9)
    (np.float64(1.8), np.float64(0.9))
    """
    return efficiency * np.minimum(comm_s, window_s)


@dataclass(frozen=True)  # without slots: sums are read often and kept
class Bill:
    """The lines of one step. Every figure is a sum over them, so they cannot disagree."""

    lines: tuple[Line, ...]
    tokens: Number  # output tokens that the GPUs in use produce in one step
    known_sigma: Number = field(default=math.inf, kw_only=True)  # of whole runs like this one; inf: no engine's like it were seen
    measured: bool = field(default=False, kw_only=True)  # runs had this engine, chip and number format

    def _sum(self, take: Callable[[Line], Number], *kinds: str) -> Number:
        return sum((take(line) for line in self.lines if not kinds or line.kind in kinds), start=0.0)

    @property
    def items(self) -> tuple[Line, ...]:
        """Return the lines that cost something."""
        return tuple(line for line in self.lines if line.item.is_sent)

    @cached_property
    def step_s(self) -> Number:
        return self._sum(lambda line: line.exposed_s)

    @property
    def fixed_s(self) -> Number:
        """Return what of the lines does not shrink with size."""
        return self._sum(lambda line: line.item.count * line.fixed_s)

    @cached_property
    def sigma(self) -> Number:
        """Return the standard deviation of ln(step): that of lines (those of one basis err together), never less than whole runs
        were off, or s = sqrt(known^2 + s of assumed lines^2) where runs of its kind were measured."""
        parts: dict[tuple[str, str], Number] = {}
        for x in self.lines:
            key = (x.kind, x.source.basis)
            parts[key] = parts.get(key, 0.0) + x.exposed_s * x.sigma
        of_lines = _root_sum_square(parts.values()) / self.step_s
        if not np.ndim(self.known_sigma) and math.isinf(self.known_sigma):
            return of_lines
        assumed = {(x.kind, x.source.basis) for x in self.lines if x.source.kind == "assumed"}
        guessed = _root_sum_square(part for key, part in parts.items() if key in assumed) / self.step_s
        whole = np.hypot(self.known_sigma, guessed)
        return whole if self.measured else np.maximum(of_lines, whole)

    def least_s(self, memory_Bps: float) -> Number:
        """Return what bytes over bandwidth and FLOPs over the datasheet's peak allow its kernels at the least."""
        lines = [x for x in self.lines if x.kind == "compute"]
        each = (x.item.count * np.maximum(x.item.nbytes / memory_Bps, x.flops / x.peak_flops_per_s) for x in lines)
        return sum(each, start=0.0)

    @property
    def low_s(self) -> Number:
        """The lower end of the range that holds four of five steps like this one. ``high_s`` is the upper."""
        return self.step_s * np.exp(-Z80 * self.sigma)

    @property
    def high_s(self) -> Number:
        return self.step_s * np.exp(Z80 * self.sigma)

    @property
    def compute_s(self) -> Number:
        """Return the seconds of this rank's kernels, and of the host where the GPU waits for it."""
        return self._sum(lambda line: line.total_s, "compute", "host")

    @property
    def comm_s(self) -> Number:
        return self._sum(lambda line: line.total_s, "comm")

    @cached_property
    def exposed_comm_s(self) -> Number:
        return self._sum(lambda line: line.exposed_s, "comm")

    def exposed_on(self, axis: str) -> Number:
        """Return the exposed communication of one parallel axis."""
        return sum((x.exposed_s for x in self.lines if x.kind == "comm" and x.item.whole_axis == axis), start=0.0)

    @property
    def comm_fraction(self) -> Number:
        return self.exposed_comm_s / self.step_s

    @property
    def tokens_per_s(self) -> Number:
        return self.tokens / self.step_s

    def at(self, index: int) -> Bill:
        """Return the scalar bill of one element of an array bill, codes turned into names."""
        lines = tuple(line.at(index) for line in self.lines)
        return Bill(lines, _item_at(self.tokens, index), known_sigma=_item_at(self.known_sigma, index), measured=self.measured)


def _root_sum_square(parts: Iterable[Number]) -> Number:
    return np.sqrt(sum((p * p for p in parts), start=0.0))


def _item_at(value: Number, index: int) -> Number:
    return np.asarray(value).ravel()[index].item() if np.ndim(value) else value
