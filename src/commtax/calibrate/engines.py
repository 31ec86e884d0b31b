"""Host times of an engine, from its benchmarks: what is left of a step beside its kernels and collectives.

Every predicted latency is linear in the host's times, so its derivative by each of them is a difference of two predictions.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from commtax import catalog
from commtax.arrays import Array
from commtax.calibrate import robust_fit
from commtax.calibrate.measurements import (
    ConstantChange,
    EngineBenchmark,
    MeasuredMachine,
    MeasurementFiles,
    ProfilePart,
    Step,
    TooFewError,
    Wish,
)
from commtax.calibrate.robust_fit import RobustFit
from commtax.catalog.physics import HOST as RANGES
from commtax.spec import Engine, Profile
from commtax.units import format_seconds, plural
from commtax.verbs.billing import bill
from commtax.verbs.closed_loop import ClosedLoop, simulate

STEP_S = 1e-3  # of the differences
FLOOR_SLACK = 0.98
SIGMA_RUNS = 4  # fewer runs than this do not tell how far runs scatter
HOST = {"host_s": 1e-3, "host_s_per_doubling": 2e-4, "host_s_per_seq": 3e-5}  # how large they may be where no run tells them
FITTED = {"tpot": "host times", "ttft": "time to the first token"}
CLIENTS = (1, 8, 32, 128, 256)
Price = Callable[[EngineBenchmark, Engine], float]


def fit_engine(rows: MeasurementFiles, place: MeasuredMachine, own: Profile) -> Step:
    """The host's times that the runs tell, and the runs that no machine can have had."""
    if not rows.runs:
        return own, [], []
    checked = [(run, _reason_impossible(run, place, own)) for run in rows.runs]
    refused = [why for _, why in checked if why]
    runs = [run for run, why in checked if not why]
    if not runs:
        raise TooFewError(refused[0])
    names = ["host_s"]
    names += ["host_s_per_doubling"] if len({r.tp for r in runs}) > 1 else []
    names += ["host_s_per_seq"] if len({r.clients for r in runs}) > 1 else []
    times, latency = np.array([r.latency_s for r in runs]), partial(_latency, place, own)
    host, fitted, part = _fit("tpot", names, runs, times, place, place.engine, latency)
    if why := _reason_out_of_range(host, part):
        raise TooFewError(why)
    parts = [part.with_remarks(_notes(runs, names, fitted), _wishes(runs, names, fitted, place.engine, latency))]
    waiting = [r for r in runs if r.kind == "serve" and r.ttft_s]
    if waiting:
        # A request's way through the server is what TTFT has beside its steps and its waiting.
        times, engine = np.array([r.ttft_s for r in waiting], float), place.engine.but(**host)
        simulated = partial(_simulate_run, place, own)
        more, _, part = _fit("ttft", ["request_s"], waiting, times, place, engine, lambda run, e: float(simulated(run, e).ttft_s))
        if why := _reason_out_of_range(more, part):
            refused.append(why)
        else:
            host |= more
            parts.append(part)
    return replace(own, host=host, engine=place.engine.key), parts, refused


def _reason_out_of_range(host: dict[str, float], part: ProfilePart) -> str:
    """Why a fit is left out: a constant that no profile may hold, for runs of one machine do not make it."""
    try:
        for name, value in host.items():
            RANGES[name].read(value, name)
    except ValueError as error:
        return f"{part.name}: left out, these {plural(part.rows, 'run')} are not of one machine and load ({error})"
    return ""


def _reason_impossible(run: EngineBenchmark, place: MeasuredMachine, own: Profile) -> str:
    """No decode step is faster than one read of the weights that a token needs."""
    priced = bill(run.model, place.cluster, tp=run.tp, engine=place.engine, batch=1, context=1, profile=own)
    nbytes = sum(x.item.nbytes * x.item.count for x in priced.items if x.item.form == "gemm")
    least = float(nbytes) / priced.question.cluster.chip.memory_Bps
    each = run.latency_s if run.kind == "serve" else run.latency_s / run.output_len
    if each >= least * FLOOR_SLACK:
        return ""
    said = f"{run.label}: {format_seconds(each)} a token is faster than reading the weights: {format_seconds(least)}"
    return f"{said} on {place.cluster.chip.key} at tp {run.tp}; other hardware, weights or degree than was said"


def _fit(
    metric: str, names: list[str], runs: list[EngineBenchmark], times: Array, place: MeasuredMachine, engine: Engine, price: Price
) -> tuple[dict[str, float], RobustFit, ProfilePart]:
    """Host times ``names`` from one latency of each run, over the other times of ``engine``.

    Their range is the runs' own where there are enough of them, else at least the catalogue's. The scatter is kept for the kind
    of model that ran: dense, a mixture, or both.
    """
    bare = engine.but(**dict.fromkeys(names, 0.0))
    base = _price_runs(runs, price, bare)
    columns = [(_price_runs(runs, price, bare.but(**{n: STEP_S})) - base) / STEP_S for n in names]
    fitted = robust_fit.linear(np.stack(columns, axis=1), times, base)
    constants = dict(zip(names, (float(v) for v in fitted.values), strict=True))
    least = getattr(place.engine.host, f"sigma_{metric}") if len(runs) < SIGMA_RUNS else 0.0
    sigma = max(robust_fit.sigma_of(robust_fit.half_width(fitted.residuals, len(names))), least)
    changes = (ConstantChange(name, getattr(place.engine.host, name), value, "s") for name, value in constants.items())
    before = np.log(times / _price_runs(runs, price, place.engine))
    spread = float(np.expm1(robust_fit.Z80 * sigma))
    part = ProfilePart.of(
        f"{place.engine.key} {FITTED[metric]}", [r.label for r in runs], before, fitted.residuals, spread, changes
    )
    kinds = {"_moe" if catalog.model(r.model).experts else "" for r in runs}
    return {**constants, **{f"sigma_{metric}{kind}": sigma for kind in sorted(kinds)}}, fitted, part


def _price_runs(runs: list[EngineBenchmark], price: Price, engine: Engine) -> Array:
    """A price for each run; runs that asked the same are priced once."""
    asked = [replace(run, latency_s=0.0, ttft_s=None, label="") for run in runs]
    known = {question: price(question, engine) for question in dict.fromkeys(asked)}
    return np.array([known[question] for question in asked], float)


def _latency(place: MeasuredMachine, own: Profile, run: EngineBenchmark, engine: Engine) -> float:
    """TPOT of a closed loop, the whole latency of a batch."""
    if run.kind == "serve":
        return float(_simulate_run(place, own, run, engine).tpot_s)
    step = partial(bill, run.model, place.cluster, batch=run.clients, tp=run.tp, engine=engine, profile=own)
    prefill = step(phase="prefill", context=run.input_len)
    decode = step(phase="decode", context=run.input_len + run.output_len // 2)
    return float(prefill.step_s) + (run.output_len - 1) * float(decode.step_s)


def _simulate_run(place: MeasuredMachine, own: Profile, run: EngineBenchmark, engine: Engine) -> ClosedLoop:
    return simulate(
        run.model,
        place.cluster,
        concurrency=run.clients,
        input_len=run.input_len,
        output_len=run.output_len,
        num_prompts=run.num_prompts,
        spread=0.0,  # as the engines' own benchmarks draw lengths unless told
        tp=run.tp,
        engine=engine,
        profile=own,
    )


def _notes(runs: list[EngineBenchmark], names: list[str], fitted: RobustFit) -> Iterator[str]:
    if "host_s_per_seq" not in names:
        yield f"one concurrency, {runs[0].clients}: host_s_per_seq stays the catalogue's"
    if len(runs) < SIGMA_RUNS:
        yield f"{len(runs)} run{'s' * (len(runs) > 1)}: the range stays at least the catalogue's; {SIGMA_RUNS} would tell it"
    if not np.any(fitted.values) and np.all(fitted.residuals < 0):
        yield "faster than its kernels without any host time: calibrate kernels too, or say another --engine version"


def _wishes(runs: list[EngineBenchmark], names: list[str], fitted: RobustFit, usual: Engine, price: Price) -> Iterator[Wish]:
    """The range that is left at other numbers of clients: from the covariance of the host's times."""
    wide = [*names, *(n for n in ("host_s_per_seq",) if n not in names)]
    scale = np.array([HOST[n] for n in wide])
    information = np.zeros((len(wide), len(wide)))
    information[: len(names), : len(names)] = fitted.information
    covariance = robust_fit.covariance(information, scale)
    engine = usual.but(**dict(zip(names, fitted.values, strict=True)))
    for clients in CLIENTS:
        run = replace(runs[0], kind="serve", clients=clients, num_prompts=10 * clients)
        usual_s = price(run, engine)
        steps = [price(run, engine.but(**{n: getattr(engine.host, n) + STEP_S})) for n in wide]
        slope = (np.array(steps) - usual_s) / STEP_S / usual_s
        where = f"a serve run of {catalog.model(run.model).key} at tp {run.tp} with {plural(clients, 'client')}"
        yield Wish.at(where, slope @ covariance @ slope + fitted.sigma**2)
