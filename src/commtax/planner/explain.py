"""Why a plan stands where it stands, in words that are computed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from commtax.api.fitting import fit
from commtax.api.train_explain import train_verdict
from commtax.planner.columns import Columns, label, worth
from commtax.planner.reasons import in_type, lost, sizes_of, step_of, why
from commtax.planner.serving import ServingPlans, plan
from commtax.planner.training import TrainPlans
from commtax.spec import DTYPE_BYTES, Cluster
from commtax.units import format_seconds, plural

KNEE = "no TPOT limit (--tpot): each plan stops at its knee, where 1 % more clients add 0.5 % tokens/s"
SMALLER = ("fp8", "int4")
MOST_HOSTS = 64


def explain(answer: ServingPlans, i: int) -> list[str]:
    """What plan ``i`` costs and why, and how it compares with the winner."""
    rows, goal = answer.plans, answer.goal
    words = [answer.words(rows, i) + in_type(answer, int(rows.dtype[i])), _token(answer, rows, i)]
    where = "an attention group" if rows.dp[i] > 1 else "a copy"
    held = f"{plural(int(rows.running[i]), 'request')} at once on {where}"
    words.append(f"{held} leave{'s' if rows.running[i] == 1 else ''} {float(rows.kv_headroom[i]):.0%} of its KV cache free")
    if i:
        words.append(f"{lost(answer, i)} than the first: {why(answer, i)}{_close(answer, i)}")
    elif len(rows) > 1:
        words.append(_won(answer))
    limits = [f"{n} {format_seconds(v)} of {format_seconds(m)}" for n, v, m in _limits(rows, i, goal.ttft_s, goal.tpot_s)]
    words += [f"uses {' and '.join(limits)}"] if limits else []
    return words + ([KNEE] if not goal.limited and goal.objective != "latency" else [])


def _token(answer: ServingPlans, rows: Columns, i: int) -> str:
    """What a decode step takes, and what other requests' prompts add to it."""
    step = step_of(answer, rows, i)
    links = sorted({str(x.link) for x in step.items if x.kind == "comm" and float(x.exposed_s) > 0})
    share = f"{float(step.comm_fraction):.0%} of it exposed communication over {', '.join(links)}" if links else "nothing is sent"
    words = f"a decode step takes {format_seconds(float(step.step_s))}, {share}"
    more = float(rows.tpot_s[i] - step.step_s)
    stretched = answer.goal.output_len > 1 and more > 0.02 * float(rows.tpot_s[i])
    return words + (f"; other requests' prompts add {format_seconds(more)} a token" if stretched else "")


def _limits(rows: Columns, i: int, ttft_s: float, tpot_s: float) -> list[tuple[str, float, float]]:
    pairs = (("TTFT", float(rows.ttft_s[i]), ttft_s), ("TPOT", float(rows.tpot_s[i]), tpot_s))
    return [(name, value, limit) for name, value, limit in pairs if limit < 1e9]


def _close(answer: ServingPlans, i: int) -> str:
    """Whether plan ``i`` lies within the winner's range: then the order is not certain."""
    rows = answer.plans
    if answer.goal.objective == "gpus":
        return ""
    least, most = answer.range_of(rows, 0, "tokens_per_s")[0], answer.range_of(rows, i, "tokens_per_s")[1]
    value = worth(answer.goal, rows)
    near = value[i] * most / rows.tokens_per_s[i] >= value[0] * least / rows.tokens_per_s[0]
    return "; within each other's range, so measure both" if near else ""


def _won(answer: ServingPlans) -> str:
    """Against the best plan of another degree, or else the next: by how much, and what that one suffers from."""
    rows, goal = answer.plans, answer.goal
    other = next((i for i in range(1, len(rows)) if (rows.tp[i], rows.pp[i]) != (rows.tp[0], rows.pp[0])), 1)
    name = _name(answer, other)
    value = worth(goal, rows)
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
    name = answer.words(rows, i).split(" = ")[1] if rows.mode[i] else label(**sizes_of(rows, i))
    return name + in_type(answer, int(rows.dtype[i]))


def changes(answer: ServingPlans) -> list[str]:
    """Where no plan is good: what would have to change, each tried before it is said."""
    return list(_to_meet(answer)) if len(answer.near) else list(_to_fit(answer))


def _to_fit(answer: ServingPlans) -> Iterator[str]:
    """The least GPUs that would hold the model, and the types in which these would."""
    length = answer.goal.input_len + answer.goal.output_len
    words: dict[str, Any] = {"engine": answer.engine, "max_model_len": length, "advise": False, **answer.run.words}
    for place in _larger(answer.cluster):
        found = fit(answer.model, place, dtype=answer.dtypes[0], **words)
        if found.fits:
            yield f"{place.key} (TP {int(found.setup.plan.tp)} x PP {int(found.setup.plan.pp)} fits)"
            break
    for dtype in _smaller(answer):
        if fit(answer.model, answer.cluster, dtype=dtype, **words).fits:
            yield f"weights in {dtype} (--dtype {dtype})"
            break


def _larger(here: Cluster) -> Iterator[Cluster]:
    """The same chips, more of them: a whole host, then hosts by doubling."""
    hosts, each = here.num_hosts, max(here.gpus_per_host, here.chip.gpus_per_host)
    hosts = hosts * 2 if each == here.gpus_per_host else hosts
    while hosts <= MOST_HOSTS:
        key = f"{hosts}x{each}x{here.chip.key}" if hosts > 1 else f"{each}x{here.chip.key}"
        yield replace(here, key=key, num_hosts=hosts, gpus_per_host=each)
        hosts *= 2


def _smaller(answer: ServingPlans) -> list[str]:
    """Types with fewer bytes a weight than any that was tried."""
    stored = answer.model.quant.dtype if answer.model.quant else answer.model.dtype
    least = min(DTYPE_BYTES.get(name or stored, 2.0) for name in answer.dtypes)
    return [name for name in SMALLER if DTYPE_BYTES[name] < least]


def _to_meet(answer: ServingPlans) -> Iterator[str]:
    goal, near = answer.goal, answer.near
    ttft, tpot = float(near.ttft_s[0]), float(near.tpot_s[0])
    limits = [f"TPOT {format_seconds(tpot)}"] if tpot > goal.tpot_s else []
    limits += [f"TTFT {format_seconds(ttft)}"] if ttft > goal.ttft_s else []
    yield f"limits of {' and '.join(limits)}"
    for dtype in _smaller(answer):
        words: dict[str, Any] = {**asdict(goal), **answer.run.words, "max_concurrency": answer.max_concurrency}
        other = plan(answer.model, answer.cluster, engine=answer.engine, dtypes=(dtype,), **words)
        best = other.plans if len(other.plans) else other.near
        if len(best):
            times = f"TPOT {format_seconds(float(best.tpot_s[0]))}, TTFT {format_seconds(float(best.ttft_s[0]))}"
            yield f"weights in {dtype} (--dtype {dtype}: {'meets them' if len(other.plans) else 'at best ' + times})"
            break
    if ttft > goal.ttft_s:
        yield f"prompts {ttft / goal.ttft_s:.1f} x as short"
    yield "faster GPUs, or more of them" if tpot > goal.tpot_s else "more GPUs"


def explain_training(answer: TrainPlans, i: int) -> list[str]:
    """What binds plan ``i``, and how far behind the first it is."""
    rows = answer.plans
    b = answer.bill(rows, i)
    behind = float(rows.step_s[i] / rows.step_s[0]) - 1
    words = [f"{answer.words(rows, i)}, microbatch {int(rows.micro_batch[i])}, {answer.kinds[int(rows.kind[i])]}", train_verdict(b)]
    return words + ([f"{behind:.0%} slower than the first"] if i else [])
