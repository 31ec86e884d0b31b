"""Closed-loop serving for a terminal and as a document."""

import math
from itertools import chain

import numpy as np

from commtax.catalog.transfer import unseen_levels
from commtax.files import table
from commtax.report.documents import LEFT_OUT, Record, document, facts, record
from commtax.report.drawing import Console
from commtax.report.tables import headline, notes, say, show_shares, show_table
from commtax.spec import SERVING_AXES
from commtax.units import format_mean, format_seconds, plural
from commtax.verbs.closed_loop import ClosedLoop
from commtax.verbs.disaggregation import describe_pools
from commtax.verbs.fitting import step_limits
from commtax.verbs.settling import describe_gpus, describe_layout

PARTS = table("report/words.toml")["closed_loop"]["parts"]
"""What TTFT is made of."""
Run = dict[str, float]
"""All figures at one concurrency; no number (NaN, which documents tell as null) where there is none."""
NO_TPOT = "TPOT – (one output token: there is no time between tokens)"


def holds_one(s: ClosedLoop) -> bool:
    """Whether the cache of a copy has room for one request, and a prompt worker for its prompt."""
    states = np.asarray(s.state_tokens)
    whole = np.all(np.asarray(s.kv_tokens) >= np.asarray(s.requests.tokens) + states)
    prompts = s.apart is None or np.all(np.asarray(s.apart.kv_tokens) >= np.asarray(s.requests.input_len) + states)
    return bool(whole and prompts)


def show_simulation(console: Console, s: ClosedLoop) -> None:
    """The two latencies with their ranges, what they are made of, and the throughput."""
    _head(console, s)
    tpot, ttft = (f"{name} {format_seconds(getattr(s, f))} ({_ends(s, f)})" for name, f in (("TPOT", "tpot_s"), ("TTFT", "ttft_s")))
    times = f"{tpot if s.requests.output_len > 1 else NO_TPOT}, {ttft}, E2E {format_seconds(s.e2e_s)}"
    say(console, f"{times}; {s.tokens_per_s:,.0f} output tokens/s, {s.requests_per_s:,.2f} requests/s", "bold yellow")
    waits = [(text, float(getattr(s.served, name))) for name, text in PARTS.items()]
    show_shares(console, "of TTFT", waits, float(s.ttft_s))
    if s.requests.output_len > 1:
        show_shares(console, "of TPOT", _token_parts(s), float(s.tpot_s))
    notes(console, (_mixture(s), *s.notes, host_times(s)))


def _ends(s: ClosedLoop, name: str) -> str:
    return " to ".join(format_seconds(end) for end in s.range_of(name))


def _token_parts(s: ClosedLoop) -> list[tuple[str, float]]:
    decode, stretch = float(s.decode_part_s), float(s.served.stretch_s)
    frontend = float(s.served.frontend_s / (s.requests.output_len - 1))
    thrown_out = "preempted, waiting for the KV cache", float(s.tpot_s) - decode - stretch - frontend
    return [("decode step", decode), ("other prompts", stretch), ("waiting for the front end", frontend), thrown_out]


def show_simulations(console: Console, s: ClosedLoop) -> None:
    """One line a concurrency."""
    _head(console, s)
    times = (">TPOT", ">80 % range", ">TTFT", ">80 % range", ">E2E")
    columns = (">clients", ">running", *times, ">tokens/s", ">requests/s", ">prompts in TPOT")
    show_table(console, columns, map(_run_cells, simulation_runs(s)))
    notes(console, (*s.notes, host_times(s)))


def _run_cells(run: Run) -> tuple[str, ...]:
    """Without a second token there is no time between tokens."""
    mean, low, high = (run[f"tpot{end}_s"] for end in ("", "_low", "_high"))
    between = ("–", "–") if not math.isfinite(mean) else (format_seconds(mean), f"{format_seconds(low)}-{format_seconds(high)}")
    first = (format_seconds(run["ttft_s"]), f"{format_seconds(run['ttft_low_s'])}-{format_seconds(run['ttft_high_s'])}")
    mixed = "–" if not math.isfinite(run["mixed_share"]) else f"{run['mixed_share']:.0%}"
    rates = (format_seconds(run["e2e_s"]), f"{run['tokens_per_s']:,.0f}", f"{run['requests_per_s']:,.2f}", mixed)
    return (f"{run['concurrency']:,.0f}", format_mean(run["running"]), *between, *first, *rates)


def _head(console: Console, s: ClosedLoop) -> None:
    r = s.requests
    if not holds_one(s):
        states = int(np.max(s.state_tokens))
        beside = f" and room for {states:,} more for its states" if states else ""
        need = f"a request of {int(r.input_len):,} + {int(r.output_len):,} tokens needs {int(r.tokens):,}{beside}"
        whose, room = "a replica", s.kv_tokens
        if s.apart and s.kv_tokens >= r.tokens:
            need, whose, room = f"a prompt has {int(r.input_len):,}", "a prompt worker", s.apart.kv_tokens
        say(console, f"It does not fit: the KV cache of {whose} holds {int(room):,} tokens, and {need}.", "bold red")
    headline(console, s.question, _gpus(s))
    clients = plural(int(r.concurrency), "client") if np.ndim(r.concurrency) == 0 else "clients in a closed loop"
    finite = f", {int(np.max(r.num_prompts)):,} prompts" if np.all(np.isfinite(r.num_prompts)) else ", steady state"
    spread = f" (lengths ± {r.spread:.0%})" if r.spread else " (all of equal length)"
    hits = f", {hit:.0%} of each prompt found in the cache" if (hit := s.question.offered.prefix_hit_rate) else ""
    say(console, f"{clients}, {int(r.input_len):,} tokens in and {int(r.output_len):,} out{spread}{hits}{finite}", "dim")


def _gpus(s: ClosedLoop) -> str:
    """The GPUs in words; of both kinds of workers where there are two."""
    if s.apart is None:
        return describe_gpus(s.question.plan)
    prompts = f"{s.apart.workers or 'enough'} x {describe_layout(s.apart.plan)}"
    copies = f"{int(s.apart.copies)} x " if np.ndim(s.apart.copies) == 0 else "enough x "
    total = f"{int(s.num_gpus)} GPUs = " if s.num_gpus is not None and np.ndim(s.num_gpus) == 0 else ""
    return total + describe_pools(s.question, prompts, f"{copies}{describe_layout(s.question.plan)}")


def _mixture(s: ClosedLoop) -> str:
    """What the engine's steps are, in words."""
    engine = s.question.engine
    chunks = math.ceil(float(s.steps.chunks))
    cut = f"in {chunks} chunks of at most {step_limits(s.prompts)[0]:,} tokens" if chunks > 1 else "in one step"
    how = "alone, before decoding continues" if engine.serves.prefill_first else "together with decoding"
    how = "on a worker of its own" if s.apart else how
    return (
        f"{format_mean(s.running)} request{'s run' if s.running != 1 else ' runs'} at once per replica, "
        f"{plural(s.rows, 'row')} per decode step; a prompt is computed {cut}, {how}; "
        f"{s.served.ahead:,.1f} other prompts come before each first token"
    )


def host_times(s: ClosedLoop) -> str:
    """What host times rest on, in words."""
    engine = s.question.engine
    return f"host times of {engine.key} {engine.host.host_label or basis_words(s)}"


def basis_words(s: ClosedLoop) -> str:
    """What ranges rest on, in words."""
    engine, basis = s.question.engine, s.basis
    if basis == "calibrated":
        return "calibrated on published runs; ranges hold 80 % of those not fitted, and are at least those of the steps"
    if basis == "assumed":
        return "and ranges assumed"
    if engine.host.pooled and not engine.host.host_label:
        return f"transferred from published runs{_unseen_words(tuple(dict.fromkeys(chain(*map(unseen_levels, s.settings)))))}"
    where = " and ".join(engine.host.served_on)
    return f"transferred from published runs on {where}; ranges are wider by those of the steps here"


def _unseen_words(levels: tuple[str, ...]) -> str:
    """What no published run had, and what that does to the ranges."""
    named = {"engine": "this engine", "chip": "this chip", "dtype": "this number format", "family": "this family of models"}
    strange = [named[level] for level in levels if level in named]  # whoever asks is no publisher, which needs no words
    if not strange:
        return " of its parts, not together"
    said = " or ".join(strange) + " with it" * ("engine" not in levels)
    return f", none of which had {said}: ranges are as wide as the errors on runs left out of the fit"


def simulation_runs(s: ClosedLoop) -> list[Run]:
    """One flat record for each concurrency; without a second token there is no time between tokens, and its fields are null."""
    ends: Record = {}
    for name in ("tpot", "ttft"):
        ends[f"{name}_low_s"], ends[f"{name}_high_s"] = s.range_of(f"{name}_s")
    columns = record("simulate-run", simulation=s, **ends)
    if np.all(np.asarray(s.requests.output_len) == 1):
        columns |= dict.fromkeys(("tpot_s", "tpot_low_s", "tpot_high_s", "mixed_share"))
    size = np.size(s.requests.concurrency)
    wide = {name: np.broadcast_to(np.asarray(value, dtype=float), (size,)) for name, value in columns.items()}
    return [{name: float(value[i]) for name, value in wide.items()} for i in range(size)]


def simulation_document(s: ClosedLoop) -> Record:
    """``simulate --json``: one record in ``runs`` for each concurrency."""
    return document(
        "simulate",
        s.question,
        simulation=s,
        max_batched_tokens=step_limits(s.prompts)[0],
        num_prompts=s.requests.num_prompts if np.all(np.isfinite(s.requests.num_prompts)) else None,
        fits=holds_one(s),
        calibrated=s.basis == "calibrated",
        runs=simulation_runs(s),
        **_workers(s),
    )


def _workers(s: ClosedLoop) -> Record:
    """Both kinds of workers, and the GPUs of all; null where there are "enough"."""
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
