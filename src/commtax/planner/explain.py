"""Why a plan stands where it stands, in words that are computed."""

from __future__ import annotations

from typing import Any

from commtax.api.billing import StepBill, bill
from commtax.api.train_explain import train_verdict
from commtax.planner.columns import Columns, label
from commtax.planner.serving import ServingPlans
from commtax.planner.training import TrainPlans


def step_of(answer: ServingPlans, rows: Columns, i: int) -> StepBill:
    """The decode step that row ``i`` runs in the middle of its requests' lives."""
    sizes: dict[str, Any] = {axis: int(getattr(rows, axis)[i]) for axis in ("tp", "pp", "dp", "ep")}
    return bill(
        answer.model,
        answer.cluster,
        engine=answer.engine,
        dtype=answer.dtypes[int(rows.dtype[i])],
        batch=max(1, int(rows.running[i])),
        context=answer.goal.input_len + answer.goal.output_len // 2,
        **sizes,
    )


def explain(answer: ServingPlans, i: int) -> list[str]:
    """What plan ``i`` costs and why, and how it compares with the winner."""
    rows, goal = answer.plans, answer.goal
    step = step_of(answer, rows, i)
    words = [answer.words(rows, i)]
    links = sorted({str(x.link) for x in step.items if x.kind == "comm"})
    across = f" over {', '.join(links)}" if links else ""
    share = f"{float(step.comm_fraction):.0%} of it exposed communication{across}"
    words.append(f"a decode step takes {float(step.step_s) * 1e3:.1f} ms, {share}")
    words.append(f"{int(rows.running[i]):,} requests at once leave {float(rows.kv_headroom[i]):.0%} of the KV cache free")
    if i:
        behind = 1 - float(rows.tokens_per_s[i]) / float(rows.tokens_per_s[0])
        verb = "behind" if behind > 0 else "ahead of"
        words.append(f"{abs(behind):.0%} {verb} the first in tokens/s{_close(answer, i)}")
    elif len(rows) > 1:
        words.append(_won(answer))
    limits = [f"{n} {v * 1e3:,.0f} of {m * 1e3:,.0f} ms" for n, v, m in _limits(rows, i, goal.ttft_s, goal.tpot_s)]
    return words + ([f"uses {' and '.join(limits)}"] if limits else [])


def _limits(rows: Columns, i: int, ttft_s: float, tpot_s: float) -> list[tuple[str, float, float]]:
    pairs = (("TTFT", float(rows.ttft_s[i]), ttft_s), ("TPOT", float(rows.tpot_s[i]), tpot_s))
    return [(name, value, limit) for name, value, limit in pairs if limit < 1e9]


def _close(answer: ServingPlans, i: int) -> str:
    """Whether plan ``i`` lies within the winner's range: then the order is not certain."""
    low, _ = answer.range_of(answer.plans, 0, "tokens_per_s")
    _, high = answer.range_of(answer.plans, i, "tokens_per_s")
    return "; within each other's range, so measure both" if high >= low else ""


def _won(answer: ServingPlans) -> str:
    """Against the best plan of another degree: more requests at once, a shorter step, or fewer idle GPUs."""
    rows = answer.plans
    other = next((i for i in range(1, len(rows)) if (rows.tp[i], rows.pp[i]) != (rows.tp[0], rows.pp[0])), 1)
    name = label(*(int(getattr(rows, axis)[other]) for axis in ("tp", "pp", "dp", "ep")))
    more = float(rows.tokens_per_s[0] / rows.tokens_per_s[other]) - 1
    mine, theirs = step_of(answer, rows, 0), step_of(answer, rows, other)
    reasons = []
    if mine.comm_fraction < theirs.comm_fraction - 0.01:
        reasons.append(f"{float(mine.comm_fraction):.0%} of its step is communication, not {float(theirs.comm_fraction):.0%}")
    if rows.concurrency[0] > rows.concurrency[other]:
        reasons.append(f"it holds {int(rows.concurrency[0]):,} requests, not {int(rows.concurrency[other]):,}")
    if rows.gpus[0] > rows.gpus[other]:
        reasons.append(f"it uses {int(rows.gpus[0])} GPUs, not {int(rows.gpus[other])}")
    why = "; ".join(reasons) or "its steps are cheaper for each request"
    return f"{more:+.0%} tokens/s against {name}: {why}{_close(answer, other)}"


def explain_training(answer: TrainPlans, i: int) -> list[str]:
    """What binds plan ``i``, and how far behind the first it is."""
    rows = answer.plans
    b = answer.bill(rows, i)
    behind = float(rows.step_s[i] / rows.step_s[0]) - 1
    words = [f"{answer.words(rows, i)}, microbatch {int(rows.micro_batch[i])}, {answer.kinds[int(rows.kind[i])]}", train_verdict(b)]
    return words + ([f"{behind:.0%} slower than the first"] if i else [])
