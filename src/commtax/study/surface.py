"""What a step of the small engine costs on this machine: timed at a few sizes, read off in between.

A step is one whole prompt, or one token more for every running request. Points of the same sequences and tokens are timed several
times; their median stands, and between points time is linear:

    t(prompt)        over the prompt's tokens
    t(n, cached / n) over sequences and the tokens that each has cached, both ways

More work never takes less time, which single timings on a busy machine do not respect: each row is made not to fall.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

import numpy as np

Array = Any  # of floats
PROMPTS = 4  # lengths of prompts that are timed, between the shortest and the longest


class Step(NamedTuple):
    """One step: ``decoding`` sequences with ``tokens`` cached each get one token more; 0 of them: a prompt of ``tokens``."""

    decoding: int
    tokens: int


Timings = Mapping[Step, Sequence[float]]
"""Seconds of each step, as often as it was timed."""


def grid(sizes: Sequence[tuple[int, int]], slots: int) -> list[Step]:
    """The steps to time for requests of these prompt and output tokens: enough that nothing served lies outside.

    >>> [tuple(step) for step in grid([(8, 4), (32, 8)], 3)]
    [(0, 8), (0, 16), (0, 24), (0, 32), (1, 8), (1, 40), (2, 8), (2, 40), (3, 8), (3, 40)]
    """
    inputs = [n for n, _ in sizes]
    prompts = sorted({round(n) for n in np.linspace(min(inputs), max(inputs), PROMPTS)})
    ends = sorted({min(inputs), max(map(sum, sizes))})
    return [*(Step(0, n) for n in prompts), *(Step(batch, length) for batch in doubled(slots) for length in ends)]


def doubled(most: int) -> list[int]:
    """1, 2, 4 … and the most itself.

    >>> doubled(12)
    [1, 2, 4, 8, 12]
    """
    return sorted({*(2**power for power in range(most.bit_length())), most})


def rising(times: Array) -> Array:
    """Times that do not fall along the last axis, half-way between the least rise above them and the greatest below.

    >>> rising(np.array([1.0, 3.0, 2.0, 4.0])).tolist()
    [1.0, 2.5, 2.5, 4.0]
    """
    above = np.maximum.accumulate(times, axis=-1)
    below = np.flip(np.minimum.accumulate(np.flip(times, axis=-1), axis=-1), axis=-1)
    return (above + below) / 2


@dataclass(frozen=True, slots=True)
class Surface:
    """Seconds of any step, from those that were timed."""

    prompt_tokens: Array
    prompt_s: Array
    decoding: Array
    cached_each: Array
    decode_s: Array  # (decoding, cached_each)

    def seconds_of_prompt(self, tokens: float) -> float:
        """One whole prompt."""
        return float(np.interp(tokens, self.prompt_tokens, self.prompt_s))

    def seconds_of_decode(self, decoding: float, cached: float) -> float:
        """One token for each of ``decoding`` sequences that have ``cached`` tokens together."""
        by_length = [np.interp(decoding, self.decoding, column) for column in self.decode_s.T]
        return float(np.interp(cached / decoding, self.cached_each, by_length))

    def seconds_of_request(self, input_len: float, output_len: float, beside: int) -> float:
        """What a request takes of a server that always decodes ``beside`` sequences: its prompt, and its share of steps."""
        cached = beside * (input_len + output_len / 2)
        return self.seconds_of_prompt(input_len) + (output_len - 1) * self.seconds_of_decode(beside, cached) / beside


def surface(timings: Timings) -> Surface:
    """The medians of timings, made to rise with the work."""
    typical = {step: median(seconds) for step, seconds in timings.items()}
    prompts, batches, lengths = _sizes(typical)
    decoded = np.array([[typical[Step(n, tokens)] for tokens in lengths] for n in batches])
    prompt_s = rising(np.array([typical[Step(0, tokens)] for tokens in prompts]))
    return Surface(np.array(prompts), prompt_s, np.array(batches), np.array(lengths), rising(rising(decoded).T).T)


def _sizes(steps: Iterable[Step]) -> tuple[list[int], list[int], list[int]]:
    """Prompt lengths, numbers of sequences and cached lengths that were timed."""
    whole, decoding = [s for s in steps if not s.decoding], [s for s in steps if s.decoding]
    return sorted({s.tokens for s in whole}), sorted({s.decoding for s in decoding}), sorted({s.tokens for s in decoding})


def drift(sweeps: Sequence[Timings]) -> float:
    """How far sweeps of the same steps lie apart: the largest of their sums of medians over the least, less one."""
    sums = [sum(median(seconds) for seconds in sweep.values()) for sweep in sweeps]
    return max(sums) / min(sums) - 1


def together(sweeps: Sequence[Timings]) -> Timings:
    """All timings of each step."""
    return {step: [s for sweep in sweeps for s in sweep[step]] for step in sweeps[0]}
