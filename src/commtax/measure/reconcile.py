"""What was measured beside what was predicted: weights, KV, collectives, and the bill line by line."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import Any

from commtax.api import bill, traffic
from commtax.api.billing import StepBill, with_link
from commtax.api.sending import workload
from commtax.api.setup import Setup
from commtax.catalog import profile as overlay
from commtax.cost.compute import step_kernels
from commtax.cost.memory import kv_bytes_per_token_layer
from commtax.cost.tensors import held
from commtax.measure import machine
from commtax.measure.job import Job

UNCALIBRATED = (
    "no prediction: this machine is not calibrated; "
    "commtax measure calibrate -o this-box.json (about a minute), then --profile this-box.json"
)
Row = dict[str, Any]


def document(job: Job, raw: dict[str, Any]) -> dict[str, Any]:
    """``measure tp --json``."""
    asked = job.plan(job.arch())
    runs = [rank["runs"] for rank in raw["ranks"]]
    collectives = _collectives(job, asked, raw["ranks"])
    weights = _weights(asked, raw)
    found: dict[str, Any] = {
        "schema": "commtax.measure-tp/1",
        "model": asked.model.key,
        "weights_source": "random" if job.random else job.model,
        "dtype": job.dtype,
        "device": raw["device"],
        "torch": raw["torch"],
        "load": raw["load"],
        "impl": job.impl,
        "emulated_link": job.emulate_link,
        "tp_size": job.tp,
        "batch": job.batch,
        "input_len": job.input_len,
        "output_len": job.output_len,
        "repeats": job.repeats,
        "ranks": [_rank(rank, asked) for rank in raw["ranks"]],
        "weights": weights,
        "collectives": collectives,
        **_logits(raw["logits"]),
        "tp": {**_times([_slowest(turn) for turn in zip(*runs, strict=True)]), **_wire(runs)},
    }
    if raw["tp1"]:
        found["tp1"] = _times(raw["tp1"])
        found["replicas"] = _replicas(job, raw["ranks"])
    elif job.tp == 1:
        found["tp1"] = found["tp"]
    found |= _bill(job, asked, found, runs)
    return found


def _weight_read(job: Job, asked: Setup, step_ms: float) -> Row:
    """What physics charges a decode step at the least: each matrix of this rank read once (of experts, those chosen)."""
    kernels = step_kernels(asked.model, asked.plan, workload("decode", job.batch, job.input_len), job.batch, asked.engine)
    nbytes = sum(float(k.count) * float(k.n) * float(k.k) * k.weight_bytes for k in kernels if k.form == "gemm")
    if not job.priced:
        return {"bytes": round(nbytes), "memory_Bps": None, "bound_ms": None, "attained": None}
    chip = overlay.on_cluster(overlay.load(job.profile), asked.cluster).chip if job.profile else asked.cluster.chip
    bound = nbytes / chip.memory_Bps * 1e3
    return {"bytes": round(nbytes), "memory_Bps": chip.memory_Bps, "bound_ms": bound, "attained": bound / step_ms}


def passed(found: dict[str, Any]) -> bool:
    """Whether what must be equal is equal: counted collectives, weights, and logits where TP=1 was run."""
    return bool(found["collectives"]["equal"] and found["weights"]["equal"] and found.get("logits_equal") is not False)


def _rank(rank: Row, asked: Setup) -> Row:
    """One rank's memory, and what the inventory says it must be."""
    tokens = rank["kv_blocks"] * rank["block_size"]
    m, plan = asked.model, asked.plan
    a_token = sum(float(kv_bytes_per_token_layer(m.blocks[i].attention, plan.tp, plan.kv_dtype)) for i in m.layers)
    return {
        **{k: rank[k] for k in ("rank", "host", "cores", "weights_bytes", "replicated", "kv_bytes", "kv_blocks", "block_size")},
        "predicted_weights_bytes": _held(asked),
        "predicted_kv_bytes": round(a_token * tokens),
    }


def _held(asked: Setup) -> int:
    return round(sum(float(h.bytes_per_rank) for h in held(asked.model, asked.plan, asked.engine, 0, 1)))


def _weights(asked: Setup, raw: Row) -> Row:
    """All ranks together hold the model once, and copies that are named."""
    copies: dict[str, int] = {}
    for rank in raw["ranks"]:
        for part, nbytes in rank["replicated"].items():
            copies[part] = copies.get(part, 0) + nbytes
    total = sum(rank["weights_bytes"] for rank in raw["ranks"])
    once = total - sum(copies.values())
    whole = raw["tp1_bytes"] or round(
        sum(float(h.ideal_bytes) * asked.plan.tp for h in held(asked.model, asked.plan, asked.engine, 0, 1))
    )
    as_predicted = all(rank["weights_bytes"] == _held(asked) for rank in raw["ranks"])
    return {
        "sum_bytes": total,
        "copies": copies,
        "sum_once_bytes": once,
        "tp1_bytes": whole,
        "equal": once == whole and as_predicted,
    }


def _collectives(job: Job, asked: Setup, ranks: list[Row]) -> Row:
    """Counted and weighed on every rank, in every step, against ``traffic``: equal means equal."""
    predicted = [*_predicted(job, asked, "prefill"), *_predicted(job, asked, "decode")]
    seen: list[list[Row]] = []
    for rank in ranks:
        for run in rank["runs"]:
            prefill = _rows("prefill", run["prefill_sent"])
            for kind in run["decode_sent"] or [[]]:
                rows = sorted([*prefill, *_rows("decode", kind)], key=_key)
                if rows not in seen:
                    seen.append(rows)
    equal = len(seen) == 1 and seen[0] == sorted(predicted, key=_key)
    return {"measured": seen[0] if len(seen) == 1 else [r for rows in seen for r in rows], "predicted": predicted, "equal": equal}


def _predicted(job: Job, asked: Setup, phase: str) -> list[Row]:
    plan = asked.plan
    found = traffic(
        asked.model,
        asked.cluster,
        phase=phase,
        batch=job.batch,
        context=job.input_len,
        tp=plan.tp,
        engine=asked.engine,
        dtype=job.dtype,
    )
    return [
        {"phase": phase, "what": line.item.what, "op": line.item.op, "nbytes": int(line.item.nbytes), "count": int(line.item.count)}
        for line in found.lines
    ]


def _rows(phase: str, sent: Iterable[list[Any]]) -> list[Row]:
    return [{"phase": phase, "what": what, "op": op, "nbytes": nbytes, "count": n} for what, op, nbytes, n in sent]


def _key(row: Row) -> tuple[str, str, str]:
    return row["phase"], row["what"], row["op"]


def _logits(found: Row) -> Row:
    if not found:
        return {"max_logit_diff": None, "logits_equal": None}
    return {
        "max_logit_diff": found["max_logit_diff"],
        "logit_tolerance": found["tolerance"],
        "logits_equal": found["within"],
        "same_tokens": found["same_tokens"],
        "steps": found["steps"],
    }


def _slowest(turn: tuple[Row, ...]) -> Row:
    """A step ends when its last rank does."""
    steps = [max(times) for times in zip(*(run["decode_s"] for run in turn), strict=True)]
    return {"prefill_s": max(run["prefill_s"] for run in turn), "decode_s": steps}


def _times(runs: list[Row]) -> Row:
    """The median step of each run; over runs their median, least and largest."""
    decode = sorted(median(run["decode_s"]) for run in runs)
    prefill = sorted(run["prefill_s"] for run in runs)
    return {
        "ms_per_token": median(decode) * 1e3,
        "spread_ms": [decode[0] * 1e3, decode[-1] * 1e3],
        "prefill_ms": median(prefill) * 1e3,
    }


def _replicas(job: Job, ranks: list[Row]) -> Row:
    """One TP=1 replica a rank, all at once: each has its own batch, so tokens add up."""
    steps = [median(run["decode_s"]) for rank in ranks for run in rank["replicas"]]
    each = median(steps)
    return {"replicas": len(ranks), "ms_per_token": each * 1e3, "tokens_per_s": len(ranks) * job.batch / each}


def _wire(runs: list[list[Row]]) -> Row:
    """Inside a collective the least waiting rank shows the wire; what others wait longer is skew. CPU ranks only."""
    first = runs[0][0]
    if not any(first["comm_s"]):
        return {}
    wire_s: dict[str, list[float]] = {}
    waited = [0.0] * len(runs)
    steps, skew = 0, 0.0
    for turn in zip(*runs, strict=True):
        for step in zip(*(run["comm_s"] for run in turn), strict=True):
            steps += 1
            for index, times in enumerate(zip(*step, strict=True)):
                wire_s.setdefault(first["order"][index], []).append(min(times))
                skew += max(times) - min(times)
                for rank, seconds in enumerate(times):
                    waited[rank] += seconds - min(times)
    return {
        "collectives": [{"what": w, "wire_us": median(t) * 1e6, "mean_us": sum(t) / len(t) * 1e6} for w, t in wire_s.items()],
        "wire_ms_per_token": sum(map(sum, wire_s.values())) / steps * 1e3,
        "skew_ms_per_token": skew / steps * 1e3,
        "waited_ms_per_token": [w / steps * 1e3 for w in waited],
        "slowest_rank": waited.index(min(waited)),
    }


def _bill(job: Job, asked: Setup, found: Row, runs: list[list[Row]]) -> Row:
    """The predicted decode step beside the measured one, and the totals of TP=1 and TP=N; where nothing is known of this
    machine the measured lines stand alone."""
    priced = price(job, asked, job.tp)
    measured = _measured_lines(runs, len(runs[0][0]["decode_s"]))
    rows = []
    for line in priced.items:
        name = f"{line.item.axis} {line.item.what}" if line.kind == "comm" else line.item.what
        if line.kind == "host" and not float(line.total_s):
            continue
        guess = float(line.total_s) if job.priced else None
        rows.append({"item": name, "kind": line.kind, "predicted_s": guess, "measured_s": measured.pop(name, None)})
    rows += [{"item": name, "kind": "unpriced", "predicted_s": None, "measured_s": s} for name, s in measured.items()]
    predicted = {"source": "; ".join(priced.sources), "tp_ms": float(priced.step_s) * 1e3}
    if "tp1" in found:
        predicted["tp1_ms"] = float(price(job, asked, 1).step_s) * 1e3
    return {
        "weight_read": _weight_read(job, asked, found["tp"]["ms_per_token"]),
        "bill": rows,
        "predicted": predicted if job.priced else None,
        "notes": _notes(job),
    }


def _notes(job: Job) -> list[str]:
    """What a reader must know of this machine."""
    here = machine.facts()
    said = [machine.carrier_note(here), machine.bf16_note(here, job.dtype)] if job.device == "cpu" else []
    return [*filter(None, said), *([] if job.priced else [UNCALIBRATED])]


def _measured_lines(runs: list[list[Row]], steps: int) -> dict[str, float]:
    """Each line's seconds a step, median over turns: of computing the slowest rank's, of collectives the wire alone."""
    lines: dict[str, list[float]] = {}
    for turn in zip(*runs, strict=True):
        sent = {f"tp {what}" for what in turn[0]["order"]}
        for name in turn[0]["decode_lines"]:
            if name not in sent:
                lines.setdefault(name, []).append(max(run["decode_lines"].get(name, 0.0) for run in turn))
        wires: dict[str, list[float]] = {}
        for step in zip(*(run["comm_s"] for run in turn), strict=True):
            for what, times in zip(turn[0]["order"], zip(*step, strict=True), strict=True):
                wires.setdefault(f"tp {what}", []).append(min(times))
        for name, seconds in wires.items():
            lines.setdefault(name, []).append(median(seconds) * len(seconds) / steps)
    found = {name: median(values) for name, values in lines.items()}
    waits = [median(_skew(turn)) for turn in zip(*runs, strict=True) if any(turn[0]["comm_s"])]
    return {**found, "waiting for the slowest rank": median(waits)} if waits and found else found


def _skew(turn: tuple[Row, ...]) -> list[float]:
    """Seconds of each step that the least delayed rank spends waiting inside collectives, beyond the wire."""
    found = []
    for step in zip(*(run["comm_s"] for run in turn), strict=True):
        found.append(min(sum(rank) for rank in step) - sum(min(times) for times in zip(*step, strict=True)))
    return found


def price(job: Job, asked: Setup, tp: int) -> StepBill:
    """The decode step as ``bill`` predicts it, half-way through the answer."""
    place = with_link(asked.cluster, job.emulate_link) if job.emulate_link else asked.cluster
    return bill(
        asked.model,
        place,
        tp=tp,
        batch=job.batch,
        context=job.input_len + job.output_len // 2,
        engine=asked.engine,
        dtype=job.dtype,
        library="textbook" if job.emulate_link else job.impl,
        slow_rank=job.slow[1] if tp > 1 else 1.0,
        profile=job.profile or None,
    )
