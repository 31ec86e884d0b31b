"""Runs and profiled steps of engines into lessons: how far the catalogue was off, which constants mend it, and whom to believe."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import TypeVar, cast

import numpy as np

from commtax import catalog, counting
from commtax.arrays import Array
from commtax.catalog.models import known_model
from commtax.catalog.posterior import METRICS, Beliefs, Posterior, beliefs, deployment_of, metric_words, moves_of, posterior_of
from commtax.cost.pricing import inference_bill
from commtax.ledger import Z80, Bill
from commtax.options import options
from commtax.records import dataclass, replace
from commtax.runs.calibrate import measurements
from commtax.runs.calibrate.measurements import Measured, MeasuredRun, MeasuredStep, Repetition
from commtax.spec import KERNEL_PACES, STEP_PARTS, Deployment, Profile, RunLesson
from commtax.thresholds import thresholds
from commtax.units import format_seconds
from commtax.verbs.billing import price, step_seconds
from commtax.verbs.closed_loop import ClosedLoop, simulate
from commtax.verbs.keywords import SimulateOptions
from commtax.verbs.settling import Settled, resolve_question, settle, terms_of

COUNT, LEVEL = thresholds(__name__)

LOAD = ("requests.", "offered.")  # parts of a question that say how a deployment was used, and not what it is
T = TypeVar("T")
Named = tuple[str, ...]  # who or what a run is, as something to sort and to look up by


def distinct_runs(runs: Iterable[Measured]) -> list[Measured]:
    """Each run once, in an order of their own: neither the order of files nor a copy of one changes anything."""
    known = {
        (*question_of(run), repr(sorted(run.measured.items()))): run
        for run in sorted(runs, key=lambda run: run.label, reverse=True)
    }
    return [known[key] for key in sorted(known)]


def question_of(run: Measured) -> Named:
    """What a run answers: its deployment and its load. Repeats answer the same."""
    work = repr(run.work) if isinstance(run, MeasuredStep) else ""
    return (str(run.model), run.cluster.key, repr(sorted(run.options.items(), key=str)), work)


def _deployment_of(run: MeasuredRun) -> Named:
    known = options()
    said = sorted((name, value) for name, value in run.options.items() if not known[name].field.startswith(LOAD))
    return (str(run.model), run.cluster.key, repr(said))


def join_repeats(runs: Iterable[MeasuredRun]) -> list[MeasuredRun]:
    """One run for each load, with the median of its repeats, how many there were, and what the deployment scatters by."""
    loads = _grouped((question_of(run), run) for run in runs)
    deployments = _grouped((_deployment_of(repeats[0]), repeats) for repeats in loads.values())
    scatter = {name: _scatter(series) for name, series in deployments.items()}
    return [_joined(repeats, scatter[_deployment_of(repeats[0])]) for repeats in loads.values()]


def _grouped(pairs: Iterable[tuple[Named, T]]) -> dict[Named, list[T]]:
    found: dict[Named, list[T]] = {}
    for name, one in pairs:
        found.setdefault(name, []).append(one)
    return found


def _scatter(loads: Sequence[Sequence[MeasuredRun]]) -> dict[str, float]:
    """Of one run of a deployment, by metric, beyond the usual noise: from what repeats of each load differ by."""
    known, found = beliefs(), {}
    for metric in {metric for repeats in loads for run in repeats for metric in run.measured}:
        logs = [np.log(_seconds(repeats, metric)) for repeats in loads]
        free = sum(max(0, len(one) - 1) for one in logs)
        squares = sum(float(((one - one.mean()) ** 2).sum()) for one in logs if len(one) > 1)
        usual = known.smooth["ttft" if metric == "ttft" else "tpot"].noise
        found[metric] = float(np.sqrt(max(0.0, squares - free * usual**2) / (known.freedom + free)))
    return found


def _seconds(repeats: Iterable[MeasuredRun], metric: str) -> list[float]:
    return [run.measured[metric] for run in repeats if metric in run.measured]


def _joined(repeats: Sequence[MeasuredRun], scatter: Mapping[str, float]) -> MeasuredRun:
    labels = sorted({run.label for run in repeats})
    label = labels[0] if len(labels) == 1 else f"{labels[0]} and its repeats"
    timed = {metric: _seconds(repeats, metric) for metric in scatter}
    timed = {metric: seconds for metric, seconds in timed.items() if seconds}
    return replace(
        repeats[0],
        measured={metric: median(seconds) for metric, seconds in timed.items()},
        noise={metric: max(run.noise.get(metric, 1.0) for run in repeats) for metric in timed},
        repeated={metric: Repetition(len(seconds), scatter[metric]) for metric, seconds in timed.items()},
        label=label,
    )


@dataclass(frozen=True, slots=True)
class PricedStep:
    """A profiled step as it is predicted: seconds of each part by the constants that it goes by, and in all."""

    question: Settled
    bill: Bill
    seconds: Mapping[str, float]
    by: Mapping[str, Mapping[str, float]]

    def slopes(self, part: str, prompts: bool) -> dict[str, float]:
        """How much each constant has to do with a part."""
        shares = {name: s / self.seconds[part] for name, s in self.by[part].items() if s > 0}
        return {**shares, "pace_prompt_steps": 1.0} if prompts else shares


def price_step(step: measurements.MeasuredStep, own: Profile) -> PricedStep:
    q = settle(resolve_question(step.model, step.cluster, {**step.options, "profile": own}))
    bill = inference_bill(terms_of(q), step.work, 1)
    prompts = bool(step.work.prefill_seqs)
    found = {name: float(s) for name, s in step_seconds(bill, q.engine, step.work.samples, prompts).items()}
    by = {part: {name: found.get(name, 0.0) for name in names} for part, names in STEP_PARTS.items()}
    seconds = {part: sum(held.values()) for part, held in by.items()}
    host = float(sum((x.exposed_s for x in bill.lines if x.kind == "host"), start=0.0))
    return PricedStep(q, bill, {**seconds, "host": host}, by)


def comparable(step: measurements.MeasuredStep, priced: PricedStep) -> Mapping[str, float]:
    """The parts that both have; kernels together where a kind that should be there is not: its name is not known."""
    measured, expected = step.parts, priced.seconds
    missing = [kind for kind in KERNEL_PACES if expected[kind] > LEVEL.least_part * expected["kernels"] and kind not in measured]
    if missing and "kernels" not in measured:
        others = {name: s for name, s in measured.items() if name not in KERNEL_PACES}
        measured = {"kernels": sum(s for name, s in measured.items() if name in KERNEL_PACES), **others}
    return {name: s for name, s in measured.items() if expected[name] > 0}


@dataclass(frozen=True, slots=True)
class AskedStep:
    """A profiled step, and what is predicted of it before anything was learnt."""

    step: measurements.MeasuredStep
    base: PricedStep

    def reason_refused(self) -> str:
        """Why a profiled step cannot be of this deployment: kernels beat the hardware, or collectives are there for no reason."""
        step, q = self.step, self.base.question
        ran = sum(s for name, s in step.parts.items() if name in KERNEL_PACES or name == "kernels")
        least = float(self.base.bill.least_s(q.cluster.chip.memory_Bps))
        if ran < least * measurements.FLOOR_SLACK:
            beats = f"{format_seconds(ran)} of kernels per step beat the hardware, which needs {format_seconds(least)} at the least"
            where = f"{q.cluster.chip.key} at tp {q.plan.tp}"
            return f"{step.label}: {beats} on {where}; other hardware, weights or sizes than was said"
        sends = self.base.seconds["collectives"] > 0
        if sends is not ("collectives" in step.parts):
            found = "no collective in its steps" if sends else "its steps hold collectives"
            return f"{step.label}: {found}, and tp {q.plan.tp} {'has' if sends else 'needs'} {'some' if sends else 'none'}"
        return ""

    def without_strange(self) -> "tuple[AskedStep, list[str]]":
        """Without parts that are so far off that they are of something else, and what those are."""
        found = comparable(self.step, self.base)
        times = {part: s / self.base.seconds[part] for part, s in found.items()}
        strange = [part for part, x in times.items() if abs(np.log(x)) > measurements.STRANGE]
        said = [f"{self.step.label}: {part} take {times[part]:.3g} times what is expected, and are left out" for part in strange]
        parts = {part: s for part, s in found.items() if part not in strange}
        return AskedStep(replace(self.step, parts=parts), self.base), said

    def lessons(self, own: Profile) -> Iterable[RunLesson]:
        return part_lessons(self.step, self.base, price_step(self.step, own))


def part_lessons(step: measurements.MeasuredStep, base: PricedStep, now: PricedStep) -> Iterable[RunLesson]:
    """One for each part, with slopes where the constants have moved to."""
    q, work = now.question, step.work
    where = deployment_of(q.engine, q.cluster.chip, q.model, q.plan, step.disaggregated)
    logs = dict(q.engine.paces.learnt)
    seqs = float(work.samples)
    seen = float(work.cached_tokens + work.prefill_tokens + work.past_tokens) / max(1.0, seqs)
    for part, seconds in sorted(comparable(step, now).items()):
        slopes = now.slopes(part, bool(work.prefill_seqs))
        off = np.log(seconds / now.seconds[part]) + sum(slope * logs.get(name, 0.0) for name, slope in slopes.items())
        yield RunLesson(
            deployment=where,
            metric=part,
            clients=seqs * float(q.plan.dp),
            input_len=seen,
            output_len=float(bool(work.decode_seqs)),
            measured_s=seconds,
            catalogue_s=base.seconds[part],
            residual=float(off),
            slopes=slopes,
            noise=step.noise.get(part, 1.0) * (LEVEL.slowed if part == "host" and seconds > base.seconds[part] else 1.0),
            label=step.label,
        )


PROFILED = "profiled steps"
MEDIAN = 0.6745  # of a normal distribution's deviations, over its standard deviation


@dataclass(frozen=True, slots=True)
class Learnt:
    """The profile with its lessons, the runs that no machine can have had, and latencies that the others contradict."""

    profile: Profile
    refused: tuple[str, ...]
    odd: tuple[tuple[str, float], ...]  # a latency, and how many times what the others say it took


def learn(runs: Sequence[measurements.Measured], own: Profile) -> Learnt:
    """What the runs teach, over what is known of the machine already, and beside what others taught."""
    blank = replace(own, lessons=())
    asked = [(one := ask(run, blank), one.reason_refused()) for run in counting.counted(list(distinct_runs(runs)))]
    impossible = [why for _, why in asked if why]
    kept = [one.without_strange() for one, why in asked if not why]
    possible = _without_repeats([one for one, _ in kept])
    fresh = [lesson for one in possible for lesson in one.lessons(blank)]
    told = {_place_of(x) for x in fresh}
    held = [x for x in own.lessons if _place_of(x) not in told]
    lessons = doubt([*held, *fresh])
    for _ in range(COUNT.rounds):
        moved = replace(own, lessons=tuple(lessons))
        lessons = doubt([*held, *(lesson for one in possible for lesson in one.lessons(moved))])
    refused = (*impossible, *(why for _, strange in kept for why in strange))
    return Learnt(replace(own, lessons=tuple(lessons)), refused, tuple(_contradicted(lessons)))


def observe(runs: Sequence[measurements.Measured], own: Profile) -> tuple[list[RunLesson], tuple[str, ...]]:
    """Runs beside what a profile has learnt, which they do not change: their lessons where its constants lie, and the refused."""
    blank = replace(own, lessons=())
    asked = [(one := ask(run, blank), one.reason_refused()) for run in distinct_runs(runs)]
    possible = _without_repeats([one for one, why in asked if not why])
    return [lesson for one in possible for lesson in one.lessons(own)], tuple(why for _, why in asked if why)


def _place_of(x: RunLesson) -> tuple[object, ...]:
    """What a lesson is of: a new run of a load replaces what a profile held of it. Repeats are given in one call."""
    return (x.deployment, x.metric, *(f"{size:.4g}" for size in (x.clients, x.input_len, x.output_len)))


@dataclass(frozen=True, slots=True)
class AskedRun:
    """A run, and what is predicted of it before anything was learnt."""

    run: measurements.MeasuredRun
    base: ClosedLoop

    def reason_refused(self) -> str:
        """Why no machine can have had a run: a token came sooner than bytes over bandwidth and FLOPs over peak let a single one."""
        steps = max(1.0, float(self.base.requests.output_len) - 1)
        each = self.run.measured.get("tpot", self.run.measured.get("e2e", np.inf) / steps)
        q = self.base.question
        least = float(price(q.but(batch=1, context=1)).least_s(q.cluster.chip.memory_Bps))
        if each >= least * measurements.FLOOR_SLACK:
            return ""
        beats = f"{format_seconds(each)} per token beats the hardware, which needs {format_seconds(least)} at the least"
        where = f"{q.cluster.chip.key} at tp {q.plan.tp}"
        return f"{self.run.label}: {beats} on {where}; other hardware, weights or sizes than was said"

    def without_strange(self) -> tuple["AskedRun", list[str]]:
        run, said = without_strange(self.run, self.base)
        return AskedRun(run, self.base), said

    def lessons(self, own: Profile) -> Iterable[RunLesson]:
        return _lessons(self.run, self.base, _ask(self.run, own))


def ask(run: measurements.Measured, blank: Profile) -> AskedRun | AskedStep:
    """What is predicted before anything was learnt."""
    return AskedStep(run, price_step(run, blank)) if isinstance(run, measurements.MeasuredStep) else AskedRun(run, _ask(run, blank))


def _without_repeats(asked: Sequence["AskedRun | AskedStep"]) -> list["AskedRun | AskedStep"]:
    """Runs of one load as one."""
    runs = [one for one in asked if isinstance(one, AskedRun)]
    answers = {question_of(one.run): one.base for one in runs}
    joined = [AskedRun(run, answers[question_of(run)]) for run in join_repeats(one.run for one in runs)]
    return [*joined, *(one for one in asked if not isinstance(one, AskedRun))]


def _ask(run: measurements.MeasuredRun, own: Profile) -> ClosedLoop:
    options = cast(SimulateOptions, {**run.options, "profile": own})
    return simulate(run.model, run.cluster, **options)


def without_strange(run: measurements.MeasuredRun, answer: ClosedLoop) -> tuple[measurements.MeasuredRun, list[str]]:
    """The run without latencies that are so far off that something else was measured, and what those are."""
    factors = {metric: seconds / _constants_alone(answer, metric) for metric, seconds in run.measured.items()}
    strange = [metric for metric, times in factors.items() if abs(np.log(times)) > measurements.STRANGE]
    said = [
        f"{run.label}: {metric.upper()} is {factors[metric]:.3g} times what is expected: not this deployment" for metric in strange
    ]
    return replace(run, measured={m: seconds for m, seconds in run.measured.items() if m not in strange}), said


def _lessons(run: measurements.MeasuredRun, base: ClosedLoop, now: ClosedLoop) -> Iterable[RunLesson]:
    """One for each latency of a run, with slopes where the constants have moved to."""
    q, wanted = now.question, now.requests
    where = deployment_of(q.engine, q.cluster.chip, q.model, q.plan, now.apart is not None)
    logs = dict(q.engine.paces.learnt)
    for metric, seconds in sorted(run.measured.items()):
        repeated = run.repeated.get(metric, measurements.Repetition())
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
    learnt = {name: float(np.exp(answer.learnt[name].log if answer.learnt else 0.0)) for name in ("tpot", "ttft")}
    tpot, ttft = (float(getattr(answer, f"{name}_s")) / factor for name, factor in learnt.items())
    return {"tpot": tpot, "ttft": ttft, "e2e": ttft + (float(answer.requests.output_len) - 1) * tpot}[metric]


def _slopes(answer: ClosedLoop, metric: str) -> dict[str, float]:
    """Of a latency; of a whole request's by its parts."""
    every = {name: {key: float(x) for key, x in slopes.items()} for name, slopes in answer.slopes.items()}
    if metric != "e2e":
        return every[metric]
    share = _constants_alone(answer, "ttft") / _constants_alone(answer, "e2e")
    return {name: share * every["ttft"].get(name, 0.0) + (1 - share) * slope for name, slope in every["tpot"].items()}


def doubt(lessons: Sequence[RunLesson], known: Beliefs | None = None) -> list[RunLesson]:
    """Lessons with more scatter where the others contradict them: with so much that they could be right."""
    judged = _can_be_contradicted(lessons)
    if not judged.any():
        return list(lessons)
    post = Posterior(lessons, known)
    said, own = np.array([x.noise for x in lessons]), post.noise
    # At first by what is usual alone, which no run pulls; then by the others.
    off, sigma = post.residuals, np.sqrt(np.diag(post.covariance))
    doubted = list(lessons)
    for _ in range(COUNT.doubts):
        far = float(np.median((np.abs(off) / np.hypot(sigma, own))[judged])) / MEDIAN
        believed = np.abs(off) / LEVEL.doubted / max(1.0, far)  # where all are far off, the deployment is unlike others
        times = np.where(judged, np.sqrt(np.maximum(own**2, believed**2 - sigma**2)) / own, 1.0)
        doubted = [replace(x, noise=float(s * more)) for x, s, more in zip(lessons, said, times, strict=True)]
        off, sigma = Posterior(doubted, known).left_out()
    return doubted


def _can_be_contradicted(lessons: Sequence[RunLesson]) -> Array:
    """Latencies among enough others; of a part of steps only the same part of others tells, and what is usual is no reason."""
    alike = Counter(x.metric for x in lessons)
    many = len(lessons) >= COUNT.fewest
    return np.array([many if x.metric in METRICS else alike[x.metric] >= COUNT.fewest for x in lessons], bool)


def _contradicted(lessons: Sequence[RunLesson]) -> Iterable[tuple[str, float]]:
    """Latencies that the others contradict, the farthest first."""
    if not _can_be_contradicted(lessons).any():
        return []
    off = Posterior(lessons).left_out()[0]
    odd = [
        (f"{x.label}: {metric_words(x.metric)}", float(np.exp(o))) for x, o in zip(lessons, off, strict=True) if x.noise > LEVEL.odd
    ]
    return sorted(odd, key=lambda one: -abs(np.log(one[1])))


def fit_engine(rows: measurements.MeasurementFiles, _place: measurements.MeasuredMachine, own: Profile) -> measurements.Step:
    """The lessons of all runs, and for each deployment what they moved."""
    if not rows.taught:
        return own, [], []
    found = learn(rows.taught, own)
    if not found.profile.lessons:
        raise measurements.TooFewError(found.refused[0])
    deployments = dict.fromkeys(x.deployment for x in found.profile.lessons)
    parts = [part for one in deployments for part in _parts(one, found)]
    ran = {f"{one.engine}@{one.version}" for one in deployments}
    return replace(found.profile, engine=ran.pop() if len(ran) == 1 else ""), parts, list(found.refused)


def _parts(one: Deployment, found: Learnt) -> Iterator[measurements.ProfilePart]:
    """What was learnt of a deployment's latencies, each judged by the others; constants stand with the first."""
    lessons = found.profile.lessons
    post = posterior_of(found.profile)
    off, sigma = post.left_out()
    changes = tuple(_changes(one, found.profile))
    groups = {**{metric_words(metric): (metric,) for metric in METRICS}, PROFILED: tuple(STEP_PARTS)}
    for title, metrics in groups.items():
        mine = [i for i, x in enumerate(lessons) if x.deployment == one and x.metric in metrics]
        if not mine:
            continue
        before = np.log([lessons[i].measured_s / lessons[i].catalogue_s for i in mine])
        sure = np.array([post.scale(lessons[i].metric) for i in mine]) * np.hypot(sigma[mine], post.noise[mine])
        spread = float(np.median(np.expm1(Z80 * sure)))
        labels = {f"{lessons[i].label}: {metric_words(lessons[i].metric)}" for i in mine}
        odd = tuple((label, times) for label, times in found.odd if label in labels)
        name = f"{name_of(one)}: {title}"
        after = post.left_over() if title == PROFILED else off  # a part of a step has nothing beside it that tells of it
        yield measurements.ProfilePart(
            name, len(mine), changes, measurements.Errors.of(before), measurements.Errors.of(after[mine]), spread, odd
        )
        changes = ()


def _changes(one: Deployment, own: Profile) -> Iterator[measurements.ConstantChange]:
    """Constants of a deployment that the runs told something of."""
    for name, change in dict(moves_of(own))[one].items():
        usual, unit = _usual(one, name)
        if usual:
            yield measurements.ConstantChange(name, usual, usual * float(np.exp(change.log)), unit, change.before, change.after)


def name_of(one: Deployment) -> str:
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
