"""Fleets for a rate of requests: what to run, the ranking, what was rejected; and as a document."""

from collections.abc import Iterator
from math import inf, isinf

from commtax.catalog.techniques import techniques_on
from commtax.files import table
from commtax.judgement.confidence import percent
from commtax.judgement.leading import LATE, SLOW, against, bearable_token_s, bearable_ttft_s
from commtax.judgement.margins import margin
from commtax.judgement.overload import overloaded
from commtax.planner.fleet_search import burden, recommended_place, simplest_place, sustained_tokens_per_s
from commtax.planner.fleet_trials import Trial, longest_step, rate_of
from commtax.planner.fleets import FleetPlans, layout_words, obstacle
from commtax.planner.layouts import COUNTED, EACH, limit_name
from commtax.planner.reasons import against_note, doubt_words, role_words
from commtax.report.documents import Record, document, record
from commtax.report.drawing import Console
from commtax.report.figures import figure_table, million
from commtax.report.manners import Manner, bars
from commtax.report.money import COUNTS, counted_note, fleet_cost_words, price_notes
from commtax.report.plan_tables import places, show_ranked
from commtax.report.planning import limit_words, shorten_rejected, spread_notes
from commtax.report.tables import ANSWER, Remarks, length_words, model_words, name_and_gpus, notes, range_80, say, show_rejected
from commtax.statement import Note
from commtax.units import format_figure, format_money, format_seconds, listed, plural
from commtax.verbs.fit_advice import default_limits_notes
from commtax.words import opening, words

WANTED = {"gpus": "fewest GPUs", "cost": "fewest dollars per hour", "tokens": "most sustained tokens/s per GPU"}
GAIN = {"gpus": "fewer GPUs", "cost": "fewer dollars per hour", "tokens": "more sustained tokens/s per GPU"}
SHOWN = ("ttft_p95", "itl_p99")
GENERAL: list[str] = table("report/words.toml")["fleets"]  # notes of the question that concern all of its plans


def show_fleets(console: Console, a: FleetPlans) -> None:
    """Show what to run, how sure it is and what it costs in a sentence, then the ranking."""
    if not a.complete:
        say(console, "Interrupted: this is the best so far; better plans may be missing.", "bold red")
    if a.plans:
        say(console, fleet_sentence(a), ANSWER)
        for line in fleet_reasons(a):
            say(console, f"  {line}")
    else:
        takes, slow = words("would-take", remedies=list(a.would_take)) if a.would_take else "", any(x.slow for x in a.rejected)
        why = "meets the limits: they are below what a request takes with no load" if slow else "fits in memory"
        near = f"meets the limits. The nearest, {gpu_words(a.near[0])}, {obstacle(a.near[0])}" if a.near else why
        say(console, f"No plan {near}.{takes}", "bold red")
    q, where = a.question, " or ".join(name_and_gpus(other.cluster) for other in a.questions)
    limits, spare = limit_words(q, limit_name), [f"{q.goal.growth:.0%} headroom"] if q.goal.growth else []
    on = [f"with {', '.join(named)}"] if (named := [text for _, text in techniques_on(q)]) else []
    wanted = [f"{q.offered.request_rate:g} requests/s, {length_words(q)}", *on, *limits, *spare]
    goal = f"goal: {WANTED[a.objective]}, clear of {'the limits' if limits else 'overload'}"
    say(console, f"{model_words(q.model)} on {where}, {q.engine.key}@{q.engine.version}: {', '.join(wanted)}; {goal}", "dim")
    if a.plans and not q.goal.slo:
        say(console, "No limit says how long a request may take (--p95-ttft, --p99-itl): a plan is good until it is overloaded.")
    if a.plans or a.near:
        _show_ranking(console, a, a.plans or a.near)
    show_rejected(console, ((lost.family, lost.reason) for lost in shorten_rejected(a.rejected)))
    notes(console, *_notes(a))


def fleet_sentence(a: FleetPlans) -> str:
    """Return which fleet to run."""
    ahead, chosen = a.plans[: a.recommended], a.plans[a.recommended]
    codes = [code for trial in ahead for code in _unchecked(trial)]
    role = role_words(all(map(_unchecked, ahead)) and not (codes and _unchecked(chosen)), codes)
    return f"{role}: {placed_words(a, chosen)}."


def fleet_reasons(a: FleetPlans) -> Iterator[str]:
    """Yield why it is recommended: what it delivers, whether another is better, and what it costs."""
    best, q = a.plans[a.recommended], a.plans[a.recommended].layout.question
    names = dict.fromkeys((*(name for name, _ in q.goal.slo), *SHOWN))
    times = [f"{limit_name(name)} {format_seconds(best.figures[name])}{_range(best, name)}" for name in list(names)[:3]]
    which = "each limit" if len(q.goal.slo) > 1 else "the limit"
    yield ", ".join(times) + (f"; {percent(best.kept)} likely to meet {which}" if best.kept is not None else "")
    yield from (_against_words(best, code) for code in _unchecked(best))
    used = f"{q.offered.request_rate:g} requests/s is {q.offered.request_rate / best.capacity:.0%} of capacity"
    grows = f"the rate can grow by {best.growth:.0%} before {'a limit is exceeded' if q.goal.slo else 'it may be overloaded'}"
    shares = [used] * (best.capacity == best.capacity) + [grows] * (best.growth >= 0)
    if shares:
        yield "; ".join(shares)
    if best.sigma and best.growth >= 0 and not best.clear:
        edge = "its limits" if q.goal.slo else "overload"
        safer = next((trial for trial in a.plans if trial.clear), None)  # what else stands against it?
        tried = "tried " * (a.objective == "tokens")  # there more GPUs do not count, and they are not looked for
        lacks: Note | str = f"no larger fleet {tried}on this cluster is safer"
        if safer and safer.late:
            lacks = words("fleet-safer", fleet=placed_words(a, safer), against=_against_words(safer, safer.late[0]))
        yield words("fleet-close", edge=edge, cause=_edge_words(best), safer=lacks)
    yield from _beaten_by(a)
    here = a.plans[a.recommended].layout.question.cluster.key
    for key in dict.fromkeys(q.cluster.key for q in a.questions if q.cluster.key != here):
        if there := [trial for trial in a.plans if trial.layout.question.cluster.key == key]:
            one = there[recommended_place(there)]
            usd = f": {format_money(one.money.usd_per_hour)} per hour" if one.money.usd_per_hour else ""
            yield f"the same on {key} takes {gpu_words(one)}{usd}"
    yield from _dollars(a)


def _edge_words(trial: Trial) -> str:
    longer = longest_step(trial)
    crowded = overloaded(trial.layout.question.offered.request_rate, trial.capacity, longer)
    return f"steps {longer - 1:.0%} longer, within the 80% range, would {'overload it' if crowded else 'miss a limit'}"


def _beaten_by(a: FleetPlans) -> Iterator[str]:
    """Yield why neither the best fleet is recommended, nor the simplest near it where that is too close to its limits."""
    best, chosen, simplest = a.plans[0], a.plans[a.recommended], a.plans[simplest_place(a.plans)]
    late = [trial for trial in a.plans[1 : a.recommended] if trial.clear and trial.late and trial is not simplest]
    for one in [simplest] * (simplest is not best) + late[:1] + [best]:
        if (chosen.clear and one.ranges and not one.clear) or (one.late and not chosen.late):
            used = "" if one.money.used is None else f", at {one.money.used:.0%} of capacity"
            usd = f" for {format_money(one.money.usd_per_year)} per year" if one.money.usd_per_year else ""
            lacks = _against_words(one, *one.late[:1]) or _edge_words(one)
            yield words("fleet-would-do", fleet=placed_words(a, one), money=usd, used=used, against=lacks)
        elif one is best and best is not chosen:
            ratio, named = burden(chosen) / burden(best), placed_words(a, best)
            share = ratio - 1 if a.objective == "tokens" else 1 - 1 / ratio
            gain = f"{share:.0%} {GAIN[a.objective]}" if share > 0.005 else "equally good"
            lead = f"{named} is predicted {'at ' * (share > 0.005)}" if _unchecked(best) else f"the best is {named}: "
            grows = f", and the rate may grow by {best.growth:.0%}" if best.growth >= 0 else ""
            doubt = doubt_words(a.question, best.layout.apart != chosen.layout.apart)
            yield words("doubted", lead=f"{lead}{gain}{grows}", doubt=doubt)


def _unchecked(trial: Trial) -> list[str]:
    """Return what stands against a fleet: that no run has checked predictions of its kind, or that users wait too long."""
    return against(trial.layout.question, trial.layout.apart, 0.0, inf) + trial.late


def _against_words(trial: Trial, code: str = "") -> Note | str:
    """Return what stands against a fleet by its code, or "" without one."""
    bearable = {LATE: bearable_ttft_s, SLOW: bearable_token_s}.get(code, bearable_ttft_s)(trial.layout.question)
    return against_note(code, bearable) if code else ""


def placed_words(a: FleetPlans, trial: Trial) -> str:
    """Return a fleet, and where it runs where there are several clusters."""
    return gpu_words(trial) + (f" on {trial.layout.question.cluster.key}" if len(a.questions) > 1 else "")


def _dollars(a: FleetPlans) -> Iterator[str]:
    """Yield what the fleet costs, what a million tokens cost at this rate and when full, and which fleet is cheaper when full."""
    best, m = a.plans[a.recommended], a.plans[a.recommended].money
    if not m.usd_per_million_tokens:
        return
    tokens = COUNTS[best.layout.question.goal.cost_of]
    at_rate = f"${million(m.usd_per_million_tokens)} per million {tokens} at this rate"
    limited = "the highest rate within the limits" if best.layout.question.goal.slo else "its capacity"
    full = f", ${million(m.full_usd_per_million_tokens)} at {format_figure(best.full_rate)} requests/s, {limited}"
    cost = f"{plural(m.gpus, 'GPU')} cost{'s' * (m.gpus == 1)} {fleet_cost_words(m)}"
    yield f"{cost}: {at_rate}{full if m.full_usd_per_million_tokens else ''}"
    able = [trial for trial in a.plans if not _unchecked(trial)] or a.plans
    full_usd, _, other = min((trial.money.full_usd_per_million_tokens or inf, i, trial) for i, trial in enumerate(able))
    if full_usd * (1 + margin(a.question)) < (m.full_usd_per_million_tokens or inf):  # less than that is not known
        usd = f"${million(full_usd)} per million at {format_figure(other.full_rate)} requests/s"
        yield f"at full load {placed_words(a, other)} would cost less: {usd}"


def gpu_words(trial: Trial) -> str:
    """Return the GPUs reconciled: ``16 GPUs = 4 replicas x TP 4``."""
    return f"{plural(trial.gpus, 'GPU')} = {layout_words(trial.layout, *trial.size)}"


def _range(trial: Trial, name: str) -> str:
    return range_80(*trial.ranges[name]) if name in trial.ranges else ""


def _show_ranking(console: Console, a: FleetPlans, rows: tuple[Trial, ...]) -> None:
    shown, slo = figure_table("fleet"), a.question.goal.slo
    limits = dict.fromkeys((*(name for name, _ in slo), *SHOWN))
    columns = {
        "": places(range(len(rows)), a.recommended if rows is a.plans else None),
        "plan": [layout_words(t.layout, *t.size) for t in rows],
        **({"cluster": [t.layout.question.cluster.key for t in rows]} if len(a.questions) > 1 else {}),
    }
    for name in limits:
        columns[f">{limit_name(name)}"] = [format_seconds(t.figures[name]) if t.figures else "–" for t in rows]
        columns[f">{limit_name(name)} range"] = [_range(t, name).strip(" ()") for t in rows]
    columns |= shown.cells([_trial_record(t) for t in rows], [] if slo else ["limits_kept_with"])
    ranges = [f"{limit_name(name)} range" for name in reversed(limits)]
    spare = shown.spare_headings()
    show_ranked(console, columns, [t.gpus for t in rows], [*spare[:2], *ranges, *spare[2:]])


def _notes(a: FleetPlans) -> Remarks:
    """Return what prices and figures are of, and what is a matter of definition."""
    q = a.question
    each = f"{COUNTED:,} requests ({EACH} per replica where that is more) after a warm-up"
    if not isinf(q.requests.num_prompts):
        each = f"{int(q.requests.num_prompts):,} requests"
    part = "; a few replicas of large fleets are simulated, with their share of the requests" * any(t.sampled for t in a.plans)
    counted = f"{plural(a.simulated, 'fleet')} of {plural(a.candidates, 'plan')} were simulated with {each}"
    notes, details = list[str](price_notes(a.questions)), [f"{counted}; all got the same requests (--seed){part}"]
    priced = any(other.goal.usd_per_gpu_hour for other in a.questions)
    chips = listed(a.unpriced)
    without = f"without a price for {chips}, dollars cannot be compared: ranked by fewest GPUs"
    behind = f"fleets of {chips} rank behind those with a price, fewest GPUs first"
    notes += [behind if a.objective == "cost" else without] * bool(chips)
    full = "at rate: at the requested rate, per answered token; full: at the highest rate within the limits"
    details += [f"{counted_note(q)}; {full}"] * priced
    grows = "headroom: how much the rate can grow within the limits; tokens/s/GPU: output tokens/s per GPU at that maximum"
    grows += f"; figures of fleets that do not hold are at {format_figure(rate_of(q))} requests/s" * bool(q.goal.growth and a.near)
    limits = [str(note) for note in q.notes if note.code in GENERAL]
    if a.plans:
        servers = a.plans[a.recommended].layout.question
        limits += map(str, default_limits_notes(servers, servers.requests.tokens))
    return tuple(dict.fromkeys([*notes, grows, *spread_notes(q), *limits])), tuple(details)


def fleets_document(a: FleetPlans) -> Record:
    q, (counted, warmup) = a.question, a.requests_per_run
    sentences = [fleet_sentence(a), *map(opening, fleet_reasons(a))] if a.plans else []
    return document(
        "plan-fleet",
        q,
        plans=a,
        clusters=[other.cluster.key for other in a.questions],
        limits={statistic_key(name): limit for name, limit in q.goal.slo},
        requests_counted=counted,
        requests_warmup=warmup,
        margin=margin(q),
        recommended=_row(a.plans[a.recommended]) if a.plans else None,
        best=_row(a.plans[0]) if a.plans else None,
        ranking=[_row(trial) for trial in a.plans],
        near=[{**_row(trial), "obstacle": obstacle(trial)} for trial in a.near],
        rejected=[record("plan-rejected", lost=lost) for lost in a.rejected],
        verdict=" ".join(sentences) or "no plan meets the limits",
        notes=[note for some in _notes(a) for note in some],
    )


def statistic_key(name: str) -> str:
    """Return a statistic as benchmarks spell it: ``p95_ttft_s``."""
    metric, which = name.rsplit("_", 1)
    return f"{which}_{metric}_s"


def _row(trial: Trial) -> Record:
    return record("plan-fleet-row", **_trial_record(trial))


def _trial_record(trial: Trial) -> Record:
    q, grown = trial.layout.question, trial.growth >= 0
    return {
        "trial": trial,
        "question": q,
        "mode": "disaggregated" if trial.layout.apart else "together",
        "replicas": trial.size[0],
        "prompt_workers": trial.size[1] if trial.layout.ahead else None,
        "techniques": [text for _, text in techniques_on(q)],
        "dtype": q.plan.weights_dtype or "as stored",
        "simulated_workers": sum(trial.sample) if trial.sampled else None,
        "statistics": {statistic_key(name): value for name, value in trial.figures.items()},
        "ranges": {statistic_key(name): list(ends) for name, ends in trial.ranges.items()},
        "headroom": trial.growth if grown else None,
        "sustained": sustained_tokens_per_s(trial) / trial.gpus if grown else None,
        "verdict": gpu_words(trial),
    }


MANNERS = {
    "FleetPlans": Manner[FleetPlans](
        show_fleets,
        fleets_document,
        lambda a: list(map(_row, a.plans)),
        bars(lambda a: [(gpu_words(one), float(one.gpus)) for one in a.plans], "GPUs", lambda a: a.question.model.key),
    ),
}
