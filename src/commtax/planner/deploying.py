"""A plan that was found as the servers that run it."""

from commtax.planner.columns import ServingPlans
from commtax.planner.fleet_sizes import all_requests
from commtax.planner.fleet_trials import Trial
from commtax.planner.pool_use import admitted_sequences
from commtax.question import Question
from commtax.records import dataclass
from commtax.verbs.fit_advice import length_to_start_with, startable
from commtax.verbs.loads import longest_of


@dataclass(frozen=True, slots=True)
class PlannedServers:
    """One server as a question, how many there are of it, and how many for prompts alone beside them."""

    question: Question
    copies: int
    prompts: int = 0


def servers_of(searched: ServingPlans, i: int) -> PlannedServers:
    """Plan ``i`` with the limits that its servers need."""
    rows = searched.plans
    q = searched.put(rows, i).but(
        max_model_len=searched.longest(rows, i),
        max_num_seqs=admitted_sequences(searched, rows, i),
        concurrency=int(rows.concurrency[i]),
    )
    prompts = int(rows.prefill_replicas[i]) if rows.mode[i] else 0
    if prompts:
        q = q.but(prefill_tp=int(rows.prefill_tp[i]), prefill_dp=int(rows.prefill_dp[i]))
    return PlannedServers(startable(q), int(rows.replicas[i]), prompts)


def fleet_servers(trial: Trial) -> PlannedServers:
    """Return a fleet, with room for the longest request that was asked for, drawn or not."""
    q = trial.layout.question
    stated = float((1 + q.requests.spread) * q.requests.tokens) if q.offered.trace is None else 0.0
    longest = max(longest_of(all_requests(q)), stated)
    return PlannedServers(startable(q.but(max_model_len=length_to_start_with(q, longest))), *trial.size)
