"""Closed-loop serving for a terminal and as a document."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from commtax.catalog.transfer import unseen_levels
from commtax.files import table
from commtax.judgement.confidence import JudgedLimit
from commtax.report import tables
from commtax.report.documents import LEFT_OUT, Record, document, facts, record
from commtax.report.drawing import Console
from commtax.report.figures import figure_table
from commtax.report.manners import Manner, question_title
from commtax.spec import SERVING_AXES
from commtax.units import format_figure, format_mean, format_seconds, plural
from commtax.verbs.closed_loop import ClosedLoop
from commtax.verbs.disaggregation import describe_pools
from commtax.verbs.fitting import step_limits
from commtax.verbs.settling import describe_gpus

if TYPE_CHECKING:
    from commtax.report.plots import Figure

PARTS = table("report/words.toml")["closed_loop"]["parts"]  # what TTFT is made of
LITTLE = 0.15  # of a time or a difference: what is less is not worth a word
Run = dict[str, float]  # all figures at one concurrency; no number (NaN, which documents tell as null) where there is none
TOLD_FIRST = ("limit-missed", "limit-kept", "prefixes", "layout")  # notes that belong to the answer itself
NO_TPOT = "TPOT – (one output token: there is no time between tokens)"


def holds_one(s: ClosedLoop) -> bool:
    """Return whether a copy has room for one request, a prompt worker for its prompt, and both for a whole one where needed."""
    states = np.asarray(s.state_tokens)
    whole = np.all(np.asarray(s.kv_tokens) >= np.asarray(s.requests.tokens) + states)
    prompts = s.apart is None or np.all(np.asarray(s.apart.kv_tokens) >= np.asarray(s.requests.input_len) + states)
    return bool(whole and prompts) and not _too_long(s)


def _too_long(s: ClosedLoop) -> list[str]:
    return [note for note in s.notes if note.code == "too-long"]


def show_unfit(console: Console, s: ClosedLoop, advice: Iterable[str] = ()) -> None:
    """Show that nobody can run this plan, and what would fit: its times would be those of another one."""
    r, long = s.requests, _too_long(s)
    if long:
        tables.say(console, f"It does not fit: {long[0]}.", "bold red")
    else:
        states = int(np.max(s.state_tokens))
        beside = f" and room for {states:,} more for its states" if states else ""
        need = f"a request of {int(r.input_len):,} + {int(r.output_len):,} tokens needs {int(r.tokens):,}{beside}"
        whose, room = "a replica", s.kv_tokens
        if s.apart and s.kv_tokens >= r.tokens:
            need, whose, room = f"a prompt has {int(r.input_len):,}", "a prompt worker", s.apart.kv_tokens
        no_room = f"weights leave the KV cache of {whose} no room"
        holds = f"the KV cache of {whose} holds {int(room):,} tokens" if room > 0 else no_room
        tables.say(console, f"It does not fit: {holds}, and {need}.", "bold red")
    for change in () if long else advice:  # which names what would help itself
        tables.say(console, f"  It would fit with {change}.")
    _say_question(console, s)


def show_simulation(console: Console, s: ClosedLoop) -> None:
    """Show the two latencies with their ranges, what they are made of, and the throughput."""
    if not holds_one(s):
        show_unfit(console, s)
        return
    tables.say_limits(console, s.notes)
    if np.ndim(s.requests.concurrency):
        _show_loads(console, s)
        return
    tpot, ttft = (f"{f[:4].upper()} {format_seconds(getattr(s, f))} ({ends_words(s, f)})" for f in ("tpot_s", "ttft_s"))
    times = f"{tpot if s.requests.output_len > 1 else NO_TPOT}, {ttft}, E2E {format_seconds(s.e2e_s)}"
    rates = [f"{s.tokens_per_s:,.0f} output tokens/s", f"{s.requests_per_s:,.2f} requests/s"]
    rates += figure_table("run").words({"simulation": s})
    tables.say(console, f"{times}; {', '.join(rates)}", tables.ANSWER)
    _say_first(console, s)
    seconds = {name: float(getattr(s.served, name)) for name in PARTS if name != "handed_s"}
    handover_s = s.question.engine.host.handover_s * (float(np.exp(s.learnt["ttft"].log)) if s.learnt else 1.0)
    seconds["handed_s"] = min(seconds["moved_s"], handover_s)
    seconds["moved_s"] -= seconds["handed_s"]
    parts = {"TTFT": ([(text, seconds[name]) for name, text in PARTS.items()], float(s.ttft_s))}
    if s.requests.output_len > 1:
        decode, stretch = float(s.decode_part_s), float(s.served.stretch_s)
        frontend = float(s.served.frontend_s / (s.requests.output_len - 1))
        thrown_out = "preempted, waiting for the KV cache", float(s.tpot_s) - decode - stretch - frontend
        step = "the decode step" + " of the fullest batch" * (s.question.plan.pp > 1)
        token_parts = [(step, decode), ("other prompts", stretch), ("waiting for the front end", frontend), thrown_out]
        parts["TPOT"] = token_parts, float(s.tpot_s)
    largest = {name: (*max(some, key=lambda part: part[1]), whole_s) for name, (some, whole_s) in parts.items()}
    tables.say(console, "; ".join(f"{name} is mostly {part} ({s / whole:.0%})" for name, (part, s, whole) in largest.items()))
    _say_question(console, s)
    for name, (times_s, whole_s) in parts.items():
        tables.show_shares(console, f"part of {name}", times_s, whole_s)
    handing, handed_by = s.question.engine, s.question.engine.sources.get("handover_s") if s.apart else None
    handed = f"handing a request over takes {handing.key} {format_seconds(handing.host.handover_s)}"
    handover = [f"{handed}: {handed_by.title} ({handed_by.url})"] if handed_by and handing.host.handover_s else []
    remarks, details = _remarks(s, _mixture(s), *handover)
    fixed, large = tuple(fixed_time_notes(s)), s.question.engine.host.request_s > LITTLE * float(s.ttft_s)
    tables.notes(console, (*remarks, *(fixed if large else ())), (*details, *(() if large else fixed)))


def fixed_time_notes(s: ClosedLoop) -> list[str]:
    """Say what the time that every request takes in an idle server is, and what it rests on: it is a constant, and no queue."""
    engine = s.question.engine
    if not engine.host.request_s:
        return []
    label = engine.host.host_label
    how = label.kind if label else "fitted on published runs" if engine.host.calibrated else "assumed"
    fixed = f"the server's fixed time per request, {format_seconds(engine.host.request_s)} of each TTFT, is {how} ({engine.key})"
    mixed = engine.host.of_mixtures and engine.host.mixture_request != 1 and engine.host.calibrated and not label
    several = ": runs of mixtures of experts with several clients, which do not tell it from other waits; an idle server may take"
    return [fixed + f"{several} less" * mixed]


def saved_words(times: Mapping[str, tuple[float, float]], rate: str, rates: tuple[float, float]) -> str:
    """Write how much cached prefixes raise a rate and shorten times, beside the figures without them.

    >>> saved_words({"TTFT": (0.03, 0.06)}, "requests/s", (12.0, 10.0))
    'Cached prefixes: +20% requests/s (10 without), TTFT -50% (60 ms without)'
    """
    saved = [f"{name} {s / plain - 1:+.0%} ({format_seconds(plain)} without)" for name, (s, plain) in times.items() if plain > 0]
    more = f"{rates[0] / rates[1] - 1:+.0%} {rate} ({format_figure(rates[1])} without)"
    return f"Cached prefixes: {', '.join([more, *saved])}"


def saved_by_prefixes(s: ClosedLoop, plain: ClosedLoop) -> str:
    times = {f[:4].upper(): (float(getattr(s, f)), float(getattr(plain, f))) for f in ("ttft_s", "tpot_s")}
    return saved_words(times, "output tokens/s", (float(s.tokens_per_s), float(plain.tokens_per_s)))


def _remarks(s: ClosedLoop, *details: str) -> tables.Remarks:
    """Return notes and details. What host times rest on changes how an answer is read only where they were not measured so."""
    sure = s.basis == "calibrated" and not s.question.engine.host.host_label
    notes = [note for note in s.notes if note.code not in ("too-long", tables.OWN_LIMITS, *TOLD_FIRST)]
    return (*notes, *([] if sure else [host_times(s)])), (*details, *([host_times(s)] if sure else []))


def ends_words(s: ClosedLoop, name: str) -> str:
    return " to ".join(format_seconds(end) for end in s.range_of(name))


def _show_loads(console: Console, s: ClosedLoop) -> None:
    """Show the span from the first to the last in a sentence, then one line for each number of clients."""
    runs = simulation_runs(s)
    first, last = runs[0], runs[-1]
    clients = f"From {first['concurrency']:,.0f} to {last['concurrency']:,.0f} clients"
    names = [name for name in ("tpot", "ttft") if math.isfinite(first[f"{name}_s"])]
    longer = [f"{name.upper()} {format_seconds(first[f'{name}_s'])} to {format_seconds(last[f'{name}_s'])}" for name in names]
    span_words = f"{clients}: {', '.join(longer)}; {first['tokens_per_s']:,.0f} to {last['tokens_per_s']:,.0f} output tokens/s"
    tables.say(console, span_words, tables.ANSWER)
    _say_first(console, s)
    _say_question(console, s)
    figure_table("runs").show(console, runs)
    tables.notes(console, *_remarks(s))


def _say_first(console: Console, s: ClosedLoop) -> None:
    for note in (note for note in s.notes if note.code in TOLD_FIRST):
        tables.say(console, note)


def _say_question(console: Console, s: ClosedLoop) -> None:
    r = s.requests
    clients = plural(int(r.concurrency), "client") if np.ndim(r.concurrency) == 0 else "clients in a closed loop"
    finite = f", {int(np.max(r.num_prompts)):,} prompts" if np.all(np.isfinite(r.num_prompts)) else ", steady state"
    tables.say_question(console, s.question, f"{clients}, {tables.length_words(s.question, True)}{finite}", gpus=_gpus(s))


def _gpus(s: ClosedLoop) -> str:
    if s.apart is None:
        return describe_gpus(s.question.plan)
    copies = int(s.apart.copies) if np.ndim(s.apart.copies) == 0 else "enough"
    total = f"{int(s.num_gpus)} GPUs = " if s.num_gpus is not None and np.ndim(s.num_gpus) == 0 else ""
    return total + describe_pools(s.question.places, (s.apart.workers or "enough", s.apart.plan), (copies, s.question.plan))


def _mixture(s: ClosedLoop) -> str:
    engine = s.question.engine
    chunks = math.ceil(float(s.steps.chunks))
    cut = f"in {chunks} chunks of at most {step_limits(s.prompts)[0]:,} tokens" if chunks > 1 else "in one step"
    how = "alone, before decoding continues" if engine.serves.prefill_first else "together with decoding"
    how = "on a worker of its own" if s.apart else how
    return (
        f"{format_mean(s.running)} request{'s run' if s.running != 1 else ' runs'} at once per replica, "
        f"{plural(s.rows, 'row')} per decode step; a prompt is computed {cut}, {how}; "
        f"{s.served.ahead:,.1f} other prompts are computed before each first token, on average"
    )


def host_times(s: ClosedLoop) -> str:
    engine = s.question.engine
    label = engine.host.host_label
    return f"host times of {engine.key} are {f'{label.kind} ({label.detail})' if label else basis_words(s)}"


def basis_words(s: ClosedLoop) -> str:
    engine, basis = s.question.engine, s.basis
    if basis == "calibrated":
        return "calibrated on published runs; 80% of new runs should fall within the ranges"
    if basis == "assumed":
        return "assumed, and so are the ranges"
    if engine.host.pooled and not engine.host.host_label:
        return f"transferred from published runs{_unseen_words(s)}"
    where = " and ".join(engine.host.served_on)
    return f"transferred from published runs on {where}; ranges are wider, by those of the steps here"


def _unseen_words(s: ClosedLoop) -> str:
    """Return what no published run had, and what that does to the ranges."""
    levels = tuple(dict.fromkeys(chain(*map(unseen_levels, s.settings))))
    named = {"engine": "this engine", "chip": "this chip", "dtype": "this number format", "family": "this family of models"}
    strange = [named[level] for level in levels if level in named]  # whoever asks is no publisher, which needs no words
    if not strange:
        return " that used each of its parts, but not together"
    new = " or ".join(strange) + " with this engine" * ("engine" not in levels)
    return f", none of which used {new}; ranges are as wide as the errors on runs left out of the fit"


def simulation_runs(s: ClosedLoop) -> list[Run]:
    """Return one flat record for each number of clients, times between tokens null without a second token."""
    ends: Record = {}
    for name in ("tpot", "ttft"):
        ends[f"{name}_low_s"], ends[f"{name}_high_s"] = s.range_of(f"{name}_s")
    columns = record("simulate-run", simulation=s, **ends)
    if np.all(np.asarray(s.requests.output_len) == 1):
        columns |= dict.fromkeys(("tpot_s", "tpot_low_s", "tpot_high_s", "mixed_share"))
    size = np.size(s.requests.concurrency)
    wide = {name: np.broadcast_to(np.asarray(value, dtype=float), (size,)).tolist() for name, value in columns.items()}
    return [dict(zip(wide, row, strict=True)) for row in zip(*wide.values(), strict=True)]


def simulation_document(s: ClosedLoop, judged: Sequence[JudgedLimit] = ()) -> Record:
    """Return what ``simulate --json`` prints: one record in ``runs`` for each concurrency, in ``limits`` for each on a mean."""
    return document(
        "simulate",
        s.question,
        simulation=s,
        max_batched_tokens=step_limits(s.prompts)[0],
        num_prompts=s.requests.num_prompts if np.all(np.isfinite(s.requests.num_prompts)) else None,
        fits=holds_one(s),
        calibrated=s.basis == "calibrated",
        runs=simulation_runs(s),
        limits=[record("simulate-limit", judged=x) for x in judged],
        **_workers(s),
    )


def _workers(s: ClosedLoop) -> Record:
    """Return both kinds of workers, and the GPUs of all, or null where there are "enough"."""
    plan = s.question.plan
    if s.apart is None:
        return {"prompt_workers": None, "decode_workers": LEFT_OUT, "gpus": plan.all_gpus}
    gpus = s.num_gpus if s.num_gpus is not None and np.ndim(s.num_gpus) == 0 else None
    room = s.apart.kv_tokens if np.isfinite(s.apart.kv_tokens) else None
    return {
        "prompt_workers": {"workers": s.apart.workers, **facts(s.apart.plan, *SERVING_AXES), "kv_tokens": room},
        "decode_workers": s.apart.copies if np.ndim(s.apart.copies) == 0 else None,
        "gpus": gpus,
        "idle_gpus": None if gpus is None else s.question.gpus_there - gpus,
    }


def _plot(s: ClosedLoop, path: Path | None) -> "Figure":
    from commtax.report.plots import plot_latencies  # not for those who print

    return plot_latencies(simulation_runs(s), question_title(s.question), path)


MANNERS = {
    "ClosedLoop": Manner[ClosedLoop](
        show_simulation, simulation_document, lambda s: [dict(run) for run in simulation_runs(s)], _plot
    ),
}
