"""A plan that was found as the servers that run it."""

from commtax.judgement.admission import sequences_to_admit
from commtax.planner.columns import ServingPlans
from commtax.planner.fleet_lengths import all_requests
from commtax.planner.fleet_trials import Trial
from commtax.planner.space import surely
from commtax.question import Question
from commtax.records import dataclass
from commtax.verbs.fitting import step_limits
from commtax.verbs.longest_request import length_to_start_with, startable
from commtax.verbs.request_streams import longest_of


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
        max_num_seqs=_admitted(searched, i),
        concurrency=int(rows.concurrency[i]),
    )
    prompts = int(rows.prefill_replicas[i]) if rows.mode[i] else 0
    if prompts:
        q = q.but(prefill_tp=int(rows.prefill_tp[i]), prefill_dp=int(rows.prefill_dp[i]))
    return PlannedServers(startable(q), int(rows.replicas[i]), prompts)


def _admitted(searched: ServingPlans, i: int) -> int:
    """Return the sequences that each rank of plan ``i`` may run at once, as asked where that was said; 0: the engine's own limit.
    TPOT is what a rank's sequences lengthen, so they are limited where as many as there is room for would break its limit."""
    rows, asked = searched.plans, searched.put(searched.plans, i)
    if asked.limits.max_num_seqs:
        return asked.limits.max_num_seqs
    ranks, most = int(rows.replicas[i] * rows.dp[i]), step_limits(asked)[1]
    crowd = searched.simulation(rows, i, clients=most * ranks)
    crowded = bool(surely(crowd, "tpot_s") > searched.question.goal.tpot_s)
    return sequences_to_admit(int(rows.concurrency[i]), ranks, most, crowded, asked.engine.sends.graph_sizes)


def fleet_servers(trial: Trial) -> PlannedServers:
    """A fleet, with room for the longest of the requests that it was simulated with."""
    q = trial.layout.question
    return PlannedServers(startable(q.but(max_model_len=length_to_start_with(q, longest_of(all_requests(q))))), *trial.size)
