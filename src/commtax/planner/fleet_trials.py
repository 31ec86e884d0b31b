"""One layout under a rate, by simulation of the fleet: how many copies hold the limits, and how far the rate may grow."""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import field
from fractions import Fraction
from functools import partial
from math import ceil, exp, inf, isnan, nan

from commtax.arrays import cache_answers, cache_few_answers
from commtax.judgement.confidence import Estimate, estimate_through
from commtax.judgement.fleet_samples import Size
from commtax.judgement.leading import late_codes
from commtax.judgement.overload import longest_steps, overloaded
from commtax.ledger import Z80
from commtax.planner import layouts
from commtax.planner.layouts import ALONE, COUNTED, SLACK, Layout, is_sampled, sample_of_fleet, used_size
from commtax.planner.money import Money, counted_tokens
from commtax.question import EVEN, Question
from commtax.records import dataclass, replace
from commtax.sim.serving.running import Fleet, run
from commtax.sim.streams import arrival_times, random_numbers
from commtax.verbs.loads import first_requests, longest_of
from commtax.verbs.requests import RANGED, RequestsInTime, capacity_of, fleet_of, range_between
from commtax.verbs.settling import Settled, settle

ALL, OVER = Fraction(1), 1 + 1e-9  # of the prompts, and the least rate over what is answered where that is not enough
LOOKS = ((60, 3.0), (300, 1.5))  # requests that count in first, short runs, and how far beyond a limit one must be to be believed
KNOWN = 0.5  # of the closed form's throughput: whatever has one stage answers that much
SURE = 1.1  # times what its workers of a kind answer alone: whole fleets that were simulated answered up to 1.04 times it
TOGETHER = 0.85  # of that, at least, answer samples of two kinds: 0.86 to 0.96 where both are as busy, else more
GROWTHS = tuple(n / 100 for n in (*range(100), *range(100, 1000, 10), *range(1000, 10_000, 100)))  # as they are printed
PARTS = 16  # of them that the growth is first known to
EASY = 0.5  # times its limits, at most: what so easily holds is first tried near its capacity
SHOWN = ("ttft_mean", "ttft_p95", "ttft_p99", "tpot_mean", "tpot_p99", "itl_p95", "itl_p99", "e2e_mean", "e2e_p95")


@dataclass(frozen=True, slots=True)
class Task:
    """A layout, the GPUs that a fleet of it may have, whether the growth is wanted at once, and whether the fleet must be safe."""

    layout: Layout
    most_gpus: int
    grows: bool = False
    safe: bool = False


@dataclass(frozen=True, slots=True)
class Trial:
    """The least fleet of a layout that holds, else the nearest to it. ``over`` is its worst time over that time's limit.
    A limit is kept with a confidence where it is kept with steps as long as they are with that probability."""

    layout: Layout
    size: Size
    over: float  # at most 1: it holds, as surely as is wanted
    capacity: float  # requests/s of the fleet; not a number where nobody has looked
    figures: Mapping[str, float]  # statistics at the rate, in seconds
    simulated: int  # fleets
    stretch: float = 1.0  # steps are that much longer than predicted, at most, with the confidence that is wanted …
    sure: Mapping[str, float] = field(default_factory=dict)  # … and what is limited is then so long
    growth: float = -1.0  # share by which the rate may grow until a limit breaks; below 0: not looked for
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    sigma: float = 0.0  # of the logarithm of a step's length, where it was run
    clear: bool = False  # it stays clear of its limits and of overload by the error of predictions; see ``stays_clear``

    @property
    def holds(self) -> bool:
        return self.over <= 1

    @property
    def late(self) -> list[str]:
        """Codes of what interactive use does not bear."""
        return late_codes(self.layout.question, self.figures.get("ttft_mean", nan), self.figures.get("tpot_mean", nan))

    @property
    def distance(self) -> tuple[bool, float]:
        """Distance of a fleet from holding, less is nearer: overloaded ones last, for their times only grow with the run."""
        most = SLACK * self.layout.throughput(*used_size(self.layout, self.size)) if isnan(self.capacity) else self.capacity
        rate = rate_of(self.layout.question)
        crowded = overloaded(rate, most, self.stretch)
        return crowded, rate / most if crowded else self.over

    @property
    def sample(self) -> Size:
        """Copies, and workers of prompts, that were simulated for the fleet."""
        return sample_of_fleet(self.layout, self.size).size

    @property
    def sampled(self) -> bool:
        return self.sample != self.size

    @property
    def gpus(self) -> int:
        return self.layout.gpus(*self.size)

    @property
    def full_rate(self) -> float:
        """Requests/s that it answers within the limits at most, NaN where this was not computed."""
        if not self.layout.question.goal.slo:
            return self.capacity
        return self.layout.question.offered.request_rate * (1 + self.growth) if self.growth >= 0 else nan

    @property
    def money(self) -> Money:
        """What it costs as asked, and with as many requests as it answers. Overloaded, it answers fewer than are asked."""
        q, looked, tokens = self.layout.question, not isnan(self.capacity), float(counted_tokens(self.layout.question))
        answered = min(self.rate, self.capacity) if looked else self.rate
        used = self.rate / self.capacity if looked else None
        return Money(self.gpus, q.goal.usd_per_gpu_hour, answered * tokens, self.full_rate * tokens, used)

    @property
    def rate(self) -> float:
        """Requests/s that the figures are of: as asked, or, of a fleet that does not hold, those that it must hold."""
        q = self.layout.question
        return q.offered.request_rate if self.holds else rate_of(q)

    @property
    def kept(self) -> float | None:
        """Probability that the least sure limit is kept at the rate, or None where this was not computed."""
        goal, probabilities = self.layout.question.goal, list[float]()
        for name, limit in goal.slo:
            value = self.figures.get(name, nan)
            if self.sure.get(name, nan) > 0:
                probabilities.append(estimate_through(value, self.sure[name], goal.confidence).kept(limit))
            elif name in self.ranges:
                probabilities.append(Estimate(value, *self.ranges[name]).kept(limit))
        return min([*probabilities, self.able]) if probabilities else None

    @property
    def able(self) -> float:
        """Probability that it is not overloaded: that steps are no longer than its capacity leaves room for."""
        if isnan(self.capacity) or (self.stretch == 1 and not self.sigma):
            return 1.0
        steps = self.steps if self.stretch == 1 else estimate_through(1.0, self.stretch, self.layout.question.goal.confidence)
        return steps.kept(longest_steps(self.rate, self.capacity))

    @property
    def steps(self) -> Estimate:
        """How long steps are over what is predicted."""
        return Estimate(1.0, 1 / longest_step(self), longest_step(self))

    @property
    def probability(self) -> float:
        """Probability that it keeps its limits, if any, and is not overloaded, or 0 where it was not run."""
        return (self.able if self.kept is None else self.kept) if self.figures else 0.0


def rate_of(q: Question) -> float:
    """Return the requests/s that a fleet must hold: the offered rate and the required growth."""
    return q.offered.request_rate * (1 + q.goal.growth)


def least_fleet(task: Task) -> Trial:
    """Return the least fleet of a layout that holds, else the one that answers most."""
    layout, rate = task.layout, rate_of(task.layout.question)
    able = layouts.able_sizes(layout, rate, task.most_gpus)
    if not able:
        size = layouts.largest_size(layout, task.most_gpus)
        return Trial(layout, size, max(rate / layout.throughput(*size), OVER), nan, {}, 0)
    if slow := too_slow(layout, able[-1]):
        return Trial(layout, able[-1], ALONE * slow[1] / dict(layout.question.goal.slo)[slow[0]], nan, {}, 0)
    tried, hopeless = dict[Size, Trial](), set[Size]()

    def trial(at: int) -> Trial:
        if able[at] not in tried:
            tried[able[at]] = _trial(layout, able[at])
        return tried[able[at]]

    def holds(at: int) -> bool:
        size, longer = able[at], max((earlier.stretch for earlier in tried.values()), default=1.0)
        step = min(map(longest_step, tried.values())) if task.safe and size not in tried and tried else None
        if step is not None and not _holds_longer(layout, size, _most_answered(layout, size), step):
            return False  # run with long steps, which alone may say no
        if size not in tried and (too_slow(layout, size) or _is_overloaded(layout, size, longer)):
            hopeless.add(size)
            return False
        return trial(at).holds and not (task.safe and (trial(at).late or not stays_clear(trial(at))))

    at = layouts.first_size(layout, able, holds)
    if not holds(at):  # then that which answers most
        at = max(range(len(able)), key=lambda i: layout.throughput(*able[i]))
        if not holds(at) and able[at] in hopeless and is_sampled(layout, able[at]) and not too_slow(layout, able[at]):
            most = _most_answered(layout, able[at])  # capacity alone says that it does not hold: a run would say no more
            most = most if overloaded(rate, most) else capacity(layout, able[at])
            return Trial(layout, able[at], max(rate / most, OVER), most, {}, len(hopeless.union(tried)))
    best = replace(trial(at), simulated=len(hopeless.union(tried)))
    if task.safe:
        return replace(best, clear=stays_clear(best))
    return with_growth(best) if task.grows and best.holds else best


def too_slow(layout: Layout, size: Size) -> tuple[str, float] | None:
    """Return the limit on the time of tokens that a fleet is sure to break by the closed form, and that time."""
    q = layout.question
    unsure = layout.apart or q.goal.confidence < EVEN or q.requests.num_prompts < COUNTED  # no steady state in a short run
    return None if unsure else layout.too_slow(rate_of(q) / size[0])


def _is_overloaded(layout: Layout, size: Size, longer: float = 1.0) -> bool:
    """Return whether capacity alone shows that a fleet does not hold: of large ones with steps ``longer`` than they are priced."""
    q, rate = layout.question, rate_of(layout.question)
    if q.goal.confidence < EVEN:
        return False
    if is_sampled(layout, size):  # to saturate some takes less than to run them
        if overloaded(rate, _most_answered(layout, size), longer):
            return True
        enough = layout.apart and _is_surely_enough(layout, size, rate * longer)
        return not enough and overloaded(rate, capacity(layout, size), longer)
    if layout.apart and _most_answered(layout, size) * SURE <= rate:
        return True
    if q.goal.slo or (q.plan.pp == 1 and KNOWN * layout.throughput(*size) > rate):
        return False
    return overloaded(rate, capacity(layout, size))


def _most_answered(layout: Layout, size: Size) -> float:
    """Return the most requests/s that a fleet answers: its copies alone, or the slower of its two kinds of workers."""
    if not layout.apart:
        return capacity(layout, size)
    return min(count * alone for count, alone in zip(used_size(layout, size), _capacity_of_kinds(layout), strict=True))


def _capacity_of_kinds(layout: Layout) -> tuple[float, float]:
    """Return the requests/s that a saturated worker of either kind answers. Together they answer no more."""
    one = layout.question.but(decode_workers=1, prefill_workers=1)
    each = [one.but(tp=x.tp, dp=x.dp, ep=x.ep, prefill_tp=x.tp, prefill_dp=x.dp) for x in (one.plan, layout.ahead or one.plan)]
    return _saturation_rate(each[0], "decoding"), _saturation_rate(each[1], "prompts")


def _is_surely_enough(layout: Layout, size: Size, rate: float) -> bool:
    """Return whether a fleet is known to answer a rate before all of it is saturated."""
    if layout.apart and is_sampled(layout, size):
        return TOGETHER * _most_answered(layout, size) > rate
    return layout.question.plan.pp == 1 and KNOWN * layout.throughput(*size) > rate


def capacity(layout: Layout, size: Size) -> float:
    """Return the requests/s that a saturated fleet answers. Copies share nothing, so one of them is saturated alone."""
    if not layout.apart:
        return used_size(layout, size)[0] * _saturation_rate(layout.question)
    sample = sample_of_fleet(layout, size)
    return _saturation_rate(sample.question, decoded=sample.decoded) / float(sample.share)


@cache_answers
def _saturation_rate(q: Question, alone: str = "", decoded: Fraction = ALL) -> float:
    """Return the rate of all workers, or of those that do one kind of work alone."""
    stream = first_requests(layouts.all_requests(q), COUNTED)
    settled, fleet = _engines(q, longest_of(stream), decoded)
    if alone:
        fleet = Fleet(fleet.prompts if alone == "prompts" and fleet.prompts else fleet.workers)
    return capacity_of(stream, fleet, settled.offered.prefix_hit_rate, COUNTED, prompted=alone == "decoding")


@cache_few_answers
def _engines(q: Question, longest: int, decoded: Fraction) -> tuple[Settled, Fleet]:
    """Return a question as it is run, and its engines, which decode a share of the prompts."""
    settled = settle(q)
    return settled, replace(fleet_of(settled, longest), decoded=decoded)


def run_fleet(
    layout: Layout, size: Size, rate: float, length: tuple[int, int] | None = None, stretch: float = 1.0, most: float = inf
) -> RequestsInTime:
    """Return the run of a fleet at a rate, or the first of its requests, with steps longer by a factor than they are priced."""
    return _last_runs(layout, size, rate, length or layouts.run_lengths(sample_of_fleet(layout, size)), stretch, most)


@partial(cache_answers, most=8)  # trials of larger fleets and their ranges ask for the same runs
def _last_runs(layout: Layout, size: Size, rate: float, length: tuple[int, int], stretch: float, most: float) -> RequestsInTime:
    sample = sample_of_fleet(layout, size)
    rate *= float(sample.share)
    part, offered = first_requests(layouts.all_requests(sample.question), length[0]), sample.question.offered
    stream = replace(part, arrival_s=arrival_times(rate, len(part), offered.burstiness, random_numbers(offered.seed)[0]))
    settled, fleet = _engines(sample.question, longest_of(stream), sample.decoded)
    settled = settled.but(request_rate=rate, warmup=length[1])
    fleet, stream = fleet if stretch == 1 else fleet.scaled(stretch), first_requests(stream, most)
    return RequestsInTime(settled, stream, fleet, run(stream, fleet, settled.offered.prefix_hit_rate), settled.notes)


def worst(q: Question, outcome: RequestsInTime) -> float:
    """Return the largest ratio of a time to its limit, or 0 where nothing is limited."""
    ratios = [outcome.statistic(name) / limit for name, limit in q.goal.slo]
    return max([0.0, *(ratio for ratio in ratios if not isnan(ratio))])


def _decide_fleet(layout: Layout, size: Size, rate: float, stretch: float = 1.0, most: float = inf) -> tuple[float, RequestsInTime]:
    """Return the worst time over its limit, and the run that shows it: a short one where that is plain."""
    q, whole = layout.question, layouts.run_lengths(sample_of_fleet(layout, size))
    for counted, sure in LOOKS if q.goal.slo else ():
        warmup = min(whole[1], counted)
        if 2 * (warmup + counted) <= whole[0]:
            outcome = run_fleet(layout, size, rate, (warmup + counted, warmup), stretch)
            over = worst(q, outcome)
            if over > sure:
                return over, outcome
            if over <= 1:
                break
    outcome = run_fleet(layout, size, rate, whole, stretch, most)
    return worst(q, outcome), outcome


@cache_answers
def _trial(layout: Layout, size: Size) -> Trial:
    """Run a fleet at the rate that it must hold, with figures at the offered rate. An overloaded fleet never holds."""
    q, rate = layout.question, rate_of(layout.question)
    over, outcome = _decide_fleet(layout, size, rate)
    stretch, longer = 1.0, None
    if (over <= 1) == (q.goal.confidence > EVEN) and q.goal.confidence != EVEN:  # else it is decided: longer steps mend no limit
        stretch = stretch_of(outcome)
        longer = run_fleet(layout, size, rate, stretch=stretch) if q.goal.slo else None
        over = worst(q, longer) if longer else over
    most = nan
    if over <= 1 and not _is_surely_enough(layout, size, rate * max(1.0, stretch)):
        most = capacity(layout, size)
        over = max(rate / (most / stretch), OVER) if overloaded(rate, most, stretch) else over
    if q.goal.growth and over <= 1:
        outcome = run_fleet(layout, size, q.offered.request_rate)
        stretch = stretch if stretch == 1 else stretch_of(outcome)
        longer = run_fleet(layout, size, q.offered.request_rate, stretch=stretch) if longer else None
    limited = [name for name, _ in q.goal.slo]
    sure = {name: longer.statistic(name) for name in limited} if longer else {}
    figures = {name: outcome.statistic(name) for name in dict.fromkeys((*SHOWN, *limited))}
    return Trial(layout, size, over, most, figures, 1, stretch, sure, sigma=outcome.sigma)


def stretch_of(outcome: RequestsInTime) -> float:
    """Return how much longer than priced steps are, at most, with the confidence that is wanted."""
    step = outcome.alike
    return float(Estimate(step.tpot_s, *step.range_of("tpot_s")).sure(outcome.question.goal.confidence) / step.tpot_s)


def with_capacity(trial: Trial) -> Trial:
    return replace(trial, capacity=capacity(trial.layout, trial.size)) if isnan(trial.capacity) else trial


def with_confidence(trial: Trial) -> Trial:
    """Add a fleet's capacity, and ranges where its limited times at the confidence are not known."""
    trial = with_capacity(trial)
    return with_ranges(trial) if trial.figures and not trial.sure else trial


def sure_times(trial: Trial) -> Mapping[str, float]:
    """Return a fleet's limited times at the rate that it must hold, with steps at the required confidence."""
    q = trial.layout.question
    central = run_fleet(trial.layout, trial.size, rate_of(q))
    longer = run_fleet(trial.layout, trial.size, rate_of(q), stretch=1.0 if q.goal.confidence <= EVEN else stretch_of(central))
    # of few requests a percentile may be shorter with longer steps, and both are looked at
    return {name: max(central.statistic(name), longer.statistic(name)) for name, _ in q.goal.slo}


def retry_if_able(trial: Trial) -> Trial:
    """Add a fleet's capacity, and run it where that exceeds a rate for which the closed form predicted too little."""
    trial = with_capacity(trial)
    decided = trial.figures or overloaded(rate_of(trial.layout.question), trial.capacity)
    return trial if decided else _trial(trial.layout, trial.size)


def with_growth(trial: Trial) -> Trial:
    """Add the share by which the rate may grow, whatever growth is required: roughly first, the second time as it is printed."""
    trial, finely, q = with_capacity(trial), trial.growth >= 0, trial.layout.question
    rate, wanted = q.offered.request_rate, q.goal.growth
    most = max(wanted, longest_steps(rate, trial.capacity) / trial.stretch - 1)
    if not q.goal.slo:  # nothing breaks before the capacity
        return replace(trial, growth=most)

    def breaks(growth: float) -> bool:
        return growth > wanted and _decide_fleet(trial.layout, trial.size, rate * (1 + growth), trial.stretch)[0] > 1

    grows = GROWTHS[: bisect_left(GROWTHS, most)]
    each, first = max(1, ceil(len(grows) / PARTS)), bisect_right(grows, trial.growth) if finely else 0
    grows = grows[first : (first // each + 1) * each] if finely else grows[::each]
    if finely or not (grows and trial.over <= EASY and not breaks(grows[-1])):
        grows = grows[: bisect_left(grows, True, key=breaks)]
    return replace(trial, growth=max([wanted, trial.growth, *grows[-1:]]))


def with_ranges(trial: Trial) -> Trial:
    """Add the ranges of what is limited and shown. Only the runs with other steps are missing."""
    q, layout, size = trial.layout.question, trial.layout, trial.size
    names = dict.fromkeys(("ttft_p95", "itl_p99", *(name for name, _ in q.goal.slo)))
    if not trial.sigma or not trial.holds:
        outcome = run_fleet(layout, size, trial.rate)
        return replace(trial, ranges={name: outcome.range_of(name, outcome.step_ends) for name in names})
    factor = longest_step(trial)
    short, long = (run_fleet(layout, size, q.offered.request_rate, stretch=by, most=RANGED) for by in (1 / factor, factor))
    same = trial.figures
    if len(short.stream) < layouts.run_lengths(sample_of_fleet(layout, size))[0]:
        part = run_fleet(layout, size, q.offered.request_rate, most=RANGED)
        same = {name: part.statistic(name) for name in names}
    ends = {name: (short.statistic(name), long.statistic(name), same[name]) for name in names}
    ranges = {name: range_between(trial.figures[name], *figures) for name, figures in ends.items()}
    return replace(trial, ranges=ranges, clear=stays_clear(trial))


def longest_step(trial: Trial) -> float:
    """Return the long end of the 80 % range of a step, over what is predicted."""
    return exp(Z80 * trial.sigma)


def stays_clear(trial: Trial) -> bool:
    """Return whether a fleet holds, and is not overloaded, at the offered rate with steps at the long end of their 80 % range."""
    return trial.holds and _holds_longer(trial.layout, trial.size, with_capacity(trial).capacity, longest_step(trial))


def _holds_longer(layout: Layout, size: Size, capacity: float, factor: float) -> bool:
    """Return whether a fleet holds at the rate that is asked with steps longer by a factor."""
    q, rate = layout.question, layout.question.offered.request_rate
    return not overloaded(rate, capacity, factor) and (not q.goal.slo or _decide_fleet(layout, size, rate, factor, RANGED)[0] <= 1)


def larger_fleets(trial: Trial) -> list[Trial]:
    """Return the next larger fleet of a layout, and the smallest that stays clear of its limits where it is another."""
    layout, q = trial.layout, trial.layout.question
    most, factor = 2 * trial.gpus + layout.group + layout.ahead_gpus, longest_step(trial)
    sizes = layouts.able_sizes(layout, rate_of(q), min(most, q.cluster.num_gpus))
    able = [size for size in sizes if layouts.no_more(trial.size, size) and size != trial.size]
    if not able:
        return []
    share = with_capacity(trial).capacity / _most_answered(layout, trial.size)

    def clear(at: int) -> bool:
        few = is_sampled(layout, able[at])  # then larger ones answer the same share of what their workers do
        answered = share * _most_answered(layout, able[at]) if few else capacity(layout, able[at])
        return _holds_longer(layout, able[at], answered, factor)

    first = 0 if trial.clear else layouts.first_size(layout, able, clear)
    larger = [_trial(layout, able[at]) for at in sorted({0, first})]
    if trial.clear and (q.plan.pp > 1 or (layout.apart and trial.sampled)):  # these take longest to simulate
        return larger
    plain = len(larger) - 1 if trial.sampled else 0
    return [*larger[:plain], *(with_details(one) for one in larger[plain:])]


def with_details(trial: Trial) -> Trial:
    """Add growth and ranges in one worker, which has priced the fleet's steps."""
    return with_ranges(with_growth(trial)) if trial.holds else trial
