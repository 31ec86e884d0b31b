"""Host times of an engine, from its benchmarks: what is left of a step beside its kernels and collectives.

Every predicted latency is linear in the host's times, so its derivative by each of them is a difference of two predictions.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from commtax import catalog
from commtax.calibrate import robust
from commtax.calibrate.records import Change, Part, Place, Served, TooFewError, Wish
from commtax.calibrate.robust import Array
from commtax.spec import Engine, Profile
from commtax.units import format_seconds, plural
from commtax.verbs.billing import bill
from commtax.verbs.serving import Simulation, simulate

STEP_S = 1e-3  # of the differences
FLOOR_SLACK = 0.98
SIGMA_RUNS = 4  # fewer runs than this do not tell how far runs scatter
HOST = {"host_s": 1e-3, "host_s_per_doubling": 2e-4, "host_s_per_seq": 3e-5}  # how large they may be where no run tells them
CLIENTS = (1, 8, 32, 128, 256)


def fit_engine(runs: Sequence[Served], place: Place, own: Profile) -> tuple[dict[str, float], list[Part], list[str]]:
    """The host's times that these runs tell, and the runs that no machine can have had."""
    possible = [(r, why) for r in runs for why in [_impossible(r, place, own)]]
    refused = [why for _, why in possible if why]
    kept = [r for r, why in possible if not why]
    if not kept:
        raise TooFewError(refused[0] if refused else "no run of the engine can be used")
    host_times, part = _fit_host(kept, place, own)
    parts = [part]
    waiting = [r for r in kept if r.kind == "serve" and r.ttft_s]
    if waiting:
        more, other = _fit_request(waiting, place, own, place.engine.but(**host_times))
        host_times |= more
        parts.append(other)
    return host_times, parts, refused


def _impossible(run: Served, place: Place, own: Profile) -> str:
    """No decode step is faster than one read of the weights that a token needs."""
    priced = bill(run.model, place.cluster, tp=run.tp, engine=place.engine, batch=1, context=1, profile=own)
    nbytes = sum(x.item.nbytes * x.item.count for x in priced.items if x.item.form == "gemm")
    least = float(nbytes) / priced.question.cluster.chip.memory_Bps
    each = run.tpot_s if run.kind == "serve" else (run.e2e_s or 0.0) / run.output_len
    if each is None or each >= least * FLOOR_SLACK:
        return ""
    said = f"{run.label}: {format_seconds(each)} a token is faster than reading the weights: {format_seconds(least)}"
    return f"{said} on {place.cluster.chip.key} at tp {run.tp}; other hardware, weights or degree than was said"


def _fit_host(runs: list[Served], place: Place, own: Profile) -> tuple[dict[str, float], Part]:
    times = np.array([r.tpot_s if r.kind == "serve" else r.e2e_s for r in runs], float)
    names = ["host_s"]
    names += ["host_s_per_doubling"] if len({r.tp for r in runs}) > 1 else []
    names += ["host_s_per_seq"] if len({r.clients for r in runs}) > 1 else []
    bare = place.engine.but(**dict.fromkeys(names, 0.0))
    base = _latencies(runs, place, own, bare)
    columns = [(_latencies(runs, place, own, bare.but(**{n: STEP_S})) - base) / STEP_S for n in names]
    fitted = robust.linear(np.stack(columns, axis=1), times, base)
    host_times = dict(zip(names, (float(v) for v in fitted.values), strict=True))
    before = np.log(times / _latencies(runs, place, own, place.engine))
    after = np.log(times / _latencies(runs, place, own, place.engine.but(**host_times)))
    sigmas, part = _part("host times", "tpot", runs, place, host_times, before, after)
    notes, wishes = _notes(runs, names, host_times, times, base), _wishes(runs, names, fitted, place, own)
    return {**host_times, **sigmas}, part.with_remarks(notes, wishes)


def _part(
    what: str, metric: str, runs: list[Served], place: Place, constants: dict[str, float], before: Array, after: Array
) -> tuple[dict[str, float], Part]:
    """What was fitted with its range: the runs' own where there are enough of them, else at least the catalogue's. The scatter is
    kept for the kind of model that ran: dense, a mixture, or both."""
    host = place.engine.host
    least = getattr(host, f"sigma_{metric}") if len(runs) < SIGMA_RUNS else 0.0
    sigma = max(robust.sigma_of(robust.half_width(after, len(constants))), least)
    changes = (Change(name, getattr(host, name), value, "s") for name, value in constants.items())
    spread = float(np.expm1(robust.Z80 * sigma))
    part = Part.of(f"{place.engine.key} {what}", [r.label for r in runs], before, after, spread, changes)
    kinds = {"_moe" if catalog.model(r.model).experts else "" for r in runs}
    return {f"sigma_{metric}{kind}": sigma for kind in sorted(kinds)}, part


def _latencies(runs: list[Served], place: Place, own: Profile, engine: Engine) -> Array:
    """TPOT of closed loops, whole latency of batches."""
    return _each(runs, lambda run: _latency(run, place, own, engine))


def _each(runs: list[Served], price: Callable[[Served], float]) -> Array:
    """A price for each run; runs that asked the same are priced once."""
    asked = [replace(run, tpot_s=None, ttft_s=None, e2e_s=None, label="") for run in runs]
    known = {question: price(question) for question in dict.fromkeys(asked)}
    return np.array([known[question] for question in asked], float)


def _latency(run: Served, place: Place, own: Profile, engine: Engine) -> float:
    if run.kind == "serve":
        return float(_simulated(run, place, own, engine).tpot_s)

    def step_s(phase: str, context: int) -> float:
        priced = bill(
            run.model, place.cluster, phase=phase, batch=run.clients, context=context, tp=run.tp, engine=engine, profile=own
        )
        return float(priced.step_s)

    return step_s("prefill", run.input_len) + (run.output_len - 1) * step_s("decode", run.input_len + run.output_len // 2)


def _simulated(run: Served, place: Place, own: Profile, engine: Engine) -> Simulation:
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


def _fit_request(runs: list[Served], place: Place, own: Profile, engine: Engine) -> tuple[dict[str, float], Part]:
    """A request's way through the server: what TTFT has beside its steps and its waiting."""
    times = np.array([r.ttft_s for r in runs], float)
    base = _each(runs, lambda run: float(_simulated(run, place, own, engine.but(request_s=0.0)).ttft_s))
    value = float(robust.linear(np.ones((len(runs), 1)), times, base).values[0])
    before = np.log(times / _each(runs, lambda run: float(_simulated(run, place, own, place.engine).ttft_s)))
    after = np.log(times / (base + value))
    sigmas, part = _part("time to the first token", "ttft", runs, place, {"request_s": value}, before, after)
    return {"request_s": value, **sigmas}, part


def _notes(runs: list[Served], names: list[str], host_times: dict[str, float], times: Array, base: Array) -> Iterator[str]:
    if "host_s_per_seq" not in names:
        yield f"one concurrency, {runs[0].clients}: host_s_per_seq stays the catalogue's"
    if len(runs) < SIGMA_RUNS:
        yield f"{len(runs)} run{'s' * (len(runs) > 1)}: the range stays at least the catalogue's; {SIGMA_RUNS} would tell it"
    if not any(host_times.values()) and np.all(times < base):
        yield "faster than its kernels without any host time: calibrate kernels too, or say another --engine version"


def _wishes(runs: list[Served], names: list[str], fitted: robust.Fitted, place: Place, own: Profile) -> Iterator[Wish]:
    """The range that is left at other numbers of clients: from the covariance of the host's times."""
    wide = [*names, *(n for n in ("host_s_per_seq",) if n not in names)]
    scale = np.array([HOST[n] for n in wide])
    information = np.zeros((len(wide), len(wide)))
    information[: len(names), : len(names)] = fitted.information
    covariance = robust.covariance(information, scale)
    engine = place.engine.but(**dict(zip(names, fitted.values, strict=True)))
    for clients in CLIENTS:
        run = replace(runs[0], kind="serve", clients=clients, num_prompts=10 * clients)
        usual_s = _latency(run, place, own, engine)
        steps = [_latency(run, place, own, engine.but(**{n: getattr(engine.host, n) + STEP_S})) for n in wide]
        slope = (np.array(steps) - usual_s) / STEP_S / usual_s
        where = f"a serve run of {catalog.model(run.model).key} at tp {run.tp} with {plural(clients, 'client')}"
        yield Wish.at(where, slope @ covariance @ slope + fitted.sigma**2)
