"""Pipeline schedules: one table for whoever simulates, prices, judges, reads or writes them.

A schedule is one function that orders each rank's operations and one entry in the table behind them, with what algebra says of
it for equal stages. An operation is (kind, microbatch, chunk): F forward, B input gradient, W weight gradient, and their seconds
in closed forms; a backward whose W does not appear on its rank is not split and takes B + W.

Where a rank has several chunks (virtual stages), a microbatch passes chunk 0 of every rank, then chunk 1 of every rank, and so
on: which layers each holds, and how many of their activations a rank keeps, stands behind the table.
"""

from bisect import bisect_left
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from commtax.records import dataclass
from commtax.spec import Condition, Number, Plan
from commtax.statement import Refusal

Op = tuple[str, int, int]
Path = list[tuple[int, int]]
Layout = tuple[tuple[int, ...], ...]  # layers of each virtual stage: ``layout[chunk][rank]``


class OverlappedPair(NamedTuple):
    """A forward and a backward of two microbatches that run together (DualPipe)."""

    forward: Op
    backward: Op


@dataclass(frozen=True, slots=True)
class OperationOrder:
    """``ranks[i]``: what rank i does, in order. ``paths``: the (rank, chunk) that a microbatch visits going forward."""

    p: int
    m: int
    v: int  # chunks of the model that a rank holds
    ranks: list[list[Op | OverlappedPair]]
    paths: list[Path]


def _line(p: int, v: int = 1) -> list[Path]:
    """List the path through chunk 0 of every rank, then chunk 1 of every rank, and so on."""
    return [[(rank, chunk) for chunk in range(v) for rank in range(p)]]


def _alternate(m: int, warm: int, hold: int | None) -> list[Op | OverlappedPair]:
    """Order ``warm`` forwards, then one backward and one forward in turn, with a split W held back by ``hold`` microbatches."""
    ops: list[Op | OverlappedPair] = [("F", j, 0) for j in range(min(m, warm))]
    for j in range(m):
        ops.append(("B", j, 0))
        if hold is not None and j >= hold:
            ops.append(("W", j - hold, 0))
        if j + warm < m:
            ops.append(("F", j + warm, 0))
    if hold is not None:
        ops += [("W", j, 0) for j in range(max(0, m - hold), m)]
    return ops


def fill_drain(p: int, m: int, v: int) -> OperationOrder:
    """Order forwards only, as in inference: every rank takes the microbatches in turn."""
    return OperationOrder(p, m, v, [[("F", j, 0) for j in range(m)] for _ in range(p)], _line(p))


def gpipe(p: int, m: int, v: int) -> OperationOrder:
    """Order all forwards, then all backwards, the last microbatch first."""
    ops: list[Op | OverlappedPair] = [("F", j, 0) for j in range(m)]
    ops += [("B", j, 0) for j in reversed(range(m))]
    return OperationOrder(p, m, v, [list(ops) for _ in range(p)], _line(p))


def one_f_one_b(p: int, m: int, v: int) -> OperationOrder:
    """Order PipeDream-flush: rank i runs p - i forwards ahead, then one backward and one forward in turn."""
    return OperationOrder(p, m, v, [_alternate(m, p - i, None) for i in range(p)], _line(p))


def interleaved_order(p: int, m: int, v: int) -> OperationOrder:
    """Order Megatron's interleaved 1F1B: groups of p microbatches pass chunk 0, then chunk 1, and so on, with 2 (p - i - 1) + (v -
    1) p forwards ahead on rank i."""
    n = m * v
    forward: list[Op] = [("F", k // (p * v) * p + k % p, k // p % v) for k in range(n)]
    backward: list[Op] = [("B", j, v - 1 - chunk) for _, j, chunk in forward]
    ranks = []
    for i in range(p):
        ahead = min(n, 2 * (p - i - 1) + (v - 1) * p)
        ops: list[Op | OverlappedPair] = list(forward[:ahead])
        for k in range(n):
            ops += [*forward[ahead + k : ahead + k + 1], backward[k]]
        ranks.append(ops)
    return OperationOrder(p, m, v, ranks, _line(p, v))


def zb_h1(p: int, m: int, v: int) -> OperationOrder:
    """Order 1F1B with the backward split: rank i holds W back by i microbatches, and the W held back fill the drain."""
    return OperationOrder(p, m, v, [_alternate(m, p - i, i) for i in range(p)], _line(p))


def zb_h2(p: int, m: int, v: int) -> OperationOrder:
    """Order twice as many forwards ahead: with equal times no rank idles between its first and its last operation."""
    return OperationOrder(p, m, v, [_alternate(m, 2 * (p - i) - 1, 2 * i) for i in range(p)], _line(p))


def zb_v(p: int, m: int, _v: int) -> OperationOrder:
    """Order stages i and 2p - 1 - i on rank i, so that a microbatch ends where it began: down the V, up again, then in turn."""
    ops = {f"{kind}{chunk}": [(kind, j, chunk) for j in range(m)] for kind in "FBW" for chunk in (0, 1)}
    ranks: list[list[Op | OverlappedPair]] = []
    for i, left in zip(range(p), range(p, 0, -1), strict=True):
        codes = ["F0"] * (2 * left - 1) + ["F1", "F0"] * i + ["F1", "B1", "W1"] * left
        codes += ["F0", "B0", "W0", "F1", "B1", "W1"] * max(0, m - 2 * left + 1 - i, m - i - left)
        codes += ["B0", "B1"] * i + ["B0", "W0"] * left + ["W1"] * m + ["W0"] * m
        turns = {code: iter(listed) for code, listed in ops.items()}
        drawn = (next(turns[code], None) for code in codes)  # whatever is complete is left out
        ranks.append([op for op in drawn if op is not None])
    return OperationOrder(p, m, 2, ranks, [[(r, 0) for r in range(p)] + [(r, 1) for r in reversed(range(p))]])


def dualpipe(p: int, m: int, _v: int) -> OperationOrder:
    """Order DualPipe: half of the microbatches enter at each end (rank i has stages i and p - 1 - i), forwards of one half overlap
    backwards of the other, and weight gradients fill the drain."""
    ranks = [_dualpipe_rank(i, p, m) for i in range(p)]
    return OperationOrder(p, m, 2, ranks, [[(r, 0) for r in range(p)], [(r, 1) for r in reversed(range(p))]])


def _dualpipe_rank(i: int, p: int, m: int) -> list[Op | OverlappedPair]:
    half, near = m // 2, int(i >= p // 2)
    h = min(i, p - 1 - i)
    inner = p // 2 - h - 1
    ops: list[Op | OverlappedPair] = []
    deferred: list[Op] = []  # weight gradients put off
    count: dict[tuple[str, int], int] = {}

    def op(kind: str, side: int) -> Op:  # side 0: the direction that enters nearer this rank
        j = count[kind, side] = count.get((kind, side), -1) + 1
        return (kind, j + half * (side ^ near), side ^ near)

    def back(side: int, split: bool) -> None:
        backward = op("B", side)
        ops.append(backward)
        if split:
            deferred.append(("W", *backward[1:]))

    ops += [op("F", 0) for _ in range(2 * inner)]
    for _ in range(h + 1):
        ops += [op("F", 0), op("F", 1)]
    for _ in range(inner):
        back(1, True)
        ops += [deferred.pop(0), op("F", 1)]
    for k in range(half - p + h + 1):
        first = OverlappedPair(op("F", 0), op("B", 1))
        ops += list(first) if k == 0 and inner == 0 else [first]  # the middle ranks' first pair does not overlap
        ops.append(OverlappedPair(op("F", 1), op("B", 0)))
    for _ in range(inner):
        back(1, False)
        ops.append(OverlappedPair(op("F", 1), op("B", 0)))
    for k in range(2 * (h + 1)):  # the second half of these put W off
        back(1 - k % 2, k >= h + 1)
    for _ in range(inner):
        ops.append(deferred.pop(0))
        back(0, True)
    return ops + deferred


@dataclass(frozen=True, slots=True)
class Schedule:
    """How to order a schedule, its domain (``legal``, in words ``domain`` and ``needs``) and closed forms: ``idle(p, F, B, W)``, a
    rank's idle time within the whole run, and ``peak(p, m, v, i)``, the most microbatch chunks whose forward rank i has run and
    whose input gradient it has not."""

    name: str
    make: Callable[[int, int, int], OperationOrder]
    idle: Callable[[Number, Number, Number, Number], Number]
    peak: Callable[[Number, Number, Number, Number], Number]
    domain: str = "any shape"
    legal: Callable[[Number, Number, Number], Condition] = lambda p, _m, _v: p > 0
    needs: Callable[[int], str] = lambda _p: "at least 1"
    chunks: int = 1  # chunks a rank holds; 0: as many as are asked for
    directions: int = 1  # ends at which microbatches enter: a rank holds a stage of either direction
    backward: bool = True
    any_times: bool = True  # the closed form is exact for any F, B, W; else for F = B = W, and near by within 3 % of the run

    def order(self, p: int, m: int, v: int = 1) -> OperationOrder:
        """Order p ranks and m microbatches, or refuse a shape with the rule that it breaks."""
        if min(p, m, v) < 1:
            raise Refusal(f"{self.name}: stages, microbatches and chunks are whole numbers of at least 1 (got {p}, {m}, {v})")
        if self.chunks and v not in (1, self.chunks):
            raise Refusal(f"{self.name}: a rank holds {self.chunks} chunk{'s' * (self.chunks > 1)}, not {v}")
        if not self.legal(p, m, v):
            raise Refusal(f"{self.name}: {self.domain} (got p={p}, m={m}, chunks={v})")
        return self.make(p, m, v)

    @property
    def keeps_backward_whole(self) -> bool:
        """Whether weight gradients of a layer follow its input gradients at once, not where the pipeline would idle."""
        return self.idle is _fill_and_drain

    def passes(self, v: int) -> int:
        """Count the chunks of a rank that one microbatch passes."""
        return (self.chunks or v) // self.directions

    def kept(self, p: Number, m: Number, v: int = 1) -> Number:
        """Count the microbatches whose activations of a whole stage the first rank holds."""
        return self.peak(p, m, v, 0) / self.passes(v)

    def total(self, p: int, m: int, v: int = 1, f: float = 1.0, b: float = 1.0, w: float = 1.0) -> float:
        """Return the time of the whole run: work and idleness of any rank."""
        work = m * self.passes(v) * (f + (b + w if self.backward else 0.0))
        return work + float(self.idle(p, f, b, w))


def _fill_and_drain(p: Number, f: Number, b: Number, w: Number) -> Number:
    """Return (p - 1)(F + B + W): the pipeline fills and drains once (Narayanan et al. 2021, with v chunks F, B and W are 1/v)."""
    return (p - 1) * (f + b + w)


def _dualpipe_idle(p: Number, f: Number, b: Number, w: Number) -> Number:
    """Return (p/2 - 1)(F&B + full backward - 3W) with F&B as long as both in turn (DeepSeek-V3, Table 2): F + 2B - W. A forward
    longer than what backward leaves idles instead, 2F; a longer backward covers up to one F of it."""
    pairs = np.maximum(0, p / 2 - 1)
    return np.maximum(2 * f * pairs, pairs * (f + 2 * b - w) - np.clip(pairs * (b - f), 0, f))


def _zb_h_idle(p: Number, f: Number, b: Number, w: Number) -> Number:
    late: Number = np.maximum(0, b - w)
    return (p - 1) * (f + late)


def _zb_v_idle(p: Number, _f: Number, b: Number, w: Number) -> Number:
    late: Number = np.maximum(b, 2 * (b - w))
    return (p - 1) * late


def _dualpipe_legal(p: Number, m: Number, _v: Number) -> Condition:
    even: Condition = (p % 2 == 0) & (m % 2 == 0)
    return even & (m >= 2 * p)


def _interleaved_peak(p: Number, m: Number, v: Number, i: Number) -> Number:
    ahead: Number = 2 * (p - i - 1) + (v - 1) * p
    return np.minimum(m * v, ahead + 1)


# Longer forms are functions of their own: a type checker takes half a minute over them as arguments of this table.
_SCHEDULES: tuple[Schedule, ...] = (
    Schedule("fill-drain", fill_drain, lambda p, f, _b, _w: (p - 1) * f, lambda p, m, _v, _i: m + 0 * p, backward=False),
    Schedule("gpipe", gpipe, _fill_and_drain, lambda p, m, _v, _i: m + 0 * p),
    Schedule("1f1b", one_f_one_b, _fill_and_drain, lambda p, m, _v, i: np.minimum(m, p - i)),
    Schedule(
        "interleaved",
        interleaved_order,
        _fill_and_drain,
        _interleaved_peak,
        "the number of stages must divide the number of microbatches",
        lambda p, m, _v: m % p == 0,
        lambda _p: "a multiple of pp",
        chunks=0,
    ),
    # Qi et al. 2023. With F = B = W a rank of H2 and of V never idles between its own first and last operation.
    Schedule(
        "zb-h1",
        zb_h1,
        _zb_h_idle,
        lambda p, m, _v, i: np.minimum(p - i, m),
        "at least as many microbatches as stages are needed",
        lambda p, m, _v: m >= p,
        lambda p: f"at least {p}",
        any_times=False,
    ),
    Schedule(
        "zb-h2",
        zb_h2,
        lambda p, f, b, w: _zb_h_idle(p, f, b, 2 * w),
        lambda p, m, _v, i: np.minimum(2 * (p - i) - 1, m),
        "at least 2p - 1 microbatches are needed",
        lambda p, m, _v: m >= 2 * p - 1,
        lambda p: f"at least {2 * p - 1}",
        any_times=False,
    ),
    Schedule(
        "zb-v",
        zb_v,
        _zb_v_idle,
        lambda p, m, _v, _i: 2 * np.minimum(p, m),
        "at least 2p - 1 microbatches are needed",
        lambda p, m, _v: m >= 2 * p - 1,
        lambda p: f"at least {2 * p - 1}",
        chunks=2,
        any_times=False,
    ),
    Schedule(
        "dualpipe",
        dualpipe,
        _dualpipe_idle,
        lambda p, m, _v, _i: np.minimum(p + 1, m),
        "an even number of stages and an even number of at least 2p microbatches are needed",
        _dualpipe_legal,
        lambda p: f"an even number of stages, and an even number of at least {2 * p}",
        chunks=2,
        directions=2,
        any_times=False,
    ),
)
SCHEDULES: dict[str, Schedule] = {schedule.name: schedule for schedule in _SCHEDULES}
DEFAULT = Plan().schedule
TRAINING = tuple(sorted((s.name for s in _SCHEDULES if s.backward), key=lambda name: name != DEFAULT))
"""Schedules of a training step, the usual one first."""


def passes_of(plan: Plan) -> int:
    return SCHEDULES[plan.schedule].passes(plan.chunks)


def idle_s(schedule: str, num_stages: Number, chunks: int, forward_s: Number, input_s: Number, weight_s: Number) -> Number:
    """Return the seconds that a rank idles in one step, from the times of one microbatch on one rank (all chunks that it passes).

    >>> float(idle_s("interleaved", 4, 2, 1.0, 1.0, 1.0))
    4.5
    """
    kind = SCHEDULES[schedule]
    return kind.idle(num_stages, forward_s, input_s, weight_s) / kind.passes(chunks)


def fewest_microbatches(kind: Schedule, p: int, v: int, times: tuple[float, float, float], budget: float) -> int:
    """Find the least legal number of microbatches within the budget, by halving: the bubble shrinks with each one."""

    def within(m: int) -> bool:
        return bool(kind.idle(p, *times) <= budget * kind.total(p, m, v, *times) * (1 + 1e-12))

    most = 1
    while not within(most):
        most *= 2
    least = bisect_left(range(most), True, lo=1, key=within) if most > 1 else 1
    # What is legal starts at 2p at the latest and then comes back within p, or not at all.
    legal = next((m for m in range(least, max(least, 2 * p) + p + 1) if kind.legal(p, m, v)), None)
    if legal is None:
        raise Refusal(f"stages={p}: {kind.name} has no such shape ({kind.domain}); nearest legal stages: {p + 1}")
    return legal


@lru_cache(maxsize=4096)
def virtual_layers(num_layers: int, pp: int, chunks: int) -> Layout:
    """Divide layers over pp x chunks virtual stages, as evenly as can be.

    Odd layers fill whole chunks of all ranks first: ranks work on one chunk at a time, so that a chunk's fullest stage sets its
    pace, and then no rank has more than ceil(layers / pp). What is left goes to the middle: the last stage has the head beside
    its layers, the first one the embedding and the most microbatches in flight, as in Llama 3's own layout.

    >>> virtual_layers(126, 16, 2)[0][:2], virtual_layers(126, 16, 2)[1][-2:]
    ((3, 4), (4, 3))
    """
    base, odd = divmod(num_layers, pp * chunks)
    whole, rest = divmod(odd, pp)
    table = [[base + (chunk < whole)] * pp for chunk in range(chunks)]
    for rank in [*range(1, pp - 1), 0, pp - 1][:rest]:
        table[whole][rank] += 1
    if rest and whole and table[whole][0] == base:  # the first rank's lighter stage is its first
        table[0][0], table[whole][0] = base, base + 1
    return tuple(map(tuple, table))


def most_chunks(num_layers: int, pp: Number) -> Number:
    """Return the most chunks a rank can have with a layer in every virtual stage but the first and last (embedding and head)."""
    return (num_layers + 1 + (np.asarray(pp) > 2)) // pp  # of two ranks only the last can go without


def usual_chunks(plan: Plan, num_layers: int) -> int:
    """Return the plan's chunks a rank or, where it interleaves without saying how, the fewest that share the layers evenly."""
    stages = int(np.max(plan.pp))
    if plan.schedule != "interleaved" or plan.chunks != 1 or stages == 1:
        return plan.chunks
    return next((n for n in range(2, num_layers // stages + 1) if num_layers % (stages * n) == 0), 2)


def fill_factor(num_layers: int, pp: Number, chunks: int) -> Number:
    """Return the layers of the fullest chunk over the fullest rank's mean chunk (with it the closed form is 1.8 % off the run
    schedule on the mean of public models, without it 2.4 %)."""
    return chunks * np.ceil(num_layers / (pp * chunks)) / np.ceil(num_layers / pp)


def kept_layers(num_layers: int, pp: Number, chunks: int, microbatches: Number) -> Number:
    """Return layers times microbatches whose activations are kept on the rank that keeps most of them."""
    if np.ndim(pp) == 0 and np.ndim(microbatches) == 0:
        return float(_kept_chunk_layers(num_layers, int(pp), chunks, int(microbatches)))
    pairs = np.stack([np.ravel(x) for x in np.broadcast_arrays(pp, microbatches)])
    different, back = np.unique(pairs, axis=1, return_inverse=True)
    kept = np.array([_kept_chunk_layers(num_layers, int(p), chunks, int(m)) for p, m in different.T], dtype=float)
    return kept[np.ravel(back)].reshape(np.broadcast_shapes(np.shape(pp), np.shape(microbatches)))


@lru_cache(maxsize=65536)
def _kept_chunk_layers(num_layers: int, pp: int, chunks: int, microbatches: int) -> int:
    """Replay rank i, which runs 2 (p - i - 1) + (v - 1) p forwards ahead, p of a chunk in turn, then alternates."""
    layout = np.array(virtual_layers(num_layers, pp, chunks))
    period, total = pp * chunks, microbatches * chunks
    ahead = np.minimum(total, 2 * (pp - 1 - np.arange(pp)) + (chunks - 1) * pp)
    turns = min(total, period)  # what is kept repeats after as many
    step = np.arange(min(total, turns + int(ahead.max()) + 1)) // pp % chunks
    forward = np.vstack([np.zeros((1, pp), dtype=int), layout[step].cumsum(axis=0)])
    backward = np.vstack([np.zeros((1, pp), dtype=int), layout[chunks - 1 - step].cumsum(axis=0)])
    done = np.arange(turns)[:, None]
    kept = np.take_along_axis(forward, np.minimum(ahead + done + 1, len(step)), axis=0) - backward[done[:, 0]]
    return int(kept.max())
