"""Host times of an engine, from its benchmarks: what is left of a step beside its kernels and collectives.

Every predicted latency is linear in the host's times, so its derivative by each of them is a difference of two predictions.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import cast

import numpy as np

from commtax import catalog
from commtax.arrays import Array
from commtax.calibrate import robust_fit
from commtax.calibrate.measurements import (
    ConstantChange,
    MeasuredMachine,
    MeasuredRun,
    MeasurementFiles,
    ProfilePart,
    Step,
    TooFewError,
    Wish,
)
from commtax.calibrate.robust_fit import RobustFit
from commtax.catalog.physics import HOST as RANGES
from commtax.options import taken_by
from commtax.question import Requests
from commtax.spec import Engine, Profile
from commtax.units import format_seconds, plural
from commtax.verbs.billing import bill
from commtax.verbs.closed_loop import ClosedLoop, simulate
from commtax.verbs.keywords import BillOptions, SimulateOptions
from commtax.verbs.settling import resolve_question

STEP_S = 1e-3  # of the differences
FLOOR_SLACK = 0.98
SIGMA_RUNS = 4  # fewer runs than this do not tell how far runs scatter
HOST = {"host_s": 1e-3, "host_s_per_doubling": 2e-4, "host_s_per_seq": 3e-5}  # how large they may be where no run tells them
FITTED = {"tpot": "host times", "ttft": "time to the first token"}
CLIENTS = (1, 8, 32, 128, 256)
Price = Callable[[MeasuredRun, Engine], float]


def fit_engine(rows: MeasurementFiles, place: MeasuredMachine, own: Profile) -> Step:
    """The host's times that the runs tell, and the runs that no machine can have had."""
    if not rows.runs:
        return own, [], []
    checked = [(run, _reason_other(run, place) or _reason_impossible(run, place, own)) for run in rows.runs]
    refused = [why for _, why in checked if why]
    runs = [run for run, why in checked if not why]
    if not runs:
        raise TooFewError(refused[0])
    names = ["host_s"]
    names += ["host_s_per_doubling"] if len({r.options["tp"] for r in runs}) > 1 else []
    names += ["host_s_per_seq"] if len({_requests(r).concurrency for r in runs}) > 1 else []
    times, latency = np.array([_measured_s(r) for r in runs]), partial(_latency, place, own)
    host, fitted, part = _fit("tpot", names, runs, times, place, place.engine, latency)
    if why := _reason_out_of_range(host, part):
        raise TooFewError(why)
    parts = [part.with_remarks(_notes(runs, names, fitted), _wishes(runs, names, fitted, place.engine, latency))]
    waiting = [r for r in runs if "ttft" in r.measured]
    if waiting:
        # A request's way through the server is what TTFT has beside its steps and its waiting.
        times, engine = np.array([r.measured["ttft"] for r in waiting], float), place.engine.but(**host)
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


def _measured_s(run: MeasuredRun) -> float:
    """The time per token of a closed loop, the whole latency of a batch."""
    return run.measured.get("e2e") or run.measured["tpot"]


def _reason_other(run: MeasuredRun, place: MeasuredMachine) -> str:
    """Why a run tells nothing of this engine's host times."""
    if not run.measured.keys() & {"tpot", "e2e"}:
        return f"{run.label}: no mean time a token"
    ran, own = resolve_question(run.model, run.cluster, run.options).engine.key, place.engine.key
    return "" if ran == own else f"{run.label}: ran {ran}, and {own} is fitted; say --engine"


def _reason_impossible(run: MeasuredRun, place: MeasuredMachine, own: Profile) -> str:
    """No decode step is faster than one read of the weights that a token needs."""
    step = _step_options(run) | BillOptions(engine=place.engine, batch=1, context=1, profile=own)
    priced = bill(run.model, place.cluster, **step)
    nbytes = sum(x.item.nbytes * x.item.count for x in priced.items if x.item.form == "gemm")
    least = float(nbytes) / priced.question.cluster.chip.memory_Bps
    each = run.measured["tpot"] if "tpot" in run.measured else run.measured["e2e"] / float(_requests(run).output_len)
    if each >= least * FLOOR_SLACK:
        return ""
    said = f"{run.label}: {format_seconds(each)} a token is faster than reading the weights: {format_seconds(least)}"
    return f"{said} on {place.cluster.chip.key} at tp {run.options['tp']}; other hardware, weights or degree than was said"


def _fit(
    metric: str, names: list[str], runs: list[MeasuredRun], times: Array, place: MeasuredMachine, engine: Engine, price: Price
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


def _price_runs(runs: list[MeasuredRun], price: Price, engine: Engine) -> Array:
    """A price for each run; runs that asked the same are priced once."""
    asked = [str((run.model, sorted(run.options.items()), "e2e" in run.measured)) for run in runs]
    known = {question: price(run, engine) for question, run in dict(zip(asked, runs, strict=True)).items()}
    return np.array([known[question] for question in asked], float)


def _latency(place: MeasuredMachine, own: Profile, run: MeasuredRun, engine: Engine) -> float:
    """TPOT of a closed loop, the whole latency of a batch."""
    if "e2e" not in run.measured:
        return float(_simulate_run(place, own, run, engine).tpot_s)
    asked = _requests(run)
    prompt, answer, batch = (int(n) for n in (asked.input_len, asked.output_len, asked.concurrency))
    own_step = BillOptions(batch=batch, engine=engine, profile=own)
    step = partial(bill, run.model, place.cluster, **(_step_options(run) | own_step))
    prefill = step(phase="prefill", context=prompt)
    decode = step(phase="decode", context=prompt + answer // 2)
    return float(prefill.step_s) + (answer - 1) * float(decode.step_s)


def _requests(run: MeasuredRun) -> Requests:
    return resolve_question(run.model, run.cluster, run.options).requests


def _step_options(run: MeasuredRun) -> BillOptions:
    """Options of a step: those of the run that a step has, too."""
    taken = taken_by("bill()")
    return cast(BillOptions, {name: value for name, value in run.options.items() if name in taken and name != "engine"})


def _simulate_run(place: MeasuredMachine, own: Profile, run: MeasuredRun, engine: Engine) -> ClosedLoop:
    return simulate(run.model, place.cluster, **(run.options | SimulateOptions(engine=engine, profile=own)))


def _notes(runs: list[MeasuredRun], names: list[str], fitted: RobustFit) -> Iterator[str]:
    if "host_s_per_seq" not in names:
        yield f"one concurrency, {_requests(runs[0]).concurrency}: host_s_per_seq stays the catalogue's"
    if len(runs) < SIGMA_RUNS:
        yield f"{len(runs)} run{'s' * (len(runs) > 1)}: the range stays at least the catalogue's; {SIGMA_RUNS} would tell it"
    if not np.any(fitted.values) and np.all(fitted.residuals < 0):
        yield "faster than its kernels without any host time: calibrate kernels too, or say another --engine version"


def _wishes(runs: list[MeasuredRun], names: list[str], fitted: RobustFit, usual: Engine, price: Price) -> Iterator[Wish]:
    """The range that is left at other numbers of clients: from the covariance of the host's times."""
    wide = [*names, *(n for n in ("host_s_per_seq",) if n not in names)]
    scale = np.array([HOST[n] for n in wide])
    information = np.zeros((len(wide), len(wide)))
    information[: len(names), : len(names)] = fitted.information
    covariance = robust_fit.covariance(information, scale)
    engine = usual.but(**dict(zip(names, fitted.values, strict=True)))
    for clients in CLIENTS:
        load = SimulateOptions(concurrency=clients, num_prompts=10 * clients)
        run = replace(runs[0], options=runs[0].options | load, measured={"tpot": 1.0})
        usual_s = price(run, engine)
        steps = [price(run, engine.but(**{n: getattr(engine.host, n) + STEP_S})) for n in wide]
        slope = (np.array(steps) - usual_s) / STEP_S / usual_s
        where = f"a serve run of {catalog.model(run.model).key} at tp {run.options['tp']} with {plural(clients, 'client')}"
        yield Wish.at(where, slope @ covariance @ slope + fitted.sigma**2)
