"""How many sequences a server is told to run at once: room for its clients' peak, and a limit where more would break a promise."""

from bisect import bisect_left
from collections.abc import Sequence
from math import ceil, sqrt

from commtax.files import table


def sequences_to_admit(clients: int, ranks: int, most: int, crowded: bool, graph_sizes: Sequence[int] = ()) -> int:
    """Return the sequences that each rank may run at once: 0 leaves the engine's own limit, which is ``most``.

    ``crowded``: with as many as the engine would admit, a promised time would be broken. The peak is rounded up to the captured
    graph that such a step runs in anyway.

    >>> sequences_to_admit(216, 3, 1024, crowded=True, graph_sizes=(64, 80, 96, 104))
    104
    >>> sequences_to_admit(216, 3, 1024, crowded=False), sequences_to_admit(216, 1, 128, crowded=True)
    (0, 0)
    """
    peak = peak_sequences(clients, ranks)
    at = bisect_left(graph_sizes, peak)
    limit = graph_sizes[at] if at < len(graph_sizes) else peak
    return limit if crowded and limit < most else 0


def peak_sequences(clients: int, ranks: int) -> int:
    """Return the most of all clients' requests that one of ``ranks`` has at once.

    Requests are dealt to ranks without regard to those that they still run, so their number there varies like a count of
    independent events, by its square root.

    >>> peak_sequences(8, 1), peak_sequences(8, 4), peak_sequences(216, 3)
    (8, 7, 98)
    """
    mean = clients / ranks
    return clients if ranks == 1 else min(clients, ceil(mean + table("judgement/admission.toml")["deviations"] * sqrt(mean)))
