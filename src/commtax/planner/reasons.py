"""Why a plan stands where it stands, why families of plans lost (illegal, too large, too slow, or behind the winner), and how full
both pools of a plan are: a nearly full one answers a small error with a long queue."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf, isinf
from typing import NamedTuple

import numpy as np

from commtax.arrays import Array, unique_values
from commtax.catalog.hardware import is_catalogued
from commtax.cost.network import disaggregated_means, flow
from commtax.judgement.confidence import percent
from commtax.judgement.engine_limits import sequences_to_admit
from commtax.judgement.leading import LATE, SLOW, UNCHECKED, against, latest_first_token_s, training_leads, waits_mostly
from commtax.judgement.margins import is_close, margin
from commtax.ledger import Z80
from commtax.planner.columns import Rejected, ServingColumns, ServingPlans, TrainPlans, objective_value, request_s, standing_of
from commtax.planner.money import asks_for_dollars, paid, training_money
from commtax.planner.ranking import KINDS, TRAINED, family, kinds, leading_count, share_hosts, training_kinds
from commtax.planner.space import Space, surely
from commtax.question import Question
from commtax.records import record_from, replace
from commtax.rules.legality import RULES, PlanToCheck
from commtax.spec import Plan
from commtax.statement import Note
from commtax.units import DAY_S, format_duration, format_money, format_seconds, format_tokens, plural
from commtax.verbs.billing import StepBill
from commtax.verbs.closed_loop import ClosedLoop
from commtax.verbs.disaggregation import UNCHECKED as UNCHECKED_POOLS
from commtax.verbs.explain import verdict
from commtax.verbs.fit_advice import lack_words
from commtax.verbs.fitting import holds, judged_by_memory, step_limits
from commtax.verbs.settling import describe_layout, replan
from commtax.words import words

TELLING = 1 / 3  # the share of a loss that a reason has to explain
BUSIER = np.array([2, 3, 4, 6, 8, 12, 16])  # times the clients of a plan, whose throughput has not peaked if any of these has …
GROWS = 1.01  # … so many times as much
FULL = 0.995  # of a pool's limit
IT = "it "  # the subject of a reason that can follow "which"
LossReason = tuple[float, Note]  # a cause of a plan's loss: the share of the other's figure that it loses by that alone, and why
TITLES = {"ttft_s": "TTFT", "tpot_s": "TPOT"}  # times as readers know them
AMONG = {UNCHECKED: " of what is checked", LATE: " of what answers in time", SLOW: " of what answers in time"}


def telling_reasons(answer: ServingPlans, i: int, share: float, usual: float, first: int) -> list[Note]:
    """Return why plan ``i`` is behind ``first``, the largest effect first. ``share`` and ``usual`` are of communication."""
    rows, value = answer.plans, objective_value(answer.question, answer.plans)
    loss = max(0.0, 1 - float(value[i] / value[first]))
    losses = sorted((one for one in _reasons(answer, i, share, usual, first) if one[0] > 0), reverse=True)
    telling = [note for effect, note in losses if effect >= TELLING * loss] or [note for _, note in losses[:1]]
    if rows.pp[i] > rows.pp[first]:
        stages, running = int(rows.pp[i]), int(rows.running[i])
        idle = f"{plural(stages - running, 'stage')} {'idles' if stages - running == 1 else 'idle'}"
        cut = f" in microbatches of {running / stages:.0f}" if running >= stages else f", so {idle}"
        telling.insert(0, words("loss-stages", stages=str(stages), requests=plural(running, "request"), cut=cut))
    return telling or [words("loss-unknown")]


def waited_links(step: StepBill) -> list[str]:
    """Return the links that a step waits for."""
    return sorted({str(x.link) for x in step.items if x.kind == "comm" and float(x.exposed_s) > 0})


def _reasons(answer: ServingPlans, i: int, share: float, usual: float, first: int) -> Iterator[LossReason]:
    rows, q, goal, whole = answer.plans, answer.question, answer.question.goal, request_s(answer.question, answer.plans)
    if share > usual + 0.02:
        links = waited_links(answer.step_of(rows, i))
        exposed = {"share": share, "usual": usual, "links": ", ".join(links)}
        across = q.cluster.inter.key in links
        yield share - usual, (words("loss-links-across", it=IT, **exposed) if across else words("loss-links", **exposed))
    gpus = np.asarray(paid(goal, rows.gpus, rows.prefill_gpus)) if goal.objective != "throughput" else np.ones(len(rows))
    each = rows.concurrency / gpus  # per GPU, where its price counts
    if goal.objective != "latency" and each[i] < each[first]:
        clients = f"{plural(int(rows.concurrency[i]), 'client')} instead of {int(rows.concurrency[first]):,}"
        if gpus[i] != gpus[first]:
            fewer, other = (f"{float(each[j]):{',.0f' if each[j] >= 10 else '.2g'}}" for j in (i, first))
            unit = "for the price of a GPU" if goal.prefill_usd_per_gpu_hour else "per GPU"
            clients = f"{fewer} clients {unit} instead of {other}"
        yield 1 - float(each[i] / each[first]), _client_limit(answer, i, clients)
    if rows.gpus[i] < rows.gpus[first] and goal.objective in ("throughput", "latency"):
        idle = q.gpus_there - int(rows.gpus[i])
        note = words("loss-idle", gpus=plural(idle, "GPU"), are="is" if idle == 1 else "are")
        yield 1 - float(rows.gpus[i] / rows.gpus[first]), note
    wait, usual_wait = (format_seconds(float(rows.ttft_s[j])) for j in (i, first))
    if wait != usual_wait:
        where = "its workers for prompts fall behind, and " if rows.mode[i] and rows.mode[first] else ""
        effect = float((rows.ttft_s[i] - rows.ttft_s[first]) / whole[i])
        yield effect, words("loss-first-token", where=where, wait=wait, usual=usual_wait)
    effect = float((q.requests.output_len - 1) * (rows.tpot_s[i] - rows.tpot_s[first]) / whole[i])
    if effect > 0 and (slower := _token_words(answer, i, first)):
        yield effect, slower


def _client_limit(answer: ServingPlans, i: int, few: str) -> Note:
    """Return why plan ``i`` has no more clients: a full cache, no more requested, a limit, or no gain from more."""
    rows, goal = answer.plans, answer.question.goal
    if rows.kv_headroom[i] < 0.05:
        return words("loss-cache", clients=few)
    clients, ranks = int(rows.concurrency[i]), int(rows.replicas[i] * rows.dp[i])
    if goal.max_concurrency is not None and clients + ranks > goal.max_concurrency:
        return words("loss-limit-of-clients", clients=few)
    busier = answer.simulation(rows, i, unique_values(np.r_[clients + ranks, clients * BUSIER // ranks * ranks]))
    rate = np.asarray(busier.tokens_per_s)
    if not np.any(rate > rows.tokens_per_s[i] * GROWS):
        return words("loss-peak", clients=few)
    over = {name: np.asarray(surely(busier, name)) / limit for name, limit in goal.times}
    worst = np.max([np.ones(len(rate)), *over.values()], axis=0)
    if not np.any(worst > 1):
        return words("loss-tried", it=IT, clients=few)
    first = int(np.argmax(worst > 1))
    name = max(over, key=lambda name: float(over[name][first]))
    return words("loss-limit", it=IT, limit=name.removesuffix("_s").upper(), clients=few)


def _token_words(answer: ServingPlans, i: int, first: int) -> Note | None:
    """Return why a token takes longer, whichever adds more: its step, or prompts that are computed between steps."""
    rows = answer.plans
    slow_step, other = (answer.step_of(rows, j) for j in (i, first))
    slower = float(slow_step.step_s - other.step_s)
    each, least = (format_seconds(float(rows.tpot_s[j])) for j in (i, first))
    if each == least:
        return None
    takes, instead = (format_seconds(float(step.step_s)) for step in (slow_step, other))
    if slower < float(rows.tpot_s[i] - rows.tpot_s[first]) / 2 or takes == instead:
        return words("loss-token", between="with prompts in between " if rows.mode[i] == 0 else "", takes=each, usual=least)
    seqs, others = (int(answer.decoding(rows.row(j))[0] * rows.dp[j]) for j in (i, first))  # of a replica
    figures = {"requests": plural(seqs, "request"), "takes": takes, "usual": instead}
    return words("loss-step", **figures) if seqs == others else words("loss-larger-step", others=others, **figures)


def role_words(best: bool, passed_over: Sequence[str] = ()) -> str:
    """Describe whether what is recommended is also the best, and among what. ``passed_over``: the objections to a plan ahead of it.

    >>> role_words(True), role_words(True, [UNCHECKED]), role_words(False, [LATE])
    ('Recommended and best', 'Recommended and best of what is checked', 'Recommended')
    """
    return f"Recommended and best{among_words(passed_over)}" if best else "Recommended"


def against_note(code: str, bearable_s: float = inf) -> Note:
    """Return what stands against a plan: its code, and the time that interactive use bears."""
    return words(f"against-{code}", unchecked=UNCHECKED_POOLS, bearable_s=bearable_s)


def among_words(passed_over: Sequence[str]) -> str:
    """Among what plans the first is the best."""
    return AMONG[passed_over[0]] if passed_over else ""


def dtype_words(q: Question, index: int) -> str:
    """Return " in fp8", where several types are compared."""
    return f" in {q.goal.dtypes[index] or 'its own type'}" if len(q.goal.dtypes) > 1 else ""


def illegal_families(base: Question, whole: Space) -> Iterator[Rejected]:
    """Yield one line for each rule and the tp degree that it forbids."""
    first = dict[tuple[int, int], int]()
    for i in np.flatnonzero(whole.codes).tolist():
        first.setdefault((int(whole.tp[i]), int(whole.codes[i])), i)
    for (_, code), i in first.items():
        case, says = PlanToCheck(base.model, base.cluster, base.but(**whole.sizes(i)).plan, base.engine), RULES[code - 1].says
        yield Rejected(describe_layout(case.plan), says(case), int(case.plan.tp), says(replace(case, named="{tp}")))


def too_large(base: Question, legal: Space, fits: Array, index: int) -> Iterator[Rejected]:
    """Yield plans without room for one request, grouped by tp degree, and what the largest of them lacks."""
    length = max(base.limits.max_model_len, min(base.model.max_len, int(base.requests.tokens)))
    for tp in unique_values(legal.tp[~fits]).tolist():
        these = np.flatnonzero(~fits & (legal.tp == tp))
        sizes = legal.sizes(int(these[np.argmax(legal.group[these])]))
        fit, name = holds(replan(judged_by_memory(base), **sizes, max_model_len=length)), _family_words(legal.take(these))
        lack = words("does-not-fit", lack=lack_words(fit, " of the largest" * (len(these) > 1)))
        yield Rejected(name + dtype_words(base, index), lack, dtype=index)


def _family_words(rows: Space | ServingColumns) -> str:
    """Describe plans of one tp degree: the layout of the only one, or their number and the range of their sizes."""
    split = {"PP": rows.pp, "DP": rows.dp, "EP": rows.ep}
    several = len(unique_values(np.stack(list(split.values())), axis=1).T)
    if several == 1:
        return describe_layout(record_from(Plan, rows.sizes(0)))
    ends = [(axis, int(np.min(sizes)), int(np.max(sizes))) for axis, sizes in split.items()]
    sizes = [f"{axis} {low} to {high}" if low < high else f"{axis} {low}" for axis, low, high in ends if high > 1]
    return f"TP {int(rows.tp[0])} ({several} plans: {', '.join(sizes)})"


def with_unique_names(rejected: Iterable[Rejected]) -> tuple[Rejected, ...]:
    """Return the rows renamed so that no two share a name.

    >>> [r.family for r in with_unique_names([Rejected("TP 2", "a"), Rejected("TP 2", "b")])]
    ['TP 2', 'others with TP 2']
    """
    met, named = set[str](), []
    for lost in rejected:
        name = lost.family
        while name in met:
            name = f"others with {name}"
        met.add(name)
        named.append(replace(lost, family=name))
    return tuple(named)


def too_slow(answer: ServingPlans, every: ServingColumns, good: Array) -> Iterator[Rejected]:
    """Yield families that fit and break a limit at every concurrency, grouped by tp degree."""
    key = family(every)
    bad = (np.bincount(key, weights=good) <= 0)[key] & (every.mode == 0)
    for index, tp in unique_values(np.stack([every.dtype[bad], every.tp[bad]]), axis=1).T.astype(int).tolist():
        rows = every.take(np.flatnonzero(bad & (every.dtype == index) & (every.tp == tp)))
        name, missed = _family_words(rows) + dtype_words(answer.question, index), best_times(answer, rows)
        yield Rejected(name, f"exceeds the limit: {missed}", dtype=index)


def best_times(answer: ServingPlans, rows: ServingColumns) -> str:
    """Describe the limits that no row keeps as surely as required, each by the row that comes nearest."""
    least = {name: int(np.argmin(getattr(rows, f"sure_{name}"))) for name, _ in answer.question.goal.times}
    broken = list[str]()
    for name in missed_times(answer.question, rows, least):
        fewest = int(rows.concurrency[least[name]]) == int(rows.dp[least[name]] * rows.replicas[least[name]]) > 1
        broken.append(odds(answer, rows, least[name], name, " at best" + ", with one client per rank" * fewest))
    return "; ".join(broken) or "TTFT and TPOT limits are never met together"


def missed_times(q: Question, rows: ServingColumns, at: Mapping[str, int]) -> list[str]:
    """Return the times that are above their limits, as surely as required, of a row for each."""
    return [name for name, limit in q.goal.times[::-1] if float(getattr(rows, f"sure_{name}")[at[name]]) > limit]


def odds(answer: ServingPlans, rows: ServingColumns, i: int, name: str, when: str = "") -> str:
    """Describe a time, its range and how surely it keeps its limit."""
    estimate, limit = answer.estimate(rows, i, name), dict(answer.question.goal.times)[name]
    value, low, high = (format_seconds(float(end)) for end in (estimate.value, estimate.low, estimate.high))
    sure = f"so it is {percent(estimate.kept(limit))} likely to meet the limit of {format_seconds(limit)}"
    return f"{TITLES[name]} {value}{when} (80% range {low} to {high}), {sure}"


def families_behind(answer: ServingPlans) -> Iterator[Rejected]:
    """Yield degrees whose best plan meets the limits and still loses to the recommended one by a tenth or more, and why."""
    rows, q, first = answer.plans, answer.question, answer.recommended
    if q.goal.objective == "gpus":  # more GPUs are the reason
        return
    chosen = {answer.gpu_words(point.plans, point.recommended) for point in answer.places}  # for these no plan was rejected
    value, behind = objective_value(q, rows), list[int]()
    for axis in ("tp", "pp", "ep"):
        for size in unique_values(getattr(rows, axis)).tolist():
            same = np.flatnonzero((getattr(rows, axis) == size) & (rows.mode == 0) & ((rows.pp == 1) | (axis != "tp")))[:1]
            if (axis == "tp" or size > 1) and not int(size) & (int(size) - 1):
                behind += [i for i in same.tolist() if value[i] <= 0.9 * value[first] and i not in behind]
    behind = [i for i in behind if answer.gpu_words(rows, i) not in chosen]
    shown = [first, *behind]
    shares = dict(zip(shown, answer.comm_fractions(rows.take(np.array(shown))).tolist(), strict=True))
    for i in behind:
        why = words("reasons", reasons=telling_reasons(answer, i, shares[i], shares[first], first)[:2])
        yield Rejected(_name(answer, i), words("behind", distance=distance_words(answer, i, first), reason=why))


def distance_words(answer: ServingPlans, i: int, first: int = 0, beside: str = "") -> str:
    """Describe how far plan ``i`` is behind plan ``first`` in the objective's measure, without a unit that stands ``beside`` it."""
    goal, value = answer.question.goal, objective_value(answer.question, answer.plans)
    if goal.objective == "latency":
        return f"requests take {float(value[first] / value[i]) - 1:.0%} longer"
    if goal.objective == "gpus":
        return f"needs {plural(int(answer.plans.gpus[i]), 'GPU')} instead of {int(answer.plans.gpus[first])}"
    share, unit = 1 - float(value[i] / value[first]), _unit(answer) if _unit(answer) != beside else ""
    return " ".join(filter(None, (f"{abs(share):.0%}", "fewer" if share >= 0 else "more", unit)))


def _unit(answer: ServingPlans) -> str:
    each = "tokens per dollar" if answer.question.goal.usd_per_gpu_hour else "tokens/s per GPU"
    return each if answer.question.goal.objective == "cost" else "tokens/s"


def explain(answer: ServingPlans, i: int) -> list[str]:
    """Describe what plan ``i`` delivers, how it compares with others (the recommended one with its rivals), and its steps."""
    rows = answer.plans
    lines = [answer.gpu_words(rows, i) + dtype_words(answer.question, int(rows.dtype[i])), delivers(answer, i)]
    if i == answer.recommended:
        lines += [*filter(None, [against_words(answer.question, rows, i)]), *compare_recommended(answer)]
    elif i:
        lines.append(words("behind-best", distance=distance_words(answer, i), reason=_reason_beside(answer, i, 0)))
    lines.append(f"{_token(answer, rows, i)}; {float(rows.kv_headroom[i]):.0%} of the KV cache stays free")
    wait_s = float(rows.ttft_s[i])
    waits = [words("first-token-wait", wait_s=wait_s)] if waits_mostly(answer.question, wait_s, float(rows.tpot_s[i])) else []
    return [*lines, *pool_words(answer, rows, i), *waits]


def delivers(answer: ServingPlans, i: int) -> Note:
    """Return the times beside their limits, the rate with its range, and how sure the limits are."""
    rows, goal = answer.plans, answer.question.goal
    most = {name: f" (limit {format_seconds(limit)})" for name, limit in goal.times}
    times = [f"{title} {format_seconds(float(getattr(rows, name)[i]))}{most.get(name, '')}" for name, title in TITLES.items()]
    assumed = "" if all(is_catalogued(place.chip) for place in answer.question.places) else " on assumed times"
    sure = f"{percent(answer.kept(rows, i))} likely to meet {'each' if len(most) > 1 else 'the'} limit{assumed}"
    likely = words("likely", sure=sure, wanted=percent(goal.confidence)) if most else ""
    low, high = answer.range_of(rows, i, "tokens_per_s")
    rate = f"{float(rows.tokens_per_s[i]):,.0f} tokens/s ({low:,.0f} to {high:,.0f})"
    counted, dollars = "output tokens" if goal.cost_of == "output" else "tokens, input and output", ""
    if asks_for_dollars(answer.question):
        dollars = f", {format_money(float(answer.usd_per_million_tokens(rows)[i]))} per million {counted}"
    return words("delivers", times=", ".join(times), rate=rate, dollars=dollars, likely=likely)


def compare_recommended(answer: ServingPlans) -> Iterator[Note]:
    """Compare the recommended plan with the best, the runner-up, the next, and the best simpler one, at the same load or limit."""
    q, rows, first = answer.question, answer.plans, answer.recommended
    kind, shared = kinds(rows, q.cluster), share_hosts(rows, q.cluster, q.requests.prefill_cluster)
    unlike = [bool(rows.mode[i] != rows.mode[first]) for i in range(min(first, 2))]
    for i, pools in enumerate(unlike):
        role = "the runner-up" if i else f"the best{among_words(against_codes(q, answer.passed_over))}"
        hosts = " (workers that share hosts)" if shared[i] > shared[first] else ""
        lead = f"{role} is {_name(answer, i)}{_other_kind(kind, i, first) or hosts}: {''.join(_lead_words(answer, i, first))}"
        fewer = int(rows.gpus[i] - rows.gpus[first]) if q.goal.objective != "gpus" else 0
        dearer = f" for {plural(fewer, 'GPU')} more" if fewer > 0 else ""
        doubt = "likewise" if i and margin(q, pools) == margin(q, unlike[0]) else doubt_words(q, pools)
        yield words("doubted", lead=f"{lead}{dearer}", doubt=doubt)
    yield from passed_over_words(answer, answer.passed_over, rows.row(first))
    for i, simpler in _next_plans(range(leading_count(standing_of(q, rows))), kind, first):
        role = _next_role(first, i, f"best simpler plan{_other_kind(kind, i, first)}" * simpler)
        than = "than with" if q.goal.objective == "latency" else "than"
        gain, longer = _lead_words(answer, first, i)
        lead = f"{gain} {than} {role}, {_name(answer, i)}{longer}"
        why = _reason_beside(answer, i, first) if q.goal.objective != "gpus" else None
        if why and why.figures and "it" in why.figures:  # a clause of its own
            yield words("ahead-which", lead=lead, reason=words(why.code, **{**why.figures, "it": ""}))
        else:
            yield words("ahead", lead=lead, reason=why) if why else words("lead", lead=lead)


def doubt_words(q: Question, pools: bool = False) -> Note:
    """Return why the best plan is not the recommended one. ``pools``: just one of the two has two pools."""
    within = margin(q, pools)
    if isinf(within):
        return words("but-against", against=against_note(UNCHECKED))
    return words("within-margin", margin=percent(within))


def passed_over_words(answer: ServingPlans, beaten: ServingColumns, recommended: ServingColumns) -> Iterator[Note]:
    """Yield the plan that would be the best beside the recommended one, with its times, and what stands against it."""
    q, rows = answer.question, ServingColumns.joined([beaten, recommended])
    ahead, behind = objective_value(q, rows) if len(beaten) else (1.0, 1.0)
    if is_close(q, float(ahead / behind)):
        return
    pair, kind = replace(answer, plans=rows), kinds(rows, q.cluster)
    name, lead = f"{_name(pair, 0)}{_other_kind(kind, 0, 1)}", f"at {''.join(_lead_words(pair, 0, 1))}"
    yield words("passed-over", plan=name, lead=lead, against=against_words(q, beaten))


def against_words(q: Question, beaten: ServingColumns, i: int = 0) -> Note:
    """Return what stands against one of some plans."""
    return words("against", reasons=[against_note(code, latest_first_token_s(q)) for code in against_codes(q, beaten, i)])


def against_codes(q: Question, beaten: ServingColumns, i: int = 0) -> list[str]:
    """Return the codes of the objections to one of some plans, if there are any plans."""
    return against(q, float(beaten.mode[i]), float(beaten.ttft_s[i]), latest_first_token_s(q)) if len(beaten) else []


def _next_plans(places: Iterable[int], kind: Array, first: int) -> list[tuple[int, bool]]:
    """Return the next plan behind one, and the next of a simpler kind, each with whether it is simpler."""
    behind = [(i, bool(kind[i] < kind[first])) for i in places if i > first]
    return list(dict.fromkeys([*behind[:1], *[one for one in behind if one[1]][:1]]))


def _next_role(first: int, i: int, simpler: str, otherwise: str = "") -> str:
    """Name the role of the plan at place ``i``: the next one by its place, another one by its kind."""
    place = "runner-up" if i == 1 else "next plan" if i == first + 1 else otherwise
    return f"the {' and '.join(filter(None, (place, simpler)))}"


def _other_kind(kind: Array, i: int, first: int) -> str:
    return f" ({KINDS[int(kind[i])]})" if kind[i] != kind[first] else ""


def _reason_beside(answer: ServingPlans, i: int, first: int) -> Note:
    """Return the largest loss of plan ``i`` beside the recommended one, where the order is certain."""
    q, value = answer.question, objective_value(answer.question, answer.plans)
    apart = bool(answer.plans.mode[i] != answer.plans.mode[first])
    if q.goal.objective != "gpus" and is_close(q, float(value[first] / value[i]), apart):
        return words("too-close")
    share, usual = (float(answer.step_of(answer.plans, j).comm_fraction) for j in (i, first))
    return telling_reasons(answer, i, share, usual, first)[0]


def _lead_words(answer: ServingPlans, i: int, j: int) -> tuple[str, str]:
    """Describe how far plan ``i`` is ahead of plan ``j``, each at its best and with the same clients, and its longer times."""
    q, rows, value = answer.question, answer.plans, objective_value(answer.question, answer.plans)
    if q.goal.objective == "gpus":
        fewer = int(rows.gpus[j] - rows.gpus[i])
        return f"{plural(fewer, 'GPU')} fewer" if fewer else "no fewer GPUs", ""
    if q.goal.objective == "latency":
        share = 1 - float(value[j] / value[i])
        return f"requests {'less than 1%' if share < 0.005 else f'{share:.0%}'} shorter", ""
    gain, unit, longer = more_words(float(value[i] / value[j])), _unit(answer), longer_times(rows, i, j)
    if q.goal.times:
        return f"{gain} {unit}", longer
    clients = int(rows.concurrency[i])
    rate = float(answer.simulation(rows, j, max(1 if rows.mode[j] else int(rows.replicas[j]), clients)).tokens_per_s)
    same = more_words(float(value[i] / (value[j] * rate / rows.tokens_per_s[j])))
    alike = f"with the same {plural(clients, 'client')}"
    return (f"{gain} {unit} {alike}", "") if same == gain else (f"{gain} {unit} ({same} {alike})", longer)


def longer_times(rows: ServingColumns, i: int, j: int) -> str:
    """Return the times that plan ``i`` has longer than plan ``j`` at another number of clients, in brackets: before and after."""
    grown = grown_times(rows, i, j)
    return f" ({', '.join(grown)})" if grown else ""


def grown_times(rows: ServingColumns, i: int, j: int) -> list[str]:
    """Return each time that plan ``i`` has longer than plan ``j`` at another number of clients, before and after."""
    if rows.concurrency[i] == rows.concurrency[j]:
        return []
    each = {title: [float(getattr(rows, name)[at]) for at in (j, i)] for name, title in TITLES.items()}
    longer = {title: [format_seconds(seconds) for seconds in pair] for title, pair in each.items() if pair[1] > pair[0]}
    return [f"{title} {before} -> {after}" for title, (before, after) in longer.items() if before != after]


def more_words(ratio: float) -> str:
    """Describe how much more one is than another.

    >>> more_words(1.06), more_words(0.9), more_words(1.001)
    ('6% more', '10% fewer', 'less than 1% more')
    """
    return "less than 1% more" if abs(ratio - 1) < 0.005 else f"{abs(ratio - 1):.0%} {'more' if ratio > 1 else 'fewer'}"


def _token(answer: ServingPlans, rows: ServingColumns, i: int) -> str:
    """Describe what a decode step takes, and what other requests' prompts, and stages that wait for a fuller batch, add to it."""
    step = answer.step_of(rows, i)
    over = ", ".join(waited_links(step))
    share = f"{float(step.comm_fraction):.0%} of it exposed communication over {over}" if over else "with no communication"
    takes = f"a decode step takes {format_seconds(float(step.step_s))}, {share}"
    more = float(rows.tpot_s[i] - step.step_s / step.question.techniques.per_step)
    stretched = not rows.mode[i] and answer.question.requests.output_len > 1 and more > 0.02 * float(rows.tpot_s[i])
    uneven = " and batches of unequal size" * int(rows.pp[i] > 1)
    return takes + (f"; other requests' prompts{uneven} add {format_seconds(more)} per token" if stretched else "")


def _name(answer: ServingPlans, i: int) -> str:
    return answer.workers(answer.plans, i) + dtype_words(answer.question, int(answer.plans.dtype[i]))


def explain_training(answer: TrainPlans, i: int) -> Iterator[str]:
    """Describe what binds plan ``i`` and how far it is behind the best, or the recommended one ahead of its rivals."""
    q, rows, first = answer.question, answer.plans, answer.recommended
    kind = training_kinds(rows, q)
    yield from (answer.whole_words(rows, i), verdict(answer.step_of(rows, i), []))
    if i != first:
        yield from [f"{float(rows.step_s[i] / rows.step_s[0]) - 1:.1%} slower than the best"] if i else []
        return
    if first:
        best = f"the best is {answer.run_words(rows, 0)}: {_faster_words(answer, 0, first)}"
        yield words("doubted", lead=best, doubt=doubt_words(q))
    rivals, splits = np.flatnonzero(training_leads(q, rows.gpus, rows.step_s)), answer.splits().tolist()
    for i, simpler in _next_plans(np.intersect1d(splits, rivals).tolist(), kind, first):
        named = f"best simpler plan ({TRAINED[int(kind[i]) % len(TRAINED)]})" * simpler
        role = _next_role(splits.index(first), splits.index(i), named, "" if simpler else "next plan on all GPUs")
        doubt = "; too close to call, measure both" if is_close(q, float(rows.step_s[i] / rows.step_s[first])) else ""
        yield f"{_faster_words(answer, first, i)} than {role}, {answer.run_words(rows, i)}{doubt}"


def _faster_words(answer: TrainPlans, i: int, j: int) -> str:
    """Describe by how much plan ``i`` is faster than plan ``j``, and what that saves of the run."""
    rows, q = answer.plans, answer.question
    ours, theirs = (training_money(q, int(rows.gpus[k]), answer.tokens_per_s(rows, k)) for k in (i, j))
    usd = f" and {format_money(theirs.usd - ours.usd)}" if ours.usd is not None and theirs.usd is not None else ""
    saved = f"{format_duration((theirs.days - ours.days) * DAY_S)}{usd} less for {format_tokens(q.goal.train_tokens)} tokens"
    return f"{float(rows.step_s[j] / rows.step_s[i]) - 1:.1%} more tokens/s ({saved})"


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
    """Return the most sequences of each rank of row ``i``, fewer where a full rank would break TPOT's limit. 0: the engine's."""
    put = searched.put(rows, i)
    if put.limits.max_num_seqs:
        return put.limits.max_num_seqs
    ranks, most = int(rows.replicas[i] * rows.dp[i]), step_limits(put)[1]
    crowded = bool(surely(searched.simulation(rows, i, clients=most * ranks), "tpot_s") > searched.question.goal.tpot_s)
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
    ahead, (least, most) = use.prompts >= use.decoding, sorted((use.prompts, use.decoding))
    pool, other = ("prompt", "decode") if ahead else ("decode", "prompt")
    fills = "is full and limits the rate (" if most >= FULL else f"fills up first ({most:.0%} used; "
    limit = words("pool-limit", admitted=admitted) if admitted else ""
    ttft_s, late_s = float(rows.ttft_s[i]), use.later * float(rows.ttft_s[i])
    beyond = ", over the limit" if ttft_s <= answer.question.goal.ttft_s < late_s else ""
    late = f"; if prompts took {use.slower - 1:.0%} longer, within their 80% range, TTFT would be {format_seconds(late_s)}{beyond}"
    yield words("pool-fills", pool=pool, fills=fills, other=other, least=least, limit=limit, late=late if ahead else "")
