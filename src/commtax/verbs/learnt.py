"""What a profile's runs tell of the latencies of a question, beside the constants that they moved (``settling``)."""

from typing import NamedTuple

import numpy as np

from commtax.catalog.posterior import LoadPoint, deployment_of, posterior_of
from commtax.ledger import Bill
from commtax.question import Question
from commtax.spec import Number
from commtax.verbs.slopes import Slopes, step_shares


class LearntRest(NamedTuple):
    """What no constant explains of a latency: a logarithm; and how sure the whole is, as standard deviations of logarithms."""

    log: Number
    sigma: Number
    scale: float  # errors over the usual ones
    scatter: Number  # of runs of one load

    def sigma_beside(self, catalogue: Number) -> Number:
        """The deviation, no wider than it was before anything was learnt: but for runs that err, or scatter, more than is usual."""
        return np.minimum(self.sigma, np.hypot(max(1.0, self.scale) * catalogue, self.scatter))


def learnt_rest(q: Question, metric: str, at: LoadPoint, slopes: Slopes, apart: bool = False) -> LearntRest:
    """Of one latency, by the profile of a question that has one."""
    assert q.profile
    asked = deployment_of(q.engine, q.cluster.chip, q.model, q.plan, apart)
    post = posterior_of(q.profile)
    return LearntRest(*post.rest(asked, metric, at, slopes), post.scale(metric), post.scatter(asked, metric))


def learnt_step_sigma(q: Question, bill: Bill) -> Number:
    """Of a decode step: as of the time per token of so many clients. What no constant explains is no line: it counts as unsure."""
    at = LoadPoint(q.batch * q.plan.dp, q.context, np.ones_like(q.context))
    rest = learnt_rest(q, "tpot", at, step_shares(bill, q.engine, q.batch))
    return np.hypot(rest.sigma, rest.log)
