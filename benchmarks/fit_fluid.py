"""Fit an engine's constants on published runs near their capacity, by a fluid of the same steps, and test them on the other half.

    python benchmarks/fit_fluid.py ../shared/data trtllm-mlperf@5.1 --on h200 --rate fp8_rate=0.95,1.02,1.1 --gap 6e-6,8e-6

Such runs are tuned until they just keep their limits: with n requests running and steps of D(n) seconds, n = rate output D, so
that 2 % of a step are 20 % of TPOT, and a run ends before n has settle. A simulation of each for every try would take hours;
the fluid dn/dt = rate - n / (output D(n)) over the length of the run takes milliseconds. D is the mean time between a request's
tokens: of all steps some hold prompts, as many as are needed for the tokens that come in.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
from fit_open_loop import Case, halves

from commtax.cost.surface import Surface
from commtax.question import Question
from commtax.verbs.fitting import step_limits
from commtax.verbs.loads import stream_of
from commtax.verbs.requests import steps_of
from commtax.verbs.settling import settle
from commtax_lab.published.scoring.open_loop import question_of

DRAWN = 1500  # requests whose lengths stand for all
MOMENTS = 400
NODES = 14  # numbers of running requests that a step is priced at
STRAY = 0.5  # errors beyond count as this: a run whose settings are not what is told should not decide


@dataclass(frozen=True, eq=False)
class Fluid:
    """One run: its question, mean lengths, the context of a mean decode, and how long it is."""

    case: Case
    question: Question
    prompt: float
    output: float
    context: float
    longest: int

    @property
    def rate(self) -> float:
        return self.case[1].load.request_rate

    @property
    def measured(self) -> float:
        return float(self.case[0]["tpot_mean_ms"]) / 1e3


def fluid(case: Case) -> Fluid:
    run = case[1]
    q = settle(question_of(replace(run, load=replace(run.load, num_requests=DRAWN, warmup=0))))
    stream = stream_of(q)
    prompts, outputs = stream.input_len.astype(float), stream.output_len.astype(float)
    context = float((outputs * (prompts + outputs / 2)).sum() / outputs.sum())
    longest = int(np.max(stream.input_len + stream.output_len))
    return Fluid(case, q, float(prompts.mean()), float(outputs.mean()), context, longest)


@cache
def table(one: Fluid, constants: tuple[tuple[str, float], ...]) -> Surface:
    return steps_of(replace(one.question, engine=one.question.engine.but(**dict(constants))), one.longest)


def step_s(one: Fluid, steps: Surface, seqs: int, tokens: float) -> float:
    """A step of so many decodes and prompt tokens."""
    if tokens <= 0:
        return float(steps.decoding(seqs, seqs * one.context)[0])
    prompts = max(1, round(tokens / one.prompt))
    each = tokens / prompts
    attention = steps.prompts_s([(0, int(each), int(max(0.0, one.prompt - each) / 2))] * prompts)
    return steps.mixing(seqs, seqs * one.context, int(tokens), prompts, attention)


def between_tokens_s(one: Fluid, steps: Surface, running: float) -> float:
    """D(n): chunks as large as the step leaves room for or as tokens come in, the other steps decodes alone."""
    budget, most = step_limits(one.question)
    seqs = max(1, min(round(running), most))
    alone = mean = step_s(one, steps, seqs, 0)
    room = max(64.0, budget - seqs)
    for _ in range(12):
        chunk = min(room, max(min(one.prompt, room), one.rate * one.prompt * mean))
        mixed, often = step_s(one, steps, seqs, chunk), one.rate * one.prompt / chunk
        wanted = mixed if often * mixed >= 1 else 1 / ((1 - often * mixed) / alone + often)
        mean = (mean + wanted) / 2
    return mean


def tpot_s(one: Fluid, constants: tuple[tuple[str, float], ...]) -> float:
    """Mean over the tokens of the run."""
    steps, most = table(one, constants), step_limits(one.question)[1]
    nodes = np.unique(np.round(np.geomspace(1, most, NODES)))
    times = [between_tokens_s(one, steps, n) for n in nodes]
    moment = one.case[1].load.num_requests / one.rate / MOMENTS
    running, seconds, tokens = 0.0, 0.0, 0.0
    for _ in range(MOMENTS):
        now = float(np.interp(max(running, 1.0), nodes, times))
        made = running / now
        seconds, tokens = seconds + made * now, tokens + made
        running = min(max(0.0, running + moment * (one.rate - made / one.output)), float(most))
    return seconds / max(tokens, 1e-12)


def errors(some: Sequence[Fluid], constants: tuple[tuple[str, float], ...]) -> np.ndarray:
    return np.array([np.log(tpot_s(one, constants) / one.measured) for one in some])


def grid(given: argparse.Namespace) -> Iterator[tuple[tuple[str, float], ...]]:
    """Every combination of the values that were given."""
    named = {"gap_s": given.gap, "host_s_per_seq": given.per_seq, "host_s": given.host, "reduce_share": given.reduce}
    named |= dict(text.split("=") for text in given.rate)
    values = {name: [float(x) for x in text.split(",")] for name, text in named.items() if text}
    yield from (tuple(zip(values, chosen, strict=True)) for chosen in product(*values.values()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("engine", help="trtllm-mlperf@5.1")
    parser.add_argument("--on", default="", help="only clusters whose name holds this")
    parser.add_argument("--rate", action="append", default=[], help="fp8_rate=0.95,1.02 (also fp4_rate, experts_rate)")
    for name in ("gap", "per-seq", "host", "reduce"):
        parser.add_argument(f"--{name}", default="", help="values, with commas")
    given = parser.parse_args()
    fitted, tested = ([fluid(case) for case in half] for half in halves(given))
    tried = [(float(np.minimum(np.abs(errors(fitted, constants)), STRAY).mean()), constants) for constants in grid(given)]
    for loss, constants in sorted(tried)[:6]:
        print(round(loss, 3), dict(constants))
    best = min(tried)[1]
    for name, some in (("fitted", fitted), ("tested", tested)):
        missed = np.abs(errors(some, best)) if some else np.array([np.nan])
        print(f"{name}: median error of TPOT {np.median(missed):.1%}, {np.mean(missed < np.log(1.15)):.0%} within 15 %")


if __name__ == "__main__":
    main()
