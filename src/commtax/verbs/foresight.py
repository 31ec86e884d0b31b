"""Latencies before they are measured: how far they may lie together, and how much of that a further run would take away.

What is left after a run does not depend on what it will show, only on where it is made (``catalog/posterior.py``): so runs can be
weighed before any is made. A run shows TPOT and TTFT at its load.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Self

import numpy as np

from commtax.arrays import Array
from commtax.catalog.posterior import METRICS, Beliefs, Posterior, deployment_of, student_over_normal
from commtax.ledger import Z80
from commtax.spec import Profile, RunLesson
from commtax.verbs.closed_loop import ClosedLoop


def imagined(answer: ClosedLoop) -> list[RunLesson]:
    """The latencies of an answer as lessons that nobody has measured: those of its loads one after the other, TPOT then TTFT."""
    q, wanted, slopes = answer.question, answer.requests, answer.slopes
    where = deployment_of(q.engine, q.cluster.chip, q.model, q.plan, answer.apart is not None)
    loads = np.broadcast_arrays(*(np.atleast_1d(x) for x in (wanted.concurrency, wanted.input_len, wanted.output_len)))
    count = len(loads[0])

    def at(value: object, i: int) -> float:
        return float(np.broadcast_to(np.asarray(value, float), count)[i])

    made = []
    for i in range(count):
        clients, prompt, output = (float(x[i]) for x in loads)
        for metric in METRICS:
            seconds = at(getattr(answer, f"{metric}_s"), i)
            own = {name: at(slope, i) for name, slope in slopes[metric].items()}
            made.append(RunLesson(where, metric, clients, prompt, output, seconds, seconds, 0.0, own))
    return made


class Foresight:
    """Logarithms of latencies together, as what was learnt leaves them: means over the constants as they are, and covariance.

    Deviations are ``scale`` times the usual ones, and ranges wider by the tails of so many degrees of ``freedom``, each latency's
    own.
    """

    def __init__(self, latencies: Sequence[RunLesson], learnt: Sequence[RunLesson] = (), known: Beliefs | None = None) -> None:
        every, told = Posterior([*learnt, *latencies], known), len(learnt)
        whole, noise = every.covariance, every.noise
        self.latencies, self.noise = tuple(latencies), noise[told:]
        self.mean, self.covariance = np.zeros(len(latencies)), whole[told:, told:]
        seen = Posterior(learnt, known)
        self.scale, self.freedom = (np.array([one(x.metric) for x in latencies]) for one in (seen.scale, seen.freedom))
        if told:
            gain = whole[told:, :told] @ np.linalg.inv(whole[:told, :told] + np.diag(noise[:told] ** 2))
            self.mean = gain @ seen.residuals
            self.covariance = self.covariance - gain @ whole[:told, told:]
            more = [max(0.0, float(seen.scatter(x.deployment, x.metric)) ** 2 - x.scatter**2) / x.repeats for x in latencies]
            self.noise = np.sqrt(self.noise**2 + np.array(more) / self._widening**2)

    def after(self, runs: Sequence[int]) -> Array:
        """The covariance that is left once these latencies are measured."""
        return np.asarray(self.covariance - self._gain(runs) @ self.covariance[list(runs)])

    def _gain(self, runs: Sequence[int]) -> Array:
        which = list(runs)
        told = self.covariance[np.ix_(which, which)] + np.diag(self.noise[which] ** 2)
        return np.asarray(self.covariance[:, which] @ np.linalg.inv(told))

    def shown(self, runs: Sequence[int]) -> Self:
        """The same with those measured, as far as it is known what is left: where the means will lie is not."""
        other = type(self).__new__(type(self))
        more = Counter(self.latencies[i].metric for i in runs)
        freedom = self.freedom + [more[x.metric] for x in self.latencies]
        other.__dict__ |= self.__dict__ | {"covariance": self.after(runs), "freedom": freedom}
        return other

    def sigma_after(self, runs: Sequence[int], which: Sequence[int]) -> Array:
        """Standard deviations of some latencies once others are measured: as ``shown`` has them, with the tails of now.

        Every run takes as much of the tails, so they tell no run from another.
        """
        asked, seen = list(which), list(runs)
        cross = self.covariance[np.ix_(asked, seen)]
        told = np.linalg.inv(self.covariance[np.ix_(seen, seen)] + np.diag(self.noise[seen] ** 2))
        left = np.diag(self.covariance)[asked] - ((cross @ told) * cross).sum(axis=1)
        return np.asarray(self._widening[asked] * np.sqrt(np.maximum(0.0, left) + self.noise[asked] ** 2))

    def learnable(self, runs: Sequence[int]) -> Array:
        """A root of the covariance of where the means will move to: runs in columns, for draws of standard normals."""
        which = list(runs)
        told = self.covariance[np.ix_(which, which)] + np.diag(self.noise[which] ** 2)
        return np.asarray(self.scale[:, None] * (self._gain(runs) @ np.linalg.cholesky(told)))

    @property
    def _widening(self) -> Array:
        return np.asarray(self.scale * student_over_normal(self.freedom))

    @property
    def sigma(self) -> Array:
        """Standard deviations of the latencies as they will be measured: with the scatter of a run."""
        return np.asarray(self._widening * np.sqrt(np.maximum(0.0, np.diag(self.covariance)) + self.noise**2))

    @property
    def half_widths(self) -> Array:
        """Of the 80 % ranges, as factors less 1."""
        return np.asarray(np.expm1(Z80 * self.sigma))


def lessons_of(own: Profile | None) -> tuple[RunLesson, ...]:
    return own.lessons if own else ()
