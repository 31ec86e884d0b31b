"""Where a technique pays for whole requests: along their number, as clients or as the batch that they fill, and along prompts."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from commtax.arrays import Array
from commtax.cost.fused_reduce import most_fused_tokens
from commtax.judgement.gains import ALIKE
from commtax.question import STEP_AXES, Question
from commtax.records import dataclass
from commtax.spec import DTYPE_BYTES
from commtax.units import format_bytes, plural
from commtax.verbs.settling import Settled, terms_of

MOST_BATCH = 1024
BATCH, CLIENTS, PROMPT = STEP_AXES[0], "clients", "prompt"
"""What is varied: sequences in the step of each replica, or the clients of all of them; and tokens of a prompt."""

Swept = Mapping[str, tuple[Array, Array]]  # by axis, what is looked at along it and the tokens/s per GPU there


@dataclass(frozen=True, slots=True)
class PayRange:
    """Where a technique pays along one axis: from ``low`` to ``high``, as far as was looked."""

    axis: str
    low: float
    high: float
    ends: tuple[float, float]  # of what was looked at
    until: str = ""  # the rule that ends it at ``high``, where one of the engine's does


def request_grids(q: Settled, axis: str) -> dict[str, Array]:
    """Return what is looked at along ``axis``, the clients or the batch that they fill, and along prompts."""
    own = int(q.requests.concurrency) // (1 if axis == CLIENTS else replicas_of(q))
    loads = np.geomspace(1, max(MOST_BATCH, 2 * own), 30).astype(int)
    lengths = np.geomspace(min(64, q.model.max_len), max(2, min(q.model.max_len, 2**20)), 15).astype(int)
    lengths = np.union1d(lengths, [int(q.requests.input_len)])
    room = q.model.max_len - int(q.requests.output_len)
    return {axis: np.union1d(loads, [own]), PROMPT: lengths[lengths <= max(room, lengths[0])]}


def replicas_of(q: Question) -> int:
    """Count the replicas that share the clients: servers, and ranks of attention data parallelism in each."""
    return int(q.plan.dp * q.plan.replicas)


def rate_over(q: Settled, axis: str, grid: Array) -> Array:
    """Return the tokens/s per GPU of a closed loop along one axis."""
    from commtax.verbs.closed_loop import serve  # not for those who ask about a step

    clients = grid if axis == CLIENTS else grid * replicas_of(q)
    looped = q.but(input_len=grid) if axis == PROMPT else q.but(concurrency=clients)
    return np.asarray(serve(looped).tokens_per_s / q.plan.num_gpus + 0.0 * grid)


def pay_ranges(q: Settled, base: Settled, swept: Swept) -> tuple[tuple[PayRange, ...], tuple[str, ...]]:
    """Where along each axis it gains, and axes along which it nowhere does; those along which it does everywhere are left out."""
    found, never = list[PayRange](), list[str]()
    for axis, (grid, rates) in swept.items():
        gains = rate_over(q, axis, grid) / rates - 1 > ALIKE
        if not gains.any():
            never.append(axis)
        elif not gains.all():
            edges = np.flatnonzero(np.diff(np.concatenate([[0], gains.astype(int), [0]])))
            runs = edges.reshape(-1, 2)
            start, end = runs[np.argmax(grid[runs[:, 1] - 1] / grid[runs[:, 0]])]
            own = PayRange(axis, float(grid[start]), float(grid[end - 1]), (float(grid[0]), float(grid[-1])))
            found.append(own if axis == PROMPT else _fused_until(own, q, base))
    return tuple(found), tuple(never)


def _fused_until(found: PayRange, q: Settled, base: Settled) -> PayRange:
    """The range with the engine's limit on fused sums, where a technique pays up to it and no further."""
    if q.techniques.fused_reduce == base.techniques.fused_reduce:
        return found
    tokens = float(most_fused_tokens(terms_of(q)))
    last = tokens // (1 + float(q.speculative)) * (1 if found.axis == BATCH else replicas_of(q))
    if not 1 <= last < found.ends[1]:
        return found
    around = np.array([last, last + 1]).astype(int)
    gains = rate_over(q, found.axis, around) / rate_over(base, found.axis, around) - 1 > ALIKE
    if gains.tolist() != [True, False]:
        return found
    nbytes = tokens * q.model.hidden * DTYPE_BYTES[q.plan.activations_dtype]
    words = f"{q.engine.name} fuses sums of up to {format_bytes(nbytes)} on {int(q.plan.tp)} GPUs, {plural(int(tokens), 'token')}"
    return replace(found, high=last, until=words)
