"""Why a plan stands where it stands, and why families of plans lost: illegal, too large, too slow, or behind the winner."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from commtax.cost.legality import RULES, Case
from commtax.planner.columns import Array, Columns, Rejected, ServingPlans, TrainPlans, family, label, sizes_of, worth
from commtax.planner.space import Space
from commtax.question import Question
from commtax.units import format_seconds, plural
from commtax.verbs.billing import StepBill
from commtax.verbs.explain import verdict
from commtax.verbs.fitting import holds

KNEE = "no TPOT limit (--tpot): each plan stops at its knee, where 1 % more clients add 0.5 % tokens/s"


def in_type(q: Question, index: int) -> str:
    """ " in fp8", where several types are compared."""
    return f" in {q.goal.dtypes[index] or 'its own type'}" if len(q.goal.dtypes) > 1 else ""


def illegal(base: Question, whole: Space) -> Iterator[Rejected]:
    """One line for each rule and tp degree that it forbids."""
    first = dict[tuple[int, int], int]()
    for i in np.flatnonzero(whole.codes).tolist():
        first.setdefault((int(whole.tp[i]), int(whole.codes[i])), i)
    for (_, code), i in first.items():
        sizes, says = sizes_of(whole, i), RULES[code - 1].says
        case = Case(base.model, base.cluster, base.but(**sizes).plan, base.engine)
        yield Rejected(label(**sizes), says(case), sizes["tp"], says(replace(case, named="{tp}")))


def too_large(base: Question, legal: Space, fits: Array, index: int) -> Iterator[Rejected]:
    """Plans without room for one request: the largest of each tp degree stands for its smaller ones."""
    length = min(base.model.max_len, int(base.requests.tokens))
    for tp in np.unique(legal.tp[~fits]).tolist():
        these = np.flatnonzero(~fits & (legal.tp == tp))
        sizes = sizes_of(legal, int(these[np.argmax(legal.group[these])]))
        lack = max(holds(base.but(**sizes, max_model_len=length)).shortfall_bytes, 0.0) / 2**30
        others = f" (nor for {plural(len(these) - 1, 'other plan')} of TP {int(tp)})" if len(these) > 1 else ""
        yield Rejected(
            label(**sizes) + in_type(base, index), f"does not fit: each rank lacks {lack:.1f} GiB for one request{others}"
        )


def too_slow(q: Question, every: Columns, good: Array) -> Iterator[Rejected]:
    """Families that fit and break a limit at every concurrency, together for each tp degree."""
    key = family(every)
    met = np.bincount(key, weights=good) > 0
    bad = ~met[key] & (every.mode == 0)
    for index, tp in np.unique(np.stack([every.dtype[bad], every.tp[bad]]), axis=1).T.astype(int).tolist():
        rows = every.take(np.flatnonzero(bad & (every.dtype == index) & (every.tp == tp)))
        several = len(np.unique(np.stack([rows.pp, rows.dp, rows.ep]), axis=1).T)
        name = f"TP {tp} ({several} plans)" if several > 1 else label(**sizes_of(rows, 0))
        yield Rejected(name + in_type(q, index), f"breaks the limit: {best_times(q, rows)}")


def best_times(q: Question, rows: Columns) -> str:
    times = missed(q, float(rows.ttft_s.min()), float(rows.tpot_s.min()))
    return ", ".join(f"{time} at best" for time in times) or "TTFT and TPOT never hold together"


def missed(q: Question, ttft_s: float, tpot_s: float) -> list[str]:
    """Those of two times that are above their limits."""
    times = (("TPOT", tpot_s, q.goal.tpot_s), ("TTFT", ttft_s, q.goal.ttft_s))
    return [f"{name} {format_seconds(value)}" for name, value, limit in times if value > limit]


def behind(answer: ServingPlans) -> Iterator[Rejected]:
    """Degrees whose best plan meets the limits and still loses by a tenth or more: by how much, and why."""
    rows, q = answer.plans, answer.question
    if q.goal.objective == "gpus":  # more GPUs are the reason
        return
    value, named = worth(q, rows), set()
    for axis, name in (("tp", "TP"), ("pp", "PP"), ("ep", "EP")):
        for size in np.unique(getattr(rows, axis)).tolist():
            same = np.flatnonzero((getattr(rows, axis) == size) & (rows.mode == 0) & ((rows.pp == 1) | (axis != "tp")))
            if not len(same) or (axis != "tp" and size == 1) or int(size) & (int(size) - 1):
                continue
            i = int(same[0])
            if value[i] <= 0.9 * value[0] and i not in named:
                named.add(i)
                yield Rejected(f"{name} {int(size)}", f"{lost(answer, i)}: {why(answer, i)}")


def lost(answer: ServingPlans, i: int) -> str:
    """How far plan ``i`` is behind the winner, in the objective's own measure."""
    goal, value = answer.question.goal, worth(answer.question, answer.plans)
    if goal.objective == "latency":
        return f"requests take {float(value[0] / value[i]) - 1:.0%} longer"
    if goal.objective == "gpus":
        return f"needs {plural(int(answer.plans.gpus[i]), 'GPU')}, not {int(answer.plans.gpus[0])}"
    share = 1 - float(value[i] / value[0])
    return f"{abs(share):.0%} {'fewer' if share >= 0 else 'more'} {_unit(answer)}"


def _unit(answer: ServingPlans) -> str:
    return "tokens/s a GPU" if answer.question.goal.objective == "cost" else "tokens/s"


def why(answer: ServingPlans, i: int) -> str:
    """What plan ``i`` suffers from that the winner does not, most telling first."""
    return "; ".join(_suffers(answer, i)) or _steps(answer, i)


def _suffers(answer: ServingPlans, i: int) -> Iterator[str]:
    """Few requests for its stages, a larger share of communication, fewer requests than the winner has, idle GPUs."""
    rows, cluster = answer.plans, answer.question.cluster
    if rows.pp[i] > 1:
        stages, running = int(rows.pp[i]), int(rows.running[i])
        cut = f"microbatches of {running / stages:.0f}" if running >= stages else f"{stages - running} of them wait"
        yield f"{stages} stages share {plural(running, 'request')}: {cut}"
    step = answer.step_of(rows, i)
    share, usual = float(step.comm_fraction), float(answer.step_of(rows, 0).comm_fraction)
    if share > usual + 0.02:
        links = _links(step)
        across = "crosses hosts, " if cluster.inter.key in links else ""
        yield f"{across}{share:.0%} of its decode step is exposed communication over {', '.join(links)}, not {usual:.0%}"
    yield from _held(answer, i)
    if rows.gpus[i] < rows.gpus[0]:
        yield f"leaves {plural(cluster.num_gpus - int(rows.gpus[i]), 'GPU')} idle"


def _steps(answer: ServingPlans, i: int) -> str:
    """Where nothing else tells them apart: a slower step, or fewer clients."""
    rows = answer.plans
    own, first = (float(answer.step_of(rows, j).step_s) for j in (i, 0))
    if own > first or rows.concurrency[i] >= rows.concurrency[0]:
        of = plural(int(rows.running[i]), "request")
        return f"a decode step of {of} takes {format_seconds(own)}, the first's {format_seconds(first)}"
    return f"does best with {plural(int(rows.concurrency[i]), 'client')}, not {int(rows.concurrency[0]):,}"


def _links(step: StepBill) -> list[str]:
    """The links that a step waits for."""
    return sorted({str(x.link) for x in step.items if x.kind == "comm" and float(x.exposed_s) > 0})


def _held(answer: ServingPlans, i: int) -> Iterator[str]:
    """Fewer requests: the cache is full, or a limit is reached sooner."""
    rows, goal = answer.plans, answer.question.goal
    if goal.objective == "latency" or rows.concurrency[i] >= rows.concurrency[0]:
        return
    held = f"{plural(int(rows.concurrency[i]), 'client')}, not {int(rows.concurrency[0]):,}"
    if rows.kv_headroom[i] < 0.05:
        yield f"its KV cache holds {held}"
    elif rows.tpot_s[i] > 0.95 * goal.tpot_s:
        yield f"reaches the TPOT limit with {held}"
    elif rows.ttft_s[i] > 0.95 * goal.ttft_s:
        yield f"reaches the TTFT limit with {held}"
    elif not goal.limited:
        yield f"its knee lies at {held}"


def explain(answer: ServingPlans, i: int) -> list[str]:
    """What plan ``i`` costs and why, and how it compares with the winner."""
    rows, goal = answer.plans, answer.question.goal
    said = [answer.gpu_words(rows, i) + in_type(answer.question, int(rows.dtype[i])), _token(answer, rows, i)]
    where = "an attention group" if rows.dp[i] > 1 else "a copy"
    held = f"{plural(int(rows.running[i]), 'request')} at once on {where}"
    said.append(f"{held} leave{'s' if rows.running[i] == 1 else ''} {float(rows.kv_headroom[i]):.0%} of its KV cache free")
    if i:
        said.append(f"{lost(answer, i)} than the first: {why(answer, i)}{_close(answer, i)}")
    elif len(rows) > 1:
        said.append(_won(answer))
    times = (("TTFT", float(rows.ttft_s[i]), goal.ttft_s), ("TPOT", float(rows.tpot_s[i]), goal.tpot_s))
    limits = [f"{name} {format_seconds(value)} of {format_seconds(most)}" for name, value, most in times if most < 1e9]
    said += [f"uses {' and '.join(limits)}"] if limits else []
    return said + ([KNEE] if not goal.limited and goal.objective != "latency" else [])


def _token(answer: ServingPlans, rows: Columns, i: int) -> str:
    """What a decode step takes, and what other requests' prompts add to it."""
    step = answer.step_of(rows, i)
    links = _links(step)
    share = f"{float(step.comm_fraction):.0%} of it exposed communication over {', '.join(links)}" if links else "nothing is sent"
    takes = f"a decode step takes {format_seconds(float(step.step_s))}, {share}"
    more = float(rows.tpot_s[i] - step.step_s)
    stretched = answer.question.requests.output_len > 1 and more > 0.02 * float(rows.tpot_s[i])
    return takes + (f"; other requests' prompts add {format_seconds(more)} a token" if stretched else "")


def _close(answer: ServingPlans, i: int) -> str:
    """Whether plan ``i`` lies within the winner's range: then the order is not certain."""
    rows = answer.plans
    if answer.question.goal.objective == "gpus":
        return ""
    least, most = answer.range_of(rows, 0, "tokens_per_s")[0], answer.range_of(rows, i, "tokens_per_s")[1]
    value = worth(answer.question, rows)
    near = value[i] * most / rows.tokens_per_s[i] >= value[0] * least / rows.tokens_per_s[0]
    return "; within each other's range, so measure both" if near else ""


def _won(answer: ServingPlans) -> str:
    """Against the best plan of another degree, or else the next: by how much, and what that one suffers from."""
    rows, goal = answer.plans, answer.question.goal
    other = next((i for i in range(1, len(rows)) if (rows.tp[i], rows.pp[i]) != (rows.tp[0], rows.pp[0])), 1)
    name = _name(answer, other)
    value = worth(answer.question, rows)
    if goal.objective == "gpus":
        return f"the next, {name}, needs {plural(int(rows.gpus[other]), 'GPU')}"
    if goal.objective == "latency":
        gain = f"requests take {1 - float(value[other] / value[0]):.0%} less time than with {name}"
    else:
        gain = f"{float(value[0] / value[other]) - 1:+.0%} {_unit(answer)} against {name}"
    return f"{gain} (there: {why(answer, other)}){_close(answer, other)}"


def _name(answer: ServingPlans, i: int) -> str:
    """A plan's family in short; all of its workers where there are two kinds."""
    rows = answer.plans
    name = answer.workers(rows, i) if rows.mode[i] else label(**sizes_of(rows, i))
    return name + in_type(answer.question, int(rows.dtype[i]))


def explain_training(answer: TrainPlans, i: int) -> list[str]:
    """What binds plan ``i``, and how far behind the first it is."""
    rows, b = answer.plans, answer.step_of(answer.plans, i)
    behind = float(rows.step_s[i] / rows.step_s[0]) - 1
    plan = f"{answer.gpu_words(rows, i)}, microbatch {int(rows.micro_batch[i])}, {answer.kind_words(rows, i)}"
    said = [plan, verdict(b, [])]
    return said + ([f"{behind:.0%} slower than the first"] if i else [])
