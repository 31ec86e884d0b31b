"""What machines' profiles say: how two differ, what one covers of a question, and what its runs teach of latencies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import NamedTuple, Self

import numpy as np

from commtax.arrays import Array
from commtax.catalog import physics
from commtax.catalog.posterior import Beliefs, LoadPoint, Posterior, deployment_of, posterior_of, student_over_normal
from commtax.catalog.profile import measured_cluster, other_chip, same_link, tells_of
from commtax.catalog.profile_files import Topic, check_paths, path_rows, run_topics, tells_chip
from commtax.ledger import Z80
from commtax.question import Question
from commtax.records import dataclass
from commtax.spec import Cluster, Engine, Model, Number, Profile, RunLesson


def _change(before: float | None, after: float | None) -> float | None:
    return None if before in (None, 0.0) or after is None else after / before - 1.0


@dataclass(frozen=True, slots=True)
class ConstantDifference:
    """A constant of two profiles, None where one has no such constant."""

    name: str
    before: float | None
    after: float | None

    @property
    def change(self) -> float | None:
        return _change(self.before, self.after)


@dataclass(frozen=True, slots=True)
class LatencyDifference:
    """A latency measured in the same run of a deployment, whatever the engine's version, None where one profile has none."""

    lesson: RunLesson
    before_s: float | None
    after_s: float | None

    @property
    def change(self) -> float | None:
        return _change(self.before_s, self.after_s)


@dataclass(frozen=True, slots=True)
class ProfileDifference:
    """What changed from one profile to another: words, constants, latencies."""

    first: Profile
    second: Profile
    words: tuple[tuple[str, str, str], ...]  # name, before, after
    constants: tuple[ConstantDifference, ...]
    latencies: tuple[LatencyDifference, ...]


def difference(first: Profile, second: Profile) -> ProfileDifference:
    """Compare two profiles: constants that are equal are left out, latencies are all listed."""
    before, after = constants_of(first), constants_of(second)
    constants = (ConstantDifference(name, before.get(name), after.get(name)) for name in {**before, **after})
    words = [_words(profile) for profile in (first, second)]
    rows = ((name, words[0].get(name, ""), words[1].get(name, "")) for name in {**words[0], **words[1]})
    runs = [_by_run(profile.lessons) for profile in (first, second)]
    pairs = ((runs[0].get(key), runs[1].get(key)) for key in {**runs[0], **runs[1]})
    latencies = (LatencyDifference(r, a.measured_s if a else None, b.measured_s if b else None) for a, b in pairs if (r := b or a))
    unequal = tuple(row for row in rows if row[1] != row[2]), tuple(x for x in constants if x.before != x.after)
    return ProfileDifference(first, second, *unequal, tuple(latencies))


def constants_of(profile: Profile) -> dict[str, float]:
    """Return every number of a profile beside its runs, by a name for readers."""
    numbers = {f"chip {key}": value for key, value in profile.chip.items() if isinstance(value, (int, float))}
    numbers |= {f"chip flops_per_s {dtype}": rate for dtype, rate in profile.chip.get("flops_per_s", {}).items()}
    numbers |= {f"kernels {table} {key}": value for table, constants in profile.tables.items() for key, value in constants.items()}
    seen = Counter[str]()  # paths of one collective and algorithm are numbered
    for library, paths in profile.libraries.items():
        for path, row in zip(paths, path_rows(paths), strict=True):
            name = f"{library} {path.op} {path.algorithm}"
            seen[name] += 1
            name += f" {seen[name]}" if seen[name] > 1 else ""
            numbers |= {f"{name} {key}": float(getattr(path, key)) for key in physics.PATH if key in row}
            numbers |= {f"{name} {key} of {n}": x for key in physics.BY_SIZE for n, x in getattr(path, key)}
    return numbers | {f"network {key}": value for key, value in profile.network.items()} | dict(profile.host)


def _words(profile: Profile) -> dict[str, str]:
    versions = dict.fromkeys(f"{lesson.deployment.engine} {lesson.deployment.version}".strip() for lesson in profile.lessons)
    links = {f"link {which}": link for which, link in profile.links.items()}
    served = {"served by": ", ".join(versions)} if versions else {}
    described = {"written": profile.written, "chip": profile.chip.get("key", ""), "engine": profile.engine, "type": profile.dtype}
    return {**{name: text for name, text in described.items() if text}, **links, **served}


def _by_run(lessons: Iterable[RunLesson]) -> dict[tuple[object, ...], RunLesson]:
    lessons_by_run: dict[tuple[object, ...], RunLesson] = {}
    seen = Counter[tuple[object, ...]]()
    for lesson in lessons:
        d, load = lesson.deployment, tuple(getattr(lesson, key) for key in physics.RUN)
        key = (d.engine, d.chip, d.model, d.dtype, (d.tp, d.pp, d.dp, d.ep, d.disaggregated), lesson.metric, load)
        lessons_by_run[(*key, seen[key])] = lesson
        seen[key] += 1
    return lessons_by_run


@dataclass(frozen=True, slots=True)
class ProfileRequest:
    """The question that a profile is compared with, without None and empty parts."""

    cluster: Cluster | None = None
    engine: Engine | None = None
    version: str = ""
    model: Model | None = None
    dtype: str = ""
    sizes: Mapping[str, int] = field(default_factory=dict)  # tp, pp, dp, ep


@dataclass(frozen=True, slots=True)
class ProfileCoverage:
    """What a profile tells of a question: its topics, and the parts of it that are used there."""

    profile: Profile
    topics: tuple[Topic, ...]
    used: tuple[str, ...]
    unused: tuple[str, ...]


def coverage(profile: Profile, put: ProfileRequest) -> ProfileCoverage:
    """Return what of a profile is used for a question, and what is not. Refuse impossible physics."""
    if put.cluster and not other_chip(profile, put.cluster.chip):
        measured_cluster(profile, put.cluster)
        if same_link(profile, "intra", put.cluster):
            check_paths(profile, put.cluster.intra)
    place, engine, elsewhere = put.cluster, put.engine, bool(put.cluster and other_chip(profile, put.cluster.chip))
    refused = elsewhere and tells_chip(profile)
    intra, inter = (place is None or same_link(profile, which, place) for which in ("intra", "inter"))
    ran = engine is None or any(x.deployment.engine == engine.key for x in profile.lessons)
    uses = (  # parts, whether the profile has each, and whether it is used for the question
        ("chip", tells_chip(profile), not elsewhere),
        ("kernels", profile.tables, not refused),
        ("collectives", profile.libraries, not refused and intra),
        ("network", profile.network, not refused and inter),
        ("host times", profile.host, not elsewhere and (engine is None or tells_of(profile, engine))),
        ("runs", profile.lessons, not refused and ran),
    )
    used, unused = (tuple(part for part, has, is_used in uses if has and is_used is wanted) for wanted in (True, False))
    return ProfileCoverage(profile, tuple(_topics(profile, put)), used, unused)


def _topics(profile: Profile, put: ProfileRequest) -> Iterator[Topic]:
    """Yield what is requested beside what was measured: of the machine's chip and links, then of its engine and runs."""
    if place := put.cluster:
        chips = dict.fromkeys(key for key in (profile.chip.get("key", ""), *(x.deployment.chip for x in profile.lessons)) if key)
        if chips:
            yield Topic("chip", place.chip.key, tuple(chips))
        if profile.libraries and "intra" in profile.links:
            yield Topic("link inside", place.intra.key, (profile.links["intra"],))
        if profile.network and "inter" in profile.links and not place.is_one_domain:
            yield Topic("link between", place.inter.key, (profile.links["inter"],))
    if put.engine and profile.engine and not profile.lessons:
        yield Topic("engine", put.engine.key, (profile.engine.partition("@")[0],))
    wanted = {
        "engine": put.engine.key if put.engine else "",
        "version": put.version,
        "chip": put.cluster.chip.key if put.cluster else "",
        "model": put.model.key if put.model else "",
        "dtype": put.dtype,
        **{axis: str(size) for axis, size in put.sizes.items()},
    }
    yield from (topic for topic in run_topics(profile.lessons, wanted) if topic.name != "chip")


Slopes = Mapping[str, Number]


class LearntRest(NamedTuple):
    """What no constant explains of a latency, as a logarithm, and how sure the whole is, as standard deviations of logarithms."""

    log: Number
    sigma: Number
    scale: float  # errors over the usual ones
    scatter: Number  # of runs of one load

    def sigma_beside(self, catalogue: Number) -> Number:
        """Return the deviation, no wider than the catalogue's, except for runs that err or scatter more than is usual."""
        return np.minimum(self.sigma, np.hypot(max(1.0, self.scale) * catalogue, self.scatter))


def learnt_rest(q: Question, metric: str, at: LoadPoint, slopes: Slopes, apart: bool = False) -> LearntRest:
    """Return what no constant explains of one latency, by the profile of a question that has one."""
    assert q.profile
    deployment, post = deployment_of(q.engine, q.cluster.chip, q.model, q.plan, apart), posterior_of(q.profile)
    return LearntRest(*post.rest(deployment, metric, at, slopes), post.scale(metric), post.scatter(deployment, metric))


def learnt_step_sigma(q: Question, shares: Slopes) -> Number:
    """Return the deviation of a decode step, as of the time per token of so many clients: what no constant explains is unsure."""
    rest = learnt_rest(q, "tpot", LoadPoint(q.batch * q.plan.dp, q.context, np.ones_like(q.context)), shares)
    return np.hypot(rest.sigma, rest.log)


class Foresight:
    """Logarithms of latencies together, as what was learnt leaves them: means over the constants as they are, and covariance."""

    def __init__(self, latencies: Sequence[RunLesson], learnt: Sequence[RunLesson] = (), prior: Beliefs | None = None) -> None:
        every, count = Posterior([*learnt, *latencies], prior), len(learnt)
        whole, noise = every.covariance, every.noise
        self.latencies, self.noise = tuple(latencies), noise[count:]
        self.mean, self.covariance = np.zeros(len(latencies)), whole[count:, count:]
        seen = Posterior(learnt, prior)
        self.scale, self.freedom = (np.array([one(x.metric) for x in latencies]) for one in (seen.scale, seen.freedom))
        if count:
            gain = whole[count:, :count] @ np.linalg.inv(whole[:count, :count] + np.diag(noise[:count] ** 2))
            self.mean = gain @ seen.residuals
            self.covariance = self.covariance - gain @ whole[:count, count:]
            more = [max(0.0, float(seen.scatter(x.deployment, x.metric)) ** 2 - x.scatter**2) / x.repeats for x in latencies]
            self.noise = np.sqrt(self.noise**2 + np.array(more) / self._widening**2)

    def after(self, runs: Sequence[int]) -> Array:
        """Return the covariance that is left once these latencies are measured."""
        return np.asarray(self.covariance - self._gain(runs) @ self.covariance[list(runs)])

    def _measured(self, runs: Sequence[int]) -> Array:
        """Return the covariance of latencies as they are measured, with the noise of each."""
        which = list(runs)
        return np.asarray(self.covariance[np.ix_(which, which)] + np.diag(self.noise[which] ** 2))

    def _gain(self, runs: Sequence[int]) -> Array:
        return np.asarray(self.covariance[:, list(runs)] @ np.linalg.inv(self._measured(runs)))

    def shown(self, runs: Sequence[int]) -> Self:
        """Return the same with those measured, as far as it is known beforehand: where the means will lie is not."""
        other = type(self).__new__(type(self))
        more = Counter(self.latencies[i].metric for i in runs)
        freedom = self.freedom + [more[x.metric] for x in self.latencies]
        other.__dict__ |= self.__dict__ | {"covariance": self.after(runs), "freedom": freedom}
        return other

    def sigma_after(self, runs: Sequence[int], which: Sequence[int]) -> Array:
        """Return deviations of some latencies once others are measured: as ``shown`` has them, with the tails of now."""
        wanted = list(which)
        cross = self.covariance[np.ix_(wanted, list(runs))]
        left = np.diag(self.covariance)[wanted] - ((cross @ np.linalg.inv(self._measured(runs))) * cross).sum(axis=1)
        return np.asarray(self._widening[wanted] * np.sqrt(np.maximum(0.0, left) + self.noise[wanted] ** 2))

    def learnable(self, runs: Sequence[int]) -> Array:
        """Return a root of the covariance of where the means will move to: runs in columns, for draws of standard normals."""
        return np.asarray(self.scale[:, None] * (self._gain(runs) @ np.linalg.cholesky(self._measured(runs))))

    @property
    def _widening(self) -> Array:
        return np.asarray(self.scale * student_over_normal(self.freedom))

    @property
    def sigma(self) -> Array:
        """Standard deviations of the latencies as they will be measured: with the scatter of a run."""
        return np.asarray(self._widening * np.sqrt(np.maximum(0.0, np.diag(self.covariance)) + self.noise**2))

    @property
    def half_widths(self) -> Array:
        """Half widths of the 80 % ranges, as factors less 1."""
        return np.asarray(np.expm1(Z80 * self.sigma))


def lessons_of(profile: Profile | None) -> tuple[RunLesson, ...]:
    return profile.lessons if profile else ()
