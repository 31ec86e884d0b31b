"""Whether a measured collective takes as long as it should: one time, all times of a test, and the one that tells most.
A test cannot pass with a time that no link could carry, which is of something else, or where every range is assumed."""

from collections.abc import Collection, Sequence

PASS, FAIL, UNDECIDED = "pass", "fail", "undecided"  # verdicts on a test
ASSUMED, IMPOSSIBLE = "assumed", "impossible"  # why one time is undecided


def judge_time(measured_s: float, high_s: float, floor_s: float, assumed: bool) -> str:
    """Judge one time by the upper end of its range and the time that its bytes alone take on the link.

    >>> judge_time(5.0, 4.0, 1.0, False), judge_time(0.5, 4.0, 1.0, False), judge_time(3.0, 4.0, 1.0, True)
    ('fail', 'impossible', 'assumed')
    """
    if measured_s > high_s:
        return FAIL
    if not measured_s >= floor_s:  # nor is a time that is no number
        return IMPOSSIBLE
    return ASSUMED if assumed else PASS


def judge_test(verdicts: Collection[str], faulty: bool = False) -> str:
    """Judge a test by its times. ``faulty``: what was measured is no sound test, however long it took.

    >>> judge_test(["pass", "assumed"]), judge_test(["pass", "impossible"]), judge_test(["assumed"]), judge_test(["pass", "fail"])
    ('pass', 'undecided', 'undecided', 'fail')
    """
    if faulty or FAIL in verdicts:
        return FAIL
    return PASS if PASS in verdicts and IMPOSSIBLE not in verdicts else UNDECIDED


def telling_time(sizes: Sequence[float], verdicts: Sequence[str]) -> int:
    """Return the place of the largest size that fails, else of the largest.

    >>> telling_time([8, 64, 512], ["pass", "fail", "pass"]), telling_time([8, 64], ["pass", "assumed"])
    (1, 1)
    """
    return max([i for i, verdict in enumerate(verdicts) if verdict == FAIL] or range(len(sizes)), key=lambda i: sizes[i])
