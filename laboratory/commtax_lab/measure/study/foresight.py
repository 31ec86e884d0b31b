"""Some runs of a machine teach, the others are predicted: what was measured, beside what was foreseen before and after."""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import cast

from commtax import catalog
from commtax.catalog import profile as overlay
from commtax.runs.calibrate.learning import Learnt, join_repeats, learn, question_of
from commtax.runs.calibrate.measurements import MeasuredRun
from commtax.spec import Profile
from commtax.verbs.closed_loop import ClosedLoop, simulate
from commtax.verbs.keywords import SimulateOptions
from commtax_lab.measure.study.findings import Done, Prices
from commtax_lab.measure.study.study_documents import ForeseenLatency, ForeseenRun, StudyLessons

METRICS = ("tpot", "ttft")
SHOWN = 3  # runs of a study that teach


def foresee(runs: Sequence[MeasuredRun], shown: int, prior: Profile) -> tuple[Learnt, list[ForeseenRun]]:
    """Learn from the runs of the first loads, and predict the others before and after."""
    first = set(list(dict.fromkeys(map(question_of, runs)))[:shown])
    learnt = learn([run for run in runs if question_of(run) in first], prior)
    others = join_repeats(run for run in runs if question_of(run) not in first)
    return learnt, [_foreseen(run, prior, learnt.profile) for run in others]


def _foreseen(run: MeasuredRun, prior: Profile, learnt: Profile) -> ForeseenRun:
    before, after = (
        simulate(run.model, run.cluster, **cast(SimulateOptions, {**run.options, "profile": profile}))
        for profile in (prior, learnt)
    )
    return {"load": run.label, **{metric: _foresight(run, before, after, metric) for metric in METRICS}}  # type: ignore[typeddict-item]


def _foresight(run: MeasuredRun, before: ClosedLoop, after: ClosedLoop, metric: str) -> ForeseenLatency:
    seconds, name = run.measured[metric], f"{metric}_s"
    low, high = (float(end) for end in after.range_of(name))
    first, then = float(getattr(before, name)), float(getattr(after, name))
    return {
        "measured_ms": seconds * 1e3,
        "before_ms": first * 1e3,
        "after_ms": then * 1e3,
        "error_before": first / seconds - 1,
        "error_after": then / seconds - 1,
        "low_ms": low * 1e3,
        "high_ms": high * 1e3,
        "covered": low <= seconds <= high,
    }


def sum_up(foreseen: Sequence[ForeseenRun]) -> dict[str, dict[str, float]]:
    """Sum up how far predictions are off, by metric."""
    return {metric: _errors(foreseen, metric) for metric in METRICS}


def _errors(foreseen: Sequence[ForeseenRun], metric: str) -> dict[str, float]:
    """Return medians before and after, and the share of runs inside their ranges."""
    rows = list(_rows(foreseen, metric))
    return {
        "median_before": median(abs(row["error_before"]) for row in rows),
        "median_after": median(abs(row["error_after"]) for row in rows),
        "covered": sum(row["covered"] for row in rows) / len(rows),
    }


def _rows(foreseen: Sequence[ForeseenRun], metric: str) -> Iterator[ForeseenLatency]:
    return (cast(ForeseenLatency, run[metric]) for run in foreseen)  # type: ignore[literal-required]


def study_lessons(done: Sequence[Done], prices: Prices) -> StudyLessons | None:
    """Learn from a study's runs of one request at a time, closed loops of one client, or return None if too few were made.

    Its static batches compute all prompts in one step and its server is asked at one rate alone: neither is a series of loads.
    """
    runs = list(_single_requests(done, prices)) if prices.profile and not prices.why_none else []
    if len(runs) <= SHOWN:
        return None
    foreseen = foresee(runs, SHOWN, overlay.load(prices.profile))[1]
    return {"shown": [run.label for run in runs[:SHOWN]], "foreseen": foreseen, "errors": sum_up(foreseen)}


def _single_requests(done: Sequence[Done], prices: Prices) -> Iterator[MeasuredRun]:
    where = catalog.cluster(prices.cluster)
    for run, record in done:
        if run.kind != "latency" or run.batch != 1 or not (record.get("decode_s") and record.get("prefill_s")):
            continue
        options = SimulateOptions(input_len=run.input_len, output_len=run.output_len, spread=0.0, concurrency=1, num_prompts=1)
        options |= SimulateOptions(tp=run.tp, engine=prices.engine, dtype=prices.dtype, eager=prices.eager)
        options |= SimulateOptions(library=prices.library) if prices.library and run.tp > 1 else {}
        measured = {"tpot": median(record["decode_s"]), "ttft": median(record["prefill_s"])}
        yield MeasuredRun(prices.model, where, options, measured, {}, f"TP {run.tp}, {run.input_len}/{run.output_len}")
