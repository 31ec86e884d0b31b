"""Why a plan stands where it stands, and why families of plans lost: illegal, too large, too slow, or behind the winner."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from commtax.arrays import unique_values
from commtax.cost.legality import RULES, PlanToCheck
from commtax.planner.choosing import KINDS, TRAINED, effort, kinds, margin, training_kinds
from commtax.planner.columns import Array, Rejected, ServingColumns, ServingPlans, TrainPlans, family, objective_value, sizes_of
from commtax.planner.space import Space
from commtax.question import Question
from commtax.records import record_from
from commtax.spec import Plan
from commtax.units import format_seconds, plural
from commtax.verbs.billing import StepBill
from commtax.verbs.confidence import percent
from commtax.verbs.explain import verdict
from commtax.verbs.fitting import holds, judged_by_memory
from commtax.verbs.settling import describe_layout, replan

SAID = {"ttft_s": "TTFT", "tpot_s": "TPOT"}


def dtype_words(q: Question, index: int) -> str:
    """ " in fp8", where several types are compared."""
    return f" in {q.goal.dtypes[index] or 'its own type'}" if len(q.goal.dtypes) > 1 else ""


def illegal_families(base: Question, whole: Space) -> Iterator[Rejected]:
    """One line for each rule and tp degree that it forbids."""
    first = dict[tuple[int, int], int]()
    for i in np.flatnonzero(whole.codes).tolist():
        first.setdefault((int(whole.tp[i]), int(whole.codes[i])), i)
    for (_, code), i in first.items():
        sizes, says = sizes_of(whole, i), RULES[code - 1].says
        case = PlanToCheck(base.model, base.cluster, base.but(**sizes).plan, base.engine)
        yield Rejected(describe_layout(case.plan), says(case), int(case.plan.tp), says(replace(case, named="{tp}")))


def too_large(base: Question, legal: Space, fits: Array, index: int) -> Iterator[Rejected]:
    """Plans without room for one request: the largest of each tp degree stands for its smaller ones."""
    length = min(base.model.max_len, int(base.requests.tokens))
    for tp in unique_values(legal.tp[~fits]).tolist():
        these = np.flatnonzero(~fits & (legal.tp == tp))
        sizes = sizes_of(legal, int(these[np.argmax(legal.group[these])]))
        lack = max(holds(replan(judged_by_memory(base), **sizes, max_model_len=length)).shortfall_bytes, 0.0) / 2**30
        others = f" (nor for {plural(len(these) - 1, 'other plan')} of TP {int(tp)})" if len(these) > 1 else ""
        name = describe_layout(record_from(Plan, sizes)) + dtype_words(base, index)
        yield Rejected(name, f"does not fit: each rank lacks {lack:.1f} GiB for one request{others}")


def too_slow(answer: ServingPlans, every: ServingColumns, good: Array) -> Iterator[Rejected]:
    """Families that fit and break a limit at every concurrency, together for each tp degree."""
    key = family(every)
    met = np.bincount(key, weights=good) > 0
    bad = ~met[key] & (every.mode == 0)
    for index, tp in unique_values(np.stack([every.dtype[bad], every.tp[bad]]), axis=1).T.astype(int).tolist():
        rows = every.take(np.flatnonzero(bad & (every.dtype == index) & (every.tp == tp)))
        several = len(unique_values(np.stack([rows.pp, rows.dp, rows.ep]), axis=1).T)
        name = f"TP {tp} ({several} plans)" if several > 1 else describe_layout(record_from(Plan, sizes_of(rows, 0)))
        yield Rejected(name + dtype_words(answer.question, index), f"breaks the limit: {best_times(answer, rows)}")


def best_times(answer: ServingPlans, rows: ServingColumns) -> str:
    """The limits that no row keeps as surely as is wanted, each by the row that comes nearest."""
    least = {name: int(np.argmin(getattr(rows, f"sure_{name}"))) for name, _ in answer.question.goal.times}
    broken = [odds(answer, rows, least[name], name, " at best") for name in missed_times(answer.question, rows, least)]
    return ", ".join(broken) or "TTFT and TPOT limits are never met together"


def missed_times(q: Question, rows: ServingColumns, at: Mapping[str, int]) -> list[str]:
    """Those times that are above their limits, as surely as is wanted, of a row for each."""
    return [name for name, limit in q.goal.times[::-1] if float(getattr(rows, f"sure_{name}")[at[name]]) > limit]


def odds(answer: ServingPlans, rows: ServingColumns, i: int, name: str, when: str = "") -> str:
    """A time's range, and how surely it keeps its limit: ``TPOT 27 ms to 33 ms: 20 ms is kept with 3%``."""
    known, limit = answer.estimate(rows, i, name), dict(answer.question.goal.times)[name]
    ends = " to ".join(format_seconds(float(end)) for end in (known.low, known.high))
    return f"{SAID[name]} {ends}{when}: the limit of {format_seconds(limit)} is {percent(known.kept(limit))} likely to hold"


def families_behind(answer: ServingPlans) -> Iterator[Rejected]:
    """Degrees whose best plan meets the limits and still loses by a tenth or more: by how much, and why."""
    rows, q = answer.plans, answer.question
    if q.goal.objective == "gpus":  # more GPUs are the reason
        return
    behind = dict(_degrees_behind(rows, objective_value(q, rows)))
    told = [0, *behind]
    shares = dict(zip(told, answer.comm_fractions(rows.take(np.array(told))).tolist(), strict=True))
    for i, name in behind.items():
        yield Rejected(name, f"{distance_words(answer, i)}: {reason_behind(answer, i, shares[i], shares[0])}")


def _degrees_behind(rows: ServingColumns, value: Array) -> Iterator[tuple[int, str]]:
    """The best plan of each degree that loses by a tenth or more, each once, by the first degree that it is of."""
    named = set[int]()
    for axis, name in (("tp", "TP"), ("pp", "PP"), ("ep", "EP")):
        for size in unique_values(getattr(rows, axis)).tolist():
            same = np.flatnonzero((getattr(rows, axis) == size) & (rows.mode == 0) & ((rows.pp == 1) | (axis != "tp")))
            if not len(same) or (axis != "tp" and size == 1) or int(size) & (int(size) - 1):
                continue
            i = int(same[0])
            if value[i] <= 0.9 * value[0] and i not in named:
                named.add(i)
                yield i, f"{name} {int(size)}"


def distance_words(answer: ServingPlans, i: int) -> str:
    """How far plan ``i`` is behind the winner, in the objective's own measure."""
    goal, value = answer.question.goal, objective_value(answer.question, answer.plans)
    if goal.objective == "latency":
        return f"requests take {float(value[0] / value[i]) - 1:.0%} longer"
    if goal.objective == "gpus":
        return f"needs {plural(int(answer.plans.gpus[i]), 'GPU')}, not {int(answer.plans.gpus[0])}"
    share = 1 - float(value[i] / value[0])
    return f"{abs(share):.0%} {'fewer' if share >= 0 else 'more'} {_unit(answer)}"


def _unit(answer: ServingPlans) -> str:
    goal = answer.question.goal
    each = "tokens per dollar" if goal.prefill_usd_per_gpu_hour else "tokens/s per GPU"
    return each if goal.objective == "cost" else "tokens/s"


def reason_behind(answer: ServingPlans, i: int, share: float, usual: float, first: int = 0) -> str:
    """What plan ``i`` suffers from that another does not, most telling first: by the shares of communication of both."""
    return "; ".join(_suffers(answer, i, share, usual, first)) or _steps(answer, i, first)


def _suffers(answer: ServingPlans, i: int, share: float, usual: float, first: int) -> Iterator[str]:
    """Few requests for its stages, a larger share of communication, fewer requests than the winner has, idle GPUs."""
    rows, cluster = answer.plans, answer.question.cluster
    if rows.pp[i] > 1:
        stages, running = int(rows.pp[i]), int(rows.running[i])
        idle = f"{plural(stages - running, 'stage')} {'idles' if stages - running == 1 else 'idle'}"
        cut = f"microbatches of {running / stages:.0f}" if running >= stages else idle
        yield f"{stages} stages share {plural(running, 'request')}: {cut}"
    if share > usual + 0.02:
        links = _links(answer.step_of(rows, i))
        across = "crosses hosts, " if cluster.inter.key in links else ""
        yield f"{across}{share:.0%} of its decode step is exposed communication over {', '.join(links)}, not {usual:.0%}"
    yield from _fewer_requests(answer, i, first)
    if rows.gpus[i] < rows.gpus[first]:
        yield f"leaves {plural(answer.question.gpus_there - int(rows.gpus[i]), 'GPU')} idle"


def _steps(answer: ServingPlans, i: int, first: int) -> str:
    """Where nothing else tells them apart: a slower step, fewer clients, or more time for prompts between its steps."""
    rows = answer.plans
    own, other = (float(answer.step_of(rows, j).step_s) for j in (i, first))
    if own <= other and rows.concurrency[i] < rows.concurrency[first]:
        return f"does best with {plural(int(rows.concurrency[i]), 'client')}, not {int(rows.concurrency[first]):,}"
    step = f"a decode step of {plural(int(rows.running[i]), 'request')} takes {format_seconds(own)}"
    if format_seconds(own) == format_seconds(other):
        return f"{step} in both"
    if own > other or rows.tpot_s[i] <= rows.tpot_s[first]:
        return f"{step}, not {format_seconds(other)}"
    tpot, least = (format_seconds(float(rows.tpot_s[j])) for j in (i, first))
    return f"{step}, but with prompts in between each token takes {tpot}, not {least}"


def _links(step: StepBill) -> list[str]:
    """The links that a step waits for."""
    return sorted({str(x.link) for x in step.items if x.kind == "comm" and float(x.exposed_s) > 0})


def _fewer_requests(answer: ServingPlans, i: int, first: int) -> Iterator[str]:
    """Fewer requests: the cache is full, or a limit is reached sooner."""
    rows, goal = answer.plans, answer.question.goal
    if goal.objective == "latency" or rows.concurrency[i] >= rows.concurrency[first]:
        return
    held = f"{plural(int(rows.concurrency[i]), 'client')}, not {int(rows.concurrency[first]):,}"
    if rows.kv_headroom[i] < 0.05:
        yield f"its KV cache holds {held}"
    elif rows.sure_tpot_s[i] > 0.95 * goal.tpot_s:
        yield f"reaches the TPOT limit with {held}"
    elif rows.sure_ttft_s[i] > 0.95 * goal.ttft_s:
        yield f"reaches the TTFT limit with {held}"


def explain(answer: ServingPlans, i: int) -> list[str]:
    """What plan ``i`` costs and why, and how it compares with others: the recommended one with those beside it."""
    rows, goal = answer.plans, answer.question.goal
    said = [answer.gpu_words(rows, i) + dtype_words(answer.question, int(rows.dtype[i])), _token(answer, rows, i)]
    where = "each attention rank" if rows.dp[i] > 1 else "each replica"
    held = f"{plural(int(rows.running[i]), 'request')} at once on {where}"
    said.append(f"{held} leave{'s' if rows.running[i] == 1 else ''} {float(rows.kv_headroom[i]):.0%} of its KV cache free")
    if i == answer.recommended:
        said += compare_recommended(answer)
    elif i:
        said.append(f"{distance_words(answer, i)} than the best: {_reason_beside(answer, i, 0)}")
    means = {name: format_seconds(float(getattr(rows, name)[i])) for name in SAID}
    limits = [f"{SAID[name]} {means[name]} of {format_seconds(most)}" for name, most in goal.times]
    sure = f"{percent(answer.kept(rows, i))} likely to hold, {percent(goal.confidence)} asked for (--confidence)" if limits else ""
    return said + ([f"uses {' and '.join(limits)}: {sure}"] if limits else []) + list(_waits(answer, i))


def _waits(answer: ServingPlans, i: int) -> Iterator[str]:
    """That requests wait for their first tokens longer than they take to answer, and no limit forbids it."""
    rows, q = answer.plans, answer.question
    answering_s = float(rows.tpot_s[i] * q.requests.output_len)
    if q.requests.output_len > 1 and "ttft_s" not in dict(q.goal.times) and rows.ttft_s[i] > answering_s:
        wait = format_seconds(float(rows.ttft_s[i]))
        yield f"requests wait {wait} for a first token, most of their time: no limit is set on that (--ttft)"


def compare_recommended(answer: ServingPlans) -> Iterator[str]:
    """The recommended plan beside the best, the next, and the best of those that are simpler, at the same load or limit."""
    q, rows, own = answer.question, answer.plans, answer.recommended
    kind, efforts = kinds(rows, q.cluster), effort(q, rows)
    if own:
        gain = f"{_lead_words(answer, 0, own)} with {_name(answer, 0)}, the best{_other_kind(kind, 0, own)}"
        yield f"{gain}: within the margin of {percent(margin(q))} (--margin), measure both"
    for i, simpler in _next_plans(range(len(rows)), efforts, own):
        role = f", the best that is simpler{_other_kind(kind, i, own)}" if simpler else ", the next"
        yield f"{_lead_words(answer, own, i)} against {_name(answer, i)}{role}: {_reason_beside(answer, i, own)}"


def _next_plans(places: Iterable[int], efforts: Array, own: int) -> list[tuple[int, bool]]:
    """The next plan behind one that is not simpler, and the next that is, in their order."""
    behind = [(i, bool(efforts[i] < efforts[own])) for i in places if i > own]
    return sorted({simpler: (i, simpler) for i, simpler in reversed(behind)}.values())


def _other_kind(kind: Array, i: int, own: int) -> str:
    """The kind of plan ``i`` in brackets, where it is not the recommended one's."""
    return f" ({KINDS[int(kind[i])]})" if kind[i] != kind[own] else ""


def _reason_beside(answer: ServingPlans, i: int, own: int) -> str:
    """What plan ``i`` suffers from beside the recommended one."""
    share, usual = (float(answer.step_of(answer.plans, j).comm_fraction) for j in (i, own))
    return reason_behind(answer, i, share, usual, own) + _close(answer, i, own)


def _lead_words(answer: ServingPlans, i: int, j: int) -> str:
    """How far plan ``i`` is ahead of plan ``j`` in the objective's own measure, each at its best; and with the same clients,
    where no limit says how many and that is another figure."""
    q, rows = answer.question, answer.plans
    value = objective_value(q, rows)
    if q.goal.objective == "gpus":
        fewer = int(rows.gpus[j] - rows.gpus[i])
        return f"{plural(fewer, 'GPU')} fewer" if fewer else "as many GPUs"
    if q.goal.objective == "latency":
        share = 1 - float(value[j] / value[i])
        return f"requests {'less than 1%' if share < 0.005 else f'{share:.0%}'} shorter"
    gain, unit = _gain(float(value[i] / value[j])), _unit(answer)
    if q.goal.times:
        return f"{gain} {unit}"
    clients = int(rows.concurrency[i])
    copies = 1 if rows.mode[j] else int(rows.replicas[j])
    rate = copies * float(answer.simulation(rows, j, max(copies, clients)).tokens_per_s)
    same = _gain(float(value[i] / (value[j] * rate / rows.tokens_per_s[j])))
    alike = f"with the same {plural(clients, 'client')}"
    return f"{gain} {unit} {alike}" if same == gain else f"{gain} {unit} ({same} {alike})"


def _gain(ratio: float) -> str:
    """ "+6%", or that there is next to nothing in it."""
    return f"{ratio - 1:+.0%}" if abs(ratio - 1) >= 0.005 else "less than 1% more"


def _token(answer: ServingPlans, rows: ServingColumns, i: int) -> str:
    """What a decode step takes, and what other requests' prompts add to it."""
    step = answer.step_of(rows, i)
    links = _links(step)
    share = f"{float(step.comm_fraction):.0%} of it exposed communication over {', '.join(links)}" if links else "nothing is sent"
    takes = f"a decode step takes {format_seconds(float(step.step_s))}, {share}"
    more = float(rows.tpot_s[i] - step.step_s / step.question.techniques.per_step)
    stretched = not rows.mode[i] and answer.question.requests.output_len > 1 and more > 0.02 * float(rows.tpot_s[i])
    return takes + (f"; other requests' prompts add {format_seconds(more)} per token" if stretched else "")


def _close(answer: ServingPlans, i: int, first: int = 0) -> str:
    """Whether plan ``i`` is within the range of the ratio of both: then the order is not certain."""
    q, value = answer.question, objective_value(answer.question, answer.plans)
    if q.goal.objective == "gpus" or value[first] > value[i] * (1 + margin(q)):
        return ""
    return "; within the range of their ratio: measure both"


def _name(answer: ServingPlans, i: int) -> str:
    rows = answer.plans
    return answer.workers(rows, i) + dtype_words(answer.question, int(rows.dtype[i]))


def explain_training(answer: TrainPlans, i: int) -> list[str]:
    """What binds plan ``i``, and how far it is behind the best, or ahead of the next."""
    rows, b = answer.plans, answer.step_of(answer.plans, i)
    said = [answer.whole_words(rows, i), verdict(b, [])]
    behind = float(rows.step_s[i] / rows.step_s[0]) - 1
    if i == answer.recommended:
        return said + list(_compared_training(answer))
    return said + ([f"{behind:.1%} slower than the best"] if i else [])


def _compared_training(answer: TrainPlans) -> Iterator[str]:
    """The recommended plan beside the best, the next split of the GPUs, and the best of those that are simpler."""
    q, rows, own = answer.question, answer.plans, answer.recommended
    kind = training_kinds(rows, q)
    if own:
        gain = f"{_faster_words(answer, 0, own)} with {answer.whole_words(rows, 0)}, the best"
        yield f"{gain}: within the margin of {percent(margin(q))} (--margin), measure both"
    for i, simpler in _next_plans(answer.splits().tolist(), kind, own):
        role = f", the best that is simpler ({TRAINED[int(kind[i]) % len(TRAINED)]})" if simpler else ", the next"
        yield f"{_faster_words(answer, own, i)} against {answer.whole_words(rows, i)}{role}"


def _faster_words(answer: TrainPlans, i: int, j: int) -> str:
    return f"{float(answer.plans.step_s[j] / answer.plans.step_s[i]) - 1:+.1%} tokens/s"
