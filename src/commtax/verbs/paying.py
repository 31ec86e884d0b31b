"""Where a technique pays: along one axis at a time, of a step its batch and context, of requests the clients and the prompts."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from commtax.arrays import Array
from commtax.cost.fused_reduce import most_fused_tokens
from commtax.question import STEP_AXES
from commtax.records import dataclass
from commtax.spec import DTYPE_BYTES
from commtax.units import format_bytes, plural
from commtax.verbs.billing import price
from commtax.verbs.settling import Settled, terms_of

MOST_BATCH = 1024
ALIKE = 1e-9  # share by which rates may differ that are the same
BATCH = STEP_AXES[0]
CLIENTS, PROMPT = "clients", "prompt"  # axes where requests are asked about; else batch and context of a step

Swept = Mapping[str, tuple[Array, Array]]
"""By axis, what is looked at along it and the tokens/s per GPU there."""


@dataclass(frozen=True, slots=True)
class PayRange:
    """Where a technique pays along one axis: from ``low`` to ``high``, as far as was looked."""

    axis: str
    low: float
    high: float
    ends: tuple[float, float]  # of what was looked at
    until: str = ""  # the rule that ends it at ``high``, where one of the engine's does


def step_grids(q: Settled) -> dict[str, Array]:
    """What is looked at along each axis, the question's own value among it."""
    longest = max(2, min(q.model.max_len, 2**20))
    lengths = np.unique(np.geomspace(min(64, longest), longest, 60).astype(int))
    batches = np.unique(np.geomspace(1, max(MOST_BATCH, 2 * int(q.batch)), 120).astype(int))
    own = np.union1d(batches, [int(q.batch)]), np.union1d(lengths, [max(1, int(q.context))])
    return dict(zip(STEP_AXES, own, strict=True))


def request_grids(q: Settled) -> dict[str, Array]:
    """The same of requests: clients, and tokens of a prompt."""
    clients, lengths = (grid[::4] for grid in step_grids(q.vary(batch=int(q.requests.concurrency))).values())
    room = q.model.max_len - int(q.requests.output_len)
    return {CLIENTS: np.union1d(clients, [int(q.requests.concurrency)]), PROMPT: lengths[lengths <= room]}


def rate_over(q: Settled, axis: str, grid: Array) -> Array:
    """Tokens/s per GPU of a step, or of a closed loop, along one axis."""
    if axis in (CLIENTS, PROMPT):
        from commtax.verbs.closed_loop import serve  # not for those who ask about a step

        looped = q.but(concurrency=grid) if axis == CLIENTS else q.but(input_len=grid)
        return np.asarray(serve(looped).tokens_per_s / q.plan.num_gpus + 0.0 * grid)
    return np.asarray(price(q.but(**{axis: grid})).tokens_per_s / q.plan.num_gpus + 0.0 * grid)


def pay_ranges(q: Settled, base: Settled, swept: Swept) -> tuple[tuple[PayRange, ...], tuple[str, ...]]:
    """Where along each axis it gains, and axes along which it nowhere does; those along which it does everywhere are left out."""
    found, never = list[PayRange](), list[str]()
    for axis, (grid, rates) in swept.items():
        gains = rate_over(q, axis, grid) / rates - 1 > ALIKE
        if not gains.any():
            never.append(axis)
        elif not gains.all():
            pays = _pay_range(axis, grid, gains)
            found.append(replace(pays, until=fused_until(q, base, swept)) if axis == BATCH else pays)
    return tuple(found), tuple(never)


def fused_until(q: Settled, base: Settled, swept: Swept) -> str:
    """The engine's limit on fused sums, where a technique pays up to it and no further."""
    if BATCH not in swept or q.techniques.fused_reduce == base.techniques.fused_reduce:
        return ""
    tokens = float(most_fused_tokens(terms_of(q)))
    last = tokens // (1 + float(q.speculative))
    if not 1 <= last < swept[BATCH][0][-1]:
        return ""
    around = np.array([last, last + 1]).astype(int)
    gains = rate_over(q, BATCH, around) / rate_over(base, BATCH, around) - 1 > ALIKE
    nbytes = tokens * q.model.hidden * DTYPE_BYTES[q.plan.activations_dtype]
    words = f"{q.engine.name} fuses sums of up to {format_bytes(nbytes)} on {int(q.plan.tp)} GPUs, {plural(int(tokens), 'token')}"
    return words if gains.tolist() == [True, False] else ""


def _pay_range(axis: str, grid: Array, gains: Array) -> PayRange:
    """The longest stretch in which it pays: padded graphs make edges ragged."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], gains.astype(int), [0]])))
    runs = edges.reshape(-1, 2)
    start, end = runs[np.argmax(grid[runs[:, 1] - 1] / grid[runs[:, 0]])]
    return PayRange(axis, float(grid[start]), float(grid[end - 1]), (float(grid[0]), float(grid[-1])))
