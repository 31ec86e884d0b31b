"""What stops a server from starting: a cache without room for one request of full length, or with fewer blocks than sequences."""

import numpy as np

from commtax.spec import Condition, Number

LENGTH, SEQS = "max_model_len", "max_num_seqs"
"""The limits that can be too large, as options are named."""


def starts(requests: Number, seqs: Number = 0, most_seqs: Number = np.inf) -> Condition:
    """Return whether a cache that holds so many ``requests`` of full length, and lets ``most_seqs`` run, is enough."""
    return (np.asarray(requests) >= 1) & (np.asarray(seqs) <= most_seqs)


def stopped_by(requests: float, seqs: float, most_seqs: float) -> str:
    """Return which limit stops a server from starting: the length of its requests, else their number. "" where it starts.

    >>> stopped_by(0.8, 1024, 600), stopped_by(3.0, 1024, 600), stopped_by(3.0, 512, 600)
    ('max_model_len', 'max_num_seqs', '')
    """
    if starts(requests, seqs, most_seqs):
        return ""
    return SEQS if starts(requests) else LENGTH
