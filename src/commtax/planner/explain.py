"""Why a plan stands where it stands, in words that are computed."""

from __future__ import annotations

from commtax.planner.answers import ServingPlans, TrainPlans
from commtax.planner.columns import Columns, label, sizes_of, worth
from commtax.planner.reasons import in_type, lost, why
from commtax.planner.rows import describe_kind, range_of, step_of, train_bill_of, train_words, words
from commtax.units import format_seconds, plural
from commtax.verbs.explain import verdict

KNEE = "no TPOT limit (--tpot): each plan stops at its knee, where 1 % more clients add 0.5 % tokens/s"


def explain(answer: ServingPlans, i: int) -> list[str]:
    """What plan ``i`` costs and why, and how it compares with the winner."""
    rows, goal = answer.plans, answer.question.goal
    said = [words(answer, rows, i) + in_type(answer.question, int(rows.dtype[i])), _token(answer, rows, i)]
    where = "an attention group" if rows.dp[i] > 1 else "a copy"
    held = f"{plural(int(rows.running[i]), 'request')} at once on {where}"
    said.append(f"{held} leave{'s' if rows.running[i] == 1 else ''} {float(rows.kv_headroom[i]):.0%} of its KV cache free")
    if i:
        said.append(f"{lost(answer, i)} than the first: {why(answer, i)}{_close(answer, i)}")
    elif len(rows) > 1:
        said.append(_won(answer))
    limits = [f"{n} {format_seconds(v)} of {format_seconds(m)}" for n, v, m in _limits(rows, i, goal.ttft_s, goal.tpot_s)]
    said += [f"uses {' and '.join(limits)}"] if limits else []
    return said + ([KNEE] if not goal.limited and goal.objective != "latency" else [])


def _token(answer: ServingPlans, rows: Columns, i: int) -> str:
    """What a decode step takes, and what other requests' prompts add to it."""
    step = step_of(answer, rows, i)
    links = sorted({str(x.link) for x in step.items if x.kind == "comm" and float(x.exposed_s) > 0})
    share = f"{float(step.comm_fraction):.0%} of it exposed communication over {', '.join(links)}" if links else "nothing is sent"
    takes = f"a decode step takes {format_seconds(float(step.step_s))}, {share}"
    more = float(rows.tpot_s[i] - step.step_s)
    stretched = answer.question.requests.output_len > 1 and more > 0.02 * float(rows.tpot_s[i])
    return takes + (f"; other requests' prompts add {format_seconds(more)} a token" if stretched else "")


def _limits(rows: Columns, i: int, ttft_s: float, tpot_s: float) -> list[tuple[str, float, float]]:
    pairs = (("TTFT", float(rows.ttft_s[i]), ttft_s), ("TPOT", float(rows.tpot_s[i]), tpot_s))
    return [(name, value, limit) for name, value, limit in pairs if limit < 1e9]


def _close(answer: ServingPlans, i: int) -> str:
    """Whether plan ``i`` lies within the winner's range: then the order is not certain."""
    rows = answer.plans
    if answer.question.goal.objective == "gpus":
        return ""
    least, most = range_of(answer, rows, 0, "tokens_per_s")[0], range_of(answer, rows, i, "tokens_per_s")[1]
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
        unit = "tokens/s a GPU" if goal.objective == "cost" else "tokens/s"
        gain = f"{float(value[0] / value[other]) - 1:+.0%} {unit} against {name}"
    return f"{gain} (there: {why(answer, other)}){_close(answer, other)}"


def _name(answer: ServingPlans, i: int) -> str:
    """A plan's family in short; all of its workers where there are two kinds."""
    rows = answer.plans
    name = words(answer, rows, i).split(" = ")[1] if rows.mode[i] else label(**sizes_of(rows, i))
    return name + in_type(answer.question, int(rows.dtype[i]))


def explain_training(answer: TrainPlans, i: int) -> list[str]:
    """What binds plan ``i``, and how far behind the first it is."""
    rows, b = answer.plans, train_bill_of(answer, answer.plans, i)
    behind = float(rows.step_s[i] / rows.step_s[0]) - 1
    kind = describe_kind(answer.kinds[int(rows.kind[i])].plan)
    said = [f"{train_words(answer, rows, i)}, microbatch {int(rows.micro_batch[i])}, {kind}", verdict(b, [])]
    return said + ([f"{behind:.0%} slower than the first"] if i else [])
