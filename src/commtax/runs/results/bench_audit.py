"""Benchmark results against what was predicted for their load, and against what no run can do."""

import math
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from commtax import catalog
from commtax.catalog.programs import programs
from commtax.cost.train_kernels import forward_flops
from commtax.files import table
from commtax.judgement.overload import falls_behind
from commtax.runs.evidence.finding import AGREE, DISAGREE, RESULTS, UNKNOWN, Cause, Claim, Finding, Section, figure_text
from commtax.runs.evidence.identity import identity_findings
from commtax.runs.results import expected_figures
from commtax.runs.results.bench_record import HARDWARE, BenchmarkRun
from commtax.runs.results.expected_figures import (
    SERVER,
    BenchmarkLoad,
    ExpectedFigures,
    lengths_of,
    load_of,
    load_words,
    predict_run,
)
from commtax.statement import Note
from commtax.thresholds import thresholds
from commtax.units import format_bytes, format_figure, format_seconds, plural
from commtax.verbs.fitting import holds

COUNT, LEVEL = thresholds(__name__)
WORDS = table("runs/results/words.toml")
TIMES, RATES, BESIDE, SLOW, WHY = (WORDS[kind] for kind in ("times", "rates", "beside", "slow", "why"))
TERMS = ("queue", "prefill", "decode")  # times inside a server that it reports: judged, and no headline
DEGREES = ("pp", "dp", "ep")
IDENTITY = ("model", "chip", "tp", *DEGREES)  # codes of findings on what ran
BEATS = "beats the hardware"
Judge = Callable[[str, str, Note, float, str], Finding | None]
"""Metric, statistic, item, what was measured and its unit: the comparison, or None where nothing is predicted."""
AuditedParts = tuple[Sequence[Finding], Sequence[Cause], Sequence[Note]]  # of one result


def audit_bench(results: Sequence[BenchmarkRun], claim: Claim | None, name: str, baseline: BenchmarkRun | None = None) -> Section:
    """Audit every result of one file. ``baseline`` is the same benchmark at TP 1."""
    findings: list[Finding] = []
    causes: list[Cause] = []
    notes: list[Note] = []
    for number, result in enumerate(results, 1):
        label = f"run {number}: " if len(results) > 1 else ""
        if claim is None:
            compared: Sequence[Finding] = (*_times(result), *_rates(result), *_impossible_findings(result))
            blamed: Sequence[Cause] = expected_figures.plain_causes(result)
            remarks: Sequence[Note] = ()
        else:
            compared, blamed, remarks = _audit_claim(result, claim, baseline)
        findings += [replace(f, item=Note(f.code, label + f.item)) for f in compared]
        causes += [replace(c, said=label + c.said) for c in (*expected_figures.failure_causes(result), *blamed)]
        notes += [Note(n.code, label + n) for n in (*result.notes, *remarks)]
    kinds = ", ".join(dict.fromkeys(f"{r.tool} {r.kind}" for r in results))
    counted = Note("results", f"{kinds}: {plural(len(results), 'result')}")
    distrust = [Note("distrust", claim.distrust)] if claim and claim.distrust else []
    offer = (*distrust, *_offer(results, claim, name)) if claim else ()
    dearest = tuple(sorted(causes, key=lambda c: -(c.cost_s or 0.0)))
    values_by_fact: dict[str, dict[str, None]] = {}
    for r in results:
        named = {"tool": r.tool, "kind": r.kind, "model": r.model, "version": r.version, "tp": r.tp, "failed": r.failed}
        load = {"requests": r.requests, "concurrency": r.concurrency, "request rate": r.request_rate, "batch": r.batch}
        lengths = {"input length": r.input_len, "output length": r.output_len}
        lengths |= {} if any(lengths.values()) else {"input tokens": r.input_tokens, "output tokens": r.output_tokens}
        lengths |= {"tokens per step": r.accepted} if r.accepted > 1 else {}
        for fact, value in {**named, **load, **lengths, **r.facts}.items():
            if value:
                values_by_fact.setdefault(fact, {})[f"{value:g}" if isinstance(value, float) else str(value)] = None
    several = {RESULTS: str(len(results))} if len(results) > 1 else {}
    facts = several | {fact: ", ".join(values) for fact, values in values_by_fact.items()}
    return Section("bench", (name,), tuple(findings), (counted, *notes, *offer), causes=dearest, facts=facts)


def _audit_claim(result: BenchmarkRun, claim: Claim, baseline: BenchmarkRun | None) -> AuditedParts:
    load = load_of(result, claim)
    try:
        predicted = load if isinstance(load, str) else predict_run(result, load, claim)
    except ValueError as error:
        predicted = str(error)
    checks = (*_impossible_findings(result, claim), *_claim_findings(result, claim, baseline))
    if isinstance(predicted, str):
        left = [f.undecided(predicted) for f in (*_times(result), *_rates(result))]
        return (*left, *_too_large(load, claim), *checks), expected_figures.plain_causes(result), tuple(_remarks(result, claim))
    judged = partial(_judge_figure, result, predicted, claim)
    rates = _rates(result, None if result.tool == SERVER else judged)  # of a server they are the load that is predicted for
    compared = (*_by_means([*_times(result, judged)]), *rates)
    other = any(f.code in IDENTITY and f.verdict == DISAGREE for f in checks)  # what it should take is that of another run
    blamed = () if other or (claim.distrust and not claim.strict) else expected_figures.causes(result, predicted, claim, baseline)
    load_text = str(predicted.load) if result.tool == SERVER else load_words(predicted)  # a server's metrics have no beginning
    rate, kept = predicted.load.rate, predicted.of("requests_per_s", "")
    if rate and kept and falls_behind(rate, kept.value):  # the queue then grows with every request
        load_text += f": overloaded, {format_figure(kept.value)} of them answered per second"
    remarks = (Note("load", f"predicted for {load_text}"), *_remarks(result, claim))
    more = expected_figures.overload(result) if blamed else expected_figures.plain_causes(result)
    return (*compared, *checks), (*more, *blamed), remarks


def _too_large(load: BenchmarkLoad | str, claim: Claim) -> Iterator[Finding]:
    """Report a plan whose weights and longest request exceed all memory of a GPU: another plan ran."""
    longest = load.prompt + load.answer if isinstance(load, BenchmarkLoad) else 1
    try:
        fit = holds(claim.question.but(max_model_len=longest))
    except ValueError:
        return
    whole, needed = fit.question.cluster.chip.visible_bytes, fit.weights_bytes + fit.needed_kv_bytes
    if needed > whole:
        why = f"weights of {format_bytes(fit.weights_bytes)} leave it no room, and yet it ran: {WHY['other_plan']}"
        item = Note("memory", f"memory of a GPU, for weights and a request of {plural(longest, 'token')}")
        yield Finding(item, needed, whole, "bytes", 0.0, why, verdict=DISAGREE, evidence=True)


def _times(result: BenchmarkRun, judged: Judge | None = None) -> Iterator[Finding]:
    """Yield each time of the result. Gaps of a stream are judged only where there is no time of a token."""
    for metric, title in TIMES.items():
        chunks = metric == "itl" and "tpot" in result.stats
        stats = result.stats.get(metric, {})
        percentiles = [s for s in stats if s[:1] == "p" and s[1:].replace(".", "", 1).isdecimal()]
        highest = max(percentiles, key=lambda s: float(s[1:]), default="p99")
        tail = "p99" if "p99" in percentiles else highest
        for statistic in ("mean",) if chunks else ("mean", "median", tail):
            if seconds := stats.get(statistic):  # nothing takes no time: 0 was not measured
                item = Note(f"{metric}_{statistic}", f"{title} ({statistic})")
                plain = Finding(item, None, seconds, "s", reason=WHY["chunks"] if chunks else "")
                yield (judged(metric, statistic, item, seconds, "s") if judged and not chunks else None) or plain


def _rates(result: BenchmarkRun, judged: Judge | None = None) -> Iterator[Finding]:
    """Yield each rate, that of all tokens only where there is none of output tokens."""
    for name, title in RATES.items():
        rate: float | None = getattr(result, name)
        if rate and not (name == "total_tokens_per_s" and result.output_tokens_per_s):
            item = Note(name, title)
            yield (judged(name, "", item, rate, "") if judged else None) or Finding(item, None, rate)
    if result.duration_s and result.tool != SERVER:
        yield Finding(Note("duration", "total time"), None, result.duration_s, "s")
    stated = ((fact, title, result.facts.get(fact)) for fact, title in BESIDE.items())
    yield from (Finding(Note(fact, title), None, float(value)) for fact, title, value in stated if value)


def _judge_figure(
    result: BenchmarkRun,
    predicted: ExpectedFigures,
    claim: Claim,
    metric: str,
    statistic: str,
    item: Note,
    measured: float,
    unit: str,
) -> Finding | None:
    """Judge a figure: inside the range or within the tolerance it agrees, for a strict claim within the tolerance alone."""
    figure = predicted.of(metric, statistic)
    if figure is None:
        return Finding(item, None, measured, unit, reason="no such figure is predicted for this load")
    ends = (None, None) if claim.strict else (figure.low, figure.high)
    finding = Finding(item, figure.value, measured, unit, claim.tolerance, "", None, UNKNOWN, metric not in TERMS, *ends)
    ranged = f"80% range {figure_text(figure.low, unit)} to {figure_text(figure.high, unit)}"
    if why := _reason_incomparable(result, predicted, metric, statistic):
        return finding.undecided(f"{ranged}; {why}")
    if claim.distrust and not claim.strict:
        return finding.unsure(f"{ranged}; {'the plan is assumed' if claim.guessed else 'constants are assumed: calibrate first'}")
    if finding.near:
        return replace(finding, verdict=AGREE, reason=ranged)
    return replace(finding, verdict=DISAGREE, reason=f"{ranged}; {_possible_reason(result, finding, metric, statistic)}")


def _by_means(times: Sequence[Finding]) -> Iterator[Finding]:
    """Let the mean of a time decide, so that a median or a tail that differs beside an agreeing mean is not judged."""
    agreed = {f.code.removesuffix("_mean") for f in times if f.code.endswith("_mean") and f.verdict == AGREE}
    for f in times:
        alone = f.verdict == DISAGREE and f.code.rpartition("_")[0] in agreed
        ends = [figure_text(end, f.unit) for end in (f.low, f.high) if end is not None]
        ranged = f"80% range {' to '.join(ends)}; " if len(ends) == 2 else ""
        yield f.undecided(f"{ranged}the mean agrees, and decides") if alone else f


def _reason_incomparable(result: BenchmarkRun, predicted: ExpectedFigures, metric: str, statistic: str) -> str:
    """Explain why a figure does not measure what was predicted, or return "" where it does."""
    if result.accepted > 1 and metric != "ttft":
        return str(WHY["speculative"])
    if metric == "e2el" and statistic == "p99" and predicted.load.spread is None and predicted.load.batch is None:
        return "at equal lengths, and the file does not say how they vary"
    if statistic != "mean" and metric in predicted.unsure:
        return "it depends on the order in which requests meet: only the mean is judged"
    return ""


def _possible_reason(result: BenchmarkRun, finding: Finding, metric: str, statistic: str) -> str:
    """Explain what may have made a figure differ from its prediction."""
    usual = result.stats.get(metric, {}).get("median") if statistic == "mean" else None
    if usual and finding.measured and finding.measured > LEVEL.pulled * usual:
        return f"outliers pull the mean: the median is {format_seconds(usual)}"
    if ((finding.difference or 0.0) > 0) != (finding.unit == "s"):
        return str(WHY["fast"])
    parts = metric == "e2el" and "ttft" in result.stats
    return str(SLOW[metric if metric in SLOW and (metric != "e2el" or parts) else "tpot"])


def _impossible_findings(result: BenchmarkRun, claim: Claim | None = None) -> Iterator[Finding]:
    """Yield what a sound run cannot show on any machine."""
    if gone := expected_figures.unanswered_count(result):
        item = Note("failed requests", "failed requests" if result.failed else "requests without an answer")
        yield Finding(item, 0, gone, reason="what failed is not in the statistics").judged()
    if invalid := [n for n in result.notes if n.code == "invalid"]:
        yield Finding("conditions of the benchmark missed", 0, len(invalid), reason=str(invalid[0])).judged()
    if result.stats.get("ttft", {}).get("mean") == 0 and result.seconds("e2el", "mean"):
        yield Finding("results without a first token", 0, 1, reason=WHY["unstreamed"]).judged()
    elif result.stats.get("itl", {}).get("mean") == 0 and (result.output_len or 0.0) > COUNT.least_output:
        yield Finding("results without gaps between tokens", 0, 1, reason=WHY["unstreamed_gaps"]).judged()
    # That more was answered than was sent, by more than chance: the rate that was set is not the one that came.
    sent, answered, count = result.request_rate, result.requests_per_s, result.requests
    if sent and answered and count and math.isfinite(sent) and answered > sent * (1 + LEVEL.sent_slack + 3 / math.sqrt(count)):
        why = "requests came faster than the rate that is said of them"
        yield Finding("requests/s answered, at most those sent", sent, answered, "", LEVEL.sent_slack, why, verdict=DISAGREE)
    yield from _identities(result)
    output = lengths_of(result, claim)[1] if claim else result.output_len
    ttft, gap = result.seconds("ttft", "mean"), result.seconds("itl", "mean") or result.seconds("tpot", "mean")
    if ttft and gap and output and output >= COUNT.least_output and abs(ttft / (output * gap) - 1) <= LEVEL.whole:
        reason = f"it is {ttft / gap:.0f} x ITL for {output:.0f} tokens: the time of a whole request, not of the first token"
        yield Finding("TTFT", None, ttft, "s", LEVEL.whole, reason, verdict=DISAGREE)


def _claim_findings(result: BenchmarkRun, claim: Claim, baseline: BenchmarkRun | None) -> Iterator[Finding]:
    if result.tp:
        item = Note("tp", "tensor-parallel size in the result")
        yield Finding(item, claim.tp, result.tp, reason="another run than was said").judged()
    sizes = {axis: int(size) for axis in DEGREES if (size := result.facts.get(axis, "")).isdecimal()}
    yield from identity_findings(claim, result.model, result.facts.get(HARDWARE) or result.facts.get("sut name", ""), sizes)
    yield from _floor(result, claim)
    yield from _ceiling(result, claim)
    if baseline is not None and claim.tp > 1:
        yield from _tp_not_applied(result, baseline, claim)


def _identities(result: BenchmarkRun) -> Iterator[Finding]:
    """Check what must hold inside one result: E2E = TTFT + (n - 1) TPOT, and rates times the duration."""
    ttft, tpot, whole = (result.stats.get(m, {}).get("mean") for m in ("ttft", "tpot", "e2el"))
    output = result.output_len
    if ttft and tpot and whole and output and result.tool != SERVER:  # whose histograms have requests of their own each
        why = "TPOT is not (E2E - TTFT) / (output - 1) here: a definition of its own, or several tokens a chunk"
        slack = LEVEL.same_books + (result.spread or 0.0) / 3 + _product_tolerance(result)
        finding = Finding("E2E = TTFT + (n - 1) TPOT", ttft + (output - 1) * tpot, whole, "s", slack, why).judged()
        # The length of an answer that is a column's is often the requested one.
        unsure_length = result.tool == "printed" and not result.output_tokens and result.spread is None
        near = unsure_length and abs(finding.difference or 0.0) <= LEVEL.other_length
        yield finding.undecided(WHY["not_counted"]) if near and finding.verdict == DISAGREE else finding
    if result.output_tokens and result.duration_s and result.output_tokens_per_s and result.tool != SERVER:
        expected = result.output_tokens_per_s * result.duration_s
        why = "the rate is not of the whole cluster and run (a rate per GPU or per user?)"
        yield Finding("output tokens = rate x duration", expected, result.output_tokens, "tokens", LEVEL.same_books, why).judged()


def _product_tolerance(result: BenchmarkRun) -> float:
    """Bound how much a mean of products may miss the product of means, since short answers weigh like long ones."""
    tpot = result.stats.get("tpot", {})
    spread = LEVEL.widest if result.spread is None else result.spread
    return tpot.get("std", 0.0) / tpot["mean"] * spread / math.sqrt(3) if tpot.get("mean") else 0.0


def floor_s(claim: Claim) -> float:
    """Return the least time of a decode step: one read of the weights that a token needs, on every stage."""
    priced = claim.bill(batch=1, context=1)
    nbytes = sum(x.item.nbytes * x.item.count for x in priced.items if x.item.form == "gemm")
    return float(nbytes) / priced.question.cluster.chip.memory_Bps


def _floor(result: BenchmarkRun, claim: Claim) -> Iterator[Finding]:
    """Compare the most that a decode step can have taken with the least possible."""
    each, whole = result.seconds("tpot") or result.seconds("itl", "mean"), result.seconds("e2el")
    tokens = lengths_of(result, claim)[1]
    if each is None and result.kind == "latency" and whole and tokens:
        each = whole / tokens
    if each is None:
        return
    measured, least = each * result.accepted, floor_s(claim)
    possible = measured >= least * LEVEL.floor_slack
    reason = "" if possible else f"{BEATS}: faster than the weights can be read: other hardware weights, or several tokens per step"
    item, verdict = "time per token (floor: reading the weights)", AGREE if possible else DISAGREE
    yield Finding(item, least, measured, "s", float("inf"), reason, verdict=verdict)


def _ceiling(result: BenchmarkRun, claim: Claim) -> Iterator[Finding]:
    """Report more tokens a second than the chips can multiply, unless a prefix was cached, which is not computed."""
    prompt, answer = lengths_of(result, claim)
    rate = result.total_tokens_per_s
    if rate is None and result.output_tokens_per_s and prompt and answer:
        rate = result.output_tokens_per_s * (prompt + answer) / answer
    if not rate or result.hit_rate:
        return
    bill = claim.bill("prefill", 1, 1024)
    each = float(forward_flops(bill.question.model, 1, True)[0])  # of the layers alone: only last tokens of prompts pass the head
    most = bill.peak_flops_per_s * float(claim.plan.all_gpus) / each
    if rate > most / LEVEL.floor_slack:
        reason = f"{BEATS}: more tokens than its chips can multiply: a cached prefix, other hardware, or another model"
        yield Finding("total tokens/s, at most those of the peak", most, rate, "", math.inf, reason, verdict=DISAGREE)


def _tp_not_applied(result: BenchmarkRun, baseline: BenchmarkRun, claim: Claim) -> Iterator[Finding]:
    """Compare the speed-up of TP n with its prediction, and report equal times where they should differ."""
    metric = "e2el" if result.kind == "latency" else "tpot"
    here, alone = result.seconds(metric), baseline.seconds(metric)
    if not here or not alone:
        yield Finding(Note("speed-up", f"speed-up of TP {claim.tp}"), None, None, reason=f"no {metric} in one of the results")
        return
    context, output = lengths_of(result, claim)
    batch, length = claim.batch or 1, (context or 1024) + (output or 0) // 2
    ours = float(claim.bill("decode", batch, length).step_s)
    single = float(claim.bill("decode", batch, length, tp=1).step_s)
    predicted, measured = single / ours, alone / here
    item = Note("speed-up", f"speed-up of TP {claim.tp} over TP 1")
    finding = Finding(item, predicted, measured, "", claim.tolerance, "other links, batch or library than was said").judged()
    if abs(measured - 1) <= LEVEL.same and abs(predicted - 1) > 2 * LEVEL.same:
        finding = replace(finding, verdict=DISAGREE, reason=f"equal within {LEVEL.same:.0%}: TP was probably not applied")
    # A host that takes longer than the kernels hides any degree, and only measured constants distinguish that from missing TP.
    why = f"{finding.reason}, or the host's time hides it: {claim.distrust}" if finding.reason else claim.distrust
    yield finding.undecided(why) if claim.distrust else finding


def _remarks(result: BenchmarkRun, claim: Claim) -> Iterator[Note]:
    engine = result.facts.get("engine") or result.facts.get("backend", "").partition("-")[0]
    if engine in {one.key for one in programs() if one.benchmark} and not claim.question.engine.key.startswith(engine):
        yield Note("engine", f"the result is {engine}'s, and {claim.question.engine.key} was priced: --engine {engine}")


def _offer(results: Sequence[BenchmarkRun], claim: Claim, name: str) -> Iterator[Note]:
    """Offer the command that calibrates with these results, where they are usable."""
    usable = [r for r in results if _fits(r, claim)]
    if not usable:
        return
    question = claim.question
    model = question.model.key if question.model.key in catalog.keys("models") else "MODEL"  # a folder's name alone finds nothing
    words = ["commtax", "calibrate", name, "--cluster", question.cluster.key, "--model", model, "-tp", str(claim.tp)]
    words += ["--engine", question.engine.key] if question.engine.key != "vllm" else []
    if any(r.kind == "latency" for r in usable):
        load = load_of(usable[0], claim)
        if isinstance(load, BenchmarkLoad):
            sizes = {"--batch": load.batch, "--input-len": load.prompt, "--output-len": load.answer}
            words += [word for option, size in sizes.items() for word in (option, str(size))]
    yield Note("calibrate", f"to calibrate commtax with this result: {shlex.join(words)}")


def _fits(result: BenchmarkRun, claim: Claim) -> bool:
    """Return whether ``calibrate`` takes a result: a closed loop or a batch with a mean time, and no failed requests."""
    metric = "e2el" if result.kind == "latency" else "tpot"
    timed = result.kind != "throughput" and "mean" in result.stats.get(metric, {})
    paced = result.request_rate and math.isfinite(result.request_rate)
    clients = result.kind == "latency" or bool(result.concurrency and not paced)
    plain = result.tool != SERVER and not result.failed and result.accepted <= 1
    return timed and clients and plain and isinstance(load_of(result, claim), BenchmarkLoad)
