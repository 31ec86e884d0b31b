"""What is missing to judge a run, in one line: a flag, a figure of the file, or constants that somebody measured."""

import math

from commtax.evidence.finding import AGREE, UNKNOWN, Audit, Finding
from commtax.thresholds import counts
from commtax.units import format_bytes, format_seconds

HEADLINES = "step, time of a token, throughput, memory or time of a collective"
CALIBRATE = "commtax measure calibrate on that machine, or commtax calibrate of its results, makes the FILE for --profile"
COUNT = counts(__name__)
COUNTED = ("bytes", "tokens")  # units that no constants of a machine change


def missing_sentence(audited: Audit) -> str:
    """Why there is no verdict on a claim, and what would make one; "" where there is one."""
    if audited.claim is None or audited.verdict != UNKNOWN:
        return ""
    unsure = [f for f in audited.findings if f.evidence and f.verdict == UNKNOWN and f.difference is not None]
    if unsure and all(f.unit in COUNTED for f in unsure):
        return "; ".join(filter(None, (unsure[0].reason, _furthest_words(unsure))))
    if unsure:
        weak = audited.claim.distrust or unsure[0].reason
        mend = "" if audited.claim.guessed else CALIBRATE
        return "; ".join(filter(None, (weak, mend, _furthest_words(unsure))))
    measured = [f for f in audited.findings if f.verdict == UNKNOWN and f.measured is not None and f.reason and not f.told]
    reasons = list(dict.fromkeys(f.reason for f in measured))[: COUNT.most_reasons]
    absent = [f.item for f in audited.findings if f.predicted is not None and f.measured is None and not f.told]
    if not reasons and absent:
        return f"the files do not tell {', '.join(absent[: COUNT.most_reasons])}"
    same = [f.item for f in audited.findings if f.verdict == AGREE]  # what was compared all the same, and is as said
    agreed = f"; as claimed: {', '.join(same)}" if 0 < len(same) <= COUNT.most_agreed else ""
    return "; ".join(reasons) or f"the files hold no {HEADLINES} that is predicted{agreed}"


def _furthest_words(unsure: list[Finding]) -> str:
    """The figure that is furthest from its assumed prediction, where one is outside its range."""
    off = [f for f in unsure if f.far_off]
    if not off:
        return ""
    worst = max(off, key=_ratio)
    how = "were counted" if worst.unit in COUNTED else "is assumed"
    return f"{worst.item} was {_figure_text(worst.measured, worst.unit)} where {_figure_text(worst.predicted, worst.unit)} {how}"


def _ratio(f: Finding) -> float:
    """How many times a figure is off, to either side."""
    if not f.predicted or not f.measured or f.predicted < 0 or f.measured < 0:
        return math.inf
    return max(f.measured / f.predicted, f.predicted / f.measured)


def _figure_text(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    return format_seconds(value) if unit == "s" else format_bytes(value) if unit == "bytes" else f"{value:,.4g}"
