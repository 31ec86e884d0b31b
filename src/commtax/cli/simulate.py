"""``commtax simulate``."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn

import click
import numpy as np

from commtax import counting
from commtax.cli.options import CommandOptions, Verb, VerbSubject
from commtax.cli.order import Order, options_beside, refuse, verb_command
from commtax.cli.progress import METER, STOP
from commtax.files import check_writable, write_text
from commtax.judgement.confidence import Estimate, JudgedLimit, judged_limits, percent
from commtax.question import Question
from commtax.report import closed_loop, tables
from commtax.rules.values import number, positive
from commtax.sim import arrivals
from commtax.sim.serving.running import ServingRun
from commtax.spec import CACHE_SPLIT
from commtax.statement import MEANS, Note, Refusal
from commtax.units import format_seconds, parse_seconds, plural
from commtax.verbs import requests
from commtax.verbs.closed_loop import ClosedLoop, price_closed_loop
from commtax.verbs.disaggregation import WORKERS, check_pools, prompter
from commtax.verbs.examining import SPELLED, Slo, points, question_at, slo_of, sweep
from commtax.verbs.explain import LARGE, LAYOUTS, attention_layouts
from commtax.verbs.fit_advice import add_advice, check_lengths
from commtax.verbs.fitting import holds
from commtax.verbs.requests import RequestsInTime, check_single_load
from commtax.verbs.settling import settle
from commtax.words import flag, settings_in, spelled


@click.command("simulate", cls=Verb)
@verb_command("simulate", VerbSubject.LOOP)
def simulate_command(order: Order) -> None:
    """Simulate serving as users see it: TTFT, TPOT, ITL and throughput. Exit code 1: overloaded, an SLO missed, or no start."""
    options, q = order.options, order.question
    if options.num_prompts is not None and options.prompts_per_client is not None:
        raise Refusal.about(prompts_per_client="give it or num_prompts, not both")
    counted = options.num_prompts, options.prompts_per_client, options.duration
    if any(x is not None for x in (options.request_rate, options.trace, *counted, options.sweep)):
        refuse(options, ("images",), "priced in steps and in the steady state of a closed loop, not for requests in time")
        _in_time(order, q)
    rule = "belongs to requests in time: --request-rate, --trace, or --concurrency with --num-prompts"
    refuse(options, [name for name in options_beside("simulate", "time") if name not in SPELLED], rule)
    slo = _slo(options)
    if q.offered.inputs or q.offered.outputs:
        raise Refusal.about(input_len="the steady state has one mean length; add --num-prompts to draw from a distribution")
    simulated = price_closed_loop(settle(check_lengths(q)))
    if q.requests.disaggregated:
        _check_gpus(simulated)
    if not closed_loop.holds_one(simulated):
        show = partial(closed_loop.show_unfit, advice=_remedies(simulated))
        order.output.answer(closed_loop.simulation_document, show, simulated, code=1)
    several = bool(np.ndim(q.requests.concurrency))
    above, below = list[Note](), list[Note]()
    if q.offered.prefix_hit_rate and not several:
        plain = price_closed_loop(simulated.question.but(prefix_hit_rate=0.0))
        above = [Note("prefixes", closed_loop.saved_by_prefixes(simulated, plain))]
    if options.concurrency is None and np.all(q.requests.concurrency == 1):
        order.output.remarks.append(ONE_CLIENT)
    elif not several and not order.output.as_json:  # another question's answer: none of the document
        below += _beginning(simulated)
    if not several and not q.requests.disaggregated and not order.output.as_json:
        below += _other_layout(simulated)
    judged = list(_judged(simulated, slo))
    above = [*(_limit_note(x, simulated) for x in judged), *above]
    simulated = replace(simulated, explicit_notes=(*above, *simulated.notes, *below))
    document, code = partial(closed_loop.simulation_document, judged=judged), int(not all(x.kept for x in judged))
    order.output.answer(document, closed_loop.show_simulation, simulated, code=code or _starts_not(order, simulated))


def _starts_not(order: Order, answer: ClosedLoop | RequestsInTime) -> int:
    """Return the exit code of servers that were pasted: 1 where they would not start as they are, as ``fit`` judges it."""
    return int(bool(order.launch) and any(note.code == tables.OWN_LIMITS for note in answer.notes))


def _judged(simulated: ClosedLoop, slo: Slo) -> Iterator[JudgedLimit]:
    """Judge limits on the means: of several numbers of clients, the one that comes nearest to breaking each counts."""
    names = [name for name in slo.limits if name != "tpot_s" or np.all(np.asarray(simulated.requests.output_len) > 1)]
    worst = {name: int(np.argmax(np.atleast_1d(getattr(simulated, name)))) for name in names}
    ends = {name: (getattr(simulated, name), *simulated.range_of(name)) for name in names}
    figures = {name: Estimate(*(float(np.atleast_1d(x)[worst[name]]) for x in ends[name])) for name in names}
    yield from judged_limits(figures, {name: slo.limits[name] for name in names})


def _limit_note(judged: JudgedLimit, simulated: ClosedLoop) -> Note:
    loads, times = np.atleast_1d(simulated.requests.concurrency), np.atleast_1d(getattr(simulated, judged.name))
    name = judged.name.removesuffix("_s").upper() + f" of {loads[np.argmax(times)]:,} clients" * (len(loads) > 1)
    verdict = "keeps" if judged.kept else "misses"
    likely = f"a run keeps it with a probability of {percent(judged.probability)}"
    text = f"mean {name} {format_seconds(judged.value)} {verdict} the limit of {format_seconds(judged.limit)}; {likely}"
    return Note("limit-kept" if judged.kept else "limit-missed", text)


def _remedies(simulated: ClosedLoop) -> Sequence[str]:
    """Return what would make room for a request: of the workers that have none, by options of ``simulate``."""
    q, r = simulated.question, simulated.requests
    ahead = simulated.apart is not None and bool(np.all(np.asarray(simulated.kv_tokens) >= np.asarray(r.tokens)))
    workers, longest = (prompter(q), int(r.input_len)) if ahead else (q.plain(), int(r.tokens))
    judged = add_advice(holds(workers.but(max_model_len=longest, disaggregated=False, **dict.fromkeys(WORKERS))))
    if not ahead:
        return judged.advice
    whole = [one for one in judged.advice if CACHE_SPLIT not in {option for option, _ in settings_in(one)}]
    return [spelled(one, lambda option, value: flag(PREFILL.get(option, option), value)) for one in whole]


PREFILL = {"tp": "prefill-tp"}  # options of prompt workers, which split no caches
ONE_CLIENT = Note("load", "this is one client, because no load was given: --concurrency N or --request-rate N gives it")
LONGER = 1.2  # a first token than in the steady state: what is less is not worth a word
USUAL_ROUNDS = 10  # requests of each client of a benchmark


def _beginning(simulated: ClosedLoop) -> list[Note]:
    """Say how first tokens of a benchmark differ, whose clients all start at once."""
    run = price_closed_loop(simulated.question.but(num_prompts=USUAL_ROUNDS * simulated.requests.concurrency))
    if float(run.ttft_s) < LONGER * float(simulated.ttft_s):
        return []
    text = f"a benchmark of {USUAL_ROUNDS} requests per client, all of whom start at once, has TTFT {format_seconds(run.ttft_s)}"
    return [Note("beginning", f"{text} (--prompts-per-client {USUAL_ROUNDS})")]


def _other_layout(simulated: ClosedLoop) -> Iterator[Note]:
    """Yield what the same clients get with attention shared out the other way, if tokens come much sooner and requests no later."""
    q = simulated.question
    for tried in attention_layouts(q.vary(batch=int(q.plan.tp))):  # a step's batch, which clients do not have
        sizes = {name: value for name, value in tried.changes.items() if name != "batch"}
        try:
            other = price_closed_loop(q.but(**sizes))
        except ValueError:
            continue
        saved = 1 - float(other.tpot_s) / float(simulated.tpot_s)
        if saved > LARGE and other.e2e_s <= simulated.e2e_s and closed_loop.holds_one(other):
            times = f"TPOT {format_seconds(other.tpot_s)} ({-saved:.0%}), TTFT {format_seconds(other.ttft_s)}"
            yield Note("layout", f"{LAYOUTS[tried.code].capitalize()} ({tried.what}) the same clients have {times}")


def _means(o: RequestsInTime) -> list[Note]:
    """Return the closed form's means of a benchmark of clients, which audits compare with a result."""
    q, offered = o.question, o.question.offered
    drawn = offered.trace is not None or offered.inputs or offered.outputs
    if offered.request_rate or drawn or offered.shared_prefix or offered.unique_prompts or q.requests.disaggregated:
        return []
    loop, names = price_closed_loop(q), ("TTFT", "TPOT")[: int(q.requests.output_len)]  # one token has no time between tokens
    fields = {name: f"{name.lower()}_s" for name in names}
    means = [f"{name} {format_seconds(getattr(loop, f))} ({closed_loop.ends_words(loop, f)})" for name, f in fields.items()]
    basis = "by the closed form, which published runs calibrated: a benchmark's means are judged by it"
    order = "requests of equal lengths in exact lockstep, which servers leave: ranges hold both"
    below = order if o.out_of_lockstep else "one order of requests in time, for tails and queues"
    return [Note(MEANS, f"Mean {', '.join(means)} {basis}; below, {below}")]


def _check_gpus(simulated: ClosedLoop) -> None:
    """Refuse workers that are more than the GPUs or the load, of either kind. As many as are "enough" is a what-if."""
    plan, apart = simulated.question.plan, simulated.apart
    counts = simulated.requests.prefill_workers, simulated.requests.decode_workers
    if apart is None or counts == (None, None):
        return
    clients = int(np.min(simulated.requests.concurrency))
    if counts[1] and counts[1] * plan.dp > clients:
        least = int(counts[1] * plan.dp)
        raise Refusal.of(f"the load is {plural(clients, 'client')}; give --concurrency {least} or more", decode_workers=counts[1])
    check_pools(simulated.question, apart.plan, counts)


def _in_time(order: Order, q: Question) -> NoReturn:
    options, clients = order.options, q.requests.concurrency
    if options.prompts_per_client is not None and not np.ndim(clients) and options.sweep is None:
        if q.offered.request_rate or q.offered.trace is not None:
            raise Refusal.about(prompts_per_client="belongs to the clients of a closed loop")
        q = q.but(num_prompts=positive(prompts_per_client=options.prompts_per_client) * clients)
    slo = _slo(options)
    for name in ("plot", "timeline", "save"):
        if options[name]:
            check_writable(options[name], name)
    if options.plot:
        from commtax.report.plots import check_plot

        check_plot(Path(options.plot))
    swept = _swept(options, q)
    if swept:
        _sweep(order, q, slo, *swept)
    if not q.offered.request_rate and q.offered.trace is None and np.isinf(q.requests.num_prompts):
        raise Refusal.about(num_prompts="a closed loop in time has an end; say how many requests, such as 1000")
    from commtax.report.requests import outcome_document, show_outcome

    o = requests.run_requests(settle(check_single_load(q)), _follow)
    _write(order, o)
    shown, missed = replace(o, notes=(*([] if order.output.as_json else _means(o)), *o.notes)), o.overloaded or not slo.kept(o)
    order.output.answer(outcome_document, show_outcome, shown, slo, code=int(missed) or _starts_not(order, o))


def _slo(options: CommandOptions) -> Slo:
    limits = {}
    for name in ("ttft", "tpot"):
        if options[name]:
            limits[SPELLED[name]] = number(parse_seconds(options[name], name), name, 0, 1e6, " s")
    return slo_of([word for text in options.goodput for word in text.replace(",", " ").split()], Slo(**limits))


def _swept(options: CommandOptions, q: Question) -> tuple[str, tuple[float, ...]] | None:
    if options.sweep is not None:
        name, values = points(options.sweep)
        if options[name] is not None or q.offered.trace is not None:
            swept = name.replace("_", "-")
            raise Refusal.about(sweep=f"goes over {swept}; give it or --{swept} or --trace, not both")
        return name, values
    if np.ndim(q.requests.concurrency):
        return points(f"concurrency={','.join(map(str, np.asarray(q.requests.concurrency).tolist()))}")
    return None


def _follow(ran: ServingRun) -> None:
    """Show how far a run is, and those of its first requests behind it that tell its ranges and its capacity."""
    whole = max(1, len(ran.book.arrival_s))
    later = 4 * min(whole, requests.RANGED)

    def done() -> tuple[float, str]:
        behind = METER.share * later if ran.answered == whole else 0.0
        return (ran.answered + behind) / (whole + later), f"{ran.answered:,} of {whole:,} requests"

    METER.start("simulating", done, STOP)


def _write(order: Order, o: RequestsInTime) -> None:
    options = order.options
    if options.save:
        arrivals.write(o.as_sent, options.save, o.results, "save")
    if options.timeline:
        from commtax.verbs.examining import timeline_of

        shown, left_out = timeline_of(o)
        write_text(options.timeline, shown.to_chrome(), "timeline")
        if left_out:
            text = f"{options.timeline}: the first {len(shown.lane):,} slices; {left_out:,} later ones are left out"
            order.output.remarks.append(Note("timeline", text))
    if options.plot:
        from commtax.report.requests import plot_outcome

        plot_outcome(o, Path(options.plot))


def _sweep(order: Order, q: Question, slo: Slo, name: str, values: tuple[float, ...]) -> NoReturn:
    from commtax.report.requests import plot_sweep, show_sweep, sweep_document

    options = order.options
    for file in ("timeline", "save"):
        if options[file]:
            raise Refusal(f"{file}: is of one run, and a sweep has several", file)
    swept = sweep(name, values, counting.counted([question_at(q, name, value, options.prompts_per_client) for value in values]))
    if options.plot:
        plot_sweep(swept, Path(options.plot))
    order.output.answer(sweep_document, show_sweep, swept, slo, code=int(swept.most(slo) is None))
