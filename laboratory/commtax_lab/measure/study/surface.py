"""What steps of the small engine take on this machine: a few sizes are timed, and the simulator's table is made of them.

A step is one whole prompt, or one token more for every running request. Each is timed several times and its median stands; between
sizes time is linear. More work never takes less time, which single timings on a busy machine do not respect: rows are made to rise.
"""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from commtax.cost.surface import Surface

Array = np.ndarray
PROMPTS = 4  # lengths of prompts that are timed, between the shortest and the longest


class SurfacePoint(NamedTuple):
    """One step: ``decoding`` sequences with ``tokens`` cached each get a token more, or 0 of them and a prompt of ``tokens``."""

    decoding: int
    tokens: int


Timings = Mapping[SurfacePoint, Sequence[float]]
"""Seconds of each step, as often as it was timed."""


def grid(shortest: int, longest_prompt: int, longest: int, slots: int) -> list[SurfacePoint]:
    """Return the steps to time for prompts between two lengths, answered up to a third, so that nothing served lies outside.

    >>> [tuple(step) for step in grid(8, 32, 40, 3)]
    [(0, 8), (0, 16), (0, 24), (0, 32), (1, 8), (1, 40), (2, 8), (2, 40), (3, 8), (3, 40)]
    """
    prompts = sorted({round(n) for n in np.linspace(shortest, longest_prompt, PROMPTS)})
    return [
        *(SurfacePoint(0, n) for n in prompts),
        *(SurfacePoint(n, length) for n in batches(slots) for length in (shortest, longest)),
    ]


def batches(most: int) -> list[int]:
    """Return powers of two, one and a half times each, and the most itself: small products step in between.

    >>> batches(20)
    [1, 2, 3, 4, 6, 8, 12, 16, 20]
    """
    powers = [2**power for power in range(most.bit_length())]
    return sorted({n for power in powers for n in (power, power * 3 // 2) if n < most} | {most})


def make_rising(times: Array) -> Array:
    """Replace times that fall along the last axis, half-way between the least rise above them and the greatest below.

    >>> make_rising(np.array([1.0, 3.0, 2.0, 4.0])).tolist()
    [1.0, 2.5, 2.5, 4.0]
    """
    above = np.maximum.accumulate(times, axis=-1)
    below = np.flip(np.minimum.accumulate(np.flip(times, axis=-1), axis=-1), axis=-1)
    return (above + below) / 2


def join_timings(sweeps: Sequence[Timings]) -> Timings:
    """Join all timings of each step."""
    return {step: [s for sweep in sweeps for s in sweep[step]] for step in sweeps[0]}


def sweep_spread(sweeps: Sequence[Timings]) -> float:
    """Return how far sweeps of the same steps differ: the largest sum of medians over the least, less one."""
    sums = [sum(median(seconds) for seconds in sweep.values()) for sweep in sweeps]
    return max(sums) / min(sums) - 1


def surface(timings: Timings) -> Surface:
    """Build the simulator's table of steps: whole steps where a price would have their lines."""
    typical = {step: median(seconds) for step, seconds in timings.items()}
    prompts, batches, lengths = _sizes(typical)
    prompt_s = make_rising(np.array([typical[SurfacePoint(0, tokens)] for tokens in prompts]))
    decode_s = make_rising(
        make_rising(np.array([[typical[SurfacePoint(n, tokens)] for tokens in lengths] for n in batches])).T
    )  # (lengths, batches)
    rows, seqs = np.arange(prompts[-1] + 1), np.arange(batches[-1] + 1)
    short, long = (np.interp(seqs, batches, column) for column in decode_s)
    contexts, further = [0.0, *map(float, lengths), 2.0 * lengths[-1]], lengths[-1] / (lengths[-1] - lengths[0])
    by_rows = np.interp(rows, prompts, prompt_s)
    decode = np.stack([short * 0, short * 0, long - short, (long - short) * (1 + further)], axis=-1)
    return Surface(
        alone=short.tolist(),
        samples=[1, 2],
        mixed=np.array([by_rows, by_rows]),
        contexts=contexts,
        decode=decode,
        new=[0.0, 1.0],
        past=[0.0, 1.0],
        prompt=[[0.0, 0.0], [0.0, 0.0]],
        among=[[0.0, 0.0], [0.0, 0.0]],
        prompt_fixed_s=0.0,
        alone_comm=seqs * 0.0,
        mixed_comm=rows * 0.0,
    )


def _sizes(steps: Iterable[SurfacePoint]) -> tuple[list[int], list[int], list[int]]:
    """Return the prompt lengths, numbers of sequences and cached lengths that were timed."""
    steps = list(steps)
    whole, decoding = [s for s in steps if not s.decoding], [s for s in steps if s.decoding]
    return sorted({s.tokens for s in whole}), sorted({s.decoding for s in decoding}), sorted({s.tokens for s in decoding})


def peak_rate(table: Surface, input_len: float, output_len: float, slots: int) -> float:
    """Return requests per second with all slots taken: each takes its prompt and its share of all steps but the first.

    1 / (t(prompt) + (output_len - 1) t(slots) / slots)
    """
    cached = slots * (input_len + output_len / 2)
    decode_s, _, _ = table.decoding(slots, cached)
    return 1 / (table.mixing(0, 0, round(input_len), 1, 0.0) + (output_len - 1) * decode_s / slots)
