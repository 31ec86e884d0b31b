"""Runs of engines into lessons: how far the catalogue was off, by which constants that could be mended, and whom to believe.

Every run is predicted, its slopes read off, the constants moved, and both done again where they have moved to. A run that the
others contradict counts for less, and is named.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from commtax.calibrate.measurements import MeasuredRun
from commtax.catalog.posterior import Beliefs, Posterior, deployment_of
from commtax.records import dataclass
from commtax.spec import Lesson, Profile
from commtax.units import format_seconds
from commtax.verbs.closed_loop import ClosedLoop, simulate

ROUNDS = 3  # of moving constants and predicting again
DOUBTS = 4  # rounds of asking whom the others contradict
FEWEST = 5  # latencies that can contradict one
DOUBTED = 2.0  # standard deviations off by the others from which a latency counts for less
ODD = 1.75  # … and by how many times less one is named
FLOOR_SLACK = 0.98


@dataclass(frozen=True, slots=True)
class Learnt:
    """The profile with its lessons, the runs that no machine can have had, and latencies that the others contradict."""

    profile: Profile
    refused: tuple[str, ...]
    odd: tuple[tuple[str, float], ...]  # a latency, and how many times what the others say it took


def learn(runs: Sequence[MeasuredRun], own: Profile, known: Beliefs | None = None) -> Learnt:
    """What the runs teach, over what is known of the machine already."""
    blank = replace(own, lessons=())
    first = [(run, _ask(run, blank)) for run in _distinct(runs)]
    checked = [(run, answer, reason_impossible(run, answer)) for run, answer in first]
    possible = [(run, answer) for run, answer, why in checked if not why]
    lessons = [lesson for run, answer in possible for lesson in _lessons(run, answer)]
    for _ in range(ROUNDS):
        lessons = doubt(lessons, known)
        moved = replace(own, lessons=tuple(lessons))
        lessons = [x for run, base in possible for x in _lessons(run, base, _ask(run, moved))]
    lessons = doubt(lessons, known)
    refused = tuple(why for *_, why in checked if why)
    return Learnt(replace(own, lessons=tuple(lessons)), refused, tuple(_contradicted(lessons, known)))


def observe(runs: Sequence[MeasuredRun], own: Profile) -> tuple[list[Lesson], tuple[str, ...]]:
    """Runs beside what a profile has learnt, which they do not change: their lessons where its constants lie, and the refused."""
    blank = replace(own, lessons=())
    asked = [(run, _ask(run, blank), _ask(run, own)) for run in _distinct(runs)]
    reasons = [reason_impossible(run, base) for run, base, _ in asked]
    lessons = [x for (run, base, now), why in zip(asked, reasons, strict=True) if not why for x in _lessons(run, base, now)]
    return lessons, tuple(why for why in reasons if why)


def _distinct(runs: Iterable[MeasuredRun]) -> list[MeasuredRun]:
    """Each run once, in an order of their own: neither the order of files nor a copy of one changes anything."""
    known = {(run.model, run.cluster.key, repr(sorted(run.options.items(), key=str)), repr(sorted(run.measured.items()))): run
             for run in sorted(runs, key=lambda run: run.label, reverse=True)}  # fmt: skip
    return [known[key] for key in sorted(known)]


def _ask(run: MeasuredRun, own: Profile) -> ClosedLoop:
    return simulate(run.model, run.cluster, **{**run.options, "profile": own})  # type: ignore[typeddict-item]


def reason_impossible(run: MeasuredRun, answer: ClosedLoop) -> str:
    """Why no machine can have had a run: a token came sooner than bytes over bandwidth and FLOPs over peak allow."""
    steps = max(1.0, float(answer.requests.output_len) - 1)
    each = run.measured.get("tpot", run.measured.get("e2e", np.inf) / steps)
    chip, seqs = answer.question.cluster.chip, float(answer.running)
    # The batch may have been smaller at times: what one sequence needs is what every step needs.
    least = float(answer.bills[0].least_s(chip.memory_Bps)) / max(1.0, seqs)
    if each >= least * FLOOR_SLACK:
        return ""
    said = f"{run.label}: {format_seconds(each)} per token beats the hardware, which needs {format_seconds(least)} at the least"
    return f"{said} on {chip.key} at tp {answer.question.plan.tp}; other hardware, weights or sizes than was said"


def _lessons(run: MeasuredRun, base: ClosedLoop, moved: ClosedLoop | None = None) -> Iterable[Lesson]:
    """One for each latency of a run, with slopes where the constants have moved to."""
    now = moved or base
    q, wanted = now.question, now.requests
    where = deployment_of(q.engine, q.cluster.chip, q.model, q.plan, now.apart is not None)
    logs = dict(q.engine.paces.learnt)
    for metric, seconds in sorted(run.measured.items()):
        slopes = _slopes(now, metric)
        off = np.log(seconds / _constants_alone(now, metric)) + sum(slope * logs.get(name, 0.0) for name, slope in slopes.items())
        yield Lesson(
            deployment=where,
            metric="tpot" if metric == "e2e" else metric,
            clients=float(wanted.concurrency),
            input_len=float(wanted.input_len),
            output_len=float(wanted.output_len),
            measured_s=seconds,
            catalogue_s=float(getattr(base, f"{metric}_s")),
            residual=float(off),
            slopes=slopes,
            noise=run.noise.get(metric, 1.0),
            label=run.label,
        )


def _constants_alone(answer: ClosedLoop, metric: str) -> float:
    """A latency as its constants say it, without what they do not explain."""
    tpot, ttft = (
        float(getattr(answer, f"{name}_s")) / float(np.exp(answer.learnt[name].log if answer.learnt else 0.0))
        for name in ("tpot", "ttft")
    )
    return {"tpot": tpot, "ttft": ttft, "e2e": ttft + (float(answer.requests.output_len) - 1) * tpot}[metric]


def _slopes(answer: ClosedLoop, metric: str) -> dict[str, float]:
    """Of a latency; of a whole request's by its parts."""
    every = {name: {key: float(x) for key, x in slopes.items()} for name, slopes in answer.slopes.items()}
    if metric != "e2e":
        return every[metric]
    share = _constants_alone(answer, "ttft") / _constants_alone(answer, "e2e")
    return {name: share * every["ttft"].get(name, 0.0) + (1 - share) * slope for name, slope in every["tpot"].items()}


def doubt(lessons: Sequence[Lesson], known: Beliefs | None) -> list[Lesson]:
    """Lessons with more scatter where the others contradict them."""
    if len(lessons) < FEWEST:
        return list(lessons)
    said = np.array([x.noise for x in lessons])
    doubted = list(lessons)
    for _ in range(DOUBTS):
        post = Posterior(doubted, known)
        off, sigma = post.left_out()
        usual = np.array([post.known.smooth[x.metric].noise for x in lessons]) * said
        far = np.abs(off) / np.hypot(sigma, usual)
        doubted = [replace(x, noise=float(s * max(1.0, f / DOUBTED))) for x, s, f in zip(lessons, said, far, strict=True)]
    return doubted


def _contradicted(lessons: Sequence[Lesson], known: Beliefs | None) -> Iterable[tuple[str, float]]:
    """Latencies that the others contradict, the farthest first."""
    if len(lessons) < FEWEST:
        return []
    off = Posterior(lessons, known).left_out()[0]
    odd = [(f"{x.label}: {x.metric.upper()}", float(np.exp(o))) for x, o in zip(lessons, off, strict=True) if x.noise > ODD]
    return sorted(odd, key=lambda one: -abs(np.log(one[1])))
