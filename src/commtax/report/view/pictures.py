"""What the page draws beside a view: plans as points, each with the state that it is, and heat maps; also all of it in one file."""

from dataclasses import replace
from typing import Any, Literal

import numpy as np

from commtax.planner.columns import Columns, ServingPlans, TrainColumns, TrainPlans, describe_kind
from commtax.records import dataclass
from commtax.report.documents import Named, Record, Value
from commtax.report.money import page_note
from commtax.report.pipelines import Pipeline, page_pipeline
from commtax.report.planning import ServedPlans, TrainedPlans, place_words, plans_document, recommended_words
from commtax.report.view import View, view_of
from commtax.report.view.state import SHOWN, State, shortened, written
from commtax.report.whys import WhyView, why_view
from commtax.spec import SIZES
from commtax.units import format_bytes, format_seconds
from commtax.verbs.asking import settle
from commtax.verbs.billing import StepBill, price
from commtax.verbs.confidence import percent
from commtax.verbs.explained import Explained
from commtax.verbs.grids import GRIDS, Cell, Grid, grid
from commtax.verbs.serving import lengths_note
from commtax.verbs.why import every_why

TOP = 10
MOST = 60


@dataclass(frozen=True, slots=True)
class Point:
    name: str
    x: float
    y: float
    best: bool
    text: str
    patch: dict[str, Value] | None


@dataclass(frozen=True)
class Front(Named):
    """As ``commtax plan --json``, and the front as points."""

    plans: list[Record]
    front: list[Point]
    sentence: str
    x_title: str
    y_title: str


@dataclass(frozen=True)
class ServedFront(Front, ServedPlans):
    """What a user gets against what a GPU gives."""


@dataclass(frozen=True)
class TrainedFront(Front, TrainedPlans):
    """Memory a rank against MFU."""


def serving_front(a: ServingPlans) -> ServedFront:
    rows, best = _with_winner(a)
    points = [_point(a, rows, i, i == best) for i in _thinned(rows, best)]
    document = vars(plans_document(a, TOP))
    why = list(document["why"])
    none = f"no plan keeps the limits with {percent(a.question.goal.confidence)}; it would take {', or '.join(a.would_take)}"
    none = none if len(a.near) else "no plan fits in memory"
    sentence = f"{recommended_words(a)}: {why[0]}, {int(a.plans.concurrency[a.recommended]):,} clients." if why else none
    if why:
        rows, own = a.plans, a.recommended
        usd = page_note(a.question, int(rows.gpus[own]), float(rows.tokens_per_s[own]), int(rows.prefill_gpus[own]))
        why = [*why, *(place_words(a, place) for place in a.places), usd, lengths_note(a.question.requests.spread)]
    document = {**document, "front": points, "why": why}
    return ServedFront(**document, sentence=sentence, x_title="tokens/s per user", y_title="tokens/s per GPU")


def _with_winner(a: ServingPlans) -> tuple[Columns, int]:
    """The front, and where the recommended plan lies on it or beside it: at its nearest point."""
    rows, plans, own = a.front, a.plans, a.recommended
    if not len(plans):
        return rows, -1
    names = ("mode", "tp", "pp", "dp", "ep", "dtype", "exchange", "prefill_tp", "prefill_dp", "replicas")
    same = np.logical_and.reduce([getattr(rows, n) == getattr(plans, n)[own] for n in names])
    same &= rows.concurrency == plans.concurrency[own]
    if not same.any():
        return Columns.joined([rows, plans.take(np.array([own]))]), len(rows)
    return rows, int(np.flatnonzero(same)[0])


def _thinned(rows: Columns, best: int) -> list[int]:
    """Points from end to end of a long front, evenly in their order, and the winner's."""
    along = np.argsort(rows.tokens_per_s_per_user, kind="stable")
    some = along[np.unique(np.linspace(0, len(along) - 1, MOST).round().astype(int))] if len(along) else along
    kept = {*some.tolist(), *([best] if best >= 0 else [])}
    return [i for i in along.tolist() if i in kept]


def _point(a: ServingPlans, rows: Columns, i: int, best: bool) -> Point:
    ttft, tpot = (format_seconds(getattr(rows, n)[i]) for n in ("ttft_s", "tpot_s"))
    plan, apart, copies = a.gpu_words(rows, i), int(rows.mode[i]) == 1, int(rows.replicas[i])
    text = f"{plan}; {int(rows.concurrency[i]):,} clients, TTFT {ttft}, TPOT {tpot}, {rows.tokens_per_s[i]:,.0f} tokens/s"
    one = f" of one of {copies} servers" if copies > 1 else ""
    text += f"; loads the decode step{one}" + ("" if apart else ", without other requests' prompts")
    x, y = float(rows.tokens_per_s_per_user[i]), float(rows.tokens_per_s_per_gpu[i])
    return Point(plan, x, y, best, text, served_patch(a, rows, i))


def served_patch(a: ServingPlans, rows: Columns, i: int) -> dict[str, Value]:
    """The decode step of one of a plan's servers: its sizes, the requests that decode at once, and the mean length."""
    sizes = {n: int(getattr(rows, n)[i]) for n in ("tp", "pp", "dp", "ep")}
    length = a.question.requests.input_len + max(0, a.question.requests.output_len // 2 - 1)
    batch = min(65_536, int(a.decoding(rows.take(slice(i, i + 1)))[0]))
    exchange = a.exchanges[int(rows.exchange[i])]
    spread: dict[str, Value] = {"a2a": exchange.backend, "red": exchange.redundant} if exchange.wide else {}
    return {**dict.fromkeys(SIZES, 1), **sizes, **spread, "b": batch, "s": length, "ph": "decode"}


def training_front(a: TrainPlans) -> TrainedFront:
    drawn = np.unique([*_undominated(a.plans)[:MOST].tolist(), a.recommended]) if len(a.plans) else np.arange(len(a.near))
    rows = a.plans.take(drawn) if len(a.plans) else a.near
    points = [_trained(a, rows, i, bool(len(a.plans)) and int(drawn[i]) == a.recommended) for i in range(len(rows))]
    sentence = f"{recommended_words(a)}: {a.why[0]}" if len(a.plans) else "no plan fits in memory; the nearest are shown"
    document = vars(plans_document(a, TOP))
    return TrainedFront(**document, front=points, sentence=sentence, x_title="memory per rank, GB", y_title="MFU")


def _undominated(rows: TrainColumns) -> np.ndarray[Any, Any]:
    """Of plans from the fastest on: those that need less memory than all before them."""
    least = np.minimum.accumulate(rows.memory_bytes)
    return np.flatnonzero(np.r_[True, rows.memory_bytes[1:] < least[:-1]])


def _trained(a: TrainPlans, rows: TrainColumns, i: int, best: bool) -> Point:
    kind, plan = a.kinds[int(rows.kind[i])].plan, a.gpu_words(rows, i)
    step, held = format_seconds(rows.step_s[i]), format_bytes(rows.memory_bytes[i])
    sizes: dict[str, Value] = {n: int(getattr(rows, n)[i]) for n in SIZES}
    micro = int(rows.micro_batch[i])
    each = a.question.goal.global_batch // int(rows.dp[i]) // micro
    step_keys: dict[str, Value] = {"sp": 1, "b": micro, "n": each, "s": int(a.question.context)}
    kinds: dict[str, Value] = {"z": str(kind.zero), "rc": kind.recompute, "sch": kind.schedule}
    kinds |= {"v": kind.chunks} if kind.chunks > 1 else {}
    text = f"{plan}; {describe_kind(kind)}; step {step}, MFU {rows.mfu[i]:.1%}, {held} per rank"
    patch = sizes | kinds | step_keys
    return Point(plan, float(rows.memory_bytes[i]) / 1e9, float(rows.mfu[i]), best, text, patch)


@dataclass(frozen=True, slots=True)
class Page:
    """One answer of the command line as the page's scripts find it in a file that needs no server, null where there is none."""

    kind: Literal["bill", "plan"]
    view: View | None
    grids: dict[str, Grid] | None = None
    pipeline: Pipeline | None = None
    plan: ServedFront | TrainedFront | None = None
    whys: list[WhyView] | None = None  # of the bill's lines, in their order


def bill_page(step: Explained, command: str) -> Page:
    """A bill with all its pictures; heat maps only where the page's own controls can say the same question."""
    b, state = step.bill, written(step.bill.question)
    grids = {kind: grid_of(state, kind) for kind in GRIDS} if _same(b, state) else None
    pipeline = page_pipeline(b) if b.question.trains and int(b.question.plan.pp) > 1 else None
    return Page("bill", view_of(step, state, command), grids, pipeline, whys=[why_view(w) for w in every_why(b)])


def plan_page(plans: ServingPlans | TrainPlans, command: str) -> Page:
    """The plans as points, and the winner's bill."""
    if not plans.trains:
        return Page("plan", _served(plans, command), plan=serving_front(plans))
    best = Explained(plans.step_of(plans.plans, plans.recommended)) if len(plans.plans) else None
    shown = view_of(best, written(best.bill.question), command) if best else None
    return Page("plan", shown, plan=training_front(plans))


def _served(plans: ServingPlans, command: str) -> View | None:
    """The decode step of one server of the best plan, where there is one."""
    if not len(plans.plans):
        return None
    q, lengths = plans.question, plans.question.requests
    keys: dict[str, Value] = {
        "m": q.model.key,
        "c": q.cluster.key,
        "e": q.engine.key,
        "il": int(lengths.input_len),
        "ol": int(lengths.output_len),
    }
    asked = State().but(keys | served_patch(plans, plans.plans, plans.recommended))
    try:
        return view_of(Explained(price(settle(asked.question))), asked, command)
    except ValueError:  # a model that is not of the catalogue, links that are not of the cluster's name
        return None


def _same(b: StepBill, state: State) -> bool:
    """Whether the state prices to this bill: then its neighbours are this bill's too."""
    try:
        return bool(abs(float(price(settle(state.question)).step_s) / float(b.step_s) - 1) < 1e-9) and state["ph"] in SHOWN
    except ValueError:
        return False


def grid_of(state: State, kind: str) -> Grid:
    """A heat map whose cells set the keys in which they differ from the state."""
    drawn, cells = grid(price(settle(state.question)), kind), list[Cell]()
    for cell in drawn.cells:
        patch = None if cell.patch is None else {n: v for n, v in shortened(cell.patch).items() if v != state[n]}
        cells.append(replace(cell, patch=patch))
    return replace(drawn, cells=cells)
