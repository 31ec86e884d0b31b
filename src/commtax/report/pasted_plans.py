"""Where a plan that somebody runs already stands: its place among the good ones, and how it compares with the recommended one."""

from commtax.judgement.confidence import percent
from commtax.judgement.margins import margin
from commtax.planner import StandingPlan
from commtax.planner import ranking as choosing
from commtax.planner.columns import USUAL, ServingColumns, ServingPlans, TrainColumns, TrainPlans, objective_value, power
from commtax.planner.ranking import FAMILY
from commtax.planner.reasons import against_words
from commtax.planner.serving_search import power_margin
from commtax.question import Question
from commtax.report.drawing import Console
from commtax.report.operating_points import MOST
from commtax.report.tables import say
from commtax.units import format_bytes, format_seconds, plural

GAIN = {"throughput": "its tokens/s", "latency": "its speed", "cost": "its tokens/s per GPU", "gpus": "its answer per GPU"}
LEAD = {"throughput": "has {:.0%} more tokens/s", "latency": "is {:.0%} faster", "cost": "has {:.0%} more tokens per dollar"}
ALIKE = 1.005  # a ratio below which two plans are told as equal


def show_own_plan(console: Console, a: ServingPlans | TrainPlans, pasted: StandingPlan | None) -> None:
    """Where the plan that was pasted stands, in one sentence; before it, that it would not start as it is."""
    if pasted is None:
        return
    if pasted.remark:
        say(console, f"As pasted, {pasted.remark}.", "bold red")
    if not len(pasted.rows):
        say(console, f"Pasted: {pasted.plan}: {pasted.reason}.", "bold red")
        return
    figures, standing, gain = _served(a, pasted) if isinstance(a, ServingPlans) else _trained(a, pasted)
    say(console, f"Pasted: {pasted.plan}{figures}; {standing}.", "bold" if pasted.rank else "bold red")
    better = pasted.tuned
    if better and better.rank and pasted.gain > ALIKE * better.gain:
        say(console, f"  run as {better.plan}, it would have {pasted.gain / better.gain:.2f} x {gain}")


def _trained(a: TrainPlans, pasted: StandingPlan) -> tuple[str, str, str]:
    r, gain = pasted.rows, "its speed"
    assert isinstance(r, TrainColumns)
    figures = f": step {format_seconds(r.step_s[0])}, MFU {r.mfu[0]:.1%}, {format_bytes(r.memory_bytes[0])} per rank"
    more = float(a.plans.gpus[0] / r.gpus[0]) if len(a.plans) else 1.0
    beside = f", {_times('the best', pasted.gain, gain, more)}" if pasted.rank and pasted.gain > ALIKE else ""
    return figures, place_words(pasted, len(a.plans)) + beside, gain


def _served(a: ServingPlans, pasted: StandingPlan) -> tuple[str, str, str]:
    q, r = a.question, pasted.rows
    assert isinstance(r, ServingColumns)
    tokens = f"{r.tokens_per_s[0]:,.0f} tokens/s, {r.tokens_per_s_per_gpu[0]:,.0f} per GPU"
    figures = f", {plural(int(r.concurrency[0]), 'client')}: {tokens}, {_latencies(q, r, 0)}"
    aim = f"for {MOST[q.goal.objective]} " if a.places and pasted.rank else ""
    standing = f"{aim}{place_words(pasted, len(a.plans))}{beside_recommended(a, pasted)}{_when_users_wait(a, pasted)}"
    return figures, standing, GAIN[q.goal.objective]


def _latencies(q: Question, rows: ServingColumns, i: int) -> str:
    tpot = f", TPOT {format_seconds(rows.tpot_s[i])}" if q.requests.output_len > 1 else ""
    return f"TTFT {format_seconds(rows.ttft_s[i])}{tpot}"


def place_words(pasted: StandingPlan, count: int) -> str:
    """Its place among the good plans, or why it has none."""
    if not pasted.rank:
        return pasted.reason
    if pasted.rank > count > 0:  # as it runs it is none of them
        return "the only good plan is better" if count == 1 else f"all {count:,} good plans are better"
    return f"place {pasted.rank:,} among {count:,} good plans" if pasted.rank > 1 else "no plan is better"


def _times(whose: str, ratio: float, gain: str, more: float) -> str:
    """How many times a plan's worth another has, and what that is of each GPU where it has ``more`` times as many.

    >>> _times("the best", 2.42, "its tokens/s", 2.0)
    'the best has 2.42 x its tokens/s with 2 x its GPUs, 1.21 x per GPU'
    """
    each = f" with {more:.3g} x its GPUs, {ratio / more:.2f} x per GPU" if more != 1 else ""
    return f"{whose} has {ratio:.2f} x {gain}{each}"


def beside_recommended(a: ServingPlans, pasted: StandingPlan) -> str:
    """The pasted plan against the recommended one: who runs a good plan need not change it for a simpler or an equal one."""
    r, q = pasted.rows, a.question
    if not isinstance(r, ServingColumns) or not pasted.rank or not len(a.plans):
        return ""
    theirs, aim = a.plans.take(slice(a.recommended, a.recommended + 1)), q.goal.objective
    if a.gpu_words(theirs, 0) == pasted.plan:
        clients = int(theirs.concurrency[0])
        return "; it is the recommended plan" + (f", which has {plural(clients, 'client')}" if clients != r.concurrency[0] else "")
    ratio = float(objective_value(q, theirs)[0] / objective_value(q, r)[0])
    more = float(theirs.gpus[0] / r.gpus[0]) if aim == "throughput" else 1.0  # which more GPUs have more of
    copies = float(theirs.replicas[0] / r.replicas[0])
    sizes = [name for name in (*FAMILY, "exchange") if name != "replicas"]
    alike = not theirs.mode[0] and all(getattr(theirs, name)[0] == getattr(r, name)[0] for name in sizes)
    if alike and copies in range(2, 1 + int(copies)):
        return f"; the recommended plan is {copies:.0f} of yours" + (f": {ratio:.2f} x {GAIN[aim]}" if ratio > ALIKE else "")
    if more == 1 and aim in LEAD:
        lead = 1 / ratio - 1
        if round(100 * lead) > 0:
            return f"; yours {LEAD[aim].format(lead)} than the recommended plan{_why_keep(q, theirs, r)}"
        if ratio - 1 <= margin(q):
            return f"; yours is as good as the recommended plan within the margin of {percent(margin(q))} (--margin)"
    return f"; {_times('the recommended plan', ratio, GAIN[aim], more)}" if more != 1 or ratio > ALIKE else ""


def _why_keep(q: Question, theirs: ServingColumns, r: ServingColumns) -> str:
    """Why a plan that is better than the recommended one is not recommended itself, and what to do about it."""
    if doubts := against_words(q, r):
        return f", but {doubts}"
    own, simple = (float(choosing.complexity(rows, q.cluster, q.requests.prefill_cluster)[0]) for rows in (r, theirs))
    return f"{', which is simpler' if simple < own else ''}: if it runs, keep it"


def _when_users_wait(a: ServingPlans, pasted: StandingPlan) -> str:
    """Where no limit says how long requests may take: the same plan at the point to start from, beside the one to start from."""
    if not a.places or not pasted.rank:
        return ""
    rows, own = a.answered
    if a.gpu_words(rows, own) == pasted.plan:
        return f"; when users wait, start from it too, with {plural(int(rows.concurrency[own]), 'client')} ({USUAL})"
    q, start = a.question, a.workers(rows, own)
    same = next((i for i in range(len(rows)) if a.gpu_words(rows, i) == pasted.plan), None)
    if same is None:
        return f"; when users wait, start from {start}"
    worth, apart = power(q, rows), bool(rows.mode[same] != rows.mode[own])
    alike = not apart and worth[own] <= worth[same] * (1 + power_margin(q))
    clients, rate = plural(int(rows.concurrency[same]), "client"), f"{rows.tokens_per_s[same]:,.0f} tokens/s"
    judged = f"yours is as good as {start} within the margin" if alike else f"start from {start}"
    return f"; when users wait, {judged} ({USUAL}, yours has {clients}, {_latencies(q, rows, same)}, {rate})"
