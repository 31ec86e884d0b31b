"""How many of a fleet's identical replicas stand for all of them, so that thousands cost what a few cost."""

from math import ceil

from commtax.files import table

LEVEL = table("judgement/fleet_sample.toml")
Size = tuple[int, int]  # copies, and workers of prompts beside them


def sample_size(whole: Size, least: float = 0.0, chosen: bool = False) -> Size:
    """Return how many copies and workers of prompts are simulated for a fleet: at least the share ``least`` of it, at most all.

    Workers of prompts are a share of theirs that is no smaller than that of the copies, which decode a part of their prompts.
    ``chosen``: the router looks at the replicas' load before it chooses one.

    >>> sample_size((400, 0)), sample_size((3, 0)), sample_size((80, 40)), sample_size((20, 100)), sample_size((3, 2))
    ((2, 0), (3, 0), (2, 2), (2, 10), (3, 2))
    """
    copies, prompts = whole
    if max(whole) <= LEVEL["small"]:
        return whole
    few = min(copies, max(LEVEL["pools" if prompts else "chosen" if chosen else "replicas"], ceil(least * copies)))
    if not prompts:
        return few, 0
    few = max(1, min(few, LEVEL["prompt_workers"] * copies // prompts))
    return few, min(prompts, max(LEVEL["pools"], ceil(few * prompts / copies)))


def least_share(requests: float, clients: float) -> float:
    """Return the share of a fleet that has to be simulated at least, of so many requests from so many clients."""
    return float(min(1.0, max(LEVEL["requests"] / requests, LEVEL["clients"] / clients)))


def unused_size() -> int:
    """Return how many replicas are simulated beside those that a router by prefixes sends repeated text to."""
    return int(LEVEL["unused"])
