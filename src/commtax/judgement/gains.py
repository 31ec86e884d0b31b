"""Whether a change of a deployment pays: its gain for whole requests, that gain's range, and what is left of it in a full cache.
A gain is a rate with the change over the rate without it, so that 1 is no gain."""

from commtax.thresholds import levels

LEVEL = levels(__name__)
ALIKE = LEVEL.alike
REFUSED, NO_ROOM, SAME = "not here", "does not fit", "changes nothing"
GAINS, LOSES, UNDECIDED = "gains", "loses", "undecided"
SET, MEASURE, WHEN_FULL, NO_GAIN, LEAVE = "set", "measure", "when-full", "no-gain", "leave"


def verdict_on_gain(gain: float, low: float, high: float, fits: bool = True) -> str:
    """Judge a gain: no change, no room, or by its 80 % range a gain or a loss where the whole range is one, else undecided.

    >>> verdict_on_gain(1.2, 1.05, 1.4), verdict_on_gain(1.2, 0.9, 1.6), verdict_on_gain(1.0, 1.0, 1.0)
    ('gains', 'undecided', 'changes nothing')
    """
    if abs(gain - 1) < ALIKE:
        return SAME
    if not fits:
        return NO_ROOM
    return GAINS if low > 1 else LOSES if high < 1 else UNDECIDED


def advice_on_gain(verdict: str, gain: float, full_gain: float) -> str:
    """Return what to do about a gain: set it, measure it, set it once the cache is full, or leave it. "" is no advice.

    ``full_gain``: of the largest batches that fit, for what makes room in the cache or takes some. An uncertain loss
    is then no reason to leave it.

    >>> advice_on_gain("undecided", 0.97, 1.2), advice_on_gain("undecided", 1.1, 1.2)
    ('when-full', 'measure')
    """
    if verdict != UNDECIDED:
        return {GAINS: SET, LOSES: LEAVE}.get(verdict, "")
    return MEASURE if is_worth_telling(gain) else WHEN_FULL if is_worth_telling(full_gain) else NO_GAIN


def is_lost_when_full(gain: float, full_gain: float) -> bool:
    """Return whether a gain turns into a loss once the cache is full."""
    return gain > 1 and full_gain < 1 - LEVEL.told


def is_worth_telling(gain: float) -> bool:
    """Return whether a gain is large enough to be mentioned beside another answer."""
    return gain > 1 + LEVEL.told


def moves_running(before: float, after: float) -> bool:
    """Return whether so many more requests run at once, or so many fewer, that the gain alone is half of the story.

    >>> moves_running(5, 16), moves_running(16, 16.2), moves_running(1.2, 1.4)
    (True, False, False)
    """
    return round(before) != round(after) and abs(after / before - 1) > LEVEL.grown


def is_led_by_prompts(ttft_s: float, tpot_s: float, output_len: float) -> bool:
    """Return whether most of a request's time passes before its first token, so that decoding gains by the outputs' length."""
    return ttft_s > (output_len - 1) * tpot_s > 0


def moves_time(before_s: float, after_s: float) -> bool:
    """Return whether a time grows so much beside a gain, or falls so much, that the gain alone is half of the story.

    >>> moves_time(0.115, 0.352), moves_time(0.115, 0.12), moves_time(158, 14)
    (True, False, True)
    """
    return after_s > before_s * (1 + LEVEL.grown) or after_s < before_s * (1 - LEVEL.fallen)
