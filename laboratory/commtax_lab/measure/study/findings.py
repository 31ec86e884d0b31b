"""The study's metrics from its runs, each beside its prediction; what looks wrong; and its four questions, answered from them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from commtax.cost.collectives import ring_factor
from commtax.runs.evidence.finding import Claim
from commtax.runs.results.bench_audit import floor_s
from commtax.spec import Model
from commtax.thresholds import thresholds
from commtax.units import format_bytes, format_rate, format_seconds
from commtax.verbs.billing import StepBill, question_traffic
from commtax.verbs.closed_loop import price_closed_loop
from commtax.verbs.settling import resolve_question, settle
from commtax_lab.measure.study import study_documents
from commtax_lab.measure.study.driving import ALL_REDUCE
from commtax_lab.measure.study.recipe import SPREAD, StudyRun

COUNT, LEVEL = thresholds("runs.results.bench_audit")

NOISY = 0.15  # half the spread of repeated runs over their median, above which a difference is hard to tell
NEAR = 0.97  # of the ideal gain, or of no gain: nearer than this is the same
QUEUED = 3.0  # times a prompt alone and a step: a first token that takes longer waited for other requests
Done = tuple[StudyRun, study_documents.RunRecord]  # a run and its record
ByKind = Mapping[str, Sequence[Done]]


@dataclass(frozen=True, slots=True)
class Prices:
    """Predictions for an engine on a cluster, with the machine's own constants where there is a profile."""

    model: Model
    cluster: str  # "": nobody said where it ran, and nothing is predicted
    engine: str
    dtype: str = ""
    eager: bool = False
    profile: str = ""
    library: str = ""
    unknown: str = ""
    """Why no time can be predicted (nobody measured this machine); what is sent and how often can be all the same."""

    @property
    def why_none(self) -> str:
        """The reason why no time is predicted, "" where times are."""
        return self.unknown if self.cluster else "name the --cluster"

    def claim(self, tp: int) -> Claim:
        settings = {"engine": self.engine, "dtype": self.dtype, "eager": self.eager, "profile": self.profile or None}
        return Claim(resolve_question(self.model, self.cluster, {"tp": tp, **settings}))

    def step(self, phase: str, tp: int, batch: int, context: int) -> StepBill:
        changes = {"library": self.library} if self.library and tp > 1 else {}
        return self.claim(tp).bill(phase, batch, context, **changes)

    def step_s(self, phase: str, tp: int, batch: int, context: int) -> float | None:
        """Return the seconds of a step, where times are available."""
        return None if self.why_none else float(self.step(phase, tp, batch, context).step_s)

    def decode_s(self, run: StudyRun) -> float | None:
        return self.step_s("decode", run.tp, run.batch, middle_context(run))

    def latency_s(self, run: StudyRun) -> float | None:
        """Price a whole batch: one prefill, then output - 1 decode steps at the mean length."""
        prefill = self.step_s("prefill", run.tp, run.batch, run.input_len)
        decode = self.decode_s(run) if run.output_len > 1 else 0.0
        return None if prefill is None or decode is None else prefill + (run.output_len - 1) * decode


def middle_context(run: StudyRun) -> int:
    """Return the cached tokens half-way through the answer."""
    return run.input_len + run.output_len // 2


def to_ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


def analyse(facts: study_documents.StudyFacts, done: Sequence[Done], prices: Prices) -> study_documents.StudyDocument:
    """Return the whole document of one machine."""
    good = [(run, record) for run, record in done if "error" not in record]
    degrees = sorted({run.tp for run, _ in good})
    rows = [degree(tp, [(r, x) for r, x in good if r.tp == tp], prices) for tp in degrees]
    sources = () if prices.why_none else prices.step("decode", max(degrees, default=1), 1, 128).sources
    study: study_documents.StudyDocument = {
        "schema": "commtax.experiment/1",
        **facts,
        "predicted_from": list(sources),
        "no_prediction": prices.why_none,
        "degrees": rows,
        "crossover": [crossover(rows[0], row) for row in rows[1:] if rows[0]["tp"] == 1],
        "failed": [{"run": run.name, "why": record["error"]} for run, record in done if "error" in record],
        "flags": [],
        "answers": [],
        "lessons": None,
    }
    study["flags"] = [{"what": what, "why": why} for what, why in flags(study, good, prices)]
    study["answers"] = answers(study)
    return study


def degree(tp: int, done: Sequence[Done], prices: Prices) -> study_documents.Degree:
    """Analyse everything at one degree."""
    by_kind = {kind: [(r, x) for r, x in done if r.kind == kind] for kind in {r.kind for r, _ in done}}
    row = _latencies(tp, by_kind, prices)
    row["batches"] = _batches(by_kind, prices)
    if "profile" in by_kind:
        row["profile"] = _profile(*by_kind["profile"][0], prices)
    if "serve" in by_kind:
        row["serve"] = _serving(*by_kind["serve"][0], prices)
    if "throughput" in by_kind:
        x = by_kind["throughput"][0][1]
        row["offline"] = {"requests_per_s": x["requests_per_s"], "total_tokens_per_s": x["total_tokens_per_s"]}
    reports = [x["applied"] for _, x in done if x.get("applied")]  # by every run that could tell
    bad, decided = [t for t in reports if t["ok"] is False], [t for t in reports if t["ok"] is not None]
    first = (bad or decided or reports or [study_documents.Applied(ok=None, found="nothing tells")])[0]
    row["applied"] = {"ok": False if bad else True if decided else None, "found": first["found"]}
    return row


def spread(values: Sequence[float]) -> float:
    """Return half the range over the median, without the two extremes if there are five or more.

    >>> spread([9.0, 10.0, 11.0])
    0.1
    """
    kept = sorted(values)[1:-1] if len(values) >= 5 else sorted(values)
    return (kept[-1] - kept[0]) / 2 / median(values)


def _latencies(tp: int, by_kind: ByKind, prices: Prices) -> study_documents.Degree:
    """Return batch-1 requests, tokens and prompts as the engine timed them, else by the run with one output token."""
    first = {run.input_len: median(x["latency_s"]) for run, x in by_kind.get("first", [])}
    row: study_documents.Degree = {"tp": tp, "latency": [], "prefill": [], "decode_ms": None, "decode_predicted_ms": None}
    for run, x in by_kind.get("latency", []):
        whole_s, tokens = float(median(x["latency_s"])), run.output_len - 1
        around, guess = spread(x["latency_s"]), to_ms(prices.latency_s(run))
        row["latency"].append(
            {"input_len": run.input_len, "output_len": run.output_len, "ms": whole_s * 1e3, "spread": around, "predicted_ms": guess}
        )
        prefill_s = float(median(x["prefill_s"])) if x["prefill_s"] else first.get(run.input_len)
        if row["decode_ms"] is None and (x["decode_s"] or run.input_len in first):
            decode_s = float(median(x["decode_s"])) if x["decode_s"] else (whole_s - first[run.input_len]) / tokens
            row["decode_ms"], row["decode_predicted_ms"], row["decode_len"] = (
                decode_s * 1e3,
                to_ms(prices.decode_s(run)),
                middle_context(run),
            )
        if prefill_s is None and row["decode_ms"] is not None:  # what the tokens leave of the request, where they leave something
            prefill_s = whole_s - tokens * row["decode_ms"] * 1e-3
        if prefill_s is not None and prefill_s > 0:
            predicted = prices.step_s("prefill", run.tp, 1, run.input_len)
            row["prefill"].append({"input_len": run.input_len, "ms": prefill_s * 1e3, "predicted_ms": to_ms(predicted)})
    return row


def _batches(by_kind: ByKind, prices: Prices) -> list[study_documents.BatchTime]:
    """Return whole batches of one shape. The first latency run is its batch of 1 where the shape is the same."""
    shape = next(((r.input_len, r.output_len) for r, _ in by_kind.get("batch", [])), None)
    same = [(r, x) for r, x in by_kind.get("latency", []) if (r.input_len, r.output_len) == shape]
    rows = []
    for run, x in sorted([*same, *by_kind.get("batch", [])], key=lambda done: done[0].batch):
        whole, tokens, predicted = median(x["latency_s"]), run.batch * run.output_len, prices.latency_s(run)
        rows.append(
            study_documents.BatchTime(
                batch=run.batch,
                latency_ms=whole * 1e3,
                spread=spread(x["latency_s"]),
                tokens_per_s=tokens / whole,
                predicted_latency_ms=to_ms(predicted),
                predicted_tokens_per_s=tokens / predicted if predicted else None,
            )
        )
    return rows


def _profile(run: StudyRun, x: study_documents.RunRecord, prices: Prices) -> study_documents.AllReduces:
    """Compare a decode step's all-reduces with what the plan must send, and the link they use."""
    counted = x["profile"].copy()
    if not prices.cluster:
        return counted
    step = prices.claim(run.tp).question.but(batch=run.batch, context=middle_context(run))
    reduced = [i for i in question_traffic(settle(step)).items if i.is_sent and i.op == ALL_REDUCE]
    count = float(sum(i.count for i in reduced))
    nbytes = float(sum(i.count * i.nbytes for i in reduced)) / count if count else None
    counted["predicted_allreduces"], counted["predicted_bytes"] = count, nbytes
    counted["predicted_s"] = counted["predicted_comm_fraction"] = None
    if prices.why_none:
        return counted
    priced = prices.step("decode", run.tp, run.batch, middle_context(run))
    seconds = sum(float(line.total_s) for line in priced.items if line.kind == "comm" and line.item.op == ALL_REDUCE)
    counted["predicted_s"], counted["predicted_comm_fraction"] = seconds / count if count else None, float(priced.comm_fraction)
    counted["link"] = _link(counted, run.tp, priced)
    return counted


def _link(counted: study_documents.AllReduces, tp: int, priced: StepBill) -> study_documents.LinkUse | None:
    """Compare what a rank sends, inside an all-reduce and over the whole step, with the link's rate."""
    link = (priced.question.cluster.as_pairs if tp == 2 else priced.question.cluster).intra
    nbytes = counted["allreduce_bytes"] or counted["predicted_bytes"]
    if not nbytes or not counted["allreduce_s"] or link is None:
        return None
    wire, peak = float(ring_factor(ALL_REDUCE, tp)) * nbytes, link.bandwidth_Bps
    inside, step = wire / counted["allreduce_s"], wire * counted["allreduces"] / counted["step_s"]
    return {
        "name": link.key,
        "peak_Bps": peak,
        "inside_Bps": inside,
        "step_Bps": step,
        "inside_share": inside / peak,
        "step_share": step / peak,
    }


def _serving(run: StudyRun, x: study_documents.RunRecord, prices: Prices) -> study_documents.ServedFigures:
    """Return TTFT, gaps between tokens and rates, predicted for the concurrency that Little's law gives."""
    stats = x["stats_s"]
    whole = stats.get("e2el", {}).get("mean")
    if whole is None and "tpot" in stats and x["output_len"]:
        whole = stats["ttft"]["mean"] + (x["output_len"] - 1) * stats["tpot"]["mean"]
    shown = (("ttft", "median"), ("ttft", "p99"), ("itl", "median"), ("tpot", "median"))
    ttft, late, gap, tpot = (to_ms(stats.get(metric, {}).get(statistic)) for metric, statistic in shown)
    served: study_documents.ServedFigures = {
        "asked_per_s": run.rate_per_s,
        "concurrency": (x["requests_per_s"] or 0.0) * (whole or 0.0),
        "ttft_p50_ms": ttft,
        "ttft_p99_ms": late,
        "itl_p50_ms": gap,
        "tpot_p50_ms": tpot,
        "requests": x["requests"],
        "failed": x["failed"],
        "requests_per_s": x["requests_per_s"],
        "output_tokens_per_s": x["output_tokens_per_s"],
        "input_len": x["input_len"],
        "output_len": x["output_len"],
    }
    if prices.why_none or not x["input_len"] or not x["output_len"]:
        return served
    return {**served, **_served_prediction(run, served["concurrency"], round(x["input_len"]), round(x["output_len"]), prices)}


def _served_prediction(
    run: StudyRun, concurrency: float, inputs: int, outputs: int, prices: Prices
) -> study_documents.ServedPrediction:
    """Predict a closed loop of that many clients, or with a machine's profile that batch's decode step and one prompt."""
    clients = max(1, round(concurrency))
    if prices.profile:
        tpot_s = prices.step_s("decode", run.tp, clients, inputs + outputs // 2)
        ttft_s, how = prices.step_s("prefill", run.tp, 1, inputs), f"bill of a batch of {clients}, a prompt without waiting"
    else:
        question = prices.claim(run.tp).question.but(eager=False)
        loop = price_closed_loop(settle(question.but(concurrency=clients, spread=SPREAD, input_len=inputs, output_len=outputs)))
        tpot_s, ttft_s, how = float(loop.tpot_s), float(loop.ttft_s), f"simulate with {clients} clients"
    return {"predicted_tpot_ms": to_ms(tpot_s), "predicted_ttft_ms": to_ms(ttft_s), "predicted_how": how}


def crossover(one: study_documents.Degree, many: study_documents.Degree) -> study_documents.Crossover:
    """Return the smallest batch at which TP=n gives more tokens per second than TP=1, beyond the spread of the runs."""
    rows = []
    for a, b in ((a, b) for b in many["batches"] for a in one["batches"] if a["batch"] == b["batch"]):
        ratio, noise = b["tokens_per_s"] / a["tokens_per_s"], max(LEVEL.same, b["spread"], a["spread"])
        guess, base = b["predicted_tokens_per_s"], a["predicted_tokens_per_s"]
        rows.append(
            study_documents.Gain(batch=b["batch"], ratio=ratio, noise=noise, predicted=guess / base if guess and base else None)
        )
    batch = next((r["batch"] for r in rows if r["ratio"] > 1 + r["noise"]), None)
    foreseen = next((r["batch"] for r in rows if r["predicted"] and r["predicted"] > 1), None)
    return {"tp": many["tp"], "batch": batch, "predicted_batch": foreseen, "ratios": rows}


def flags(study: study_documents.StudyDocument, good: Sequence[Done], prices: Prices) -> Iterator[tuple[str, str]]:
    """List what a sound study does not show, with the likely reason."""
    for row in study["degrees"]:
        if row["applied"]["ok"] is False:
            yield f"TP={row['tp']}: TP was not applied", row["applied"]["found"]
        yield from _flag_impossible(row, prices)
    for cross in study["crossover"]:
        row = next(r for r in study["degrees"] if r["tp"] == cross["tp"])
        yield from _flag_same(cross, study["degrees"][0], row)
    for run, x in good:
        if run.kind in ("latency", "batch") and spread(x["latency_s"]) > NOISY:
            yield f"{run.name}: noisy", f"repeated runs lie ±{spread(x['latency_s']):.0%} around their median: is the machine busy?"
    for failure in study["failed"]:
        yield f"{failure['run']}: failed", failure["why"]


def _flag_same(
    cross: study_documents.Crossover, one: study_documents.Degree, many: study_documents.Degree
) -> Iterator[tuple[str, str]]:
    """Flag TP=n equal to TP=1 at every batch: the degree was left out, unless something proves otherwise."""
    rows = cross["ratios"]
    if not rows or any(abs(r["ratio"] - 1) > r["noise"] for r in rows):
        return
    listed = ", ".join(f"{r['ratio']:.2f}x at batch {r['batch']}" for r in rows)
    noise = max(r["noise"] for r in rows)
    if many["applied"]["ok"]:
        why = f"{listed}, noise ±{noise:.0%}; {many['applied']['found']}: so host time or the all-reduces eat what the split gains"
        yield f"TP={many['tp']} equals TP=1 within noise at every batch", why
        return
    alone_ms, split_ms = (d["serve"]["itl_p50_ms"] if "serve" in d else None for d in (one, many))
    differs = alone_ms and split_ms and abs(alone_ms / split_ms - 1) > LEVEL.same
    serving = f"; serving differs ({alone_ms:.3g} and {split_ms:.3g} ms a token)" if differs else ""
    yield f"TP={many['tp']}: TP was probably not applied", f"equal to TP=1 within noise at every batch: {listed}{serving}"


def _flag_impossible(row: study_documents.Degree, prices: Prices) -> Iterator[tuple[str, str]]:
    """Flag a first token as long as a request, steps below the weight-read floor, miscounted all-reduces, a growing queue."""
    s = row.get("serve")
    if s:
        yield from _served_flags(row["tp"], s, row["prefill"])
    if not prices.why_none and row["decode_ms"]:
        claim = prices.claim(row["tp"])
        least = floor_s(claim)
        if not claim.distrust and row["decode_ms"] * 1e-3 < least * LEVEL.floor_slack:
            why = f"{row['decode_ms']:.3g} ms a token, and reading the weights once takes {least * 1e3:.3g} ms"
            why += ": other weights or hardware than said, or weights that stay in a cache"
            yield f"TP={row['tp']}: faster than physics", why
    p = row.get("profile")
    if p and "predicted_allreduces" in p and p["allreduces"] != p["predicted_allreduces"]:
        why = f"{p['allreduces']:g} in the profile, {p['predicted_allreduces']:g} by arithmetic"
        yield f"TP={row['tp']}: all-reduces a decode step", f"{why}: kernels under another name, or another degree"


def _served_flags(
    tp: int, s: study_documents.ServedFigures, alone: Sequence[study_documents.PromptTime]
) -> Iterator[tuple[str, str]]:
    if s["failed"]:
        yield f"TP={tp}: {s['failed']} requests failed", "what failed is not in the statistics"
    ttft, gap, outputs = s["ttft_p50_ms"], s["itl_p50_ms"], s["output_len"]
    if ttft and gap and outputs and outputs >= COUNT.least_output and abs(ttft / (outputs * gap) - 1) <= LEVEL.whole:
        why = f"for {outputs:.0f} output tokens: the time of a whole request, not of its first token"
        yield f"TP={tp}: TTFT is {ttft / gap:.0f} x ITL", why
    if ttft and alone and ttft > QUEUED * (alone[0]["ms"] + (s["tpot_p50_ms"] or 0.0)):
        why = f"p50 is {ttft:.3g} ms, and a prompt alone takes {alone[0]['ms']:.3g} ms: requests wait for each other at this rate"
        yield f"TP={tp}: TTFT holds waiting in a queue", why


def answers(study: study_documents.StudyDocument) -> list[dict[str, str]]:
    """Answer the four questions of the study."""
    one = next((r for r in study["degrees"] if r["tp"] == 1), None)
    others = [r for r in study["degrees"] if r["tp"] > 1]
    questions = (
        ("Does tensor parallelism divide decode latency by its degree?", [_divides_answer(one, row) for row in others]),
        ("What share of decode time is all-reduce?", [*map(_share_answer, others)]),
        ("At what batch does it beat TP=1?", [*map(_beats_answer, study["crossover"])]),
        ("How much of the link do the all-reduces use?", [*map(_link_answer, others), _counters_answer(study)]),
    )
    return [
        {"question": question, "answer": " ".join(filter(None, sentences)) or "Not measured: it needs TP=1 and a larger degree."}
        for question, sentences in questions
    ]


def _divides_answer(one: study_documents.Degree | None, many: study_documents.Degree) -> str:
    tp = many["tp"]
    if not many["decode_ms"]:
        return f"TP={tp} has no decode latency."
    if not one or not one["decode_ms"]:
        return f"TP={tp} takes {many['decode_ms']:.3g} ms a token; there is no TP=1 to compare with."
    gain = one["decode_ms"] / many["decode_ms"]
    word = "Yes" if gain >= NEAR * tp else "No" if gain > 1 / NEAR else "No: it is no faster at all"
    whole = "" if word == "Yes" else f", not {tp}x"
    text = f"{word}. TP=1 takes {one['decode_ms']:.3g} ms a token, TP={tp} {many['decode_ms']:.3g} ms: {gain:.2f}x{whole}."
    whole_ms, part_ms = one["decode_predicted_ms"], many["decode_predicted_ms"]
    if whole_ms and part_ms:
        text += f" Predicted: {whole_ms:.3g} and {part_ms:.3g} ms, {whole_ms / part_ms:.2f}x."
    p = many.get("profile")
    if p and p.get("comm_fraction") is not None:
        comm = p["comm_fraction"] * many["decode_ms"]
        rest = one["decode_ms"] / tp
        fixed = many["decode_ms"] - comm - rest
        text += f" 1/{tp} of TP=1's time is {rest:.3g} ms; collectives, waiting included, take {comm:.3g} ms by the profile's share"
        text += f", and {fixed:.3g} ms did not divide (fixed costs of kernels and host)." if fixed > 0 else "."
    return text


def _share_answer(row: study_documents.Degree) -> str:
    p = row.get("profile")
    if not p:
        return f"TP={row['tp']}: no profile."
    text = f"TP={row['tp']}: {p['comm_fraction']:.1%} of the decode step"
    if p.get("wire_fraction") is not None:
        rest = "the rest is waiting for the other ranks, and other collectives"
        text += f" ({p['wire_fraction']:.1%} all-reduces on the wire; {rest})"
    each = f", {format_seconds(each_s)} each" if (each_s := p.get("allreduce_s")) else ""
    text += f": {p['allreduces']:g} all-reduces a step{each}"
    if "predicted_allreduces" in p:
        guess = p["predicted_comm_fraction"]
        text += f". Predicted: {p['predicted_allreduces']:g} a step" + (f", {guess:.1%}" if guess is not None else "")
    return f"{text} ({p['how']})."


def _beats_answer(cross: study_documents.Crossover) -> str:
    rows, tp = cross["ratios"], cross["tp"]
    if not rows:
        return ""
    listed = ", ".join(f"{r['ratio']:.2f}x at {r['batch']}" for r in rows)
    wins = [str(r["batch"]) for r in rows if r["ratio"] > 1 + r["noise"]]
    gains = f"TP={tp} gives more tokens a second than TP=1, beyond the noise, at batch {', '.join(wins)}"
    head = gains if wins else f"TP={tp}: at none"
    guess = f"from batch {cross['predicted_batch']}" if cross["predicted_batch"] else "at none"
    predicted = f" Predicted: {guess}." if any(r["predicted"] for r in rows) else ""
    fair = f" The fair rival of {tp} devices is {tp} TP=1 replicas, up to {tp}x the tokens of one"
    return f"{head} ({listed}).{predicted}{fair}: TP={tp} reaches {max(r['ratio'] for r in rows):.2f}x at most."


def _link_answer(row: study_documents.Degree) -> str:
    p = row.get("profile")
    link = p.get("link") if p else None
    if not p or not link:
        return f"TP={row['tp']}: no timed all-reduces."
    size = format_bytes(p["allreduce_bytes"] or p["predicted_bytes"] or 0.0)
    inside = f"{format_rate(link['inside_Bps'])} on the wire, {link['inside_share']:.1%} of {link['name']}"
    whole = f"({format_rate(link['peak_Bps'])}); over the whole step {link['step_share']:.2%}"
    return f"TP={row['tp']}: an all-reduce of {size} runs at {inside} {whole}. Small messages cost latency, not bandwidth."


def _counters_answer(study: study_documents.StudyDocument) -> str:
    top = sorted(study.get("link_counters", []), key=lambda c: -c["bytes"])[:4]
    listed = ", ".join(f"{c['counter']} {format_bytes(c['bytes'])} ({format_rate(c['bytes_per_s'])})" for c in top)
    return f"Counters over the {top[0]['run']} run: {listed}." if top else "The machine has no link counters that moved."
