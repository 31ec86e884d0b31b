"""How many of a fleet's identical replicas stand for all of them, so that thousands cost what a few cost."""

from commtax.files import table

Size = tuple[int, int]
"""Copies, and workers of prompts beside them."""


def sample_size(whole: Size, least: float = 0.0) -> Size:
    """Return how many copies and workers of prompts are simulated for a fleet: at least the share ``least`` of it, at most all.

    >>> sample_size((400, 0)), sample_size((3, 0)), sample_size((80, 40)), sample_size((3, 2))
    ((4, 0), (3, 0), (6, 3), (3, 2))
    """
    known, workers = table("judgement/fleet_sample.toml"), sum(whole)
    if not whole[1]:
        return min(whole[0], max(known["replicas"], -int(-least * whole[0] // 1))), 0
    most = max(known["pools"], int(least * workers))
    while most < workers:
        pairs = [(n, max(1, round(n * whole[1] / whole[0]))) for n in range(1, min(whole[0], most) + 1)]
        best = min((pair for pair in pairs if sum(pair) <= most), key=lambda pair: (mismatch(pair, whole), pair), default=whole)
        if mismatch(best, whole) <= known["mismatch"]:
            times = most // sum(best)
            return best[0] * times, best[1] * times
        most *= 2
    return whole


def mismatch(part: Size, whole: Size) -> float:
    """Return by which share the ratio of both kinds of workers in a part of a fleet differs from that in the whole."""
    ratio = part[0] * whole[1] / (part[1] * whole[0])
    return max(ratio, 1 / ratio) - 1


def least_share(requests: float, clients: float) -> float:
    """Return the share of a fleet that has to be simulated at least, of so many requests from so many clients."""
    known = table("judgement/fleet_sample.toml")
    return float(min(1.0, max(known["requests"] / requests, known["clients"] / clients)))
