"""How full both pools of a plan are with as many sequences as its servers are told to run at once, which fills up first, and what
prompts that take longer than predicted would do.

A pool that is nearly full answers a small error with a long queue: requests wait longer by more than their prompts take longer.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from commtax.cost.network import disaggregated_means, flow
from commtax.judgement.engine_limits import sequences_to_admit
from commtax.ledger import Z80
from commtax.planner.columns import ServingColumns, ServingPlans
from commtax.planner.space import surely
from commtax.statement import Note
from commtax.units import format_seconds
from commtax.verbs.closed_loop import ClosedLoop
from commtax.verbs.fitting import step_limits
from commtax.words import words

FULL = 0.995


class PoolUse(NamedTuple):
    """Load of each pool, as a share of its limit, and the effect of prompts at the long end of their 80 % range."""

    prompts: float
    decoding: float
    slower: float  # a prompt's step there, over what is predicted …
    later: float  # … and TTFT then, over what is predicted

    @property
    def queues(self) -> bool:
        """Whether an error of the fuller pool's steps, within their range, becomes a longer wait."""
        return self.later > self.slower if self.prompts >= self.decoding else self.decoding * self.slower >= 1


def admitted_sequences(searched: ServingPlans, rows: ServingColumns, i: int) -> int:
    """Return the sequences that each rank of row ``i`` may run at once, as requested if so, or 0 for the engine's own limit. More
    sequences lengthen TPOT, so they are limited where a full rank would break its limit."""
    put = searched.put(rows, i)
    if put.limits.max_num_seqs:
        return put.limits.max_num_seqs
    ranks, most = int(rows.replicas[i] * rows.dp[i]), step_limits(put)[1]
    crowd = searched.simulation(rows, i, clients=most * ranks)
    crowded = bool(surely(crowd, "tpot_s") > searched.question.goal.tpot_s)
    return sequences_to_admit(int(rows.concurrency[i]), ranks, most, crowded, put.engine.sends.graph_sizes)


def pool_use(loop: ClosedLoop) -> PoolUse:
    """Return how full both pools are at a load."""
    assert loop.apart
    net, passed = loop.apart.net, loop.apart.passed
    assert net
    assert passed
    slower, prompting = np.exp(Z80 * loop.bills[1].sigma), net.prompting
    late = replace(net, prompting=replace(prompting, one_s=slower * prompting.one_s, more_s=slower * prompting.more_s))
    later = disaggregated_means(late, flow(late), loop.question.engine).ttft_s / loop.served.ttft_s
    shares = (passed.per_s / most for most in (prompting.most_per_s(np.inf), net.limits[2]))
    return PoolUse(*map(float, (*shares, slower, later)))


def pool_words(answer: ServingPlans, rows: ServingColumns, i: int) -> Iterator[Note]:
    """Yield which pool of row ``i`` fills up first, where it is so full that requests queue."""
    if not rows.mode[i]:
        return
    admitted = admitted_sequences(answer, rows, i)
    use = pool_use(replace(answer, question=answer.question.but(max_num_seqs=admitted)).simulation(rows, i))
    if not use.queues:
        return
    ahead = use.prompts >= use.decoding
    most, least = max(use.prompts, use.decoding), min(use.prompts, use.decoding)
    pool, other = ("prompt", "decode") if ahead else ("decode", "prompt")
    fills = "is full and limits the rate (" if most >= FULL else f"fills up first ({most:.0%} used; "
    limit = words("pool-limit", admitted=admitted) if admitted else ""
    ttft_s, late_s = float(rows.ttft_s[i]), use.later * float(rows.ttft_s[i])
    beyond = ", over the limit" if ttft_s <= answer.question.goal.ttft_s < late_s else ""
    late = f"; if prompts took {use.slower - 1:.0%} longer, within their 80% range, TTFT would be {format_seconds(late_s)}{beyond}"
    yield words("pool-fills", pool=pool, fills=fills, other=other, least=least, limit=limit, late=late if ahead else "")
