"""Copies of each plan that has room for a request, and what they do under a load."""

from dataclasses import replace

import numpy as np

from commtax.planner.columns import SERVED, Array, ServingColumns, cached
from commtax.planner.space import Space
from commtax.question import EVEN, MAX_CONCURRENCY, Question
from commtax.records import dataclass
from commtax.spec import Number
from commtax.verbs.asking import laid
from commtax.verbs.confidence import Estimate
from commtax.verbs.fitting import state_places, state_tokens
from commtax.verbs.serving import Simulation, serve


@dataclass(frozen=True, slots=True)
class Roomy:
    """Plans that hold a request, of one type of weights and one way to reach experts."""

    question: Question
    plans: Space
    dtype: int  # index in ``dtypes`` …
    exchange: int  # … and in ``exchanges``

    @property
    def held(self) -> Array:
        """Clients of a copy, or of a rank of its attention data parallelism, that a search goes up to."""
        room = np.clip(at_once(self.question, self.plans), 1, MAX_CONCURRENCY).astype(int)
        return np.asarray(np.minimum(room, most_each(self.question, self.plans.dp)))

    def at(self, rows: Array, load: Array) -> ServingColumns:
        """Plans under so many clients each, of as many copies as there are clients for."""
        grid = self.plans.take(rows)
        if (most := self.question.goal.max_concurrency) is not None:
            grid = replace(grid, replicas=np.minimum(grid.replicas, most // (load * grid.dp)))
        return columns(grid, load, simulated(self.question, grid, load), self.dtype, self.exchange)


def most_each(q: Question, ranks: Number) -> Array:
    """Clients of each of so many ranks, of those that there are at most."""
    most = q.goal.max_concurrency
    return np.asarray(MAX_CONCURRENCY + 0 * ranks if most is None else np.minimum(MAX_CONCURRENCY, most // ranks))


def sizes(s: Space) -> dict[str, Array]:
    return {axis: getattr(s, axis) for axis in SERVED}


def at_once(base: Question, plans: Space) -> Array:
    """Requests that the cache of a copy has room for, with their states."""
    every = base.but(**sizes(plans))
    return np.asarray(np.minimum(plans.kv_tokens // (cached(base) + state_tokens(every)), state_places(every, plans.kv_tokens)))


def simulated(base: Question, s: Space, clients: Array) -> Simulation:
    """One copy of each plan under its load."""
    return serve(laid(base, **sizes(s), concurrency=clients * s.dp, kv_tokens=s.kv_tokens, disaggregated=False))


def columns(grid: Space, load: Array, priced: Simulation, dtype: int, exchange: int) -> ServingColumns:
    return ServingColumns.of(
        len(grid),
        mode=0,
        dtype=dtype,
        exchange=exchange,
        **sizes(grid),
        replicas=grid.replicas,
        gpus=grid.group * grid.replicas,
        concurrency=load * grid.dp * grid.replicas,
        **figures(priced, priced.kv_tokens),
        tokens_per_s=np.asarray(priced.tokens_per_s) * grid.replicas,
        prefill_tp=0,
        prefill_dp=0,
        prefill_replicas=0,
    )


def figures(s: Simulation, held: Number) -> dict[str, Array]:
    """What a simulation tells of each load, with ``held`` tokens of cache a copy."""
    headroom = 1 - s.running * (cached(s.question) + s.state_tokens) / np.asarray(held)
    times = {"ttft_s": s.ttft_s, "tpot_s": s.tpot_s, "sure_ttft_s": surely(s, "ttft_s"), "sure_tpot_s": surely(s, "tpot_s")}
    return {"running": s.running, **times, "kv_headroom": headroom}


def surely(s: Simulation, name: str) -> Number:
    """A time as long as it is with the confidence that is wanted, where it has a limit; ranges are priced for those alone."""
    goal, value = s.question.goal, getattr(s, name)
    if goal.confidence == EVEN or getattr(goal, name) == np.inf:
        return value
    return Estimate(value, *s.range_of(name)).sure(goal.confidence)
