"""The study's metrics from its runs: latency, all-reduces, serving, batches, each beside its prediction; and what looks wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from commtax import catalog
from commtax.api import StepBill, bill, simulate, traffic
from commtax.audit.benches import FLOOR_SLACK, LEAST_OUTPUT, SAME, WHOLE, floor_s
from commtax.audit.finding import Question
from commtax.cost.collectives import ring_factor
from commtax.spec import Model
from commtax.study.recipe import SPREAD, Run

NOISY = 0.15  # half the spread of repeated runs over their median, above which a difference is hard to tell
QUEUED = 3.0  # times a prompt alone and a step: a first token that takes longer waited for other requests
Record = dict[str, Any]
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Prices:
    """What is predicted for this engine on this cluster, with this machine's own constants where a profile is given."""

    model: Model
    cluster: str
    engine: str
    dtype: str = ""
    eager: bool = False
    profile: str = ""
    library: str = ""
    unknown: str = ""
    """Why no time can be predicted (nobody measured this machine); what is sent and how often can be all the same."""

    @property
    def timed(self) -> Prices | None:
        """These prices where there are times, else None."""
        return None if self.unknown else self

    def step(self, phase: str, tp: int, batch: int, context: int) -> StepBill:
        words: dict[str, Any] = {"profile": self.profile} if self.profile else {}
        if self.library and tp > 1:
            words["library"] = self.library
        where = catalog.cluster(self.cluster)
        return bill(
            self.model,
            where,
            phase=phase,
            tp=tp,
            batch=batch,
            context=context,
            engine=self.engine,
            dtype=self.dtype,
            eager=self.eager,
            **words,
        )

    def latency_s(self, run: Run) -> float:
        """A whole batch: one prefill, then output - 1 decode steps at the mean length."""
        prefill = float(self.step("prefill", run.tp, run.batch, run.input_len).step_s)
        if run.output_len < 2:
            return prefill
        return prefill + (run.output_len - 1) * self.decode_s(run)

    def decode_s(self, run: Run) -> float:
        return float(self.step("decode", run.tp, run.batch, run.input_len + run.output_len // 2).step_s)

    def question(self, tp: int) -> Question:
        pricing = {"profile": self.profile} if self.profile else {}
        plan = {"tp": tp, "engine": self.engine, "dtype": self.dtype}
        return Question(self.model, catalog.cluster(self.cluster), plan, eager=self.eager, pricing=pricing)

    def sources(self, tp: int) -> tuple[str, ...]:
        return self.step("decode", tp, 1, 128).sources


def analyse(facts: Mapping[str, Any], done: Sequence[tuple[Run, Record]], prices: Prices | None) -> Row:
    """The whole document of one machine."""
    good = [(run, record) for run, record in done if "error" not in record]
    degrees = sorted({run.tp for run, _ in good})
    timed = prices.timed if prices else None
    rows = [degree(tp, [(r, x) for r, x in good if r.tp == tp], prices) for tp in degrees]
    found: Row = {
        "schema": "commtax.experiment/1",
        **facts,
        "predicted_from": list(timed.sources(max(degrees, default=1))) if timed else [],
        "no_prediction": "" if timed else prices.unknown if prices else "name the --cluster",
        "degrees": rows,
        "crossover": [crossover(rows[0], row) for row in rows[1:] if rows[0]["tp"] == 1],
        "failed": [{"run": run.name, "why": record["error"]} for run, record in done if "error" in record],
    }
    found["flags"] = [{"what": what, "why": why} for what, why in flags(found, good, timed)]
    return found


def degree(tp: int, mine: Sequence[tuple[Run, Record]], prices: Prices | None) -> Row:
    """Everything at one degree."""
    by_kind = {kind: [(r, x) for r, x in mine if r.kind == kind] for kind in {r.kind for r, _ in mine}}
    timed = prices.timed if prices else None
    row: Row = {"tp": tp, **_latencies(by_kind, timed), "batches": _batches(by_kind, timed)}
    if "profile" in by_kind:
        row["profile"] = _profile(*by_kind["profile"][0], prices)
    if "serve" in by_kind:
        row["serve"] = _serving(*by_kind["serve"][0], timed)
    if "throughput" in by_kind:
        row["offline"] = {k: by_kind["throughput"][0][1][k] for k in ("requests_per_s", "total_tokens_per_s")}
    row["applied"] = _applied([x for _, x in mine])
    return row


def spread(values: Sequence[float]) -> float:
    """Half the range over the median; of five and more the two extremes are left out.

    >>> spread([9.0, 10.0, 11.0])
    0.1
    """
    kept = sorted(values)[1:-1] if len(values) >= 5 else sorted(values)
    return (kept[-1] - kept[0]) / 2 / median(values)


def _latencies(by_kind: Mapping[str, Any], prices: Prices | None) -> Row:
    """Batch 1: whole requests, and a token and a prompt apart, directly or by the run with one output token."""
    first = {run.input_len: median(x["latency_s"]) for run, x in by_kind.get("first", [])}
    found: Row = {"latency": [], "prefill": [], "decode_ms": None, "decode_predicted_ms": None}
    for run, x in by_kind.get("latency", []):
        whole = {"ms": median(x["latency_s"]) * 1e3, "spread": spread(x["latency_s"])}
        guess = prices.latency_s(run) * 1e3 if prices else None
        found["latency"].append({"input_len": run.input_len, "output_len": run.output_len, **whole, "predicted_ms": guess})
        decode_s = _decode_s(run, x, first)
        if found["decode_ms"] is None and decode_s is not None:
            guess = prices.decode_s(run) * 1e3 if prices else None
            found |= {"decode_ms": decode_s * 1e3, "decode_predicted_ms": guess, "decode_len": run.input_len + run.output_len // 2}
        prefill_s = _prefill_s(run, x, first, found["decode_ms"])
        if prefill_s is not None:
            guess = float(prices.step("prefill", run.tp, 1, run.input_len).step_s) * 1e3 if prices else None
            found["prefill"].append({"input_len": run.input_len, "ms": prefill_s * 1e3, "predicted_ms": guess})
    return found


def _decode_s(run: Run, x: Record, first: Mapping[int, float]) -> float | None:
    """A token: as the engine timed it, else (T(n tokens) - T(1 token)) / (n - 1)."""
    if x["decode_s"]:
        return float(median(x["decode_s"]))
    if run.input_len in first:
        return (float(median(x["latency_s"])) - first[run.input_len]) / (run.output_len - 1)
    return None


def _prefill_s(run: Run, x: Record, first: Mapping[int, float], decode_ms: float | None) -> float | None:
    """A prompt: as the engine timed it, else the run of one token, else what the tokens leave of the request."""
    if x["prefill_s"]:
        return float(median(x["prefill_s"]))
    if run.input_len in first:
        return first[run.input_len]
    return None if decode_ms is None else max(0.0, median(x["latency_s"]) - (run.output_len - 1) * decode_ms * 1e-3)


def _batches(by_kind: Mapping[str, Any], prices: Prices | None) -> list[Row]:
    """Whole batches of one shape; the first latency run is its batch of 1 where the shape is the same."""
    shape = next(((r.input_len, r.output_len) for r, _ in by_kind.get("batch", [])), None)
    same = [(r, x) for r, x in by_kind.get("latency", []) if (r.input_len, r.output_len) == shape]
    found = []
    for run, x in sorted([*same, *by_kind.get("batch", [])], key=lambda pair: pair[0].batch):
        whole, tokens = median(x["latency_s"]), run.batch * run.output_len
        guess = prices.latency_s(run) if prices else None
        found.append(
            {
                "batch": run.batch,
                "latency_ms": whole * 1e3,
                "spread": spread(x["latency_s"]),
                "tokens_per_s": tokens / whole,
                "predicted_latency_ms": guess * 1e3 if guess else None,
                "predicted_tokens_per_s": tokens / guess if guess else None,
            }
        )
    return found


def _profile(run: Run, x: Record, prices: Prices | None) -> Row:
    """All-reduces of a decode step beside what the plan must send, and the link they use."""
    found: Row = dict(x["profile"])
    if prices is None:
        return found
    context = run.input_len + run.output_len // 2
    sent = traffic(
        prices.model,
        catalog.cluster(prices.cluster),
        phase="decode",
        batch=run.batch,
        context=context,
        tp=run.tp,
        engine=prices.engine,
        dtype=prices.dtype,
        eager=prices.eager,
    )
    reduced = [i for i in sent.items if i.is_sent and i.op == "all-reduce"]
    count = float(sum(i.count for i in reduced))
    nbytes = float(sum(i.count * i.nbytes for i in reduced)) / count if count else None
    found |= {"predicted_allreduces": count, "predicted_bytes": nbytes, "predicted_s": None, "predicted_comm_fraction": None}
    if prices.unknown:
        return found
    priced = prices.step("decode", run.tp, run.batch, context)
    lines = [line for line in priced.items if line.kind == "comm" and line.item.op == "all-reduce"]
    found["predicted_s"] = float(sum(line.total_s for line in lines)) / count if count else None
    found["predicted_comm_fraction"] = float(priced.comm_fraction)
    return {**found, "link": _link(found, run.tp, priced)}


def _link(found: Row, tp: int, priced: StepBill) -> Row | None:
    """What a rank sends, inside an all-reduce and over the whole step, against the link's own rate."""
    link = (priced.setup.cluster.as_pairs if tp == 2 else priced.setup.cluster).intra
    nbytes = found["allreduce_bytes"] or found["predicted_bytes"]
    if not nbytes or not found["allreduce_s"] or link is None:
        return None
    wire = float(ring_factor("all-reduce", tp)) * nbytes
    inside, whole = wire / found["allreduce_s"], wire * found["allreduces"] / found["step_s"]
    return {
        "name": link.key,
        "peak_Bps": link.bandwidth_Bps,
        "inside_Bps": inside,
        "inside_share": inside / link.bandwidth_Bps,
        "step_Bps": whole,
        "step_share": whole / link.bandwidth_Bps,
    }


def _serving(run: Run, x: Record, prices: Prices | None) -> Row:
    """TTFT, gaps between tokens and rates; predicted for as many requests at once as Little's law says there were."""
    stats = x["stats_s"]

    def ms(metric: str, statistic: str) -> float | None:
        value = stats.get(metric, {}).get(statistic)
        return None if value is None else value * 1e3

    whole = stats.get("e2el", {}).get("mean")
    if whole is None and "tpot" in stats and x["output_len"]:
        whole = stats["ttft"]["mean"] + (x["output_len"] - 1) * stats["tpot"]["mean"]
    at_once = (x["requests_per_s"] or 0.0) * (whole or 0.0)
    found: Row = {
        "asked_per_s": run.rate_per_s,
        "concurrency": at_once,
        "ttft_p50_ms": ms("ttft", "median"),
        "ttft_p99_ms": ms("ttft", "p99"),
        "itl_p50_ms": ms("itl", "median"),
        "tpot_p50_ms": ms("tpot", "median"),
        **{k: x[k] for k in ("requests", "failed", "requests_per_s", "output_tokens_per_s", "input_len", "output_len")},
    }
    if prices and x["input_len"] and x["output_len"]:
        found |= _served_prediction(run, found, prices)
    return found


def _served_prediction(run: Run, found: Row, prices: Prices) -> Row:
    """A closed loop of that many clients; with a machine's own profile the decode step of that batch and a prompt alone."""
    clients, inputs, outputs = max(1, round(found["concurrency"])), round(found["input_len"]), round(found["output_len"])
    if prices.profile:
        decode = float(prices.step("decode", run.tp, clients, inputs + outputs // 2).step_s)
        prefill = float(prices.step("prefill", run.tp, 1, inputs).step_s)
        how = f"bill of a batch of {clients}, a prompt without waiting"
        return {"predicted_tpot_ms": decode * 1e3, "predicted_ttft_ms": prefill * 1e3, "predicted_how": how}
    where = catalog.cluster(prices.cluster)
    words: dict[str, Any] = {"tp": run.tp, "engine": prices.engine, "dtype": prices.dtype}
    loop = simulate(prices.model, where, concurrency=clients, input_len=inputs, output_len=outputs, spread=SPREAD, **words)
    how = f"simulate with {clients} clients"
    return {"predicted_tpot_ms": float(loop.tpot_s) * 1e3, "predicted_ttft_ms": float(loop.ttft_s) * 1e3, "predicted_how": how}


def _applied(records: Sequence[Record]) -> Row:
    """Whether every run that could tell says that the degree was applied."""
    told = [x["applied"] for x in records if x.get("applied")]
    bad = [t for t in told if t["ok"] is False]
    known = [t for t in told if t["ok"] is not None]
    shown = (bad or known or told or [{"found": "nothing tells"}])[0]["found"]
    return {"ok": False if bad else True if known else None, "found": shown}


def crossover(one: Row, many: Row) -> Row:
    """The smallest batch at which TP=n gives more tokens a second than TP=1, beyond the spread of the runs."""
    alone = {b["batch"]: b for b in one["batches"]}
    rows = [
        {
            "batch": b["batch"],
            "ratio": b["tokens_per_s"] / alone[b["batch"]]["tokens_per_s"],
            "noise": max(SAME, b["spread"], alone[b["batch"]]["spread"]),
            "predicted": _ratio(b, alone[b["batch"]]),
        }
        for b in many["batches"]
        if b["batch"] in alone
    ]
    batch = next((r["batch"] for r in rows if r["ratio"] > 1 + r["noise"]), None)
    guess = next((r["batch"] for r in rows if r["predicted"] and r["predicted"] > 1), None)
    return {"tp": many["tp"], "batch": batch, "predicted_batch": guess, "ratios": rows}


def _ratio(many: Row, one: Row) -> float | None:
    a, b = many["predicted_tokens_per_s"], one["predicted_tokens_per_s"]
    return a / b if a and b else None


def flags(found: Row, good: Sequence[tuple[Run, Record]], prices: Prices | None) -> Iterator[tuple[str, str]]:
    """What a sound study does not show, with the likely reason."""
    for row in found["degrees"]:
        if row["applied"]["ok"] is False:
            yield f"TP={row['tp']}: TP was not applied", row["applied"]["found"]
        yield from _impossible(row, prices)
    for cross in found["crossover"]:
        row = next(r for r in found["degrees"] if r["tp"] == cross["tp"])
        yield from _same(cross, found["degrees"][0], row)
    for run, x in good:
        if run.kind in ("latency", "batch") and spread(x["latency_s"]) > NOISY:
            yield f"{run.name}: noisy", f"repeated runs lie ±{spread(x['latency_s']):.0%} around their median: is the machine busy?"
    for failure in found["failed"]:
        yield f"{failure['run']}: failed", failure["why"]


def _same(cross: Row, one: Row, many: Row) -> Iterator[tuple[str, str]]:
    """TP=n equal to TP=1 at every batch: the degree was left out, unless something proves otherwise."""
    rows = cross["ratios"]
    if not rows or any(abs(r["ratio"] - 1) > r["noise"] for r in rows):
        return
    listed = ", ".join(f"{r['ratio']:.2f}x at batch {r['batch']}" for r in rows)
    noise = max(r["noise"] for r in rows)
    if many["applied"]["ok"]:
        yield (
            f"TP={many['tp']} equals TP=1 within noise at every batch",
            f"{listed}, noise ±{noise:.0%}; {many['applied']['found']}: so host time or the all-reduces eat what the split gains",
        )
        return
    gaps = [d.get("serve", {}).get("itl_p50_ms") for d in (one, many)]
    serving = (
        f"; serving differs ({gaps[0]:.3g} and {gaps[1]:.3g} ms a token)" if all(gaps) and abs(gaps[0] / gaps[1] - 1) > SAME else ""
    )
    yield f"TP={many['tp']}: TP was probably not applied", f"equal to TP=1 within noise at every batch: {listed}{serving}"


def _impossible(row: Row, prices: Prices | None) -> Iterator[tuple[str, str]]:
    """A first token that takes a whole request, steps below the weight-read floor, miscounted all-reduces, a growing queue."""
    s = row.get("serve")
    if s:
        yield from _served_flags(row["tp"], s, row["prefill"])
    if prices and row["decode_ms"]:
        asked = prices.question(row["tp"])
        least = floor_s(asked)
        if not asked.distrust and row["decode_ms"] * 1e-3 < least * FLOOR_SLACK:
            why = f"{row['decode_ms']:.3g} ms a token, and reading the weights once takes {least * 1e3:.3g} ms"
            yield (
                f"TP={row['tp']}: faster than physics",
                f"{why}: other weights or hardware than said, or weights that stay in a cache",
            )
    p = row.get("profile")
    if p and "predicted_allreduces" in p and p["allreduces"] != p["predicted_allreduces"]:
        why = f"{p['allreduces']:g} in the profile, {p['predicted_allreduces']:g} by arithmetic"
        yield f"TP={row['tp']}: all-reduces a decode step", f"{why}: kernels under another name, or another degree"


def _served_flags(tp: int, s: Row, alone: Sequence[Row]) -> Iterator[tuple[str, str]]:
    if s["failed"]:
        yield f"TP={tp}: {s['failed']} requests failed", "what failed is not in the statistics"
    ttft, gap, outputs = s["ttft_p50_ms"], s["itl_p50_ms"], s["output_len"]
    if ttft and gap and outputs and outputs >= LEAST_OUTPUT and abs(ttft / (outputs * gap) - 1) <= WHOLE:
        yield (
            f"TP={tp}: TTFT is {ttft / gap:.0f} x ITL",
            f"for {outputs:.0f} output tokens: the time of a whole request, not of its first token",
        )
    if ttft and alone and ttft > QUEUED * (alone[0]["ms"] + (s["tpot_p50_ms"] or 0.0)):
        why = f"p50 is {ttft:.3g} ms, and a prompt alone takes {alone[0]['ms']:.3g} ms: requests wait for each other at this rate"
        yield f"TP={tp}: TTFT holds waiting in a queue", why
