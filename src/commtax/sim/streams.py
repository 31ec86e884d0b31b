"""Requests as benchmarks draw them: when they arrive, how long they are, which of them share text."""

from __future__ import annotations

from itertools import cycle, islice
from math import erf, inf, isfinite, isinf, log, pi, sin, sqrt

import numpy as np

from commtax.spec.stream import MOST_REQUESTS, MOST_TOKENS, Array, Lengths, RequestStream
from commtax.statement import Refusal

_erf = np.frompyfunc(erf, 1, 1)


def arrival_times(rate: float, count: int, burstiness: float, rng: np.random.Generator) -> Array:
    """Return the seconds at which ``count`` requests arrive, as ``vllm bench serve`` sends them (``get_request`` in
    vllm/benchmarks/serve.py).

    Gaps are gamma distributed with shape ``burstiness`` and mean 1 / rate: 1 is a Poisson process, less comes in bursts, infinite
    is a constant rate. The first request is sent after one gap, and all times are stretched so that the last one is sent at
    count / rate exactly, as vLLM does since mid-2025 (before, the rate that was met differed by the sum's 1 or 2 %).

    >>> arrival_times(2.0, 4, inf, np.random.default_rng(0)).tolist()
    [0.5, 1.0, 1.5, 2.0]
    """
    times = np.cumsum(_gaps(rate, count, burstiness, rng))
    return times * (count / rate / times[-1]) if count and times[-1] > 0 else times


def _gaps(rate: float, count: int, burstiness: float, rng: np.random.Generator) -> Array:
    if isinf(rate):
        return np.zeros(count)
    if isinf(burstiness):
        return np.full(count, 1 / rate)
    return rng.gamma(burstiness, 1 / (rate * burstiness), count)


def _times_within(duration_s: float, rate: float, burstiness: float, rng: np.random.Generator) -> Array:
    """Draw all arrivals up to a moment. Their number is chance, so nothing is stretched."""
    piece = int(rate * duration_s * 1.1) + 16
    times = np.cumsum(_gaps(rate, piece, burstiness, rng))
    while times[-1] <= duration_s:
        times = np.concatenate([times, times[-1] + np.cumsum(_gaps(rate, piece, burstiness, rng))])
    return times[times <= duration_s]


def draw_lengths(lengths: Lengths, count: int, rng: np.random.Generator) -> Array:
    """Draw whole numbers of tokens, at least 1.

    >>> draw_lengths(Lengths("constant", 512), 3, np.random.default_rng(0)).tolist()
    [512, 512, 512]
    """
    return _lengths_at(lengths, rng.standard_normal(count))


def draw_pairs(inputs: Lengths, outputs: Lengths, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Draw lengths of prompts and answers, correlated as in their data set where both come from one.

    A Gaussian copula: normals with correlation 2 sin(pi r / 6), which have the rank correlation r, on each side's own distribution.
    """
    prompt, answer = rng.standard_normal((2, count))
    if inputs.source and inputs.source == outputs.source:
        rho = 2 * sin(pi / 6 * inputs.correlation)
        answer = rho * prompt + sqrt(1 - rho**2) * answer
    return _lengths_at(inputs, prompt), _lengths_at(outputs, answer)


def _lengths_at(lengths: Lengths, z: Array) -> Array:
    if lengths.kind == "lognormal":
        with np.errstate(over="ignore"):  # what is too long is cut below
            real = np.exp(log(lengths.mean) - lengths.sigma**2 / 2 + lengths.sigma * z)
    elif lengths.kind == "uniform":
        real = np.floor(lengths.low + (lengths.high - lengths.low + 1) * _share_below(z))
    elif lengths.kind == "quantiles":
        real = np.interp(_share_below(z), np.linspace(0, 1, len(lengths.quantiles)), lengths.quantiles)
    else:
        real = np.full(len(z), lengths.mean)
    return np.clip(np.rint(real), max(1.0, lengths.low), min(lengths.high, MOST_TOKENS)).astype(np.int64)


def _share_below(z: Array) -> Array:
    return np.asarray(_erf(z / sqrt(2)), dtype=np.float64) * 0.5 + 0.5


def draw_stream(
    *,
    rate: float,
    inputs: Lengths,
    outputs: Lengths,
    count: int | None = None,
    duration_s: float = inf,
    burstiness: float = 1.0,
    seed: int = 0,
    unique_prompts: int = 0,
    shared_prefix: int = 0,
    block: int = 16,
    in_flight: float = inf,
) -> RequestStream:
    """Draw a stream of ``count`` requests, or of those that arrive within ``duration_s``. The same seed gives the same bytes.

    An infinite rate sends all at once. Arrivals and lengths have random numbers of their own: another rate finds the same
    requests. With ``unique_prompts``, request i asks prompt i mod N once more, which has one length and one answer's length. The
    first ``shared_prefix`` tokens are the same in all prompts, and part of their lengths (a shorter prompt is part of them).
    Ids stand for whole blocks, which is what engines keep.
    """
    _check(rate, count, duration_s, burstiness)
    when, how_long = random_numbers(seed)
    endless, load = isinf(duration_s), (burstiness, when)
    times = arrival_times(rate, count or 0, *load) if endless else _times_within(duration_s, rate, *load)[:count]
    if not len(times):
        raise Refusal(f"duration={duration_s:g} s: no request arrives within it; nearest valid: {1 / rate:.3g} s", "duration")
    distinct = min(unique_prompts or len(times), len(times))
    prompt, answer = draw_pairs(inputs, outputs, distinct, how_long)
    prefixes = _prefixes(prompt, shared_prefix, block, distinct < len(times))
    repeated = None if prefixes is None else tuple(islice(cycle(prefixes), len(times)))
    return RequestStream(times, np.resize(prompt, len(times)), np.resize(answer, len(times)), repeated, block, in_flight)


def random_numbers(seed: int) -> list[np.random.Generator]:
    """Return the random numbers of arrivals, and those of lengths."""
    return np.random.default_rng(seed).spawn(2)


def _check_above_zero(unit: str, **values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise Refusal(f"{name}={value:g}{unit}: a number above 0 is needed; nearest valid: 1", name, (1,))


def _check(rate: float, count: int | None, duration_s: float, burstiness: float) -> None:
    _check_above_zero(" requests/s", request_rate=rate)
    _check_above_zero(" s", duration=duration_s)
    _check_above_zero("", burstiness=burstiness)
    if count is None and isinf(duration_s):
        raise Refusal.about(num_prompts="how many requests, or a duration in which they arrive, is needed; for example 1000")
    if isfinite(duration_s) and isinf(rate):
        raise Refusal("duration: an infinite rate sends all requests at once; give num_prompts instead", "duration")
    if count is not None and not 1 <= count <= MOST_REQUESTS:
        nearest = 1 if count < 1 else MOST_REQUESTS
        raise Refusal.of(f"from 1 to {MOST_REQUESTS:,}; nearest valid: {nearest}", (nearest,), num_prompts=count)
    if isfinite(duration_s) and rate * duration_s > MOST_REQUESTS:
        most = f"{MOST_REQUESTS / rate:.4g}"
        raise Refusal(
            f"duration={duration_s:g} s: more than {MOST_REQUESTS:,} requests; nearest valid: {most} s", "duration", (most,)
        )


def _prefixes(prompts: Array, shared: int, block: int, repeats: bool) -> tuple[tuple[int, ...], ...] | None:
    """Return the ids of each prompt's whole blocks: common ones, then its own, which are named only where a prompt comes again."""
    common, whole = tuple(range(shared // block)), prompts // block
    if not repeats:
        cut = {int(blocks): common[:blocks] for blocks in np.unique(whole)}
        return tuple(cut[blocks] for blocks in whole.tolist()) if common else None
    unshared = np.maximum(whole - len(common), 0)
    counts = zip(whole.tolist(), unshared.tolist(), (len(common) + np.cumsum(unshared)).tolist(), strict=True)
    return tuple((*common[:blocks], *range(end - added, end)) for blocks, added, end in counts)
