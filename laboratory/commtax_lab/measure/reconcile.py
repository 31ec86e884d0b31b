"""What was measured beside what was predicted: weights, KV, collectives, and the bill line by line."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from statistics import median

from commtax.catalog import profile as overlay
from commtax.cost.caches import kv_bytes_per_token
from commtax.cost.compute import step_kernels
from commtax.cost.inventory import rank_tensors
from commtax.question import Question, workload
from commtax.verbs.billing import StepBill, price, question_traffic, with_link
from commtax.verbs.settling import settle
from commtax_lab.measure import live_documents, machine
from commtax_lab.measure.comm import IssuedCollective
from commtax_lab.measure.engine import OFF_CORE
from commtax_lab.measure.generate import GenerationRun, MeasuredJob, RankResult, RunOfAllRanks, lower_quartile, turns
from commtax_lab.measure.job import LiveJob

UNCALIBRATED = (
    "no prediction: this machine is not calibrated; "
    "commtax measure calibrate -o this-box.json (about a minute), then --profile this-box.json"
)
Line = tuple[str, str]  # a line of the bill: its kind and what it is
COMM, COMPUTE = "comm", "compute"
WAIT = "wait"
FOR_OTHERS: Line = (WAIT, "waiting for other ranks")
FOR_A_CORE: Line = (WAIT, OFF_CORE)
UNCOMPARED: live_documents.LogitsCheck = {"max_logit_diff": None, "logits_equal": None}


def document(job: LiveJob, seen: MeasuredJob) -> live_documents.TpDocument:
    """Return the document of ``measure tp --json``."""
    question = job.plan(job.arch())
    all_turns = turns(seen.ranks)
    tensors = rank_tensors(question.model, question.plan, question.engine, 0, 1)
    rank_bytes = round(sum(float(h.bytes_per_rank) for h in tensors))
    whole_bytes = seen.tp1_bytes or round(sum(float(h.ideal_bytes) * job.tp for h in tensors))
    tp: live_documents.StepTimes = {**_times(all_turns, _measured_lines(all_turns, job.slow)), **_wire(all_turns)}
    alone: live_documents.OneRankRuns = {"tp1": tp} if job.tp == 1 else {}
    if seen.tp1:
        each = median(median(run.decode_s) for part in seen.ranks for run in part.replicas)  # with batches of their own
        replicas: live_documents.Replicas = {
            "replicas": job.tp,
            "ms_per_token": each * 1e3,
            "tokens_per_s": job.tp * job.batch / each,
        }
        tp1 = _times(seen.tp1, _measured_lines([RunOfAllRanks((run,)) for run in seen.tp1]))
        alone = {"tp1": tp1, "replicas": replicas}
    return {
        "schema": "commtax.measure-tp/1",
        "model": question.model.key,
        "weights_source": "random" if job.random else job.model,
        "dtype": job.dtype,
        "device": seen.device,
        "torch": seen.torch,
        "load": list(seen.load),
        "impl": job.impl,
        "emulated_link": job.emulate_link,
        "tp_size": job.tp,
        "batch": job.batch,
        "input_len": job.input_len,
        "output_len": job.output_len,
        "repeats": job.repeats,
        "ranks": [_rank(part, question, rank_bytes) for part in seen.ranks],
        "weights": _weights(seen.ranks, rank_bytes, whole_bytes),
        "collectives": _collectives(job, question, seen.ranks),
        **(seen.logits or UNCOMPARED),
        "tp": tp,
        **alone,
        **_bill(job, question, tp, "tp1" in alone, all_turns),
    }


def is_reconciled(answer: live_documents.TpDocument) -> bool:
    """Return whether all that must be equal is: counted collectives, weights, and logits where TP=1 was run."""
    return bool(answer["collectives"]["equal"] and answer["weights"]["equal"] and answer.get("logits_equal") is not False)


def _rank(part: RankResult, question: Question, weights_bytes: int) -> live_documents.RankMemory:
    """Compare one rank's memory with what the inventory says it must be."""
    m, plan = question.model, question.plan
    a_token = float(kv_bytes_per_token(m, plan))
    return {
        "rank": part.rank,
        "host": part.host,
        "cores": list(part.cores),
        "weights_bytes": part.weights_bytes,
        "replicated": part.replicated,
        "kv_bytes": part.kv_bytes,
        "kv_blocks": part.kv_blocks,
        "block_size": part.block_size,
        "predicted_weights_bytes": weights_bytes,
        "predicted_kv_bytes": round(a_token * part.kv_blocks * part.block_size),
    }


def _weights(parts: Sequence[RankResult], rank_bytes: int, whole_bytes: int) -> live_documents.WeightSums:
    """Check that all ranks together hold the model once, and copies that are named."""
    copies = sum((Counter(part.replicated) for part in parts), Counter[str]())
    total = sum(part.weights_bytes for part in parts)
    once = total - copies.total()
    equal = once == whole_bytes and all(part.weights_bytes == rank_bytes for part in parts)
    return {"sum_bytes": total, "copies": dict(copies), "sum_once_bytes": once, "tp1_bytes": whole_bytes, "equal": equal}


def _collectives(job: LiveJob, question: Question, parts: Sequence[RankResult]) -> live_documents.CollectiveCounts:
    """Compare the count and bytes on every rank, in every step, with ``traffic``: equal means equal."""
    predicted: dict[str, Counter[IssuedCollective]] = {}
    for phase in ("prefill", "decode"):
        items = [
            line.item for line in question_traffic(settle(question.but(phase=phase, batch=job.batch, context=job.input_len))).lines
        ]
        predicted[phase] = Counter({IssuedCollective(i.what, i.op, int(i.nbytes)): int(i.count) for i in items})
    seen: list[dict[str, Counter[IssuedCollective]]] = []
    for run in (run for part in parts for run in part.runs):
        for step in run.decode_sent or [Counter()]:
            counted = {"prefill": Counter(run.prefill_sent), "decode": step}
            if counted not in seen:
                seen.append(counted)
    measured = [row for counted in seen for row in sorted(_rows(counted), key=itemgetter("phase", "what", "op"))]
    return {"measured": measured, "predicted": _rows(predicted), "equal": seen == [predicted]}


def _rows(counted: dict[str, Counter[IssuedCollective]]) -> list[live_documents.IssuedCount]:
    every = ((phase, one, n) for phase, of_phase in counted.items() for one, n in of_phase.items())
    return [{"phase": phase, "what": one.what, "op": one.op, "nbytes": one.nbytes, "count": n} for phase, one, n in every]


def _times(runs: Iterable[GenerationRun | RunOfAllRanks], lines: Mapping[Line, float]) -> live_documents.StepTimes:
    """Return the median step of each run, and over runs their median, least and largest. What no line accounts for is waiting,
    which no price includes: for a core that others have, and for ranks that wait so."""
    prefill, decode = zip(*((run.prefill_s, median(run.decode_s)) for run in runs), strict=True)
    spread, step_s = [min(decode) * 1e3, max(decode) * 1e3], median(decode)
    busy_s = min(step_s, sum(s for (kind, _), s in lines.items() if kind != WAIT)) if lines else step_s
    return {
        "ms_per_token": step_s * 1e3,
        "own_ms": busy_s * 1e3,
        "waiting_ms": (step_s - busy_s) * 1e3,
        "spread_ms": spread,
        "prefill_ms": median(prefill) * 1e3,
    }


def _wire(all_turns: Sequence[RunOfAllRanks]) -> live_documents.WireTimes:
    """Split collectives on CPU ranks into wire, the least wait of any rank, and skew, what others wait longer."""
    if not all_turns[0].inside_s.size:
        return {}
    steps = sum(len(turn.wire_s) for turn in all_turns)
    wires = wire_seconds(all_turns)
    waited = sum((turn.inside_s - turn.wire_s).sum(axis=(1, 2)) for turn in all_turns)
    skew = sum(float((turn.inside_s.max(axis=0) - turn.wire_s).sum()) for turn in all_turns)
    return {
        "collectives": [{"what": w, "wire_us": median(t) * 1e6, "mean_us": sum(t) / len(t) * 1e6} for w, t in wires.items()],
        "wire_ms_per_token": sum(map(sum, wires.values())) / steps * 1e3,
        "skew_ms_per_token": skew / steps * 1e3,
        "waited_ms_per_token": [float(w) / steps * 1e3 for w in waited],
        "slowest_rank": int(waited.argmin()),
    }


def wire_seconds(all_turns: Sequence[RunOfAllRanks]) -> dict[str, list[float]]:
    """Return the wire seconds of every collective, by its purpose."""
    wires: dict[str, list[float]] = {}
    for turn in all_turns:
        for step in turn.wire_s.tolist():
            for issued, seconds in zip(turn.runs[0].order, step, strict=True):
                wires.setdefault(issued.what, []).append(seconds)
    return wires


def _bill(
    job: LiveJob, question: Question, tp: live_documents.StepTimes, alone: bool, all_turns: Sequence[RunOfAllRanks]
) -> live_documents.LiveBill:
    """Set the predicted decode step beside the measured one, with the totals of TP=1 and TP=N. Where nothing is known of this
    machine the measured lines stand alone."""
    priced = predicted_step(job, question, job.tp)
    measured = _measured_lines(all_turns, job.slow)
    if measured:  # so that lines and waiting are the step
        core_s, waiting_s = measured.pop(FOR_A_CORE, 0.0), tp["waiting_ms"] * 1e-3
        core_s = min(core_s, waiting_s) if job.tp > 1 else waiting_s
        measured |= {FOR_A_CORE: core_s} | ({FOR_OTHERS: waiting_s - core_s} if job.tp > 1 else {})
    rows = []
    for line in (line for line in priced.items if line.kind != "host" or float(line.total_s)):
        seconds = measured.pop((COMM if line.kind == COMM else COMPUTE, line.item.what), None)
        rows.append(_row(line.kind, line.item.what, float(line.total_s) if job.can_predict else None, seconds))
    for line_kind, what in measured:
        rows.append({**_row(line_kind, what, None, measured[line_kind, what]), "kind": WAIT if line_kind == WAIT else "unpriced"})
    here = machine.facts()
    machine_notes = [machine.carrier_note(here), machine.bf16_note(here, job.dtype)] if job.device == "cpu" else []
    predicted: live_documents.PredictedStep = {"source": "; ".join(priced.sources), "tp_ms": float(priced.step_s) * 1e3}
    if alone:
        predicted["tp1_ms"] = float(predicted_step(job, question, 1).step_s) * 1e3
    return {
        "weight_read": _weight_read(job, question, tp["own_ms"]),
        "bill": rows,
        "predicted": predicted if job.can_predict else None,
        "notes": [*filter(None, machine_notes), *([] if job.can_predict else [UNCALIBRATED])],
    }


def _row(kind: str, what: str, predicted_s: float | None, measured_s: float | None) -> live_documents.BillRow:
    item = f"tp {what}" if kind == COMM else what
    return {"item": item, "kind": kind, "predicted_s": predicted_s, "measured_s": measured_s}


def _measured_lines(all_turns: Sequence[RunOfAllRanks], slow: tuple[int, float] = (-1, 1.0)) -> dict[Line, float]:
    """Return each line's seconds per step, median over turns: core time of the slowest rank, and of collectives the wire alone,
    when others leave the machine alone.

    A rank that is slow on purpose toils between its lines: they are stretched here as its computing is there.
    """
    lines: dict[Line, list[float]] = {}
    for turn in all_turns:
        ranks = [run.line_medians() for run in turn.runs]
        for name in ranks[0]:
            seconds_by_rank = [rank.get(name, 0.0) * (slow[1] if index == slow[0] else 1.0) for index, rank in enumerate(ranks)]
            lines.setdefault(FOR_A_CORE if name == OFF_CORE else (COMPUTE, name), []).append(max(seconds_by_rank))
        for what, seconds in wire_seconds([turn]).items() if turn.inside_s.size else ():
            lines.setdefault((COMM, what), []).append(lower_quartile(seconds) * len(seconds) / len(turn.wire_s))
    return {line: median(values) for line, values in lines.items()}


def _weight_read(job: LiveJob, question: Question, step_ms: float) -> live_documents.WeightRead:
    """Return what physics charges a decode step at least: each matrix of this rank read once (only the chosen experts)."""
    kernels = step_kernels(question.model, question.plan, workload("decode", job.batch, job.input_len), job.batch, question.engine)
    nbytes = sum(float(k.count) * float(k.n) * float(k.k) * k.weight_bytes for k in kernels if k.form == "gemm")
    if not job.can_predict:
        return {"bytes": round(nbytes), "memory_Bps": None, "bound_ms": None, "attained": None}
    chip = overlay.measured_cluster(overlay.load(job.profile), question.cluster).chip if job.profile else question.cluster.chip
    bound = nbytes / chip.memory_Bps * 1e3
    return {"bytes": round(nbytes), "memory_Bps": chip.memory_Bps, "bound_ms": bound, "attained": bound / step_ms}


def predicted_step(job: LiveJob, question: Question, tp: int) -> StepBill:
    """Price the decode step half-way through the answer."""
    at = question.but(tp=tp, batch=job.batch, context=job.input_len + job.output_len // 2)
    at = at.but(library=job.impl, slow_rank=job.slow[1] if tp > 1 else 1.0)
    if job.emulate_link:
        at = at.but(cluster=with_link(question.cluster, job.emulate_link), library="textbook")
    return price(settle(at.but(profile=overlay.load(job.profile)) if job.profile else at))
