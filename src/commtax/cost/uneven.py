"""What all wait for where requests come by chance: the fullest batch of a pipeline, the last rank to have a prompt."""

import numpy as np

from commtax.spec import Number


def largest(count: Number, mean: Number) -> Number:
    """Mean of the largest of so many Poisson numbers, over their mean.

    >>> f"{largest(2, 4.0):.2f}"
    '1.28'
    """
    return 1 + (count - 1) / np.sqrt(1 + (count + 1) * mean)


def fullest_batch(seqs: Number, stages: Number) -> Number:
    """Requests of the fullest of a pipeline's batches, which all wait for: who comes joins an empty one, else one by chance."""
    more = np.maximum(1.0, seqs / stages) - 1
    return 1 + more * largest(stages, more)


def patience_steps(ranks: Number, came: Number, most: int) -> Number:
    """Steps that a prompt waits until each rank has one, of which so many come in a step, or until ``most`` have passed.

    The last rank has its first after 1 + 1/2 + … + 1/ranks times the time between a rank's prompts; a prompt waits half of that.
    """
    last = np.log(ranks) + np.euler_gamma + 0.5 / ranks
    return np.where(ranks > 1, 0.5 / (came / last + 1 / most), 0.0)[()] if most else 0.0
