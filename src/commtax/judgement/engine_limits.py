"""Limits of an engine: which stop a server from starting, which to change when memory binds (the mildest that are worth it, those
that cost least first), and how many sequences to admit: room for the clients' peak, fewer where more would break a promise."""

from collections.abc import Callable, Mapping, Sequence
from math import ceil, inf, sqrt

import numpy as np

from commtax.files import table
from commtax.question import Limits
from commtax.spec import Condition, Number

LEVEL = table("judgement/engine_limits.toml")
LENGTH, SEQS, SHARE = "max_model_len", "max_num_seqs", "gpu_memory_utilization"  # as options are named
Changes = Mapping[str, float]  # limits by the names that the options and ``Limits`` have for them


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


def memory_binds(free_share: float) -> bool:
    """Return whether a plan whose caches have so much of their room free could run more requests in more room."""
    return bool(free_share < LEVEL["roomy"])


def caches_are_small(share: float) -> bool:
    """Return whether caches have so little of a GPU's memory that engine limits make much of it."""
    return bool(share < LEVEL["small"])


def safe_share(utilization_of: str, uncounted: float = 0.0) -> float:
    """Return the largest share of memory to advise: beside it is room for what engines do not count, of which so much is known."""
    return min(float(LEVEL["safe_share"][utilization_of]), 1 - uncounted)


def changes_to_try(now: Limits, utilization_of: str, chunked: bool) -> Mapping[str, tuple[float, ...]]:
    """Return the values to try of each limit, mildest first, the limits whose change costs least first."""
    chunks, share = "max_num_batched_tokens", safe_share(utilization_of)
    return {
        SEQS: tuple(n for n in LEVEL[SEQS] if n < now.max_num_seqs),  # costs nothing while no more are sent
        chunks: tuple(n for n in LEVEL[chunks] if chunked and n < now.max_num_batched_tokens),  # lengthens TTFT
        SHARE: (share,) * (share > now.gpu_memory_utilization),  # leaves less for what the engine does not count
    }


def best_changes(
    worth: Callable[[Changes], float],
    room: Callable[[Changes], float],
    tried: Mapping[str, tuple[float, ...]],
    starts: Callable[[Changes], bool],
) -> Changes:
    """Return the changes that are worth it: each must add its gain to those before it, and is the mildest that gets nearly all.

    No change is worth more than the ``room`` that it makes, which is known sooner, and no value more than a milder one with that
    of its room beyond. One that later ones make useless is left out.
    Of values that get nearly all, the mildest with which a server ``starts`` as it is comes before milder ones.

    >>> seqs = {"seqs": (512, 64), "share": (0.95,)}
    >>> best_changes(lambda on: 1.0, lambda on: 2.0 if on else 1.0, {"share": (0.95,)}, lambda on: True)
    {}
    >>> best_changes(lambda on: 9.0 if "seqs" in on else 1.0, lambda on: 1.0 + len(on), seqs, lambda on: True)
    {'seqs': 512}
    >>> best_changes(lambda on: 9.0 if "seqs" in on else 1.0, lambda on: 1.0 + len(on), seqs, lambda on: on["seqs"] < 512)
    {'seqs': 64}
    """
    kept, now, least = dict[str, float](), worth({}), 1 + LEVEL["gain"]
    for name, values in tried.items():
        had, gains, most = room(kept), dict[float, float](), inf  # most: what the milder value is worth, for each of its room
        for value in values:
            size = room(kept | {name: value})
            if size > least * had and most * size > least * now:
                gains[value] = worth(kept | {name: value})
                most = gains[value] / size
        if gains and (best := max(gains.values())) > now * least:
            good = [value for value, one in gains.items() if one >= best * LEVEL["nearly"]]
            kept[name] = next((value for value in good if starts(kept | {name: value})), good[0])
            now = gains[kept[name]]
    for name in tuple(kept):
        others = {other: value for other, value in kept.items() if other != name}
        kept = others if worth(others) >= now * LEVEL["nearly"] else kept
    return kept


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
    limit = next((size for size in graph_sizes if size >= peak), peak)
    return limit if crowded and limit < most else 0


def peak_sequences(clients: int, ranks: int) -> int:
    """Return the most of all clients' requests that one of ``ranks`` has at once.

    Requests are dealt to ranks without regard to those that they still run, so their number there varies like a count of
    independent events, by its square root.

    >>> peak_sequences(8, 1), peak_sequences(8, 4), peak_sequences(216, 3)
    (8, 7, 98)
    """
    mean = clients / ranks
    return clients if ranks == 1 else min(clients, ceil(mean + LEVEL["deviations"] * sqrt(mean)))
