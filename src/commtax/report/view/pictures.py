"""Plans as the page shows them: a table, points of a picture, the recommended one and why, what lost; each with its state."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, cast

import numpy as np

from commtax.judgement.confidence import percent
from commtax.planner.columns import OperatingPoint, Rejected, ServingColumns, ServingPlans, TrainColumns, TrainPlans
from commtax.planner.fleet_trials import Trial
from commtax.planner.fleets import FleetPlans, obstacle
from commtax.planner.ranking import FAMILY
from commtax.planner.reasons import passed_over_words
from commtax.planner.several_clusters import RankedPlan, SeveralPlans
from commtax.question import Question
from commtax.report import plan_tables
from commtax.report.documents import Record, Value
from commtax.report.fleets import fleet_reasons, fleet_sentence, fleets_document, gpu_words
from commtax.report.manners import LISTED, Manner, bars, layer_drawing
from commtax.report.money import page_note
from commtax.report.plan_tables import run_notes, served_row, trained_row
from commtax.report.planning import (
    plans_document,
    point_name,
    question_words,
    recommended_words,
    shorten_rejected,
    show_plans,
    start_sentence,
)
from commtax.report.plots import LIGHT, LIMIT, RECOMMENDED, entitle, picture, style
from commtax.report.several_clusters import (
    UNWAITED,
    WAITED,
    clusters_without_plans,
    ranked_figures,
    ranked_row,
    ranked_words,
    reasons_between,
    several_document,
    several_role,
    waiting_why,
)
from commtax.report.tables import sized_places
from commtax.report.view.plan_table import (
    fleet_rows,
    plan_table,
    roles,
    rows_of,
    served_rows,
    trained_rows,
    unusual_sizes,
)
from commtax.report.view.state import on_page
from commtax.spec import SERVING_AXES, SIZES
from commtax.units import format_bytes, format_figure, format_seconds, plural
from commtax.verbs.explained_step import layer_of
from commtax.verbs.loads import lengths_note
from commtax.words import words

if TYPE_CHECKING:
    from commtax.report.plots import Figure

TOP = 20
MOST = 60
MODES = ("one pool of servers", "separate servers for prompts")  # series of a front, by a plan's mode
NO_PLAN = "No plan fits in memory."
USER_AND_GPU = {"x_title": "tokens/s per user", "y_title": "tokens/s per GPU"}


def serving_front(a: ServingPlans) -> Record:
    """What a user gets against what a GPU gives; the plans as a table, what is recommended and why."""
    told, why = plans_document(a, TOP), [on_page(line) for line in a.why]
    if why:
        rows, own = a.plans, a.recommended
        usd = page_note(a.question, int(rows.gpus[own]), float(rows.tokens_per_s[own]), int(rows.prefill_gpus[own]))
        why = [*why, usd, on_page(lengths_note(a.question))]
    return {
        **told,
        "front": front_points(a),
        "why": why,
        "sentence": _serving_sentence(a),
        **USER_AND_GPU,
        "marks": limit_marks(a),
        "table": plan_table("serving", _ranked_rows(a, told)),
        "points": [_point_card(a, point) for point in a.places],
        "sides": [],
        "lost": lost_rows(shorten_rejected(a.rejected)),
    }


def _serving_sentence(a: ServingPlans) -> str:
    if not len(a.plans):
        sure = percent(a.question.goal.confidence)
        return (f"No plan is {sure} likely to meet the limits." if len(a.near) else NO_PLAN) + _wanted(a.would_take)
    start = f"{on_page(words('no-limit'))} {start_sentence(a)} " if a.places else ""
    return f"{start}{recommended_words(a)}: {a.why[0]}, {plural(int(a.plans.concurrency[a.recommended]), 'client')}."


def _wanted(remedies: Sequence[str]) -> str:
    """Return a sentence on what it would take; "" without any remedy."""
    return on_page(words("would-take", remedies=list(remedies))) if remedies else ""


def _ranked_rows(a: ServingPlans, told: Record) -> list[Record]:
    """The first plans of a ranking, and the recommended one where it lies behind them."""
    shown, rows = list(range(min(TOP, len(a.plans)))), rows_of(told)
    if len(a.plans) and a.recommended not in shown:
        shown, rows = [*shown, a.recommended], [*rows, served_row(a, a.plans, a.recommended)]
    named = [roles(i, a.recommended) for i in shown]
    made = served_rows([(a, i) for i in shown], rows, named, [served_patch(a, a.plans, i) for i in shown])
    return [{**row, "place": i + 1} for row, i in zip(made, shown, strict=True)]


def _point_card(a: ServingPlans, point: OperatingPoint) -> Record:
    """A place to run at where nothing is limited, with its own plan."""
    here, i = replace(a, plans=point.plans), point.recommended
    row = served_rows([(here, i)], [served_row(here, here.plans, i)], [[]], [served_patch(here, here.plans, i)])[0]
    return {"name": point_name(a, point), "when": point.when, "row": row}


def limit_marks(a: ServingPlans) -> list[Record]:
    tpot = a.question.goal.tpot_s
    return [{"axis": "x", "value": 1 / tpot, "text": f"TPOT {format_seconds(tpot)}"}] if isfinite(tpot) else []


def lost_rows(lost: Iterable[Rejected]) -> list[Record]:
    """Plans that lost, and why, in words of the page."""
    return [{"family": one.family, "reason": on_page(one.reason)} for one in lost]


def several_front(s: SeveralPlans) -> Record:
    """Plans of several clusters in one table and one picture, and each cluster's own recommendation beside the others'."""
    told, listed = several_document(s, TOP), s.listed(TOP)
    best, chosen = s.best, s.recommended
    plans = [(one.answer, one.row) for one in listed]
    named = [["recommended"] * _is_same(one, chosen) + ["best"] * _is_same(one, best) for one in listed]
    patches = [_placed_patch(one.answer, one.row) for one in listed]
    table = plan_table("serving", served_rows(plans, rows_of(told), named, patches))
    lost = [
        replace(one, family=f"{one.family} on {a.question.cluster.key}") for a in s.answers for one in shorten_rejected(a.rejected)
    ]
    return {
        **told,
        "front": [point for a in s.answers for point in front_points(a, a.question.cluster.key, a is (chosen and chosen.answer))],
        "why": [on_page(line) for line in (*_why_cluster(s), *clusters_without_plans(s))],
        "sentence": _several_words(s, chosen) if chosen else "No cluster has a plan that meets the limits.",
        **USER_AND_GPU,
        "marks": limit_marks(s.answers[0]),
        "table": table,
        "points": list(_ways_to_run(s)),
        "sides": [_side(a, chosen) for a in s.answers],
        "lost": lost_rows(lost),
    }


def _several_words(s: SeveralPlans, chosen: RankedPlan) -> str:
    """Return what to run; where nothing is limited, for users who wait and for work that nobody waits for."""
    if not s.waited or not s.waited.recommended:
        return f"{several_role(s)}: {ranked_words(chosen)}."
    waited = ranked_words(s.waited.recommended)
    return f"{on_page(words('no-limit'))} When {WAITED}: {waited}. When {UNWAITED}: {ranked_words(chosen)}."


def _why_cluster(s: SeveralPlans) -> Iterator[str]:
    """Yield the figures of the recommended plan, why this cluster rather than another, then why this plan on it."""
    if s.recommended:
        own, row = s.recommended
        name, *why = own.why
        told = set(passed_over_words(own, own.passed_over, own.plans.take(slice(row, row + 1))) if s.passed_over else ())
        figures = f"{'; '.join(ranked_figures(s.recommended))}."
        yield from (name, figures, *reasons_between(s), *(line for line in why if line not in told))


def _ways_to_run(s: SeveralPlans) -> Iterator[Record]:
    """Where nothing is limited: what to run where for users who wait, and for work that nobody waits for."""
    if not s.waited:
        return
    ways = (s.waited, "users", WAITED, waiting_why(s.waited)), (s, "bulk work", UNWAITED, reasons_between(s))
    for ranked, work, when, why in ways:
        if one := ranked.recommended:
            row = served_rows([one], [ranked_row(one)], [[]], [_placed_patch(one.answer, one.row)])[0]
            told = "; ".join([when, *map(on_page, why)])
            yield {"name": f"{one.answer.question.cluster.key} for {work}", "when": told, "row": row}


def _is_same(one: RankedPlan, other: RankedPlan | None) -> bool:
    return other is not None and one.answer is other.answer and one.row == other.row


def _placed_patch(a: ServingPlans, i: int) -> dict[str, Value]:
    return {**served_patch(a, a.plans, i), "c": a.question.cluster.key}


def _side(a: ServingPlans, chosen: RankedPlan | None) -> Record:
    """One cluster beside others: its own recommended plan, or why it has none."""
    place, i = a.question.cluster, a.recommended
    if not len(a.plans):
        return {"cluster": place.key, "gpus": place.num_gpus, "text": _serving_sentence(a), "row": None}
    named = [["recommended"] if chosen and chosen.answer is a else []]
    row = served_rows([(a, i)], [ranked_row(RankedPlan(a, i))], named, [_placed_patch(a, i)])[0]
    return {"cluster": place.key, "gpus": place.num_gpus, "text": "", "row": row}


def fleet_front(f: FleetPlans) -> Record:
    """The smallest fleets for a rate: GPUs against the requests/s that they can answer."""
    told, several = fleets_document(f), len(f.questions) > 1
    rows = fleet_rows(f.plans, rows_of(told), f.recommended)
    why = [on_page(line) for line in fleet_reasons(f)] if f.plans else []
    near = (
        f"No plan meets the limits. The nearest, {gpu_words(f.near[0])}, {obstacle(f.near[0])}."
        if f.near
        else "No plan meets the limits."
    )
    points = [_fleet_point(trial, i == f.recommended, several) for i, trial in enumerate(f.plans) if isfinite(trial.capacity)]
    return {
        **told,
        "front": points,
        "why": why,
        "sentence": fleet_sentence(f) if f.plans else near + _wanted(f.would_take),
        "x_title": "requests/s that it can answer",
        "y_title": "GPUs",
        "marks": [{"axis": "x", "value": f.question.offered.request_rate, "text": "requested"}],
        "table": plan_table("fleet", rows, [name for name, _ in f.question.goal.slo]),
        "sides": [_fleet_side(q, rows) for q in f.questions] if several else [],
        "lost": lost_rows(shorten_rejected(f.rejected)),
    }


def _fleet_point(trial: Trial, best: bool, several: bool) -> Record:
    plan = gpu_words(trial)
    series = trial.layout.question.cluster.key if several else MODES[int(trial.layout.apart)]
    text = f"{plural(trial.gpus, 'GPU')} can answer {format_figure(trial.capacity)} requests/s"
    return {
        "name": plan,
        "x": trial.capacity,
        "y": trial.gpus,
        "best": best,
        "text": text,
        "series": series,
        "joined": False,
        "patch": None,
    }


def _fleet_side(q: Question, rows: Sequence[Record]) -> Record:
    """One cluster beside others: its smallest fleet."""
    own = next((row for row in rows if row["cluster"] == q.cluster.key), None)
    text = "" if own else "No fleet on it meets the limits at this rate."
    return {"cluster": q.cluster.key, "gpus": q.cluster.num_gpus, "text": text, "row": own}


def front_points(a: ServingPlans, series: str = "", chosen: bool = True) -> list[Record]:
    """The front as points, the recommended plan among them."""
    rows, best = _with_winner(a)
    along = np.argsort(rows.tokens_per_s_per_user, kind="stable")
    some = along[np.unique(np.linspace(0, len(along) - 1, MOST).round().astype(int))] if len(along) else along
    kept = {*some.tolist(), *([best] if best >= 0 else [])}
    shown = [i for i in along.tolist() if i in kept]
    return [{**_point(a, rows, i, chosen and i == best, series), "joined": i < len(a.front)} for i in shown]


def _with_winner(a: ServingPlans) -> tuple[ServingColumns, int]:
    """The front, and where the recommended plan lies on it or beside it: at its nearest point."""
    rows, plans, own = a.front, a.plans, a.recommended
    if not len(plans):
        return rows, -1
    same = np.logical_and.reduce([getattr(rows, n) == getattr(plans, n)[own] for n in (*FAMILY, "exchange")])
    same &= rows.concurrency == plans.concurrency[own]
    if not same.any():
        return ServingColumns.joined([rows, plans.take(np.array([own]))]), len(rows)
    return rows, int(np.flatnonzero(same)[0])


def _point(a: ServingPlans, rows: ServingColumns, i: int, best: bool, series: str) -> Record:
    ttft, tpot = (format_seconds(getattr(rows, n)[i]) for n in ("ttft_s", "tpot_s"))
    plan, apart, copies = a.gpu_words(rows, i), int(rows.mode[i]) == 1, int(rows.replicas[i])
    text = f"{plan}; {int(rows.concurrency[i]):,} clients, TTFT {ttft}, TPOT {tpot}, {rows.tokens_per_s[i]:,.0f} tokens/s"
    one = f" of one of {copies} servers" if copies > 1 else ""
    text += f"; loads the decode step{one}" + ("" if apart else ", without other requests' prompts")
    x, y = float(rows.tokens_per_s_per_user[i]), float(rows.tokens_per_s_per_gpu[i])
    patch, series = served_patch(a, rows, i), series or MODES[int(apart)]
    return {"name": plan, "x": x, "y": y, "best": best, "text": text, "series": series, "patch": patch}


def served_patch(a: ServingPlans, rows: ServingColumns, i: int) -> dict[str, Value]:
    """A plan's servers, the requests that decode at once on each, and their mean length."""
    sizes = {n: int(getattr(rows, n)[i]) for n in SERVING_AXES} | {"rep": int(rows.replicas[i])}
    if rows.mode[i]:
        sizes |= {"pw": int(rows.prefill_replicas[i]), "ptp": int(rows.prefill_tp[i]), "pdp": int(rows.prefill_dp[i])}
    length = np.asarray(a.question.requests.input_len + max(0, a.question.requests.output_len // 2 - 1)).item()
    batch = min(65_536, int(a.decoding(rows.take(slice(i, i + 1)))[0]))
    exchange = a.exchange_of(rows, i)
    spread: dict[str, Value] = {"a2a": exchange.backend, "red": exchange.redundant} if exchange.wide else {}
    spread |= {"tq": ",".join(on)} if (on := a.turned_on(rows, i)) else {}
    return {**unusual_sizes(sizes), **spread, "b": batch, "s": length, "ph": "decode"}


def training_front(a: TrainPlans) -> Record:
    """Memory per rank against MFU; the plans as a table with the time and the dollars of the run."""
    held = a.plans.memory_bytes  # of plans from the fastest on: drawn are those that need less than all before them
    less = np.flatnonzero(np.r_[True, held[1:] < np.minimum.accumulate(held)[:-1]]) if len(held) else held
    drawn = np.unique([*less[:MOST].tolist(), a.recommended]) if len(a.plans) else np.arange(len(a.near))
    rows = a.plans.take(drawn) if len(a.plans) else a.near
    points = [_training_point(a, rows, i, bool(len(a.plans)) and int(drawn[i]) == a.recommended) for i in range(len(rows))]
    sentence = f"{recommended_words(a)}: {a.why[0]}." if len(a.plans) else "No plan fits in memory; the nearest are shown."
    shown = [int(i) for i in a.splits()[:TOP]] if len(a.plans) else []  # the best plan of each split, and the recommended one
    shown += [a.recommended] if len(a.plans) and a.recommended not in shown else []
    patches = [training_patch(a, a.plans, i) for i in shown]
    return {
        **plans_document(a, TOP),
        "front": points,
        "why": [on_page(line) for line in (*a.why, *(run_notes(a) if len(a.plans) else ()))],
        "sentence": sentence,
        "x_title": "memory per GPU, GiB",
        "y_title": "MFU, %",
        "marks": [],
        "table": plan_table("training", trained_rows(a, [trained_row(a, a.plans, i) for i in shown], shown, patches)),
        "sides": [],
        "lost": lost_rows(a.rejected),
    }


def _training_point(a: TrainPlans, rows: TrainColumns, i: int, best: bool) -> Record:
    kind, plan = a.kind_words(rows, i), a.gpu_words(rows, i)
    step, held = format_seconds(rows.step_s[i]), format_bytes(rows.memory_bytes[i])
    text = f"{plan}; {kind}; step {step}, MFU {rows.mfu[i]:.1%}, {held} per GPU"
    x, y = float(rows.memory_bytes[i]) / 2**30, 100 * float(rows.mfu[i])
    return {
        "name": plan,
        "x": x,
        "y": y,
        "best": best,
        "text": text,
        "series": "",
        "joined": True,
        "patch": training_patch(a, rows, i),
    }


def training_patch(a: TrainPlans, rows: TrainColumns, i: int) -> dict[str, Value]:
    kind, micro = a.kinds[int(rows.kind[i])].plan, int(rows.micro_batch[i])
    sizes: dict[str, Value] = {n: int(getattr(rows, n)[i]) for n in SIZES}
    each = a.question.goal.global_batch // int(rows.dp[i]) // micro
    step_keys: dict[str, Value] = {"sp": 1, "b": micro, "n": each, "s": int(a.question.context)}
    kinds: dict[str, Value] = {"z": str(kind.zero), "rc": kind.recompute, "sch": kind.schedule}
    kinds |= {"v": kind.chunks} if kind.chunks > 1 else {}
    return sizes | kinds | step_keys | {"gb": int(a.question.goal.global_batch)}


class FrontPoint(TypedDict):
    x: float
    y: float
    series: str
    name: str
    joined: bool
    best: bool


def plot_front(a: ServingPlans, path: Path | None) -> "Figure":
    """What a user gets against what a GPU gives, for each kind of plans; the recommended one, and what limits ask for."""
    points = cast("list[FrontPoint]", front_points(a))
    names = list(dict.fromkeys(point["series"] for point in points))

    def draw(figure: "Figure") -> None:
        axes = figure.subplots()
        line = [point for point in points if point["joined"]]
        axes.plot([p["x"] for p in line], [p["y"] for p in line], color=LIGHT["line-strong"], zorder=1)
        for index, name in enumerate(names):
            own = [point for point in points if point["series"] == name]
            axes.plot([p["x"] for p in own], [p["y"] for p in own], **style(index, linestyle="", label=name))
        for point in (point for point in points if point["best"]):
            label = f"{recommended_words(a)}: {point['name']}"
            axes.plot([point["x"]], [point["y"]], RECOMMENDED, color=LIGHT["accent"], markersize=12, label=label, zorder=3)
        for mark in limit_marks(a):
            axes.axvline(cast("float", mark["value"]), **LIMIT, label=str(mark["text"]))
        axes.set(xlabel="tokens/s per user", ylabel="tokens/s per GPU")
        entitle(axes, f"{a.question.model.key} on {sized_places(a.question)}, {question_words(a)}")
        axes.grid(True, alpha=0.3)
        axes.legend(fontsize=9)

    return picture(path, draw)


MANNERS = {
    "ServingPlans": Manner[ServingPlans](
        lambda console, a: show_plans(console, a, LISTED),
        lambda a: plans_document(a, LISTED),
        plan_tables.served_rows,
        plot_front,
        lambda a: layer_drawing(layer_of(a.step_of(a.plans, a.recommended))) if len(a.plans) else "",
    ),
    "TrainPlans": Manner[TrainPlans](
        lambda console, a: show_plans(console, a, LISTED),
        lambda a: plans_document(a, LISTED),
        plan_tables.trained_rows,
        bars(
            lambda a: [(a.whole_words(a.plans, i), float(a.plans.mfu[i])) for i in range(min(LISTED, len(a.plans)))],
            "%",
            lambda a: f"{a.question.model.key} on {a.question.cluster.key}: MFU of the best plans",
        ),
        lambda a: layer_drawing(layer_of(a.step_of(a.plans, a.recommended))) if len(a.plans) else "",
    ),
}
