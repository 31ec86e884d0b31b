"""Does the check of a calibrated machine cry wolf, and does it see wolves? ``python benchmarks/judge_drift.py DATA [--kept FILE]``.

Publishers are left out in turn, as in ``judge_posterior.py``. False alarms: a profile of some runs of a deployment, checked against
others of the same deployment and file. Hits: such runs with one part slower by 5, 10 or 20 % through the model, at other loads than
the profile saw, and at the same ones (what the profile saw with the usual scatter of a run): how often the check says so, and of
those how often it names the part. Files of one deployment that were measured on different days are checked too.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from deployments import JUDGED, METRICS, Measured, _asked
from fit_posterior import Rows, lessons_of, read
from judge_posterior import group, left_out

from commtax.catalog.posterior import Beliefs
from commtax.runs.calibrate.drift import PARTS, DriftCheck, judge
from commtax.runs.calibrate.learning import doubt
from commtax.spec import Engine, RunLesson

KIND = "publisher"
SLOWER = (0.05, 0.1, 0.2)
SHOWN, CHECKED = (3, 6), (1, 2, 3)
DRAWS = 4
LEAST = 1e-6  # of a logarithm: what does not run is not slowed down


def slowed(engine: Engine, part: str, share: float) -> Engine:
    """An engine whose constants of one part are larger."""
    held = {n: getattr(engine.paces if n.startswith("pace_") else engine.host, n) * (1 + share) for n in PARTS[part]}
    return engine.but(**held)


def slowdowns(one: Measured) -> dict[tuple[str, float], dict[str, Any]]:
    """By the part that is slower and how much: logarithms of what TPOT and TTFT of every run are longer by."""
    before = list(_asked(one.questions, one.engines[KIND]))
    made = {}
    for part, share in ((part, share) for part in PARTS for share in SLOWER):
        told = _asked(one.questions, slowed(one.engines[KIND], part, share))
        longer = [{m: np.log(now[m] / then[m]) for m in METRICS} for then, now in zip(before, told, strict=True)]
        made[part, share] = {m: np.array([one[m] for one in longer]) for m in METRICS}
    return made


def again(shift: dict[str, Any], known: Beliefs) -> dict[str, Any]:
    """With the scatter of two runs, for a run that was seen and is made again."""
    draw = np.random.default_rng(len(shift["tpot"]))
    return {m: shift[m] + draw.normal(0, np.sqrt(2) * known.smooth[m].noise, len(shift[m])) for m in METRICS}


def checked(a: Measured, shown: Sequence[int], b: Measured, new: Sequence[int], known: Beliefs, shift: Any = None) -> DriftCheck:
    learnt = doubt(lessons_of(Rows(a, shown, KIND)), known)
    lessons: list[RunLesson] = lessons_of(Rows(b, new, KIND))
    if shift is not None:
        moved = np.concatenate([shift[m][list(new)] for m in METRICS])
        lessons = [replace(x, residual=x.residual + more) for x, more in zip(lessons, moved.tolist(), strict=True)]
    return judge(lessons, learnt, known)


def splits(one: Measured, shown: int, new: int, draws: int) -> Iterator[tuple[list[int], list[int]]]:
    """Runs that a profile is made of, and others to check."""
    draw = np.random.default_rng(shown * 10 + new)
    for salt in range(draws):
        held = one.spread(shown, salt)
        rest = [i for i in range(len(one)) if i not in held]
        if len(rest) >= new:
            yield held, sorted(draw.choice(rest, new, replace=False).tolist())


def fresh(a: Measured, b: Measured) -> list[int]:
    """Runs of one file that are not in the other too."""
    seen = {(round(x, 9), round(y, 9)) for x, y in zip(a.seen["tpot"], a.seen["ttft"], strict=True)}
    return [i for i in range(len(b)) if (round(b.seen["tpot"][i], 9), round(b.seen["ttft"][i], 9)) not in seen]


def other_days(members: Sequence[Measured], known: Beliefs) -> Iterator[tuple[str, str, DriftCheck]]:
    """A file of a deployment against three runs of another."""
    alike = defaultdict(list)
    for one in members:
        alike[one.at].append(one)
    for a, b in ((a, b) for same in alike.values() for a in same for b in same if a.name.split()[0] != b.name.split()[0]):
        new = fresh(a, b)
        if len(new) >= 2 and len(a) >= 3:
            yield a.name, b.name.split()[0], checked(a, a.spread(min(6, len(a)), 0), b, new[:3], known)


Quiet = dict[tuple[int, int], list[DriftCheck]]
Loud = dict[tuple[str, int, str, float], list[DriftCheck]]


def main(data: Path, kept: str, every: int) -> None:
    members = read(data, kept)
    quiet: Quiet = defaultdict(list)
    loud: Loud = defaultdict(list)
    for _, name, known in left_out(members, [KIND], kept):
        mine = [one for one in members if group(one, KIND) == name and len(one) >= JUDGED]
        for one in mine:
            for shown, new in ((shown, new) for shown in SHOWN for new in CHECKED):
                quiet[shown, new] += [checked(one, held, one, some, known) for held, some in splits(one, shown, new, DRAWS)]
        for one in mine[::every]:
            slow_down(one, known, loud)
        for first, other, found in other_days([one for one in members if group(one, KIND) == name], known):
            print(f"another day: {first} | {other}: {found.verdict} ({found.probability:.3f}) {found.moved}", flush=True)
    report_alarms(quiet)
    report_hits(loud)


def slow_down(one: Measured, known: Beliefs, loud: Loud) -> None:
    """Checks of a deployment whose parts are slower."""
    for (part, share), shift in slowdowns(one).items():
        for shown in SHOWN:
            for held, new in splits(one, shown, 3, 2):
                if np.abs(np.concatenate([shift[m][new] for m in METRICS])).max() > LEAST:
                    loud["3 others checked", shown, part, share].append(checked(one, held, one, new, known, shift))
                    loud["the same checked", shown, part, share].append(checked(one, held, one, held, known, again(shift, known)))


def report_alarms(quiet: Quiet) -> None:
    for (shown, new), checks in quiet.items():
        shares = {level: np.mean([one.probability <= level for one in checks]) for level in (0.01, 0.05, 0.2)}
        said = ", ".join(f"at {level:.0%}: {share:.1%}" for level, share in shares.items())
        untold = np.mean([one.verdict == "unknown" for one in checks])
        visible = np.median([part.visible for one in checks for part in one.parts if part.name == "everything"])
        words = f"alarms {said}; cannot be told {untold:.0%}; visible {visible:.0%} ({len(checks)} checks)"
        print(f"unchanged, {shown} runs known, {new} checked: {words}")


def report_hits(loud: Loud) -> None:
    for (where, shown, part, share), checks in loud.items():
        hits = [one for one in checks if one.verdict == "drifted"]
        named, wrong = (np.mean([one.moved in which for one in hits] or [0]) for which in ((part,), {*PARTS} - {part}))
        visible = [next(p.visible for p in one.parts if p.name == part) for one in checks]
        seen = [one.verdict == "drifted" for one, least in zip(checks, visible, strict=True) if least <= share]
        told = f"{np.mean(seen):.0%} of {len(seen)}" if seen else "none"
        print(
            f"{part} {share:.0%} slower, {shown} runs known, {where}: seen {len(hits) / len(checks):.0%} of {len(checks)} "
            f"(called visible: {told}; median {np.median(visible):.0%}); named {named:.0%}, another {wrong:.0%}"
        )


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("data", type=Path)
    arguments.add_argument("--kept", default="", help="a file that keeps priced deployments; beliefs are kept beside it")
    arguments.add_argument("--every", type=int, default=1, help="slow down every n-th deployment alone")
    said = arguments.parse_args()
    torch.set_num_threads(1)
    main(said.data, said.kept, said.every)
