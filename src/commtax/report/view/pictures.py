"""What the page draws beside a view: plans as points, each with the state that it is."""

import numpy as np

from commtax.planner.columns import FAMILY, ServingColumns, ServingPlans, TrainColumns, TrainPlans, describe_kind
from commtax.report.documents import Record, Value
from commtax.report.money import page_note
from commtax.report.planning import place_words, plans_document, recommended_words
from commtax.spec import SERVING_AXES, SIZES
from commtax.units import format_bytes, format_seconds
from commtax.verbs.closed_loop import lengths_note
from commtax.verbs.confidence import percent

TOP = 10
MOST = 60


def serving_front(a: ServingPlans) -> Record:
    """What a user gets against what a GPU gives."""
    rows, best = _with_winner(a)
    points = [_point(a, rows, i, i == best) for i in _thin_front(rows, best)]
    why = list(a.why)
    none = f"no plan is {percent(a.question.goal.confidence)} likely to meet the limits; it would take {', or '.join(a.would_take)}"
    none = none if len(a.near) else "no plan fits in memory"
    sentence = f"{recommended_words(a)}: {why[0]}, {int(a.plans.concurrency[a.recommended]):,} clients." if why else none
    if why:
        rows, own = a.plans, a.recommended
        usd = page_note(a.question, int(rows.gpus[own]), float(rows.tokens_per_s[own]), int(rows.prefill_gpus[own]))
        why = [*why, *(place_words(a, place) for place in a.places), usd, lengths_note(a.question.requests.spread)]
    titles = {"x_title": "tokens/s per user", "y_title": "tokens/s per GPU"}
    return {**plans_document(a, TOP), "front": points, "why": why, "sentence": sentence, **titles}


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


def _thin_front(rows: ServingColumns, best: int) -> list[int]:
    """Points from end to end of a long front, evenly in their order, and the winner's."""
    along = np.argsort(rows.tokens_per_s_per_user, kind="stable")
    some = along[np.unique(np.linspace(0, len(along) - 1, MOST).round().astype(int))] if len(along) else along
    kept = {*some.tolist(), *([best] if best >= 0 else [])}
    return [i for i in along.tolist() if i in kept]


def _point(a: ServingPlans, rows: ServingColumns, i: int, best: bool) -> Record:
    ttft, tpot = (format_seconds(getattr(rows, n)[i]) for n in ("ttft_s", "tpot_s"))
    plan, apart, copies = a.gpu_words(rows, i), int(rows.mode[i]) == 1, int(rows.replicas[i])
    text = f"{plan}; {int(rows.concurrency[i]):,} clients, TTFT {ttft}, TPOT {tpot}, {rows.tokens_per_s[i]:,.0f} tokens/s"
    one = f" of one of {copies} servers" if copies > 1 else ""
    text += f"; loads the decode step{one}" + ("" if apart else ", without other requests' prompts")
    x, y = float(rows.tokens_per_s_per_user[i]), float(rows.tokens_per_s_per_gpu[i])
    return {"name": plan, "x": x, "y": y, "best": best, "text": text, "patch": served_patch(a, rows, i)}


def served_patch(a: ServingPlans, rows: ServingColumns, i: int) -> dict[str, Value]:
    """The decode step of one of a plan's servers: its sizes, the requests that decode at once, and the mean length."""
    sizes: dict[str, Value] = {n: int(getattr(rows, n)[i]) for n in SERVING_AXES}
    length = np.asarray(a.question.requests.input_len + max(0, a.question.requests.output_len // 2 - 1)).item()
    batch = min(65_536, int(a.decoding(rows.take(slice(i, i + 1)))[0]))
    exchange = a.exchange_of(rows, i)
    spread: dict[str, Value] = {"a2a": exchange.backend, "red": exchange.redundant} if exchange.wide else {}
    spread |= {"tq": ",".join(on)} if (on := a.turned_on(rows, i)) else {}
    return {**dict.fromkeys(SIZES, 1), **sizes, **spread, "b": batch, "s": length, "ph": "decode"}


def training_front(a: TrainPlans) -> Record:
    """Memory per rank against MFU."""
    held = a.plans.memory_bytes  # of plans from the fastest on: drawn are those that need less than all before them
    less = np.flatnonzero(np.r_[True, held[1:] < np.minimum.accumulate(held)[:-1]]) if len(held) else held
    drawn = np.unique([*less[:MOST].tolist(), a.recommended]) if len(a.plans) else np.arange(len(a.near))
    rows = a.plans.take(drawn) if len(a.plans) else a.near
    points = [_training_point(a, rows, i, bool(len(a.plans)) and int(drawn[i]) == a.recommended) for i in range(len(rows))]
    sentence = f"{recommended_words(a)}: {a.why[0]}" if len(a.plans) else "no plan fits in memory; the nearest are shown"
    titles = {"x_title": "memory per rank, GB", "y_title": "MFU"}
    return {**plans_document(a, TOP), "front": points, "sentence": sentence, **titles}


def _training_point(a: TrainPlans, rows: TrainColumns, i: int, best: bool) -> Record:
    kind, plan = a.kinds[int(rows.kind[i])].plan, a.gpu_words(rows, i)
    step, held = format_seconds(rows.step_s[i]), format_bytes(rows.memory_bytes[i])
    sizes: dict[str, Value] = {n: int(getattr(rows, n)[i]) for n in SIZES}
    micro = int(rows.micro_batch[i])
    each = a.question.goal.global_batch // int(rows.dp[i]) // micro
    step_keys: dict[str, Value] = {"sp": 1, "b": micro, "n": each, "s": int(a.question.context)}
    kinds: dict[str, Value] = {"z": str(kind.zero), "rc": kind.recompute, "sch": kind.schedule}
    kinds |= {"v": kind.chunks} if kind.chunks > 1 else {}
    text = f"{plan}; {describe_kind(kind)}; step {step}, MFU {rows.mfu[i]:.1%}, {held} per rank"
    x, y = float(rows.memory_bytes[i]) / 1e9, float(rows.mfu[i])
    return {"name": plan, "x": x, "y": y, "best": best, "text": text, "patch": sizes | kinds | step_keys}
