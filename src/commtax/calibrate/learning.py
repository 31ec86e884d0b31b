"""Runs of engines into lessons: how far the catalogue was off, by which constants that could be mended, and whom to believe.

Every run is predicted, its slopes read off, the constants moved, and both done again where they have moved to. A run that the
others contradict counts for less, and is named.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from commtax import catalog
from commtax.calibrate.measurements import (
    ConstantChange,
    Errors,
    MeasuredMachine,
    MeasuredRun,
    MeasurementFiles,
    ProfilePart,
    Repetition,
    Step,
    TooFewError,
)
from commtax.calibrate.repeats import Named, distinct_runs, join_repeats, question_of
from commtax.catalog.models import known_model
from commtax.catalog.posterior import METRICS, Beliefs, Posterior, deployment_of, posterior_of
from commtax.catalog.profile_moves import moves_of
from commtax.ledger import Z80
from commtax.records import dataclass
from commtax.spec import Deployment, Profile, RunLesson
from commtax.units import format_seconds
from commtax.verbs.billing import price
from commtax.verbs.closed_loop import ClosedLoop, simulate
from commtax.verbs.keywords import SimulateOptions

ROUNDS = 3  # of moving constants and predicting again
DOUBTS = 4  # rounds of asking whom the others contradict
FEWEST = 5  # latencies that can contradict one
DOUBTED = 2.0  # standard deviations off by the others from which a latency counts for less
MEDIAN = 0.6745  # of a normal distribution's deviations, over its standard deviation
ODD = 1.75  # … and by how many times less one is named
FLOOR_SLACK = 0.98
STRANGE = np.log(20)  # a latency so many times off is of something else


@dataclass(frozen=True, slots=True)
class Learnt:
    """The profile with its lessons, the runs that no machine can have had, and latencies that the others contradict."""

    profile: Profile
    refused: tuple[str, ...]
    odd: tuple[tuple[str, float], ...]  # a latency, and how many times what the others say it took


def learn(runs: Sequence[MeasuredRun], own: Profile) -> Learnt:
    """What the runs teach, over what is known of the machine already."""
    blank = replace(own, lessons=())
    distinct = distinct_runs(runs)
    answers = _ask_each(distinct, blank)
    first = [(run, answers[question_of(run)]) for run in distinct]
    reasons = [reason_impossible(run, answer) for run, answer in first]
    impossible = [why for why in reasons if why]
    kept = [without_strange(run, answer) for (run, answer), why in zip(first, reasons, strict=True) if not why]
    possible = [(run, answers[question_of(run)]) for run in join_repeats(run for run, _ in kept)]
    lessons = [lesson for run, answer in possible for lesson in _lessons(run, answer)]
    for _ in range(ROUNDS):
        lessons = doubt(lessons)
        moved = replace(own, lessons=tuple(lessons))
        lessons = [x for run, base in possible for x in _lessons(run, base, _ask(run, moved))]
    lessons = doubt(lessons)
    refused = (*impossible, *(why for _, strange in kept for why in strange))
    return Learnt(replace(own, lessons=tuple(lessons)), refused, tuple(_contradicted(lessons)))


def observe(runs: Sequence[MeasuredRun], own: Profile) -> tuple[list[RunLesson], tuple[str, ...]]:
    """Runs beside what a profile has learnt, which they do not change: their lessons where its constants lie, and the refused."""
    distinct = distinct_runs(runs)
    base, now = (_ask_each(distinct, profile) for profile in (replace(own, lessons=()), own))
    reasons = [reason_impossible(run, base[question_of(run)]) for run in distinct]
    possible = join_repeats(run for run, why in zip(distinct, reasons, strict=True) if not why)
    lessons = [x for run in possible for x in _lessons(run, base[question_of(run)], now[question_of(run)])]
    return lessons, tuple(why for why in reasons if why)


def _ask_each(runs: Iterable[MeasuredRun], own: Profile) -> dict[Named, ClosedLoop]:
    """The answer to each question that runs answer; repeats ask the same."""
    return {name: _ask(run, own) for name, run in {question_of(run): run for run in runs}.items()}


def _ask(run: MeasuredRun, own: Profile) -> ClosedLoop:
    options = cast(SimulateOptions, {**run.options, "profile": own})
    return simulate(run.model, run.cluster, **options)


def reason_impossible(run: MeasuredRun, answer: ClosedLoop) -> str:
    """Why no machine can have had a run: a token came sooner than bytes over bandwidth and FLOPs over peak let a single one."""
    steps = max(1.0, float(answer.requests.output_len) - 1)
    each = run.measured.get("tpot", run.measured.get("e2e", np.inf) / steps)
    q = answer.question
    least = float(price(q.but(batch=1, context=1)).least_s(q.cluster.chip.memory_Bps))
    if each >= least * FLOOR_SLACK:
        return ""
    said = f"{run.label}: {format_seconds(each)} per token beats the hardware, which needs {format_seconds(least)} at the least"
    return f"{said} on {q.cluster.chip.key} at tp {q.plan.tp}; other hardware, weights or sizes than was said"


def without_strange(run: MeasuredRun, answer: ClosedLoop) -> tuple[MeasuredRun, list[str]]:
    """The run without latencies that are so far off that something else was measured, and what those are."""
    factors = {metric: seconds / _constants_alone(answer, metric) for metric, seconds in run.measured.items()}
    strange = [metric for metric, times in factors.items() if abs(np.log(times)) > STRANGE]
    said = [
        f"{run.label}: {metric.upper()} is {factors[metric]:.3g} times what is expected: not this deployment" for metric in strange
    ]
    return replace(run, measured={m: seconds for m, seconds in run.measured.items() if m not in strange}), said


def _lessons(run: MeasuredRun, base: ClosedLoop, moved: ClosedLoop | None = None) -> Iterable[RunLesson]:
    """One for each latency of a run, with slopes where the constants have moved to."""
    now = moved or base
    q, wanted = now.question, now.requests
    where = deployment_of(q.engine, q.cluster.chip, q.model, q.plan, now.apart is not None)
    logs = dict(q.engine.paces.learnt)
    for metric, seconds in sorted(run.measured.items()):
        repeated = run.repeated.get(metric, Repetition())
        slopes = _slopes(now, metric)
        off = np.log(seconds / _constants_alone(now, metric)) + sum(slope * logs.get(name, 0.0) for name, slope in slopes.items())
        yield RunLesson(
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
            repeats=float(repeated.runs),
            scatter=repeated.scatter,
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


def doubt(lessons: Sequence[RunLesson], known: Beliefs | None = None) -> list[RunLesson]:
    """Lessons with more scatter where the others contradict them."""
    if len(lessons) < FEWEST:
        return list(lessons)
    said, own = np.array([x.noise for x in lessons]), Posterior(lessons, known).noise
    doubted = list(lessons)
    for _ in range(DOUBTS):
        post = Posterior(doubted, known)
        off, sigma = post.left_out()
        far = np.abs(off) / np.hypot(sigma, own)
        far = far / max(
            1.0, float(np.median(far)) / MEDIAN
        )  # where all are far off, the deployment is unlike others and no run is odd
        doubted = [replace(x, noise=float(s * max(1.0, f / DOUBTED))) for x, s, f in zip(lessons, said, far, strict=True)]
    return doubted


def _contradicted(lessons: Sequence[RunLesson]) -> Iterable[tuple[str, float]]:
    """Latencies that the others contradict, the farthest first."""
    if len(lessons) < FEWEST:
        return []
    off = Posterior(lessons).left_out()[0]
    odd = [(f"{x.label}: {x.metric.upper()}", float(np.exp(o))) for x, o in zip(lessons, off, strict=True) if x.noise > ODD]
    return sorted(odd, key=lambda one: -abs(np.log(one[1])))


def fit_engine(rows: MeasurementFiles, _place: MeasuredMachine, own: Profile) -> Step:
    """The lessons of all runs, and for each deployment what they moved."""
    if not rows.runs:
        return own, [], []
    found = learn(rows.runs, own)
    if not found.profile.lessons:
        raise TooFewError(found.refused[0])
    deployments = dict.fromkeys(x.deployment for x in found.profile.lessons)
    parts = [part for one in deployments for part in _parts(one, found)]
    ran = {f"{one.engine}@{one.version}" for one in deployments}
    return replace(found.profile, engine=ran.pop() if len(ran) == 1 else ""), parts, list(found.refused)


def _parts(one: Deployment, found: Learnt) -> Iterator[ProfilePart]:
    """What was learnt of a deployment's latencies, each judged by the others; constants stand with the first."""
    lessons = found.profile.lessons
    post = posterior_of(found.profile)
    off, sigma = post.left_out()
    changes = tuple(_changes(one, found.profile))
    for metric in METRICS:
        mine = [i for i, x in enumerate(lessons) if x.deployment == one and x.metric == metric]
        if not mine:
            continue
        before = np.log([lessons[i].measured_s / lessons[i].catalogue_s for i in mine])
        sure = post.known.width * np.sqrt(post.scale) * np.hypot(sigma[mine], post.noise[mine])
        spread = float(np.median(np.expm1(Z80 * sure)))
        labels = {f"{lessons[i].label}: {metric.upper()}" for i in mine}
        odd = tuple((label, times) for label, times in found.odd if label in labels)
        name = f"{name_of(one)}: {metric.upper()}"
        yield ProfilePart(name, len(mine), changes, Errors.of(before), Errors.of(off[mine]), spread, odd)
        changes = ()


def _changes(one: Deployment, own: Profile) -> Iterator[ConstantChange]:
    """Constants of a deployment that the runs told something of."""
    for name, change in dict(moves_of(own))[one].items():
        usual, unit = _usual(one, name)
        if usual:
            yield ConstantChange(name, usual, usual * float(np.exp(change.log)), unit, change.before, change.after)


def name_of(one: Deployment) -> str:
    """A deployment in a few words."""
    sizes = " ".join(f"{axis} {getattr(one, axis)}" for axis in ("tp", "pp", "dp", "ep") if getattr(one, axis) > 1)
    return f"{one.engine}@{one.version} {one.model} {sizes}".strip()


def _usual(one: Deployment, name: str) -> tuple[float, str]:
    """A constant as the catalogue has it, and its unit."""
    if name.startswith("pace_"):
        return 1.0, ""
    engine = catalog.engine(f"{one.engine}@{one.version}")
    model = known_model(one.model)  # None: a folder of the user's, which the key does not find again
    mixture = model is not None and model.experts is not None
    return float(getattr((engine.serving_mixtures() if mixture else engine).host, name)), "s"
