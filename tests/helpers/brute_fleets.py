"""A plain search for fleets that hold a rate: every legal plan and every number of workers is simulated in full, nothing is pruned
by a price. ``planner/fleets.py`` must agree with it."""

import itertools
from dataclasses import replace

import numpy as np

from commtax import catalog
from commtax.planner.fleet_search import burden
from commtax.planner.fleet_trials import Trial, capacity, rate_of, run_fleet, stretch_of, with_growth, worst
from commtax.planner.fleets import limits_of
from commtax.planner.layouts import Layout
from commtax.planner.money import with_prices
from commtax.verbs.disaggregation import prompter
from commtax.verbs.kv_caches import cache_tokens
from commtax.verbs.loads import split
from commtax.verbs.settling import resolve_question, settle


def asked(model, cluster, *, slo, objective, engine, max_num_seqs, **offers):
    """The question as the planner puts it."""
    plain, offered = split(offers)
    put = resolve_question(model, cluster, {**plain, "engine": engine, "max_num_seqs": max_num_seqs, "disaggregated": True})
    put = with_prices([put.but(slo=limits_of(slo), objective=objective, offered=offered)], None)[0]
    return replace(settle(put).plain(), plan=put.plan)


def best(question):
    """The least burden (GPUs, dollars, or GPUs a token/s) of any fleet that holds, and that fleet; None where none does."""
    q = asked(**question)
    fleets = sorted(_fleets(q), key=lambda pair: pair[0].gpus(*pair[1]))
    if q.goal.objective != "tokens":
        return next(((burden(trial), choice(trial)) for layout, size in fleets if (trial := _tried(layout, size)).holds), None)
    least, held = set(), []
    for layout, size in fleets:
        if id(layout) not in least and (trial := _tried(layout, size)).holds:
            least.add(id(layout))
            held.append((burden(with_growth(trial)), choice(trial)))
    return min(held, default=None)


def choice(trial):
    """What tells fleets apart."""
    plan = trial.layout.question.plan
    return int(plan.tp), int(plan.pp), int(plan.dp), int(plan.ep), trial.layout.ahead, trial.size


def agree(answer, least):
    """Whether the planner's first fleet is the plain search's, or within 3 % of it by the objective."""
    if least is None or not answer.plans:
        return least is None and not answer.plans
    return burden(answer.plans[0]) <= 1.03 * least[0] or choice(answer.plans[0]) == least[1]


def _tried(layout, size):
    """A whole run, one with steps as long as they may be, and where both hold one with all requests at once."""
    q = layout.question
    outcome = run_fleet(layout, size, rate_of(q))
    over, stretch = worst(q, outcome), stretch_of(outcome)
    over = max(over, worst(q, run_fleet(layout, size, rate_of(q), stretch=stretch))) if over <= 1 else over
    most = capacity(layout, size) if over <= 1 else np.nan
    return Trial(layout, size, np.inf if most <= rate_of(q) * stretch else over, most, {}, 1, stretch)


def _fleets(q):
    """(layout, size) of all that there is room for."""
    plain = []
    for sizes in plans(q.model, q.cluster.num_gpus):
        one = q.but(**dict(zip(("tp", "pp", "dp", "ep"), sizes, strict=True)), disaggregated=False)
        group = sizes[0] * sizes[1] * sizes[2]
        copies = num_copies(group, sizes[0], q.cluster)
        if not copies or not _fits(one):
            continue
        layout = Layout(one, group, copies, np.inf)
        yield from ((layout, (n, 0)) for n in range(1, copies + 1))
        if (sizes[1:] == (1, 1, 1) and sizes[0] <= q.cluster.domain) or (sizes[0] == sizes[1] == 1 and sizes[2] > 1):
            plain.append(sizes)
    for (tp, _, dp, ep), (ahead_tp, _, ahead_dp, _) in itertools.product(plain, plain if q.requests.output_len > 1 else []):
        apart = q.but(tp=tp, dp=dp, ep=ep, prefill_tp=ahead_tp, prefill_dp=ahead_dp)
        group, ahead = tp * dp, ahead_tp * ahead_dp
        layout = Layout(apart, group, 1, np.inf, prompter(apart).plan)
        for copies in range(1, (q.cluster.num_gpus - ahead) // group + 1):
            most = most_workers(copies, group, ahead, q.cluster)
            yield from ((layout, (copies, workers)) for workers in range(1, most + 1))


def _fits(one):
    """Whether a plan is legal and holds the longest request."""
    longest = int(1.5 * one.requests.input_len) + int(1.5 * one.requests.output_len)
    try:
        return bool(cache_tokens(settle(one)) >= longest)
    except ValueError:
        return False


MODELS = {"llama-3.1-8b": 8, "gpt-oss-20b": 4, "qwen3-30b-a3b": 4, "mixtral-8x7b": 13, "llama-3.1-70b": 70}
"""With some of the billions of parameters that a token meets."""
CLUSTERS = (
    *("1xh200-sxm", "2xh100-sxm", "3xh100-sxm", "4xh100-sxm", "2xh200-sxm", "3xa100-80-sxm", "4xa100-80-sxm", "4xl40s"),
    *("2xb200-sxm", "4xb200-sxm", "2x2xh100-sxm", "6xh100-sxm", "8xh200-sxm", "2x8xh100-sxm"),
)


def question(rng):
    """Rates and limits around what such models and clusters hold: some bind, some do not, some nothing can meet."""
    model, cluster = rng.choice(list(MODELS)), rng.choice(CLUSTERS)
    lengths = {"input_len": rng.choice((128, 512, 2048)), "output_len": rng.choice((16, 128, 256))}
    each = 400 / MODELS[model] ** 0.7 / (lengths["input_len"] / 2048 + lengths["output_len"] / 64)  # requests/s of a GPU, roughly
    slo = {}
    if rng.random() < 0.8:
        slo[rng.choice(("p95_ttft", "p99_ttft", "mean_ttft"))] = 10 ** rng.uniform(-1.2, 0.5)
    if rng.random() < 0.8:
        slo[rng.choice(("p99_itl", "p95_itl", "mean_tpot", "p99_tpot"))] = 10 ** rng.uniform(-2, -0.9)
    rate = float(f"{each * catalog.cluster(cluster).num_gpus * 10 ** rng.uniform(-1.8, -0.5):.3g}")
    objective = rng.choice(("gpus", "gpus", "cost", "tokens"))
    engine = rng.choice(("vllm", "vllm", "sglang", "trtllm"))
    runs = {"num_prompts": rng.choice((300, 300, 300, None)), "max_num_seqs": rng.choice((16, 64, 64, None))}  # short ones mostly
    asked = {"model": model, "cluster": cluster, "request_rate": rate, "slo": slo, "objective": objective, "engine": engine}
    return asked | lengths | runs


def plans(model, gpus):
    """(tp, pp, dp, ep) that are tried, legal or not."""
    sizes = [1] if model.experts is None else [2**i for i in range(gpus.bit_length())]
    for tp, pp, dp in itertools.product(range(1, gpus + 1), range(1, gpus + 1), sizes):
        if tp * pp * dp > gpus or pp > model.num_layers:
            continue
        for ep in {1} if model.experts is None else ({1, tp} if dp == 1 else {tp * dp}):
            yield tp, pp, dp, ep


def num_copies(group, tp, cluster):
    """Copies laid down one after the other: in the first domain with room, or on whole domains of their own."""
    free, copies = domains(cluster), 0
    if group <= cluster.domain:
        return sum(size // group for size in free)
    used = cluster.domain // tp * tp or cluster.domain
    while free:
        rest = group
        while rest > 0 and free:
            rest -= min(rest, used, free.pop(0))
        copies += rest <= 0
    return copies


def domains(cluster):
    """GPUs of each fast domain."""
    whole, left = divmod(cluster.num_gpus, cluster.domain)
    return [cluster.domain] * whole + [left] * (left > 0)


def most_workers(copies, tp, ahead, cluster):
    """Workers of ``ahead`` GPUs beside copies of ``tp``, by trying every way to share the copies out."""
    places = domains(cluster)
    shares = (share for share in itertools.product(*(range(size // tp + 1) for size in places)) if sum(share) == copies)
    return max((sum((d - n * tp) // ahead for d, n in zip(places, share, strict=True)) for share in shares), default=0)
