"""Plans as the page shows them: a table, points of a picture, the recommended one and why, what lost; each with its state."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, cast

import numpy as np

from commtax.catalog.programs import program_of
from commtax.files import table
from commtax.judgement.confidence import percent
from commtax.launch.deployment import start_commands
from commtax.planner import ranking
from commtax.planner.columns import Rejected, ServingColumns, ServingPlans, TrainColumns, TrainPlans
from commtax.planner.fleet_trials import Trial
from commtax.planner.fleets import FleetPlans, PlannedServers, fleet_servers, obstacle, servers_of
from commtax.planner.layouts import limit_parts
from commtax.planner.ranking import FAMILY
from commtax.planner.reasons import passed_over_words
from commtax.planner.several_clusters import RankedPlan, SeveralPlans, same_plan
from commtax.question import Question
from commtax.report import plan_tables, planning, several_clusters
from commtax.report.documents import Record, Value
from commtax.report.figures import figure_table
from commtax.report.fleets import fleet_reasons, fleet_sentence, fleets_document, gpu_words, statistic_key
from commtax.report.manners import LISTED, Manner, bars, layer_drawing
from commtax.report.money import page_note
from commtax.report.plan_tables import run_notes, served_row, trained_row
from commtax.report.plots import LIGHT, LIMIT, RECOMMENDED, entitle, picture, style
from commtax.report.tables import sized_places
from commtax.report.view.state import on_page
from commtax.spec import SERVING_AXES, SIZES
from commtax.statement import rule_of
from commtax.units import format_bytes, format_figure, format_seconds, plural
from commtax.verbs.explained_step import layer_of
from commtax.verbs.loads import lengths_note
from commtax.words import words

if TYPE_CHECKING:
    from commtax.report.plots import Figure

Patch = Mapping[str, Value]
SETUP: Mapping[str, Sequence[str]] = table("report/figures.toml")["setup"]
TOP, MOST = 20, 60
MODES = ("one pool of servers", "separate servers for prompts")  # series of a front, by a plan's mode
NO_PLAN = "No plan fits in memory."
USER_AND_GPU = {"x_title": "tokens/s per user", "y_title": "tokens/s per GPU"}


class FrontPoint(TypedDict):
    """A plan in a picture."""

    name: str
    x: float
    y: float
    best: bool
    text: str
    series: str
    joined: bool
    patch: Patch | None


def serving_front(a: ServingPlans) -> Record:
    """Return what a user gets against what a GPU gives: the plans as a table and points, what is recommended and why."""
    made, why = planning.plans_document(a, TOP), [on_page(line) for line in a.why]
    if why:
        rows, i = a.plans, a.recommended
        usd = page_note(a.question, int(rows.gpus[i]), float(rows.tokens_per_s[i]), int(rows.prefill_gpus[i]))
        why = [*why, usd, on_page(lengths_note(a.question))]
    shown, figures = list(range(min(TOP, len(a.plans)))), rows_of(made)
    if len(a.plans) and a.recommended not in shown:  # it lies behind the first plans of the ranking
        shown, figures = [*shown, a.recommended], [*figures, served_row(a, a.plans, a.recommended)]
    listed = zip(shown, figures, strict=True)
    rows_shown = [_served_card(a, i, row, served_patch(a, a.plans, i), roles(i, a.recommended), i) for i, row in listed]
    points = list[Record]()  # places to run at where nothing is limited, each with its own plan
    for point in a.places:
        here, i = replace(a, plans=point.plans), point.recommended
        row = _served_card(here, i, served_row(here, here.plans, i), served_patch(here, here.plans, i))
        points.append({"name": planning.point_name(a, point), "when": point.when, "row": row})
    return {
        **made,
        "front": front_points(a),
        "why": why,
        "sentence": _serving_sentence(a),
        **USER_AND_GPU,
        "marks": limit_marks(a),
        "table": plan_table("serving", rows_shown),
        "points": points,
        "sides": [],
        "lost": lost_rows(planning.shorten_rejected(a.rejected)),
    }


def _serving_sentence(a: ServingPlans) -> str:
    if not len(a.plans):
        sure = percent(a.question.goal.confidence)
        return (f"No plan is {sure} likely to meet the limits." if len(a.near) else NO_PLAN) + _wanted(a.would_take)
    start = f"{on_page(words('no-limit'))} {planning.start_sentence(a)} " if a.places else ""
    return f"{start}{planning.recommended_words(a)}: {a.why[0]}, {plural(int(a.plans.concurrency[a.recommended]), 'client')}."


def _wanted(remedies: Sequence[str]) -> str:
    return on_page(words("would-take", remedies=list(remedies))) if remedies else ""


def limit_marks(a: ServingPlans) -> list[Record]:
    tpot = a.question.goal.tpot_s
    return [{"axis": "x", "value": 1 / tpot, "text": f"TPOT {format_seconds(tpot)}"}] if isfinite(tpot) else []


def lost_rows(lost: Iterable[Rejected]) -> list[Record]:
    return [{"family": one.family, "reason": on_page(one.reason)} for one in lost]


def several_front(s: SeveralPlans) -> Record:
    """Return plans of several clusters in one table and one picture, and each cluster's recommended plan, or why it has none."""
    made, chosen, rows = several_clusters.several_document(s, TOP), s.recommended, list[Record]()
    for place, (one, figures) in enumerate(zip(s.listed(TOP), rows_of(made), strict=True)):
        marked = [role for role, of in (("recommended", chosen), ("best", s.best)) if of and same_plan(one, of)]
        rows.append(_ranked_card(one, marked, figures, place))
    sides, lost = list[Record](), list[Rejected]()
    for a in s.answers:
        there = f" on {a.question.cluster.key}"
        lost += [replace(one, family=one.family + there) for one in planning.shorten_rejected(a.rejected)]
        marked = ["recommended"] * bool(chosen and chosen.answer is a)
        row = _ranked_card(RankedPlan(a, a.recommended), marked) if len(a.plans) else None
        sides.append({**_place(a.question), "text": "" if row else _serving_sentence(a), "row": row})
    sentence, why = _several_words(s, chosen) if chosen else ("No cluster has a plan that meets the limits.", ())
    return {
        **made,
        "front": [point for a in s.answers for point in front_points(a, a.question.cluster.key, a is (chosen and chosen.answer))],
        "why": [on_page(line) for line in (*why, *several_clusters.clusters_without_plans(s))],
        "sentence": sentence,
        **USER_AND_GPU,
        "marks": limit_marks(s.answers[0]),
        "table": plan_table("serving", rows),
        "points": list(_ways_to_run(s)),
        "sides": sides,
        "lost": lost_rows(lost),
    }


def _several_words(s: SeveralPlans, chosen: RankedPlan) -> tuple[str, Sequence[str]]:
    """Return what to run, where nothing is limited for users who wait and for work that nobody waits for, and why."""
    answer, unwaited = chosen.answer, several_clusters.ranked_words(chosen)
    sentence = f"{several_clusters.several_role(s)}: {unwaited}."
    if s.waited and s.waited.recommended:
        waited = several_clusters.ranked_words(s.waited.recommended)
        ways = f"When {several_clusters.WAITED}: {waited}. When {several_clusters.UNWAITED}: {unwaited}."
        sentence = f"{on_page(words('no-limit'))} {ways}"
    best = answer.plans.take(slice(chosen.row, chosen.row + 1))
    passed_over = set(passed_over_words(answer, answer.passed_over, best) if s.passed_over else ())
    others = (line for line in answer.why[1:] if line not in passed_over)
    costs = f"{'; '.join(several_clusters.ranked_figures(chosen))}."
    return sentence, [answer.why[0], costs, *several_clusters.reasons_between(s), *others]


def _ways_to_run(s: SeveralPlans) -> Iterator[Record]:
    """Yield what to run where for users who wait, and for work that nobody waits for, where nothing is limited."""
    if not s.waited:
        return
    ways = (
        (s.waited, "users", several_clusters.WAITED, several_clusters.waiting_why(s.waited)),
        (s, "bulk work", several_clusters.UNWAITED, several_clusters.reasons_between(s)),
    )
    for ranked, work, when, why in ways:
        if one := ranked.recommended:
            text = "; ".join([when, *map(on_page, why)])
            yield {"name": f"{one.answer.question.cluster.key} for {work}", "when": text, "row": _ranked_card(one)}


def _ranked_card(one: RankedPlan, marked: Sequence[str] = (), figures: Record | None = None, place: int = 0) -> Record:
    """Return a plan of one of several clusters, whose state names the cluster too."""
    a = one.answer
    patch = {**served_patch(a, a.plans, one.row), "c": a.question.cluster.key}
    return _served_card(a, one.row, figures or several_clusters.ranked_row(one), patch, marked, place)


def fleet_front(f: FleetPlans) -> Record:
    """Return the smallest fleets for a rate: GPUs against the requests/s that they can answer."""
    made, several = fleets_document(f), len(f.questions) > 1
    listed = enumerate(zip(f.plans, rows_of(made), strict=True))
    rows = [_fleet_card(trial, figures, roles(place, f.recommended), place) for place, (trial, figures) in listed]
    near = f" The nearest, {gpu_words(f.near[0])}, {obstacle(f.near[0])}." if f.near else ""
    points, sides = list[FrontPoint](), list[Record]()
    for i, trial in enumerate(f.plans):
        if isfinite(x := trial.capacity):
            series = trial.layout.question.cluster.key if several else MODES[int(trial.layout.apart)]
            text = f"{plural(trial.gpus, 'GPU')} can answer {format_figure(x)} requests/s"
            name, best, patch = gpu_words(trial), i == f.recommended, None
            points.append(FrontPoint(name=name, x=x, y=trial.gpus, best=best, text=text, series=series, joined=False, patch=patch))
    for q in f.questions if several else ():
        row = next((row for row in rows if row["cluster"] == q.cluster.key), None)
        sides.append({**_place(q), "text": "" if row else "No fleet on it meets the limits at this rate.", "row": row})
    return {
        **made,
        "front": points,
        "why": [on_page(line) for line in fleet_reasons(f)] if f.plans else [],
        "sentence": fleet_sentence(f) if f.plans else f"No plan meets the limits.{near}{_wanted(f.would_take)}",
        "x_title": "requests/s that it can answer",
        "y_title": "GPUs",
        "marks": [{"axis": "x", "value": f.question.offered.request_rate, "text": "requested"}],
        "table": plan_table("fleet", rows, [name for name, _ in f.question.goal.slo]),
        "sides": sides,
        "lost": lost_rows(planning.shorten_rejected(f.rejected)),
    }


def _place(q: Question) -> Record:
    return {"cluster": q.cluster.key, "gpus": q.cluster.num_gpus}


def front_points(a: ServingPlans, series: str = "", chosen: bool = True) -> list[FrontPoint]:
    """Return the front as points, the recommended plan among them."""
    rows, best = _with_winner(a)
    along = np.argsort(rows.tokens_per_s_per_user, kind="stable")
    some = along[np.unique(np.linspace(0, len(along) - 1, MOST).round().astype(int))] if len(along) else along
    kept = {*some.tolist(), *([best] if best >= 0 else [])}
    return [_served_point(a, rows, i, chosen and i == best, series) for i in along.tolist() if i in kept]


def _with_winner(a: ServingPlans) -> tuple[ServingColumns, int]:
    """Return the front, and where the recommended plan lies on it or beside it: at its nearest point."""
    rows, plans, i = a.front, a.plans, a.recommended
    if not len(plans):
        return rows, -1
    same = np.logical_and.reduce([getattr(rows, n) == getattr(plans, n)[i] for n in (*FAMILY, "exchange")])
    same &= rows.concurrency == plans.concurrency[i]
    if not same.any():
        return ServingColumns.joined([rows, plans.take(np.array([i]))]), len(rows)
    return rows, int(np.flatnonzero(same)[0])


def _served_point(a: ServingPlans, rows: ServingColumns, i: int, best: bool, series: str) -> FrontPoint:
    ttft, tpot = (format_seconds(getattr(rows, n)[i]) for n in ("ttft_s", "tpot_s"))
    plan, apart, copies = a.gpu_words(rows, i), int(rows.mode[i]) == 1, int(rows.replicas[i])
    text = f"{plan}; {int(rows.concurrency[i]):,} clients, TTFT {ttft}, TPOT {tpot}, {rows.tokens_per_s[i]:,.0f} tokens/s"
    one = f" of one of {copies} servers" if copies > 1 else ""
    text += f"; loads the decode step{one}" + ("" if apart else ", without other requests' prompts")
    x, y = float(rows.tokens_per_s_per_user[i]), float(rows.tokens_per_s_per_gpu[i])
    patch, series = served_patch(a, rows, i), series or MODES[int(apart)]
    return FrontPoint(name=plan, x=x, y=y, best=best, text=text, series=series, patch=patch, joined=i < len(a.front))


def served_patch(a: ServingPlans, rows: ServingColumns, i: int) -> dict[str, Value]:
    """Return a plan's servers, the requests that decode at once on each, and their mean length."""
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
    """Return memory per rank against MFU, and the plans as a table with the time and the dollars of the run."""
    needs = a.plans.memory_bytes  # of plans from the fastest on: drawn are those that need less than all before them
    less = np.flatnonzero(np.r_[True, needs[1:] < np.minimum.accumulate(needs)[:-1]]) if len(needs) else needs
    drawn = np.unique([*less[:MOST].tolist(), a.recommended]) if len(a.plans) else np.arange(len(a.near))
    rows, points = a.plans.take(drawn) if len(a.plans) else a.near, list[FrontPoint]()
    for i in range(len(rows)):
        plan, x, y = a.gpu_words(rows, i), float(rows.memory_bytes[i]) / 2**30, 100 * float(rows.mfu[i])
        step, memory = format_seconds(rows.step_s[i]), format_bytes(rows.memory_bytes[i])
        text = f"{plan}; {a.kind_words(rows, i)}; step {step}, MFU {rows.mfu[i]:.1%}, {memory} per GPU"
        best = bool(len(a.plans)) and int(drawn[i]) == a.recommended
        patch = training_patch(a, rows, i)
        points.append(FrontPoint(name=plan, x=x, y=y, best=best, text=text, series="", joined=True, patch=patch))
    sentence = f"{planning.recommended_words(a)}: {a.why[0]}." if len(a.plans) else "No plan fits in memory; the nearest are shown."
    shown = [int(i) for i in a.splits()[:TOP]] if len(a.plans) else []  # the best plan of each split, and the recommended one
    shown += [a.recommended] if len(a.plans) and a.recommended not in shown else []
    return {
        **planning.plans_document(a, TOP),
        "front": points,
        "why": [on_page(line) for line in (*a.why, *(run_notes(a) if len(a.plans) else ()))],
        "sentence": sentence,
        "x_title": "memory per GPU, GiB",
        "y_title": "MFU, %",
        "marks": [],
        "table": plan_table("training", [_trained_card(a, i) for i in shown]),
        "sides": [],
        "lost": lost_rows(a.rejected),
    }


def training_patch(a: TrainPlans, rows: TrainColumns, i: int) -> dict[str, Value]:
    kind, micro = a.kinds[int(rows.kind[i])].plan, int(rows.micro_batch[i])
    patch: dict[str, Value] = {n: int(getattr(rows, n)[i]) for n in SIZES}
    patch |= {"z": str(kind.zero), "rc": kind.recompute, "sch": kind.schedule}
    patch |= {"v": kind.chunks} if kind.chunks > 1 else {}
    each = a.question.goal.global_batch // int(rows.dp[i]) // micro
    return patch | {"sp": 1, "b": micro, "n": each, "s": int(a.question.context), "gb": int(a.question.goal.global_batch)}


def rows_of(made: Record) -> list[Record]:
    return cast("list[Record]", made["plans"])


def roles(place: int, recommended: int) -> list[str]:
    return ["recommended"] * (place == recommended) + ["best"] * (place == 0)


def plan_table(name: str, rows: Sequence[Record], limits: Iterable[str] = ()) -> Record:
    """Return columns that some row has a figure for, and the rows. ``limits`` are statistics that have columns of their own."""
    shown, columns = figure_table(name), list[Record]()
    titles = {name: ", ".join(reversed(limit_parts(name))) for name in limits if statistic_key(name) not in shown.page}
    limited = {statistic_key(name): title for name, title in titles.items()}
    for key in shown.page:
        for other, title in limited.items() if key == "limited" else [(key, "")]:
            if any(cast("Record", row["values"]).get(other) is not None for row in rows):
                one = shown.figure(key)
                kinds = {"figure": key in shown.large, "less": one.less, "range": key in shown.ranges, "minor": key in shown.minor}
                names = {"label": title or one.name, "title": title or one.title or one.name, "kind": one.page_unit}
                columns.append({"key": other, **kinds, **names, "help": one.help})
    return {"columns": columns, "rows": list(rows)}


def _card(figures: Record, place: int, marked: Sequence[str], note: str, setup: str, level: int, patch: Patch) -> Record:
    """Return one plan of a table, without ranges and commands. ``level`` is how much there is to set up, for sorting."""
    values = {key: value for key, value in figures.items() if not isinstance(value, (str, dict, list))}
    head = {"name": figures["verdict"], "cluster": figures.get("cluster", ""), "place": place + 1, "roles": list(marked)}
    return {**head, "note": note, "setup": setup, "values": values | {"setup": level}, "ranges": {}, "patch": dict(patch)}


def _served_card(a: ServingPlans, i: int, figures: Record, patch: Patch, marked: Sequence[str] = (), place: int = 0) -> Record:
    level = int(ranking.kinds(a.plans.take(slice(i, i + 1)), a.question.cluster)[0])
    row = _card(figures, place, marked, ranking.KINDS[level], SETUP["served"][level], level, patch)
    times = {f"{name}_s": [figures[f"{name}_low_s"], figures[f"{name}_high_s"]] for name in ("ttft", "tpot")}
    ranges = {**times, "tokens_per_s": list(a.range_of(a.plans, i, "tokens_per_s"))}
    return row | {"ranges": ranges, "commands": plan_launch(servers_of(a, i))}


def _fleet_card(trial: Trial, figures: Record, marked: Sequence[str], place: int) -> Record:
    layout = trial.layout
    level = int(ranking.complexity_of(layout.question.plan, layout.ahead, layout.question.cluster))
    sizes = {axis: int(getattr(layout.question.plan, axis)) for axis in SERVING_AXES} | {"rep": trial.size[0]}
    sizes |= {"pw": trial.size[1], "ptp": int(layout.ahead.tp), "pdp": int(layout.ahead.dp)} if layout.ahead else {}
    patch = {**unusual_sizes(sizes), "ph": "decode", "c": layout.question.cluster.key}
    row = _card(figures, place, marked, ranking.KINDS[level], SETUP["served"][level], level, patch)
    return row | {"ranges": figures["ranges_s"], "commands": plan_launch(fleet_servers(trial))}


def _trained_card(a: TrainPlans, i: int) -> Record:
    level = int((ranking.training_kinds(a.plans, a.question) % len(ranking.TRAINED))[i])
    note = f"{ranking.TRAINED[level]}; microbatch {int(a.plans.micro_batch[i])}, {a.kind_words(a.plans, i)}"
    free = {"memory_free": float(a.question.cluster.chip.visible_bytes) - float(a.plans.memory_bytes[i])}
    figures, marked, patch = trained_row(a, a.plans, i), roles(i, a.recommended), training_patch(a, a.plans, i)
    row = _card({**figures, **free}, i, marked, note, SETUP["trained"][level], level, patch)
    ranges = {"step_s": [figures["step_low_s"], figures["step_high_s"]]}
    return row | {"ranges": ranges, "commands": plan_launch(PlannedServers(a.step_of(a.plans, i).question, 1))}


def unusual_sizes(sizes: Mapping[str, int]) -> dict[str, Value]:
    """Return what a link says of a plan: its TP size, its servers for prompts, and all that is not one."""
    return {name: size for name, size in sizes.items() if size > 1 or name in ("tp", "pw")}


def plan_launch(servers: PlannedServers) -> Record:
    engine, made, why = program_of(servers.question.engine).emitted_as, dict[str, str](), ""
    try:
        made = start_commands(servers.question, engine, servers.copies, servers.prompts)
    except ValueError as error:
        why = rule_of(error)
    return {"launch": made.get("launch", ""), "launch_engine": engine, "launch_why": why, "benchmark": made.get("benchmark", "")}


def plot_front(a: ServingPlans, path: Path | None) -> "Figure":
    """Plot what a user gets against what a GPU gives for each kind of plans, with the recommended one and the limits."""
    points = front_points(a)
    names = list(dict.fromkeys(point["series"] for point in points))

    def draw(figure: "Figure") -> None:
        axes, line = figure.subplots(), [point for point in points if point["joined"]]
        axes.plot([p["x"] for p in line], [p["y"] for p in line], color=LIGHT["line-strong"], zorder=1)
        for index, name in enumerate(names):
            alike = [point for point in points if point["series"] == name]
            axes.plot([p["x"] for p in alike], [p["y"] for p in alike], **style(index, linestyle="", label=name))
        for point in (point for point in points if point["best"]):
            label = f"{planning.recommended_words(a)}: {point['name']}"
            axes.plot([point["x"]], [point["y"]], RECOMMENDED, color=LIGHT["accent"], markersize=12, label=label, zorder=3)
        for mark in limit_marks(a):
            axes.axvline(cast("float", mark["value"]), **LIMIT, label=str(mark["text"]))
        axes.set(xlabel="tokens/s per user", ylabel="tokens/s per GPU")
        entitle(axes, f"{a.question.model.key} on {sized_places(a.question)}, {planning.question_words(a)}")
        axes.grid(True, alpha=0.3)
        axes.legend(fontsize=9)

    return picture(path, draw)


MANNERS = {
    "ServingPlans": Manner[ServingPlans](
        lambda console, a: planning.show_plans(console, a, LISTED),
        lambda a: planning.plans_document(a, LISTED),
        plan_tables.served_rows,
        plot_front,
        lambda a: layer_drawing(layer_of(a.step_of(a.plans, a.recommended))) if len(a.plans) else "",
    ),
    "TrainPlans": Manner[TrainPlans](
        lambda console, a: planning.show_plans(console, a, LISTED),
        lambda a: planning.plans_document(a, LISTED),
        plan_tables.trained_rows,
        bars(
            lambda a: [(a.whole_words(a.plans, i), float(a.plans.mfu[i])) for i in range(min(LISTED, len(a.plans)))],
            "%",
            lambda a: f"{a.question.model.key} on {a.question.cluster.key}: MFU of the best plans",
        ),
        lambda a: layer_drawing(layer_of(a.step_of(a.plans, a.recommended))) if len(a.plans) else "",
    ),
}
