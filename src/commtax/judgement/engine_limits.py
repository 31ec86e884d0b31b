"""When memory binds, and which limits of an engine to change then: the mildest that are worth it, those that cost least first."""

from collections.abc import Callable, Mapping
from math import inf

from commtax.files import table
from commtax.judgement.starting import SEQS
from commtax.question import Limits

SHARE = "gpu_memory_utilization"
Changes = Mapping[str, float]
"""Limits by the names that the options and ``Limits`` have for them."""


def memory_binds(free_share: float) -> bool:
    """Return whether a plan whose caches have so much of their room free could run more requests in more room."""
    return bool(free_share < table("judgement/engine_limits.toml")["roomy"])


def caches_are_small(share: float) -> bool:
    """Return whether caches have so little of a GPU's memory that engine limits make much of it."""
    return bool(share < table("judgement/engine_limits.toml")["small"])


def safe_share(utilization_of: str, uncounted: float = 0.0) -> float:
    """Return the largest share of memory to advise: beside it is room for what engines do not count, of which so much is known."""
    return min(float(table("judgement/engine_limits.toml")["safe_share"][utilization_of]), 1 - uncounted)


def changes_to_try(now: Limits, utilization_of: str, chunked: bool) -> Mapping[str, tuple[float, ...]]:
    """Return the values to try of each limit, mildest first, the limits whose change costs least first.

    Fewer sequences cost nothing while no more are sent, smaller chunks lengthen TTFT, and a larger share of memory leaves less for
    what the engine does not count.
    """
    tried = table("judgement/engine_limits.toml")
    share = safe_share(utilization_of)
    return {
        SEQS: tuple(n for n in tried[SEQS] if n < now.max_num_seqs),
        "max_num_batched_tokens": tuple(n for n in tried["max_num_batched_tokens"] if chunked and n < now.max_num_batched_tokens),
        SHARE: (share,) * (share > now.gpu_memory_utilization),
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
    level = table("judgement/engine_limits.toml")
    kept, now, least = dict[str, float](), worth({}), 1 + level["gain"]
    for name, values in tried.items():
        had, gains, most = room(kept), dict[float, float](), inf  # most: what the milder value is worth, for each of its room
        for value in values:
            size = room(kept | {name: value})
            if size > least * had and most * size > least * now:
                gains[value] = worth(kept | {name: value})
                most = gains[value] / size
        if gains and (best := max(gains.values())) > now * least:
            good = [value for value, one in gains.items() if one >= best * level["nearly"]]
            kept[name] = next((value for value in good if starts(kept | {name: value})), good[0])
            now = gains[kept[name]]
    for name in tuple(kept):
        others = {other: value for other, value in kept.items() if other != name}
        kept = others if worth(others) >= now * level["nearly"] else kept
    return kept
