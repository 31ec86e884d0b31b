"""Which runs to make next: those after which the range of what is asked is narrowest, as commands of the engine's own benchmark.

Runs are chosen one after the other. What a run is worth is how much it narrows the ranges of all latencies that are asked for, by
the mean of their logarithms, so that TPOT and TTFT count alike; of runs that are worth the same the shortest is taken.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from commtax.arrays import Array
from commtax.catalog.posterior import METRICS
from commtax.catalog.programs import programs
from commtax.files import table
from commtax.launch.writing import benchmark_command
from commtax.question import Question
from commtax.records import dataclass
from commtax.spec import RunLesson
from commtax.statement import Refusal
from commtax.thresholds import thresholds
from commtax.verbs.closed_loop import imagined, price_closed_loop
from commtax.verbs.fitting import step_limits
from commtax.verbs.keywords import SimulateOptions
from commtax.verbs.profiles import Foresight, lessons_of
from commtax.verbs.settling import Settled, settle

COUNT, LEVEL = thresholds(__name__)
Run = TypeVar("Run", bound=Hashable)
REQUESTS_PER_CLIENT = 10  # as benchmark commands are written


LOAD = tuple(SimulateOptions(concurrency=1, input_len=1, output_len=1))
"""Options that say a load: clients, input and output."""


@dataclass(frozen=True, slots=True)
class AdvisedRun:
    """A run, what it is worth, what it takes and how it is started; half-widths of ranges are factors less 1."""

    clients: int
    input_len: int
    output_len: int
    before: Mapping[str, float]  # by metric: of what is asked, with all runs that are named before it
    after: Mapping[str, float]
    seconds: float
    command: str  # "" where the engine has no benchmark


@dataclass(frozen=True, slots=True)
class Advice:
    """Runs in the order in which to make them."""

    question: Question
    loads: tuple[tuple[int, int, int], ...]  # that are asked for: clients, input and output
    lessons: int  # that are known already
    runs: tuple[AdvisedRun, ...]
    wanted: int

    @property
    def helps(self) -> bool:
        """Whether as many runs as were wanted narrow anything."""
        return len(self.runs) == self.wanted


@dataclass(frozen=True, slots=True)
class Candidates:
    """Loads that a deployment can be measured at: their latencies, and the seconds that a benchmark takes."""

    latencies: tuple[RunLesson, ...]  # TPOT and TTFT of each load
    seconds: Array
    roomy: Array  # whether all clients are served at once

    @property
    def loads(self) -> list[tuple[int, int, int]]:
        return [(int(x.clients), int(x.input_len), int(x.output_len)) for x in self.latencies[:: len(METRICS)]]

    def take(self, which: Iterable[int]) -> "Candidates":
        chosen = list(which)
        latencies = tuple(self.latencies[len(METRICS) * i + m] for i in chosen for m in range(len(METRICS)))
        return Candidates(latencies, self.seconds[chosen], self.roomy[chosen])


def advise(question: Question, wanted: int, asked: Sequence[str] = ()) -> Advice:
    """The runs of a deployment that narrow most what is asked: its loads, where ``asked`` names none of their parts all of them."""
    if not 1 <= wanted <= COUNT.most_runs:
        nearest = min(max(1, wanted), COUNT.most_runs)
        raise Refusal(f"next={wanted}: from 1 to {COUNT.most_runs} runs; nearest valid: {nearest}", "next", (nearest,))
    base = settle(question)
    points = _priced(base, asked_loads(base, asked))
    points = points if len(points.loads) == 1 else points.take(np.flatnonzero(points.roomy))
    # What is asked, and doublings of clients at its lengths and at lengths around them.
    ranks = max(1, int(base.plan.dp) * int(base.plan.replicas))
    most = min(COUNT.most_clients, step_limits(base)[1] * ranks)
    clients = [2**i for i in range(int(np.log2(COUNT.least_clients)), int(np.log2(most)) + 1)]
    steps = (1.0, 1 / LEVEL.farthest, LEVEL.farthest)
    lengths = {(max(1, int(p * a)), max(2, int(o * b))) for _, p, o in points.loads for a in steps for b in steps if 1.0 in (a, b)}
    candidate_loads = _allowed(base, [*points.loads, *((c, *pair) for pair in sorted(lengths) for c in clients)])
    around = _priced(base, candidate_loads)
    own = np.array([load in points.loads for load in around.loads], bool)  # may wait for room, if that is asked
    around = around.take(np.flatnonzero((around.roomy | own) & (around.seconds <= LEVEL.longest_s)))
    if not points.loads or not around.loads:
        raise Refusal("next: no load fits that a benchmark could measure; see commtax fit")
    learnt = lessons_of(question.profile)
    known = Foresight([*points.latencies, *around.latencies], learnt)
    first, each = len(points.latencies), len(METRICS)
    shows = {load: range(first + each * i, first + each * (i + 1)) for i, load in enumerate(around.loads)}
    seconds = dict(zip(around.loads, around.seconds.tolist(), strict=True))
    runs = list[AdvisedRun]()
    for load in best_runs(known, range(first), shows, seconds, wanted):
        after = known.shown(shows[load])
        wide, narrow = ({m: _width(one, range(i, first, each)) for i, m in enumerate(METRICS)} for one in (known, after))
        runs.append(AdvisedRun(*load, wide, narrow, seconds[load], _command(base, load)))
        known = after
    return Advice(base, tuple(points.loads), len(learnt), tuple(runs), wanted)


def best_runs(
    known: Foresight, asked: Sequence[int], runs: Mapping[Run, Sequence[int]], seconds: Mapping[Run, float], wanted: int
) -> list[Run]:
    """At most so many runs that together narrow the latencies asked for, the one that is worth most first.

    One is added after the other, then each is chosen again beside all others: the best two need not hold the best one.
    """
    taken = list[Run]()
    for _ in range(wanted):
        if (best := _best_beside(known, asked, runs, seconds, taken)) is None:
            break
        taken.append(best)
        for _ in range(COUNT.rounds if len(taken) > 1 else 0):
            before = list(taken)
            for one in before:
                others = [run for run in taken if run != one]
                taken = [*others, _best_beside(known, asked, runs, seconds, others) or one]
            if set(taken) == set(before):
                break
    ordered = list[Run]()
    while len(ordered) < len(taken):
        left = {run: runs[run] for run in taken if run not in ordered}
        ordered.append(_best_beside(known, asked, left, seconds, ordered, runs) or next(iter(left)))
    return ordered


def _best_beside(
    known: Foresight,
    asked: Sequence[int],
    runs: Mapping[Run, Sequence[int]],
    seconds: Mapping[Run, float],
    taken: Sequence[Run],
    every: Mapping[Run, Sequence[int]] | None = None,
) -> Run | None:
    """The run that narrows the latencies asked for most beside others, the shortest of the best; None where none does."""
    which, shown = list(asked), [i for run in taken for i in (every or runs)[run]]
    now = known.shown(shown) if shown else known
    metrics = np.array([known.latencies[i].metric for i in which])
    before = _usual_log(now.sigma[which], metrics)
    worth = {run: before - _usual_log(now.sigma_after(more, which), metrics) for run, more in runs.items() if run not in taken}
    most = max(worth.values(), default=0.0)
    if most < LEVEL.least_worth:
        return None
    return min((run for run in worth if worth[run] >= LEVEL.as_good * most), key=lambda run: (seconds[run], -worth[run]))


def _usual_log(sigma: Array, metrics: Array) -> float:
    """The logarithm of the usual deviation (a root of mean squares) of each metric, all metrics alike."""
    return float(np.mean([np.log(np.mean(sigma[metrics == metric] ** 2)) / 2 for metric in np.unique(metrics)]))


def _width(known: Foresight, which: Sequence[int]) -> float:
    """The usual half-width of some ranges."""
    return float(np.median(known.half_widths[list(which)]))


def asked_loads(base: Settled, asked: Sequence[str]) -> list[tuple[int, int, int]]:
    """Every load that is asked for: what nobody named takes all of its usual values."""
    wanted, usual = base.requests, table("runs/calibrate/usual_loads.toml")
    lengths = [(int(wanted.input_len), int(wanted.output_len))]
    named, prompts, outputs = (name in asked for name in LOAD)
    if not (prompts or outputs):
        lengths = [(int(prompt), int(output)) for prompt, output in usual["lengths"]]
    clients = [int(wanted.concurrency)] if named else usual["clients"]
    return _allowed(base, [(int(c), *pair) for pair in lengths for c in clients])


def _allowed(base: Settled, loads: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Loads whose requests the model takes."""
    return [load for load in dict.fromkeys(loads) if sum(load[1:]) <= base.model.max_len]


def _priced(base: Settled, loads: Sequence[tuple[int, int, int]]) -> Candidates:
    """Loads of one deployment; prompts on workers of their own are priced one load after the other."""
    if not loads:
        return Candidates((), np.array([]), np.array([], bool))
    parts = [[load] for load in loads] if base.requests.disaggregated else [loads]
    latencies, seconds, roomy = list[RunLesson](), list[float](), list[bool]()
    for part in parts:
        clients, prompt, output = (np.array(x) if len(part) > 1 else x[0] for x in zip(*part, strict=True))
        answer = price_closed_loop(settle(base.but(concurrency=clients, input_len=prompt, output_len=output)))
        each = np.maximum(1.0, np.asarray(clients) / (base.plan.dp * base.plan.replicas))
        fits = np.asarray(answer.kv_tokens) >= np.asarray(prompt) + output + answer.state_tokens
        latencies += imagined(answer)
        seconds += np.broadcast_to(REQUESTS_PER_CLIENT * answer.e2e_s, len(part)).tolist()
        roomy += np.broadcast_to(fits & ((answer.running >= np.floor(each)) | (answer.apart is not None)), len(part)).tolist()
    return Candidates(tuple(latencies), np.array(seconds), np.array(roomy, bool))


def _command(base: Settled, load: tuple[int, int, int]) -> str:
    """The engine's own benchmark of a load."""
    able = {one.key: one.emitted_as for one in programs() if one.benchmark}
    tool = next((able[key] for key in (base.engine.key, base.engine.launched_as) if key in able), "")
    clients, prompt, output = load
    return benchmark_command(base.but(concurrency=clients, input_len=prompt, output_len=output), tool) if tool else ""
