"""What is priced comes as lines. An ``Item`` says what is sent, exactly; seconds are a matter of their own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commtax.spec import Number


@dataclass(frozen=True, slots=True)
class Item:
    """One kind of collective in a step.

    ``nbytes`` is the full tensor: what is reduced, the gathered output, the scattered input; for all-to-all what one
    rank puts in; for send-recv what one rank sends. ``count`` is how often one step does it (0: this plan does not).
    """

    what: str
    axis: str
    op: str
    nbytes: Number
    ranks: Number
    count: Number
    note: str = ""

    @property
    def is_sent(self) -> bool:
        return bool(np.any(np.asarray(self.count) > 0))

    @property
    def sent_bytes_per_rank(self) -> Number:
        """Bytes one rank sends in a step if the operation moves the least it can (a ring does).

        all-reduce 2(n-1)/n of the tensor, all-gather, reduce-scatter and all-to-all (n-1)/n, send-recv all of it.
        """
        ring = (self.ranks - 1) / self.ranks
        factor = {"all-reduce": 2 * ring, "send-recv": 1.0}.get(self.op, ring)
        return factor * self.nbytes * self.count
