"""Benchmark results against the bill, and against what no run can do."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from commtax.audit.finding import AGREE, DISAGREE, Claim, Finding, Section
from commtax.readers.benches.record import Bench
from commtax.statement import Note

SAME = 0.03  # two degrees whose times differ by less did the same work
WHOLE = 0.05  # TTFT this near to a multiple of ITL is the time of a whole request
LEAST_OUTPUT = 8  # tokens below which such a multiple may be chance
FLOOR_SLACK = 0.98
SAME_BOOKS = 0.05  # means of products are not products of means where lengths vary


def audit_bench(results: Sequence[Bench], claim: Claim | None, name: str, baseline: Bench | None = None) -> Section:
    """Every result of one file; ``baseline`` is the same benchmark at TP 1."""
    if claim is None:
        return Section("bench", (name,), ())
    findings: list[Finding] = []
    for number, result in enumerate(results, 1):
        label = f"run {number}: " if len(results) > 1 else ""
        of_run = (*_latency(result, claim), *_serving(result, claim), *_suspicious(result, claim, baseline))
        findings += [replace(f, item=Note(f.code, label + f.item)) for f in of_run]
    kinds = ", ".join(dict.fromkeys(f"{r.tool} {r.kind}" for r in results))
    return Section("bench", (name,), tuple(findings), (Note("results", f"{kinds}: {len(results)} result(s)"),))


def request_seconds(claim: Claim, batch: int, context: int, output: int) -> tuple[float, float]:
    """A whole request: one prefill, then output - 1 decode steps at the mean length; and one such step."""
    prefill = float(claim.bill("prefill", batch, context).step_s)
    decode = float(claim.bill("decode", batch, context + output // 2).step_s)
    return prefill + (output - 1) * decode, decode


def _lengths(result: Bench, claim: Claim) -> tuple[int | None, int | None]:
    """Prompt and output tokens of a request: as was said, else as the result has them."""
    return (
        claim.context or (round(result.input_len) if result.input_len else None),
        claim.output_len or (round(result.output_len) if result.output_len else None),
    )


def _latency(result: Bench, claim: Claim) -> Iterator[Finding]:
    if result.kind != "latency":
        return
    measured, (context, output) = result.seconds("e2el"), _lengths(result, claim)
    if context is None or output is None:
        yield Finding("request latency", None, measured, "s", reason="say --input-len, --output-len and --batch: the file has none")
        return
    batch = claim.batch or 1
    predicted, _ = request_seconds(claim, batch, context, output)
    item = Note("latency", f"latency of batch {batch}, {context} in, {output} out")
    yield claim.seconds(item, predicted, measured, "other hardware, version or options (eager, batch, lengths) than was said")


def _serving(result: Bench, claim: Claim) -> Iterator[Finding]:
    if result.kind == "throughput":
        rate = result.total_tokens_per_s
        yield Finding("total tokens/s", None, rate, reason="a queue of requests at once is not one step: not compared yet")
    if result.kind != "serve":
        return
    context, output = _lengths(result, claim)
    tpot, ttft = result.seconds("tpot"), result.seconds("ttft")
    if result.concurrency != 1 or context is None or output is None:
        held = "no limit" if result.concurrency is None else f"{result.concurrency:g}"
        why = f"concurrency {held}: batches vary and TTFT holds queueing; only runs at concurrency 1 are compared"
        yield Finding("TPOT", None, tpot, "s", reason=why)
        yield Finding("TTFT", None, ttft, "s", reason=why)
        return
    whole, decode = request_seconds(claim, 1, context, output)
    yield claim.seconds("TPOT at concurrency 1", decode, tpot, "other hardware, version or options than was said")
    prefill = whole - (output - 1) * decode
    yield claim.seconds("TTFT at concurrency 1", prefill, ttft, "HTTP, tokenising and scheduling are in it, or a cached prefix")


def _suspicious(result: Bench, claim: Claim, baseline: Bench | None) -> Iterator[Finding]:
    """What a sound run cannot show."""
    if result.failed:
        yield Finding("failed requests", 0, result.failed, reason="what failed is not in the statistics").judged()
    if result.tp:
        yield Finding("tensor-parallel size in the result", claim.tp, result.tp, reason="another run than was said").judged()
    yield from _identities(result)
    yield from _floor(result, claim)
    yield from _whole_request(result, claim)
    if baseline is not None and claim.tp > 1:
        yield from _not_applied(result, baseline, claim)


def _identities(result: Bench) -> Iterator[Finding]:
    """What must hold inside one result, on any machine: E2E = TTFT + (n - 1) TPOT, and rates times the duration."""
    ttft, tpot, whole, output = (*(result.seconds(m, "mean") for m in ("ttft", "tpot", "e2el")), result.output_len)
    if ttft and tpot and whole and output:
        why = "TPOT is not (E2E - TTFT) / (output - 1) here: a definition of its own, or several tokens a chunk"
        yield Finding("E2E = TTFT + (n - 1) TPOT", ttft + (output - 1) * tpot, whole, "s", SAME_BOOKS, why).judged()
    if result.output_tokens and result.duration_s and result.output_tokens_per_s:
        said = result.output_tokens_per_s * result.duration_s
        why = "the rate is not of the whole cluster and run (a rate a GPU or a user?)"
        yield Finding("output tokens = rate x duration", said, result.output_tokens, "tokens", SAME_BOOKS, why).judged()


def floor_s(claim: Claim) -> float:
    """No decode step is faster than one read of the weights that a token needs, on every stage."""
    priced = claim.bill(batch=1, context=1)
    nbytes = sum(x.item.nbytes * x.item.count for x in priced.items if x.item.form == "gemm")
    return float(nbytes) / priced.question.cluster.chip.memory_Bps


def _floor(result: Bench, claim: Claim) -> Iterator[Finding]:
    """The most that a decode step can have taken, against the least."""
    whole, tokens = (result.seconds("e2el"), claim.output_len) if result.kind == "latency" else (result.seconds("tpot"), 1)
    if whole is None or not tokens:
        return
    measured, least = whole / tokens if result.kind == "latency" else whole * result.accepted, floor_s(claim)
    possible = measured >= least * FLOOR_SLACK
    reason = "" if possible else "faster than the weights can be read: other hardware, weights, or several tokens a step"
    item, verdict = "seconds a token, at least the weight-read floor", AGREE if possible else DISAGREE
    yield Finding(item, least, measured, "s", float("inf"), reason, verdict=verdict)


def _whole_request(result: Bench, claim: Claim) -> Iterator[Finding]:
    ttft, gap = result.seconds("ttft", "mean"), result.seconds("itl", "mean") or result.seconds("tpot", "mean")
    output = _lengths(result, claim)[1]
    if ttft and gap and output and output >= LEAST_OUTPUT and abs(ttft / (output * gap) - 1) <= WHOLE:
        reason = f"it is {ttft / gap:.0f} x ITL for {output} tokens: the time of a whole request, not of the first token"
        yield Finding("TTFT", None, ttft, "s", WHOLE, reason, verdict=DISAGREE)


def _not_applied(result: Bench, baseline: Bench, claim: Claim) -> Iterator[Finding]:
    """The same time at TP 1 and TP n, where the arithmetic says otherwise."""
    metric = "e2el" if result.kind == "latency" else "tpot"
    here, alone = result.seconds(metric), baseline.seconds(metric)
    if here is None or alone is None:
        yield Finding(Note("speed-up", f"speed-up of TP {claim.tp}"), None, None, reason=f"no {metric} in one of the results")
        return
    context, output = _lengths(result, claim)
    batch, length = claim.batch or 1, (context or 1024) + (output or 0) // 2
    ours = float(claim.bill("decode", batch, length).step_s)
    single = float(claim.bill("decode", batch, length, tp=1).step_s)
    predicted, measured = single / ours, alone / here
    item = Note("speed-up", f"speed-up of TP {claim.tp} over TP 1")
    finding = Finding(item, predicted, measured, "", claim.tolerance, "other links, batch or library than was said").judged()
    if abs(measured - 1) <= SAME and abs(predicted - 1) > 2 * SAME:
        finding = replace(finding, verdict=DISAGREE, reason=f"equal within {SAME:.0%}: TP was probably not applied")
    # A host that takes longer than the kernels hides any degree, and only measured constants tell that from TP left out.
    why = f"{finding.reason}, or the host's time hides it: {claim.distrust}" if finding.reason else claim.distrust
    yield finding.undecided(why) if claim.distrust else finding
