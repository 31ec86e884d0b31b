"""Who does what when: pipeline schedules as orders of operations, one function each.

An operation is (kind, microbatch, chunk): F forward, B input gradient, W weight gradient. A backward whose W does not
appear on its rank is not split and takes B + W.
"""

from dataclasses import dataclass
from typing import NamedTuple

Op = tuple[str, int, int]
Path = list[tuple[int, int]]


class Pair(NamedTuple):
    """A forward and a backward of two microbatches that run together (DualPipe)."""

    forward: Op
    backward: Op


@dataclass(frozen=True, slots=True)
class Order:
    """``ranks[i]``: what rank i does, in order. ``paths``: the (rank, chunk) that a microbatch visits going forward."""

    p: int
    m: int
    v: int  # chunks of the model that a rank holds
    ranks: list[list[Op | Pair]]
    paths: list[Path]


def _line(p: int, v: int = 1) -> list[Path]:
    """Chunk 0 of every rank, then chunk 1 of every rank, and so on."""
    return [[(rank, chunk) for chunk in range(v) for rank in range(p)]]


def _alternate(m: int, warm: int, hold: int | None) -> list[Op | Pair]:
    """``warm`` forwards, then one backward and one forward in turn; W is held back by ``hold`` microbatches if split."""
    ops: list[Op | Pair] = [("F", j, 0) for j in range(min(m, warm))]
    for j in range(m):
        ops.append(("B", j, 0))
        if hold is not None and j >= hold:
            ops.append(("W", j - hold, 0))
        if j + warm < m:
            ops.append(("F", j + warm, 0))
    if hold is not None:
        ops += [("W", j, 0) for j in range(max(0, m - hold), m)]
    return ops


def fill_drain(p: int, m: int, v: int) -> Order:
    """Forward only, as in inference: every rank takes the microbatches in turn."""
    return Order(p, m, v, [[("F", j, 0) for j in range(m)] for _ in range(p)], _line(p))


def gpipe(p: int, m: int, v: int) -> Order:
    """All forwards, then all backwards, the last microbatch first."""
    ops: list[Op | Pair] = [("F", j, 0) for j in range(m)]
    ops += [("B", j, 0) for j in reversed(range(m))]
    return Order(p, m, v, [list(ops) for _ in range(p)], _line(p))


def one_f_one_b(p: int, m: int, v: int) -> Order:
    """PipeDream-flush: rank i runs p - i forwards ahead, then one backward and one forward in turn."""
    return Order(p, m, v, [_alternate(m, p - i, None) for i in range(p)], _line(p))


def interleaved(p: int, m: int, v: int) -> Order:
    """Megatron's interleaved 1F1B: microbatches go in groups of p through chunk 0, then chunk 1, and so on.

    Rank i runs 2 (p - i - 1) + (v - 1) p forwards ahead.
    """
    n = m * v
    forward: list[Op] = [("F", k // (p * v) * p + k % p, k // p % v) for k in range(n)]
    backward: list[Op] = [("B", j, v - 1 - chunk) for _, j, chunk in forward]
    ranks = []
    for i in range(p):
        ahead = min(n, 2 * (p - i - 1) + (v - 1) * p)
        ops: list[Op | Pair] = list(forward[:ahead])
        for k in range(n):
            ops += [*forward[ahead + k : ahead + k + 1], backward[k]]
        ranks.append(ops)
    return Order(p, m, v, ranks, _line(p, v))


def zb_h1(p: int, m: int, v: int) -> Order:
    """1F1B with the backward split: rank i holds W back by i microbatches, and the W held back fill the drain."""
    return Order(p, m, v, [_alternate(m, p - i, i) for i in range(p)], _line(p))


def zb_h2(p: int, m: int, v: int) -> Order:
    """Twice as many forwards ahead: with equal times no rank idles between its first and its last operation."""
    return Order(p, m, v, [_alternate(m, 2 * (p - i) - 1, 2 * i) for i in range(p)], _line(p))


def zb_v(p: int, m: int, v: int) -> Order:
    """Rank i holds stages i and 2p - 1 - i, so a microbatch ends where it began: down the V, up again, then in turn."""
    ops = {f"{kind}{chunk}": [(kind, j, chunk) for j in range(m)] for kind in "FBW" for chunk in (0, 1)}
    ranks = [_zb_v_rank(i, p, m, ops) for i in range(p)]
    return Order(p, m, 2, ranks, [[(r, 0) for r in range(p)] + [(r, 1) for r in reversed(range(p))]])


def _zb_v_rank(i: int, p: int, m: int, ops: dict[str, list[Op]]) -> list[Op | Pair]:
    left = p - i
    codes = ["F0"] * (2 * left - 1) + ["F1", "F0"] * i + ["F1", "B1", "W1"] * left
    codes += ["F0", "B0", "W0", "F1", "B1", "W1"] * max(0, m - 2 * left + 1 - i, m - i - left)
    codes += ["B0", "B1"] * i + ["B0", "W0"] * left + ["W1"] * m + ["W0"] * m
    turns = {code: iter(listed) for code, listed in ops.items()}
    drawn = (next(turns[code], None) for code in codes)  # whatever is complete is left out
    return [op for op in drawn if op is not None]


def dualpipe(p: int, m: int, v: int) -> Order:
    """DualPipe: half of the microbatches enter at each end; forwards of one half overlap backwards of the other.

    Rank i holds stage i of the one direction and stage p - 1 - i of the other. With h the distance to the nearer end, it
    warms up, overlaps pairs, and puts off weight gradients to fill the drain.
    """
    ranks = [_dualpipe_rank(i, p, m) for i in range(p)]
    return Order(p, m, 2, ranks, [[(r, 0) for r in range(p)], [(r, 1) for r in reversed(range(p))]])


def _dualpipe_rank(i: int, p: int, m: int) -> list[Op | Pair]:
    half, near = m // 2, int(i >= p // 2)
    h = min(i, p - 1 - i)
    inner = p // 2 - h - 1
    ops: list[Op | Pair] = []
    held: list[Op] = []  # weight gradients put off
    count: dict[tuple[str, int], int] = {}

    def op(kind: str, side: int) -> Op:  # side 0: the direction that enters nearer this rank
        j = count[kind, side] = count.get((kind, side), -1) + 1
        return (kind, j + half * (side ^ near), side ^ near)

    def back(side: int, split: bool) -> None:
        backward = op("B", side)
        ops.append(backward)
        if split:
            held.append(("W", *backward[1:]))

    ops += [op("F", 0) for _ in range(2 * inner)]
    for _ in range(h + 1):
        ops += [op("F", 0), op("F", 1)]
    for _ in range(inner):
        back(1, True)
        ops += [held.pop(0), op("F", 1)]
    for k in range(half - p + h + 1):
        first = Pair(op("F", 0), op("B", 1))
        ops += list(first) if k == 0 and inner == 0 else [first]  # the middle ranks' first pair does not overlap
        ops.append(Pair(op("F", 1), op("B", 0)))
    for _ in range(inner):
        back(1, False)
        ops.append(Pair(op("F", 1), op("B", 0)))
    for k in range(2 * (h + 1)):  # the second half of these put W off
        back(1 - k % 2, k >= h + 1)
    for _ in range(inner):
        ops.append(held.pop(0))
        back(0, True)
    return ops + held
