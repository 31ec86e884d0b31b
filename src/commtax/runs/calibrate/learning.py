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
from commtax.question import Question
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
    """Return each run once, in an order that depends neither on the files' order nor on copies."""
    backwards = sorted(runs, key=lambda run: run.label, reverse=True)
    by_answer = {(*question_of(run), repr(sorted(run.measured.items()))): run for run in backwards}
    return [by_answer[key] for key in sorted(by_answer)]


def question_of(run: Measured) -> Named:
    """Return the deployment and load that identify a run's question. Repeats share it."""
    work = repr(run.work) if isinstance(run, MeasuredStep) else ""
    return (str(run.model), run.cluster.key, repr(sorted(run.options.items(), key=str)), work)


def _deployment_of(run: MeasuredRun) -> Named:
    by_name = options()
    stated = sorted((name, value) for name, value in run.options.items() if not by_name[name].field.startswith(LOAD))
    return (str(run.model), run.cluster.key, repr(stated))


def join_repeats(runs: Iterable[MeasuredRun]) -> list[MeasuredRun]:
    """Join repeats of each load into one run with their median, their number, and the deployment's scatter."""
    loads = _grouped((question_of(run), run) for run in runs)
    deployments = _grouped((_deployment_of(repeats[0]), repeats) for repeats in loads.values())
    scatter = {name: _scatter(series) for name, series in deployments.items()}
    return [_joined(repeats, scatter[_deployment_of(repeats[0])]) for repeats in loads.values()]


def _grouped(pairs: Iterable[tuple[Named, T]]) -> dict[Named, list[T]]:
    groups: dict[Named, list[T]] = {}
    for name, one in pairs:
        groups.setdefault(name, []).append(one)
    return groups


def _scatter(loads: Sequence[Sequence[MeasuredRun]]) -> dict[str, float]:
    """Return by metric the scatter of one run of a deployment beyond the usual noise, from repeats of each load."""
    prior, scatter = beliefs(), {}
    for metric in {metric for repeats in loads for run in repeats for metric in run.measured}:
        logs = [np.log(_seconds(repeats, metric)) for repeats in loads]
        free = sum(max(0, len(one) - 1) for one in logs)
        squares = sum(float(((one - one.mean()) ** 2).sum()) for one in logs if len(one) > 1)
        usual = prior.smooth["ttft" if metric == "ttft" else "tpot"].noise
        scatter[metric] = float(np.sqrt(max(0.0, squares - free * usual**2) / (prior.freedom + free)))
    return scatter


def _seconds(repeats: Iterable[MeasuredRun], metric: str) -> list[float]:
    return [run.measured[metric] for run in repeats if metric in run.measured]


def _joined(repeats: Sequence[MeasuredRun], scatter: Mapping[str, float]) -> MeasuredRun:
    labels = sorted({run.label for run in repeats})
    label = labels[0] if len(labels) == 1 else f"{labels[0]} and its repeats"
    timed = {metric: seconds for metric in scatter if (seconds := _seconds(repeats, metric))}
    measured = {metric: median(seconds) for metric, seconds in timed.items()}
    noise = {metric: max(run.noise.get(metric, 1.0) for run in repeats) for metric in timed}
    repeated = {metric: Repetition(len(seconds), scatter[metric]) for metric, seconds in timed.items()}
    return replace(repeats[0], measured=measured, noise=noise, repeated=repeated, label=label)


@dataclass(frozen=True, slots=True)
class PricedStep:
    """A profiled step as predicted: seconds of each part, in all and by the constants behind them."""

    question: Settled
    bill: Bill
    seconds: Mapping[str, float]
    by: Mapping[str, Mapping[str, float]]

    def slopes(self, part: str, prompts: bool) -> dict[str, float]:
        """Return the share of each constant in a part."""
        shares = {name: s / self.seconds[part] for name, s in self.by[part].items() if s > 0}
        return {**shares, "pace_prompt_steps": 1.0} if prompts else shares


def price_step(step: MeasuredStep, profile: Profile) -> PricedStep:
    q = settle(resolve_question(step.model, step.cluster, {**step.options, "profile": profile}))
    bill = inference_bill(terms_of(q), step.work, 1)
    prompts = bool(step.work.prefill_seqs)
    exposed = {name: float(s) for name, s in step_seconds(bill, q.engine, step.work.samples, prompts).items()}
    by = {part: {name: exposed.get(name, 0.0) for name in names} for part, names in STEP_PARTS.items()}
    seconds = {part: sum(each.values()) for part, each in by.items()}
    host = float(sum((x.exposed_s for x in bill.lines if x.kind == "host"), start=0.0))
    return PricedStep(q, bill, {**seconds, "host": host}, by)


def comparable(step: MeasuredStep, priced: PricedStep) -> Mapping[str, float]:
    """Return the parts that both have, with kernels merged where the trace lacks an expected kind under its name."""
    measured, expected = step.parts, priced.seconds
    missing = [kind for kind in KERNEL_PACES if expected[kind] > LEVEL.least_part * expected["kernels"] and kind not in measured]
    if missing and "kernels" not in measured:
        others = {name: s for name, s in measured.items() if name not in KERNEL_PACES}
        measured = {"kernels": sum(s for name, s in measured.items() if name in KERNEL_PACES), **others}
    return {name: s for name, s in measured.items() if expected[name] > 0}


def _reason_too_fast(q: Question, least_s: float, measured_s: float, what: str) -> str:
    """Explain a time below the least that the hardware allows, "" if it is possible."""
    if measured_s >= least_s * measurements.FLOOR_SLACK:
        return ""
    beats = f"{format_seconds(measured_s)} {what} the hardware, which needs {format_seconds(least_s)} at the least"
    return f"{beats} on {q.cluster.chip.key} at tp {q.plan.tp}; other hardware, weights or sizes than was said"


@dataclass(frozen=True, slots=True)
class ExpectedStep:
    """A profiled step, and its prediction before anything was learnt."""

    step: MeasuredStep
    base: PricedStep

    def reason_refused(self) -> str:
        """Explain why a profiled step cannot be of this deployment: too fast for the hardware, or with the wrong collectives."""
        step, q = self.step, self.base.question
        ran = sum(s for name, s in step.parts.items() if name in KERNEL_PACES or name == "kernels")
        least = float(self.base.bill.least_s(q.cluster.chip.memory_Bps))
        if why := _reason_too_fast(q, least, ran, "of kernels per step beat"):
            return f"{step.label}: {why}"
        sends = self.base.seconds["collectives"] > 0
        if sends is not ("collectives" in step.parts):
            present = "no collective in its steps" if sends else "its steps hold collectives"
            return f"{step.label}: {present}, and tp {q.plan.tp} {'has' if sends else 'needs'} {'some' if sends else 'none'}"
        return ""

    def without_strange(self) -> "tuple[ExpectedStep, list[str]]":
        """Drop parts that are so far off that they must be of something else, and name them."""
        measured = comparable(self.step, self.base)
        times = {part: s / self.base.seconds[part] for part, s in measured.items()}
        strange = [part for part, x in times.items() if abs(np.log(x)) > measurements.STRANGE]
        remarks = [f"{self.step.label}: {part} take {times[part]:.3g} times what is expected, and are left out" for part in strange]
        parts = {part: s for part, s in measured.items() if part not in strange}
        return ExpectedStep(replace(self.step, parts=parts), self.base), remarks

    def lessons(self, profile: Profile) -> Iterable[RunLesson]:
        return part_lessons(self.step, self.base, price_step(self.step, profile))


def part_lessons(step: MeasuredStep, base: PricedStep, now: PricedStep) -> Iterable[RunLesson]:
    """Yield one lesson for each part, with slopes at the present constants."""
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
    """The profile with its lessons, the impossible runs, and latencies that the others contradict."""

    profile: Profile
    refused: tuple[str, ...]
    odd: tuple[tuple[str, float], ...]  # a latency, and how many times what the others say it took


def learn(runs: Sequence[Measured], profile: Profile) -> Learnt:
    """Learn from runs, on top of what the profile holds and beside its other lessons."""
    blank = replace(profile, lessons=())
    predicted = [(one := ask(run, blank), one.reason_refused()) for run in counting.counted(list(distinct_runs(runs)))]
    impossible = [why for _, why in predicted if why]
    kept = [one.without_strange() for one, why in predicted if not why]
    possible = _without_repeats([one for one, _ in kept])
    fresh = [lesson for one in possible for lesson in one.lessons(blank)]
    relearnt = {_place_of(x) for x in fresh}
    earlier = [x for x in profile.lessons if _place_of(x) not in relearnt]
    lessons = doubt([*earlier, *fresh])
    for _ in range(COUNT.rounds):
        moved = replace(profile, lessons=tuple(lessons))
        lessons = doubt([*earlier, *(lesson for one in possible for lesson in one.lessons(moved))])
    refused = (*impossible, *(why for _, strange in kept for why in strange))
    return Learnt(replace(profile, lessons=tuple(lessons)), refused, tuple(_contradicted(lessons)))


def observe(runs: Sequence[Measured], profile: Profile) -> tuple[list[RunLesson], tuple[str, ...]]:
    """Return the lessons of runs at a profile's constants, which they do not change, and why others are refused."""
    blank = replace(profile, lessons=())
    predicted = [(one := ask(run, blank), one.reason_refused()) for run in distinct_runs(runs)]
    possible = _without_repeats([one for one, why in predicted if not why])
    return [lesson for one in possible for lesson in one.lessons(profile)], tuple(why for _, why in predicted if why)


def _place_of(x: RunLesson) -> tuple[object, ...]:
    """Identify what a lesson is of, so that a new run of a load replaces the one in the profile. Repeats come in one call."""
    return (x.deployment, x.metric, *(f"{size:.4g}" for size in (x.clients, x.input_len, x.output_len)))


@dataclass(frozen=True, slots=True)
class ExpectedRun:
    """A run, and its prediction before anything was learnt."""

    run: MeasuredRun
    base: ClosedLoop

    def reason_refused(self) -> str:
        """Explain why no machine can have produced a run: a token came sooner than bandwidth and peak FLOPs allow."""
        steps = max(1.0, float(self.base.requests.output_len) - 1)
        each = self.run.measured.get("tpot", self.run.measured.get("e2e", np.inf) / steps)
        q = self.base.question
        least = float(price(q.but(batch=1, context=1)).least_s(q.cluster.chip.memory_Bps))
        why = _reason_too_fast(q, least, each, "per token beats")
        return f"{self.run.label}: {why}" if why else ""

    def without_strange(self) -> tuple["ExpectedRun", list[str]]:
        run, remarks = without_strange(self.run, self.base)
        return ExpectedRun(run, self.base), remarks

    def lessons(self, profile: Profile) -> Iterable[RunLesson]:
        return _lessons(self.run, self.base, _ask(self.run, profile))


def ask(run: Measured, blank: Profile) -> ExpectedRun | ExpectedStep:
    """Predict a run before anything was learnt."""
    if isinstance(run, MeasuredStep):
        return ExpectedStep(run, price_step(run, blank))
    return ExpectedRun(run, _ask(run, blank))


def _without_repeats(predicted: Sequence["ExpectedRun | ExpectedStep"]) -> list["ExpectedRun | ExpectedStep"]:
    """Join runs of one load."""
    runs = [one for one in predicted if isinstance(one, ExpectedRun)]
    answers = {question_of(one.run): one.base for one in runs}
    joined = [ExpectedRun(run, answers[question_of(run)]) for run in join_repeats(one.run for one in runs)]
    return [*joined, *(one for one in predicted if not isinstance(one, ExpectedRun))]


def _ask(run: MeasuredRun, profile: Profile) -> ClosedLoop:
    options = cast(SimulateOptions, {**run.options, "profile": profile})
    return simulate(run.model, run.cluster, **options)


def without_strange(run: MeasuredRun, answer: ClosedLoop) -> tuple[MeasuredRun, list[str]]:
    """Drop latencies that are so far off that something else was measured, and name them."""
    factors = {metric: seconds / _constants_alone(answer, metric) for metric, seconds in run.measured.items()}
    strange = [metric for metric, times in factors.items() if abs(np.log(times)) > measurements.STRANGE]
    odd = (f"{metric.upper()} is {factors[metric]:.3g} times what is expected" for metric in strange)
    remarks = [f"{run.label}: {text}: not this deployment" for text in odd]
    return replace(run, measured={m: seconds for m, seconds in run.measured.items() if m not in strange}), remarks


def _lessons(run: MeasuredRun, base: ClosedLoop, now: ClosedLoop) -> Iterable[RunLesson]:
    """Yield one lesson for each latency of a run, with slopes at the present constants."""
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
    """Return a latency by its constants, without the correction for what they do not explain."""
    learnt = {name: float(np.exp(answer.learnt[name].log if answer.learnt else 0.0)) for name in ("tpot", "ttft")}
    tpot, ttft = (float(getattr(answer, f"{name}_s")) / factor for name, factor in learnt.items())
    return {"tpot": tpot, "ttft": ttft, "e2e": ttft + (float(answer.requests.output_len) - 1) * tpot}[metric]


def _slopes(answer: ClosedLoop, metric: str) -> dict[str, float]:
    """Return the slopes of a latency, of a whole request's from its parts."""
    every = {name: {key: float(x) for key, x in slopes.items()} for name, slopes in answer.slopes.items()}
    if metric != "e2e":
        return every[metric]
    share = _constants_alone(answer, "ttft") / _constants_alone(answer, "e2e")
    return {name: share * every["ttft"].get(name, 0.0) + (1 - share) * slope for name, slope in every["tpot"].items()}


def doubt(lessons: Sequence[RunLesson], prior: Beliefs | None = None) -> list[RunLesson]:
    """Widen the noise of lessons that the others contradict until they could be right."""
    judged = _can_be_contradicted(lessons)
    if not judged.any():
        return list(lessons)
    post = Posterior(lessons, prior)
    stated, noise = np.array([x.noise for x in lessons]), post.noise
    # At first by what is usual alone, which no run pulls; then by the others.
    off, sigma = post.residuals, np.sqrt(np.diag(post.covariance))
    doubted = list(lessons)
    for _ in range(COUNT.doubts):
        far = float(np.median((np.abs(off) / np.hypot(sigma, noise))[judged])) / MEDIAN
        believed = np.abs(off) / LEVEL.doubted / max(1.0, far)  # where all are far off, the deployment is unlike others
        times = np.where(judged, np.sqrt(np.maximum(noise**2, believed**2 - sigma**2)) / noise, 1.0)
        doubted = [replace(x, noise=float(s * more)) for x, s, more in zip(lessons, stated, times, strict=True)]
        off, sigma = Posterior(doubted, prior).left_out()
    return doubted


def _can_be_contradicted(lessons: Sequence[RunLesson]) -> Array:
    """Return which lessons enough others can contradict: any latencies, but for parts of steps only the same part."""
    alike = Counter(x.metric for x in lessons)
    many = len(lessons) >= COUNT.fewest
    return np.array([many if x.metric in METRICS else alike[x.metric] >= COUNT.fewest for x in lessons], bool)


def _contradicted(lessons: Sequence[RunLesson]) -> Iterable[tuple[str, float]]:
    """Return latencies that the others contradict, the farthest first."""
    if not _can_be_contradicted(lessons).any():
        return []
    off = zip(lessons, Posterior(lessons).left_out()[0].tolist(), strict=True)
    odd = sorted(((x, o) for x, o in off if x.noise > LEVEL.odd), key=lambda one: -abs(one[1]))
    return [(f"{x.label}: {metric_words(x.metric)}", float(np.exp(o))) for x, o in odd]


def fit_engine(rows: measurements.MeasurementFiles, _place: measurements.MeasuredMachine, profile: Profile) -> measurements.Step:
    """Learn from all runs, and report what they moved for each deployment."""
    if not rows.taught:
        return profile, [], []
    learnt = learn(rows.taught, profile)
    if not learnt.profile.lessons:
        raise measurements.TooFewError(learnt.refused[0])
    deployments = dict.fromkeys(x.deployment for x in learnt.profile.lessons)
    parts = [part for one in deployments for part in _parts(one, learnt)]
    ran = {f"{one.engine}@{one.version}" for one in deployments}
    return replace(learnt.profile, engine=ran.pop() if len(ran) == 1 else ""), parts, list(learnt.refused)


def _parts(one: Deployment, learnt: Learnt) -> Iterator[measurements.ProfilePart]:
    """Yield what was learnt of a deployment's latencies, judged by the others, with constants beside the first."""
    lessons = learnt.profile.lessons
    post = posterior_of(learnt.profile)
    off, sigma = post.left_out()
    changes = tuple(_changes(one, learnt.profile))
    groups = {**{metric_words(metric): (metric,) for metric in METRICS}, PROFILED: tuple(STEP_PARTS)}
    for title, metrics in groups.items():
        mine = [i for i, x in enumerate(lessons) if x.deployment == one and x.metric in metrics]
        if not mine:
            continue
        before = np.log([lessons[i].measured_s / lessons[i].catalogue_s for i in mine])
        sure = np.array([post.scale(lessons[i].metric) for i in mine]) * np.hypot(sigma[mine], post.noise[mine])
        spread = float(np.median(np.expm1(Z80 * sure)))
        labels = {f"{lessons[i].label}: {metric_words(lessons[i].metric)}" for i in mine}
        odd = tuple((label, times) for label, times in learnt.odd if label in labels)
        name = f"{name_of(one)}: {title}"
        after = post.left_over() if title == PROFILED else off  # a part of a step has nothing beside it that tells of it
        errors = (measurements.Errors.of(before), measurements.Errors.of(after[mine]))
        yield measurements.ProfilePart(name, len(mine), changes, *errors, spread, odd)
        changes = ()


def _changes(one: Deployment, profile: Profile) -> Iterator[measurements.ConstantChange]:
    """Yield each constant that a deployment's runs made surer, with its value and uncertainty before and after."""
    for name, change in dict(moves_of(profile))[one].items():
        usual, unit = _usual(one, name)
        if usual:
            yield measurements.ConstantChange(name, usual, usual * float(np.exp(change.log)), unit, change.before, change.after)


def name_of(one: Deployment) -> str:
    sizes = " ".join(f"{axis} {getattr(one, axis)}" for axis in ("tp", "pp", "dp", "ep") if getattr(one, axis) > 1)
    return f"{one.engine}@{one.version} {one.model} {sizes}".strip()


def _usual(one: Deployment, name: str) -> tuple[float, str]:
    """Return a constant of the catalogue, and its unit."""
    if name.startswith("pace_"):
        return 1.0, ""
    engine = catalog.engine(f"{one.engine}@{one.version}")
    model = known_model(one.model)  # None: a folder of the user's, which the key does not find again
    mixture = model is not None and model.experts is not None
    return float(getattr((engine.serving_mixtures() if mixture else engine).host, name)), "s"
