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
    """A run with its worth, its duration and its command, half-widths of ranges as factors less 1."""

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
    """Loads that a deployment can be measured at: their latencies, and the seconds that each benchmark takes."""

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


def advise(question: Question, wanted: int, named: Sequence[str] = ()) -> Advice:
    """Choose the runs that narrow the requested ranges most. ``named`` lists the parts of the load that are fixed."""
    if not 1 <= wanted <= COUNT.most_runs:
        nearest = min(max(1, wanted), COUNT.most_runs)
        raise Refusal(f"next={wanted}: from 1 to {COUNT.most_runs} runs; nearest valid: {nearest}", "next", (nearest,))
    base = settle(question)
    points = _priced(base, requested_loads(base, named))
    points = points if len(points.loads) == 1 else points.take(np.flatnonzero(points.roomy))
    # What is asked, and doublings of clients at its lengths and at lengths around them.
    ranks = max(1, int(base.plan.dp) * int(base.plan.replicas))
    most = min(COUNT.most_clients, step_limits(base)[1] * ranks)
    clients = [2**i for i in range(int(np.log2(COUNT.least_clients)), int(np.log2(most)) + 1)]
    steps = (1.0, 1 / LEVEL.farthest, LEVEL.farthest)
    lengths = {(max(1, int(p * a)), max(2, int(o * b))) for _, p, o in points.loads for a in steps for b in steps if 1.0 in (a, b)}
    candidate_loads = _allowed(base, [*points.loads, *((c, *pair) for pair in sorted(lengths) for c in clients)])
    around = _priced(base, candidate_loads)
    requested = np.array([load in points.loads for load in around.loads], bool)  # may wait for room, if that is asked
    around = around.take(np.flatnonzero((around.roomy | requested) & (around.seconds <= LEVEL.longest_s)))
    if not points.loads or not around.loads:
        raise Refusal("next: no load fits that a benchmark could measure; see commtax fit")
    learnt = lessons_of(question.profile)
    foresight = Foresight([*points.latencies, *around.latencies], learnt)
    first, each = len(points.latencies), len(METRICS)
    shows = {load: range(first + each * i, first + each * (i + 1)) for i, load in enumerate(around.loads)}
    seconds = dict(zip(around.loads, around.seconds.tolist(), strict=True))
    runs = list[AdvisedRun]()
    for load in best_runs(foresight, range(first), shows, seconds, wanted):
        after = foresight.shown(shows[load])
        halves = (seen.half_widths for seen in (foresight, after))
        wide, narrow = ({m: float(np.median(half[i:first:each])) for i, m in enumerate(METRICS)} for half in halves)
        able = {one.key: one.emitted_as for one in programs() if one.benchmark}
        tool = next((able[key] for key in (base.engine.key, base.engine.launched_as) if key in able), "")
        at_once, prompt, output = load
        loaded = base.but(concurrency=at_once, input_len=prompt, output_len=output)
        runs.append(AdvisedRun(*load, wide, narrow, seconds[load], benchmark_command(loaded, tool) if tool else ""))
        foresight = after
    return Advice(base, tuple(points.loads), len(learnt), tuple(runs), wanted)


def best_runs(
    foresight: Foresight, targets: Sequence[int], runs: Mapping[Run, Sequence[int]], seconds: Mapping[Run, float], wanted: int
) -> list[Run]:
    """Choose at most ``wanted`` runs that together narrow the target latencies most, each chosen again beside all others."""
    which = list(targets)
    metrics = np.array([foresight.latencies[i].metric for i in which])

    def best_beside(taken: Sequence[Run], choice: Iterable[Run] = runs) -> Run | None:
        """Return the run that narrows the targets most beside those taken, the shortest of the best, or None if no run helps."""
        shown = [i for run in taken for i in runs[run]]
        now = foresight.shown(shown) if shown else foresight
        before = _usual_log(now.sigma[which], metrics)
        worth = {run: before - _usual_log(now.sigma_after(runs[run], which), metrics) for run in choice if run not in taken}
        most = max(worth.values(), default=0.0)
        best = (run for run in worth if worth[run] >= LEVEL.as_good * most)
        return None if most < LEVEL.least_worth else min(best, key=lambda run: (seconds[run], -worth[run]))

    taken = list[Run]()
    while len(taken) < wanted and (best := best_beside(taken)) is not None:
        taken.append(best)
        for _ in range(COUNT.rounds if len(taken) > 1 else 0):
            before = list(taken)
            for one in before:
                others = [run for run in taken if run != one]
                taken = [*others, best_beside(others) or one]
            if set(taken) == set(before):
                break
    ordered = list[Run]()
    while len(ordered) < len(taken):
        left = [run for run in taken if run not in ordered]
        ordered.append(best_beside(ordered, left) or left[0])
    return ordered


def _usual_log(sigma: Array, metrics: Array) -> float:
    """Return the logarithm of each metric's root-mean-square deviation, averaged over metrics with equal weight."""
    return float(np.mean([np.log(np.mean(sigma[metrics == metric] ** 2)) / 2 for metric in np.unique(metrics)]))


def requested_loads(base: Settled, named: Sequence[str]) -> list[tuple[int, int, int]]:
    """Return the loads to run, with all usual values of whichever of clients and lengths is not given."""
    wanted, usual = base.requests, table("runs/calibrate/usual_loads.toml")
    lengths = [(int(wanted.input_len), int(wanted.output_len))]
    fixed, prompts, outputs = (name in named for name in LOAD)
    if not (prompts or outputs):
        lengths = [(int(prompt), int(output)) for prompt, output in usual["lengths"]]
    clients = [int(wanted.concurrency)] if fixed else usual["clients"]
    return _allowed(base, [(int(c), *pair) for pair in lengths for c in clients])


def _allowed(base: Settled, loads: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Return the loads whose requests fit in the model's longest length."""
    return [load for load in dict.fromkeys(loads) if sum(load[1:]) <= base.model.max_len]


def _priced(base: Settled, loads: Sequence[tuple[int, int, int]]) -> Candidates:
    """Price loads of one deployment, one by one where prompts have workers of their own."""
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
