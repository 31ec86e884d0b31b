"""The search for the best fleets on one cluster, and what makes one better than another. Layouts are tried in rounds of equal size,
so that the answer is the same on one core and on many, those first that the closed form thinks best."""

from collections.abc import Callable, Sequence
from math import inf, isnan

import numpy as np

from commtax import counting
from commtax.judgement.margins import margin
from commtax.planner import fleet_trials
from commtax.planner.columns import Rejected, ground
from commtax.planner.crew import Crew, Item, Made
from commtax.planner.fleet_trials import Task, Trial, longest_step, rate_of, too_slow
from commtax.planner.layouts import SLACK, Layout, all_requests, candidates
from commtax.planner.ranking import complexity_of, simplest_served
from commtax.question import Question
from commtax.records import replace
from commtax.spec import Plan
from commtax.statement import Refusal

ONE_POOL, APART, STAGES = range(3)  # kinds of layouts, those first that are soon simulated
ROUND = (4, 2, 4)  # layouts of each that are tried before it is looked again which ones may still be listed
WORSE = 1.5  # times the best's GPUs, dollars or inverse tokens: layouts beyond are left out
DETAILED = 5  # fleets, best first, whose growth and ranges are looked for
LATER = 0.1  # of what layouts of a kind's first round take, for the time left: those of later ones have something to beat
START = 2.0  # fleets that take as long to simulate as a layout's steps take to price and saturate …
DETAIL, LARGER = 2.0, 8.0  # … and as the details of a fleet take, and larger ones, or finding all layouts
NEAREST = 5  # fleets that come nearest to the limits where none holds
Progress = Callable[[int, int, Trial | None], None]  # told how many of how many layouts are done, and the best so far


def burden(trial: Trial) -> float:
    """Return what the objective minimises: GPUs, dollars per hour, or GPUs per sustainable token/s."""
    goal = trial.layout.question.goal
    if goal.objective == "tokens":
        return trial.gpus / sustained_tokens_per_s(trial)
    return trial.gpus * (goal.usd_per_gpu_hour if goal.objective == "cost" else 1.0)


def sustained_tokens_per_s(trial: Trial) -> float:
    """Output tokens/s at the highest rate that holds."""
    q = trial.layout.question
    return q.offered.request_rate * (1 + max(0.0, trial.growth)) * float(q.requests.output_len)


def order(trial: Trial) -> tuple[float, bool, float, int]:
    """Rank by the fewest, then by the growth that the rate allows. Fleets of unknown growth follow by the closed form."""
    unknown = trial.growth < 0
    return round(burden(trial), 9), unknown, -(trial.layout.throughput(*trial.size) if unknown else trial.growth), trial.gpus


def recommended_place(ranking: Sequence[Trial]) -> int:
    """Return the place of the simplest fleet within the margin of the best, of those in time and, if any, clear of their limits."""
    able = [at for at, trial in enumerate(ranking) if not trial.late] or list(range(len(ranking)))
    able = [at for at in able if ranking[at].clear] or able
    return able[simplest_place([ranking[at] for at in able])]


def simplest_place(ranking: Sequence[Trial]) -> int:
    """Return the place of the simplest fleet that the first beats by no more than the margin."""
    effort = np.array([complexity_of(x.question.plan, x.ahead, x.question.cluster) for x in (trial.layout for trial in ranking)])
    worth = np.array([1 / burden(trial) if burden(trial) else 0.0 for trial in ranking])  # without a price there is no saying
    return simplest_served(ranking[0].layout.question, effort, worth)


def _key(layout: Layout) -> tuple[Plan, Plan | None, str]:
    return layout.question.plan, layout.ahead, layout.way.backend


def kind_of(layout: Layout) -> int:
    return STAGES if layout.question.plan.pp > 1 else APART if layout.apart else ONE_POOL


class Search:
    """The search on one cluster. What it has so far is an answer at any time."""

    def __init__(self, put: Question, workers: Crew, top: int, progress: Progress | None) -> None:
        if put.plan.dcp > 1:
            raise Refusal.of("at a request rate plans are sized without split caches", (1,), dcp=put.plan.dcp)
        self.question = replace(ground(put), plan=put.plan)
        self.price = put.goal.usd_per_gpu_hour if put.goal.objective == "cost" else 1.0  # what the objective counts of a GPU
        self.workers, self.top, self.progress = workers, top, progress
        self.good, self.broken = list[Trial](), list[Trial]()
        self.rejected: tuple[Rejected, ...] = ()
        self.count = self.total = self.done = self.left_out = 0
        self.left: list[Layout] = []  # those that nobody has looked at, best first
        self.tried = [0, 0, 0]  # layouts of each kind
        self.spent, self.details = 0.0, DETAILED * DETAIL + 2 * LARGER  # effort so far, and of what follows the last layout
        self.complete = False

    def run(self) -> bool:
        """Run the search, and return whether it came to its end. An interrupt leaves what there is."""
        try:
            stream = all_requests(self.question)
            longest = int(np.max(stream.input_len + stream.output_len))
            if longest > self.question.model.max_len:
                rule = f"more than the {self.question.model.max_len:,} positions of {self.question.model.key}"
                raise Refusal.about(input_len=f"the longest request has {longest:,} tokens with its answer, {rule}")
            layouts, self.rejected, self.count = candidates(self.question, stream)
            self.total = len(layouts)
            self.left = sorted(layouts, key=lambda layout: self._bound(layout, 1.0))
            self._report_progress(LARGER)
            for kind in (ONE_POOL, APART, STAGES):  # the first says what the others have to beat
                self._rounds([x for x in layouts if kind_of(x) == kind], kind)
            self._retry_nearest()
            self._add_details(layouts)
            self.complete = True
        except KeyboardInterrupt:
            self.good.sort(key=order)
        return self.complete

    def _rounds(self, layouts: list[Layout], kind: int) -> None:
        layouts.sort(key=lambda layout: (self._bound(layout, 1.0), layout.group))  # by what the objective is likely to count
        for first in range(0, len(layouts), ROUND[kind]):
            bar, these = self._bar(kind), layouts[first : first + ROUND[kind]]
            part = [x for x in these if self._bound(x) <= bar]
            self.left_out += len(these) - len(part)
            tasks = [Task(x, self._most_gpus(bar), self.question.goal.objective == "tokens") for x in part]
            results = dict[int, Trial]()
            try:
                for place, trial in self.workers.each(fleet_trials.least_fleet, tasks):
                    results[place] = trial
                    self.left = [x for x in self.left if x is not part[place]]
                    self._report_progress(self._effort([part[place]], kind) if trial.figures else 0.0)
                    self.tried[kind] += 1
            finally:
                for place in sorted(results):  # in their order, whoever was first
                    (self.good if results[place].holds else self.broken).append(results[place])
                self.done += len(these)
                self.left = [x for x in self.left if x not in these]
            self._report_progress()

    def _report_progress(self, effort: float = 0.0) -> None:
        """Report how far the search is after so much more effort, from the layouts that are likely still to be tried."""
        self.spent += effort
        likely = WORSE * self._bound(self.left[0], 1.0) if self.left else 0.0
        bars = [self._bar(kind) if self.good else likely for kind in (ONE_POOL, APART, STAGES)]
        hopeful = [x for x in self.left if self._bound(x) <= bars[kind_of(x)]]
        ahead = sum(self._effort([x for x in hopeful if kind_of(x) == kind], kind) for kind in (ONE_POOL, APART, STAGES))
        share = self.spent / (self.spent + ahead + self.details)
        with counting.part(share, share):
            pass
        if self.progress:
            self.progress(min(self.done, self.total), self.total, min(self.good, key=order, default=None))

    def _effort(self, layouts: list[Layout], kind: int) -> float:
        """Estimate, in fleets, the effort of the next layouts of a kind: bisection finds their sizes, too slow ones take none."""
        rate, first, gpus = rate_of(self.question), max(0, ROUND[kind] - self.tried[kind]), self._most_gpus(self._bar(kind))
        most = [max(1, min(x.most, gpus // x.group)) for x in layouts]
        least = [int(rate / x.answers / SLACK) for x in layouts]
        sizes = [max(0, n - few) * (not too_slow(x, (n, 0))) for x, n, few in zip(layouts, most, least, strict=True)]
        each = [(START + n.bit_length()) * (2 if kind == APART else 1) * bool(n) for n in sizes]
        return sum(each[:first]) + LATER * sum(each[first:])

    def _bound(self, layout: Layout, slack: float = SLACK) -> float:
        """Return what the objective counts at the least."""
        if self.question.goal.objective == "tokens":
            each = layout.group / layout.answers + layout.ahead_gpus / layout.prompt_answers
            return each / slack / float(self.question.requests.output_len)
        return layout.least_gpus(rate_of(self.question), slack) * self.price

    def _bar(self, kind: int) -> float:
        """Return what a layout must not exceed to be tried: to be listed, or near the best where it takes long to simulate."""
        if not self.good:
            return inf
        ranked = sorted(self.good, key=burden)
        best = burden(ranked[0])
        one_pool = burden(next((trial for trial in ranked if not trial.layout.apart), ranked[0]))
        near = one_pool * (1 + margin(self.question))  # a simpler one may be recommended
        listed = burden(ranked[self.top - 1]) if len(ranked) >= self.top else inf
        if kind == APART and self.question.goal.objective != "tokens":  # no more than one pool, which is simpler
            return min(one_pool, best * (1 + margin(self.question)))
        return near if kind else max(near, min(WORSE * best, listed))

    def _most_gpus(self, bar: float) -> int:
        whole = self.question.cluster.num_gpus
        return whole if self.question.goal.objective == "tokens" or bar == inf else min(whole, int(bar / self.price + 1e-9))

    def _retry_nearest(self) -> None:
        """Run the nearest fleets that were never run where nothing holds, then those that are nearest instead."""
        while not self.good:
            self.broken.sort(key=lambda trial: trial.distance)
            unseen = [place for place, trial in enumerate(self.broken[:NEAREST]) if isnan(trial.capacity)]
            if not unseen:
                return
            retried = dict(self.workers.each(fleet_trials.retry_if_able, [self.broken[place] for place in unseen]))
            for at, place in enumerate(unseen):
                self.broken[place] = retried[at]
            self.good = [trial for trial in self.broken if trial.holds]
            self.broken = [trial for trial in self.broken if not trial.holds]

    def _add_details(self, layouts: list[Layout]) -> None:
        """Add growth and ranges of the first fleets, larger ones of the leaders, and the capacity of all that are listed."""
        self.good.sort(key=order)
        if not self.good:
            return
        self._list_recommended()
        first = max(sum(burden(trial) == burden(self.good[0]) for trial in self.good), min(self.top, DETAILED))
        self.details = min(first, len(self.good)) * DETAIL + 2 * LARGER
        self._replace_first(first, fleet_trials.with_details)
        self.good.sort(key=order)
        best, chosen = self.good[0], self.good[simplest_place(self.good)]
        leaders = [best] if _key(best.layout) == _key(chosen.layout) else [best, chosen]
        grown = self._do_each(fleet_trials.larger_fleets, leaders, LARGER)
        self.good += [trial for place in sorted(grown) for trial in grown[place] if trial.holds]
        self._find_safe(layouts)
        self.good.sort(key=order)
        self._list_recommended()
        self._replace_first(self.top, fleet_trials.with_capacity)
        at = recommended_place(self.good)
        for work in (fleet_trials.with_growth,) if self.good[at].ranges else (fleet_trials.with_details, fleet_trials.with_growth):
            self.good[at] = self._do_each(work, [self.good[at]], DETAIL)[0]

    def _find_safe(self, layouts: list[Layout]) -> None:
        """Find fleets of all layouts that answer in time and stay clear of their limits, on fewer GPUs than those known to."""
        least_rate = rate_of(self.question) * longest_step(self.good[0])
        safe = [trial for trial in self.good if trial.clear and not trial.late]
        least_gpus = {_key(trial.layout): trial.gpus for trial in sorted(self.good, key=burden, reverse=True)}
        least = {_key(x): max(x.least_gpus(least_rate, SLACK), least_gpus.get(_key(x), 0)) for x in layouts}
        left = [x for x in layouts if all(_key(trial.layout) != _key(x) for trial in safe)]
        left.sort(key=lambda x: (least[_key(x)], x.group))
        for first in range(0, len(left), ROUND[ONE_POOL]):
            bar = min(map(burden, safe), default=inf)
            most = self._most_gpus(bar) - (bar < inf)
            part = [x for x in left[first : first + ROUND[ONE_POOL]] if least[_key(x)] <= most]
            if not part or self.question.goal.objective == "tokens":  # these are counted per GPU
                return
            trials = self._do_each(fleet_trials.least_fleet, [Task(x, most, safe=True) for x in part], DETAIL)
            for trial in (trials[place] for place in range(len(part))):
                alike = [other for other in (*self.good, *self.broken) if _key(other.layout) == _key(trial.layout)]
                self.left_out -= not alike
                same = [other for other in alike if other.holds and other.size == trial.size]
                if trial.holds and not any(other.clear >= trial.clear for other in same):
                    self.good = [*(other for other in self.good if other not in same), trial]
                    safe += [trial] * (trial.clear and not trial.late)
                self.broken += [trial] * (not trial.holds and not alike)

    def _list_recommended(self) -> None:
        if (chosen := recommended_place(self.good)) >= self.top:
            self.good.insert(self.top - 1, self.good.pop(chosen))

    def _replace_first(self, count: int, work: Callable[[Trial], Trial]) -> None:
        first = self._do_each(work, self.good[:count], DETAIL)
        self.good[: len(first)] = [first[place] for place in range(len(first))]

    def _do_each(self, work: Callable[[Item], Made], trials: Sequence[Item], effort: float) -> dict[int, Made]:
        """Return what the work, which takes so much effort, makes of each trial, by its place."""
        made = dict[int, Made]()
        for place, one in self.workers.each(work, trials):
            made[place] = one
            counts = min(effort, self.details)  # what is known already is looked at again at the end, and takes no time
            self.details -= counts
            self._report_progress(counts)
        return made
