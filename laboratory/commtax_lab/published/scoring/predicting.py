"""What is predicted for published rows: collectives by their curve, steps and runs by ``bill``, ``simulate`` and ``train_bill``."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from commtax import catalog
from commtax.arrays import Array
from commtax.cost.collectives import choose, ring_factor
from commtax.cost.collectives import price as collective_price
from commtax.cost.placement import Span
from commtax.cost.pricing import MEASURED, inference_bill, launched_s, spread_of
from commtax.ledger import Bill
from commtax.runs.calibrate.measurements import SweepRow
from commtax.spec import Fabric, Number, Path
from commtax.statement import Refusal
from commtax.verbs.billing import bill, price, train_bill
from commtax.verbs.closed_loop import price_closed_loop
from commtax.verbs.settling import resolve_question, settle, terms_of
from commtax_lab.published import inference, step_rows, sweep, training
from commtax_lab.published.collective_rows import Curve
from commtax_lab.published.rows import PublishedFigure
from commtax_lab.published.scoring.excluded_rows import UNFIT, holds_weights, least_s
from commtax_lab.published.scoring.kernel_scores import swept_kernel
from commtax_lab.published.scoring.prediction_columns import Prediction, prediction_around
from commtax_lab.published.scoring.serving_scores import FIGURES

TOTALS = ("step_s", "low_s", "high_s")


def predict_inference(run: inference.InferenceRun, entries: Sequence[PublishedFigure]) -> list[Prediction]:
    """Predict rows of published inference runs."""
    return [_closed_loop_mean(run) if run.served else _steps(run)] * len(entries)


def _closed_loop_mean(run: inference.InferenceRun) -> Prediction:
    """Predict the mean of a closed loop in which all requests have the same lengths."""
    requests = {"concurrency": run.batch, "spread": 0.0, "input_len": run.input_len, "output_len": run.output_len}
    loop = price_closed_loop(settle(resolve_question(run.model, run.cluster, {**requests, **run.options})))
    value, low, high, floor = FIGURES[run.served](loop)
    return Prediction(float(value), float(low), float(high), float(floor))


def _steps(run: inference.InferenceRun) -> Prediction:
    value = low = high = floor = 0.0
    for count, phase, context in ((run.prompts, "prefill", run.input_len), (run.steps, "decode", run.context)):
        if count:
            step = {"phase": phase, "batch": run.batch, "context": context, **run.options}
            priced = price(settle(resolve_question(run.model, run.cluster, step)))
            lines = tuple(x for x in priced.lines if x.kind in run.lines)
            part = Bill(lines, priced.tokens) if run.lines else priced
            value, low, high = (x + count * float(getattr(part, n)) for x, n in zip((value, low, high), TOTALS, strict=True))
            floor += count * float(least_s(priced)) if not run.lines or "compute" in run.lines else 0.0
    if run.per_second:
        return Prediction(run.batch / value, run.batch / high, run.batch / low, floor)
    return Prediction(value, low, high, floor)


def predict_mixed_step(run: step_rows.MixedStep, entries: Sequence[PublishedFigure]) -> list[Prediction]:
    """Predict the step at a run's mean batch, with the prompts that the median step has."""
    sizes = {"tp": run.tp, "dp": run.dp, "ep": run.ep, "dtype": run.dtype, "kv_dtype": run.kv_dtype, "engine": run.engine}
    batch = max(1, round(run.batch / run.dp))
    question = settle(
        resolve_question(run.model, run.cluster, {"batch": batch, "context": run.context, "sampling": run.sampling, **sizes})
    )
    work = replace(question.work, prefill_seqs=run.prompts, prefill_tokens=run.prompts * run.prompt_len)
    priced = inference_bill(terms_of(question), work, batch)
    unfit = "" if holds_weights(question) else UNFIT
    value, low, high = (float(getattr(priced, name)) for name in TOTALS)
    return [Prediction(value, low, high, float(least_s(price(question))), apart=unfit)] * len(entries)


def predict_training(run: training.TrainBillArguments, entries: Sequence[PublishedFigure]) -> list[Prediction]:
    """Predict rows of published training runs."""
    simulated = train_bill(**run)
    floor = float(simulated.model_flops("causal")) / float(simulated.num_gpus * simulated.peak_flops_per_s)
    return [Prediction(float(simulated.step_s), float(simulated.low_s), float(simulated.high_s), floor)] * len(entries)


def predict_sweep_row(row: SweepRow, entries: Sequence[PublishedFigure]) -> list[Prediction]:
    """Predict a row of our own sweep: a kernel, or one rank's kernels of a whole step."""
    entry = entries[0]
    kernel_of = row["kind"] != "step"
    return [swept_kernel(row, entry.kind, catalog.chip(entry.system)) if kernel_of else _predict_sweep_step(row, entry.system)]


def _predict_sweep_step(row: SweepRow, chip: str) -> Prediction:
    """Predict one rank's kernels of a whole step, without collectives or host time."""
    dtype, engine = "" if row["dtype"] == "bf16" else row["dtype"], row.get("engine") or sweep.ENGINE
    model, phase, batch, context = row["model"], row["phase"], row["batch"], row["length"]
    priced = bill(model, f"8x{chip}", phase=phase, batch=batch, context=context, tp=row["tp"], dtype=dtype, engine=engine)
    kernels = Bill(tuple(x for x in priced.lines if x.kind == "compute"), priced.tokens)
    value = float(kernels.step_s)
    return prediction_around(value, float(kernels.high_s) / value, float(least_s(priced)))


def predict_curve(curve: Curve, entries: Sequence[PublishedFigure]) -> list[Prediction]:
    """Predict the rows of one curve of published collectives."""
    sizes = np.array([entry.size for entry in entries])
    predicted, width, floor = curve_seconds(curve, sizes)
    measured = curve.crosses or catalog.fabric(curve.library, curve.cluster).label.kind in MEASURED
    rows = zip(np.asarray(predicted), np.broadcast_to(width, sizes.shape), floor, strict=True)
    hint = "" if measured else "link assumed"
    return [replace(prediction_around(float(p), 1 + float(s), float(f)), hint=hint) for p, s, f in rows]


def curve_seconds(curve: Curve, nbytes: Array) -> tuple[Number, Number, Array]:
    """Predict seconds, the half-width of their range as a factor, and the least that the links allow."""
    place = curve.cluster
    fabric = _usable_paths(catalog.fabric(curve.library, place), curve)
    if curve.algorithm:
        chosen = choose(_paths_of_algorithm(fabric, curve.algorithm), nbytes, curve.ranks)
    else:
        where = Span(curve.ranks, curve.inside, -(-curve.ranks // curve.inside))
        chosen = collective_price(curve.op, nbytes, curve.ranks, where, place, fabric)
    latency = launched_s(fabric, chosen.latency_s, chosen.wire_s, curve.crosses) if curve.eager else chosen.latency_s
    predicted = latency + chosen.wire_s
    width = spread_of(fabric, curve.op, nbytes, curve.ranks, chosen, place, curve.crosses, eager=curve.eager)
    return predicted, width, _floor(curve, nbytes)


def _usable_paths(fabric: Fabric, curve: Curve) -> Fabric:
    """Return the library's paths without those that cannot add such numbers."""
    if not curve.integers or curve.op != "all-reduce":
        return fabric
    paths, across = (
        tuple(p for p in kind[curve.op] if p.algorithm != "in-switch") for kind in (fabric.paths, fabric.network_paths)
    )
    return replace(fabric, paths={**fabric.paths, curve.op: paths}, network_paths={**fabric.network_paths, curve.op: across})


def _paths_of_algorithm(fabric: Fabric, algorithm: str) -> tuple[Path, ...]:
    """Return the paths of one algorithm, valid at any size."""
    named = [p for p in fabric.paths["all-reduce"] if p.algorithm == algorithm]
    paths = tuple(replace(p, min_bytes=(), max_bytes=(), worlds=(), turn=0) for p in named)
    if not paths:
        raise Refusal(f"algorithm '{algorithm}' was not calibrated on this chip", "library")
    return paths[:1]


def _floor(curve: Curve, nbytes: Array) -> Array:
    """Return the time of the bytes that must pass a rank's link or a host's NICs. A switch that adds takes each tensor once."""
    place, inside = curve.cluster, min(curve.inside, curve.ranks)
    factor = ring_factor(curve.op, inside) if inside > 1 else 0.0
    if curve.op == "all-reduce" and place.intra.switched and inside > 2:
        factor = min(factor, 1.0)
    least = factor * nbytes / place.intra.bandwidth_Bps
    if curve.crosses:
        domains, hosts = -(-curve.ranks // curve.inside), max(1, place.domain // place.gpus_per_host)
        rate = place.nics_per_host * hosts * place.inter.bandwidth_Bps
        least = np.maximum(least, ring_factor(curve.op, domains) * nbytes / rate)
    return least
