"""Is a technique worth what it is said to be? ``python benchmarks/judge_techniques.py DATA [--held] [--write]``.

DATA holds techniques.csv: published figures before and after. Each row is asked as laboratory/commtax_lab/published/techniques.toml
reads it, and its predicted speed-up held against the published one. Figures of sources that were held out are read with ``--held``
alone. ``--write`` writes docs/techniques.md.
"""

from __future__ import annotations

import argparse
import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from commtax_lab.published.scoring.technique_scores import (
    COUNTED,
    ScoredFlip,
    ScoredTechnique,
    is_within,
    score_flip,
    score_row,
    share_right,
    sign_is_right,
)
from commtax_lab.published.technique_rows import TechniqueReadings, held_out, read_technique_rows, technique_readings

PAGE = Path(__file__).parents[1] / "docs" / "techniques.md"
TABLE = "techniques.csv"
SETS = {"free sources": False, "held-out sources": True}


def judge(rows: Sequence[ScoredTechnique], readings: TechniqueReadings) -> Iterator[str]:
    """Lines of the summary."""
    counted = [one for one in rows if one.counted]
    priced = sum(one.priced for one in counted)
    bars = readings.bars
    yield f"**{priced} of {len(counted)}** end-to-end and op rows of high confidence are priced (bar: {bars.priced}).\n"
    yield "| | | priced | sign right | by source | near | by source |"
    yield "|---|---|---:|---:|---:|---:|---:|"
    for title, held in SETS.items():
        part = [one for one in rows if one.row.held == held]
        high = [one for one in part if one.row.confidence == "high"]
        for kind in COUNTED:
            of_kind = [one for one in high if one.row.kind == kind]
            yield _shares(title, f"{kind}, high", of_kind, readings)
        both = [one for one in high if one.row.kind in COUNTED]
        yield _shares(title, "all of high confidence", both, readings)
        unseen = [one for one in both if not one.reading or one.reading.unseen]
        yield _shares(title, "… on which no constant was fitted", unseen, readings)
        rest = [one for one in part if one.row.confidence != "high" or one.row.kind not in COUNTED]
        yield _shares(title, "medium confidence, and ratios only", rest, readings)
    if seen := [one.row.id for one in rows if one.row.held and one.reading and one.reading.seen]:
        unseen = sum(one.priced and one.row.held and not (one.reading and one.reading.seen) for one in counted)
        told = f"\nOf the held-out rows, {', '.join(seen)} had been fitted before they were held out"
        yield f"{told}; {unseen} priced ones were never seen."
    bounds = ", ".join(f"{share:.0%} of {kind}" for kind, share in bars.within.items())
    yield f"\nBars: sign right {bars.sign:.0%}; near {bounds}."


def _shares(title: str, what: str, rows: Sequence[ScoredTechnique], readings: TechniqueReadings) -> str:
    sign = share_right(rows, lambda one: sign_is_right(one, readings))
    near = share_right(rows, lambda one: is_within(one, readings))
    cells = [f"{x.right} of {x.rows} ({x.share:.0%}) | {x.by_source:.0%}" if x.rows else "– | –" for x in (sign, near)]
    return f"| {title} | {what} | {sum(one.priced for one in rows)} of {len(rows)} | {' | '.join(cells)} |"


def source_lines(rows: Sequence[ScoredTechnique], readings: TechniqueReadings) -> Iterator[str]:
    """The same by source."""
    yield "| source | | priced | sign right | near |"
    yield "|---|---|---:|---:|---:|"
    for source in dict.fromkeys(one.row.source for one in rows):
        own = [one for one in rows if one.row.source == source]
        sign = share_right(own, lambda one: sign_is_right(one, readings))
        near = share_right(own, lambda one: is_within(one, readings))
        shares = [f"{x.right} of {x.rows}" if x.rows else "–" for x in (sign, near)]
        kept = "held out" if own[0].row.held else "free"
        yield f"| <{source}> | {kept} | {sum(one.priced for one in own)} of {len(own)} | {' | '.join(shares)} |"


def flip_lines(flips: Iterable[ScoredFlip], readings: TechniqueReadings) -> Iterator[str]:
    bars = readings.bars
    right = rows = 0
    yield "| technique | loads | published speed-ups | predicted | flips at, published | predicted | right side |"
    yield "|---|---|---|---|---:|---:|---:|"
    for one in flips:
        verdicts = one.right(bars.near, bars.flip)
        right, rows = right + sum(verdicts), rows + len(verdicts)
        lists = [", ".join(f"{x:.4g}" for x in values) for values in (one.loads, one.published, one.predicted)]
        at = [f"{x:.3g}" if not math.isnan(x) else "not here" for x in (one.published_at, one.predicted_at)]
        yield f"| {one.group.title} | {' | '.join([*lists, *at])} | {sum(verdicts)} of {len(verdicts)} |"
    share = f"{right / rows:.0%}" if rows else "none"
    yield f"\n**{right} of {rows}** rows are on the right side ({share}; bar: {bars.flipped:.0%}): their sign is right, or the"
    yield f"technique is predicted to flip within a factor of {bars.flip:g} of where it does."


def row_line(one: ScoredTechnique, readings: TechniqueReadings) -> str:
    """A priced row of the page's table."""
    row, scale = one.row, readings.unit(one.row.metric)
    what = f"{row.technique}: {row.model}, {row.chip}, {row.plan}; {row.workload}; {row.metric}"
    published = _pair(row.baseline, row.value, row.speedup) if not math.isnan(row.speedup) else "held out"
    predicted = _pair(one.before * scale, one.after * scale, one.predicted)
    verdict = _verdict(one, readings) if one.scored else ""
    return f"| [{row.id}]({row.source}) | {what} | {row.kind}, {row.confidence} | {published} | {predicted} | {verdict} |"


def _pair(before: float, after: float, speedup: float) -> str:
    return f"{before:,.4g} → {after:,.4g} (**{speedup:.2f}**)"


def _verdict(one: ScoredTechnique, readings: TechniqueReadings) -> str:
    off = max(one.predicted / one.row.speedup, one.row.speedup / one.predicted)
    words = ["near" if is_within(one, readings) else f"off by {off:.2f}"]
    words += ["**wrong sign**"] * (not sign_is_right(one, readings)) + ["fitted"] * bool(one.reading and one.reading.fitted)
    words += ["seen before"] * bool(one.reading and one.reading.seen)
    return ", ".join(words)


def anchor_lines(scored: Mapping[str, ScoredTechnique], readings: TechniqueReadings) -> Iterator[str]:
    """Figures that are compared by themselves."""
    for name in readings.anchors:
        one = scored[name]
        if not one.scored:
            continue
        pairs = (("before", one.before, one.row.baseline), ("after", one.after, one.row.value))
        published = "{} {:,.0f} where {:,.0f} was published ({:+.0%})".format
        words = ", ".join(published(side, ours, theirs, ours / theirs - 1) for side, ours, theirs in pairs)
        yield f"- {name} ({one.row.technique}, {one.row.workload}): {words}."
    yield f"\nBar: within {readings.anchored_within:.0%}."


def alone_lines(rows: Iterable[ScoredTechnique], readings: TechniqueReadings) -> Iterator[str]:
    """Rows of which only the figure after is a measure."""
    for one in rows:
        if one.priced and one.reading and one.reading.judged == "after" and not math.isnan(one.row.value):
            ours, theirs = one.after * readings.unit(one.row.metric), one.row.value
            told = f"{ours:.4g} where {theirs:.4g} was published ({ours / theirs - 1:+.0%})"
            yield f"- {one.row.id}, {one.row.plan}, {one.row.workload}: {told}."


def missed_lines(rows: Iterable[ScoredTechnique], readings: TechniqueReadings) -> Iterator[str]:
    for one in rows:
        if one.scored and not (is_within(one, readings) and sign_is_right(one, readings)):
            yield f"- **{one.row.id}** ({one.row.technique}): {readings.missed.get(one.row.id, 'to be explained')}."


def refused_lines(rows: Iterable[ScoredTechnique]) -> Iterator[str]:
    by_reason: dict[str, list[str]] = {}
    for one in rows:
        if not one.priced:
            by_reason.setdefault(one.missing, []).append(one.row.id)
    yield from (f"- {', '.join(names)}: {reason}." for reason, names in by_reason.items())


def assumed_lines(rows: Iterable[ScoredTechnique]) -> Iterator[str]:
    by_reason: dict[str, list[str]] = {}
    for one in rows:
        if one.priced and one.reading and one.reading.assumed:
            by_reason.setdefault(one.reading.assumed, []).append(one.row.id)
    yield from (f"- {', '.join(names)}: {assumed}." for assumed, names in by_reason.items())


def page(rows: Sequence[ScoredTechnique], readings: TechniqueReadings) -> str:
    """docs/techniques.md."""
    scored = {one.row.id: one for one in rows}
    flips = [flip for group in readings.flips if (flip := score_flip(group, scored))]
    bars = readings.bars
    head = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["head"]
    head = head.format(count=len(rows), near=bars.near, end=bars.factor["end to end"], op=bars.factor["op"])
    table = ["| row | what | kind, confidence | published | predicted | |", "|---|---|---|---|---|---|"]
    table += [row_line(one, readings) for one in rows if one.priced and one.reading and one.reading.judged == "ratio"]
    parts = {
        "": judge(rows, readings),
        "Where they flip": flip_lines(flips, readings),
        "Anchors": anchor_lines(scored, readings),
        "By source": source_lines(rows, readings),
        "Rows": table,
        "The figure after alone": alone_lines(rows, readings),
        "Misses": missed_lines(rows, readings),
        "What cannot be priced, and what is missing": refused_lines(rows),
        "Assumed in reading": assumed_lines(rows),
    }
    sections = [f"## {title}\n\n" * bool(title) + ("\n".join(lines) or "None.") for title, lines in parts.items()]
    return "\n\n".join([head.rstrip(), *sections]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--held", action="store_true", help="read the figures of sources that were held out too")
    parser.add_argument("--write", action="store_true", help="write docs/techniques.md")
    parser.add_argument("--only", default="", help="ids of rows to print, separated by commas")
    asked = parser.parse_args()
    readings = technique_readings()
    wanted = set(filter(None, asked.only.split(",")))
    rows = read_technique_rows(asked.data / TABLE, held=asked.held)
    scored = [score_row(row, readings) for row in rows if not wanted or row.id in wanted]
    if asked.write:
        PAGE.write_text(page(scored, readings), encoding="utf-8")
    shown = [one for one in scored if asked.held or not held_out(one.row.source)]
    for one in shown:
        print(row_line(one, readings) if one.priced else f"{one.row.id} not priced: {one.missing}")
    print("\n".join(judge(scored, readings)))
    if not wanted:
        flips = [flip for group in readings.flips if (flip := score_flip(group, {one.row.id: one for one in scored}))]
        print("\n".join([*flip_lines(flips, readings), *anchor_lines({one.row.id: one for one in scored}, readings)]))


if __name__ == "__main__":
    main()
