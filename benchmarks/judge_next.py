"""Are the advised runs the right ones? ``python benchmarks/judge_next.py DATA [--kept FILE] [--only …] [--decisions]``.

Every publisher and every chip is left out in turn, as in ``judge_posterior.py``. Of each of its deployments some runs are shown and
the others predicted: two or three chosen as ``calibrate --next`` does, from the deployment's own measured loads, against runs that
are drawn at random. Beside that, decisions (``decisions.py``) before and after three runs, chosen likewise, of every deployment
that a group is made of.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from decisions import CONFIDENCES, NEAR, TIMES, Decision, Point, between_points, on_points, rate, report
from deployments import JUDGED, KINDS, METRICS, Measured
from fit_posterior import Rows, lessons_of, read
from judge_posterior import believe, group, left_out, predict, taught

from commtax.catalog.posterior import Beliefs
from commtax.judgement.confidence import Estimate
from commtax.ledger import Z80
from commtax.runs.calibrate.advising import best_runs
from commtax.runs.calibrate.learning import doubt
from commtax.spec import Profile
from commtax.verbs.profiles import Foresight

DRAWS = 24
SHOWN = 3
REQUESTS_PER_CLIENT = 10
NONE, ALL, THESE = "no run", "three runs for all lengths", "three runs for the lengths of the decision"


def chosen(one: Measured, count: int, kind: str, known: Beliefs, asked: Sequence[int] = ()) -> list[int]:
    """Runs as they are advised, before anything was run, for all of a deployment's measured loads or for some."""
    size = len(one)
    wanted = [i + at for at in (0, size) for i in asked or range(size)]
    foreseen = Foresight(lessons_of(Rows(one, range(size), kind)), (), known)
    pairs = {i: (i, size + i) for i in range(size)}
    output = np.exp2(one.load[:, 2])
    seconds = dict(enumerate((REQUESTS_PER_CLIENT * (one.seen["ttft"] + (output - 1) * one.seen["tpot"])).tolist()))
    taken = best_runs(foreseen, wanted, pairs, seconds, count)
    spare = sorted((i for i in range(size) if i not in taken), key=lambda i: seconds[i])  # nothing is left to narrow: any will do
    return sorted([*taken, *spare][:count])


def errors(one: Measured, shown: Sequence[int], kind: str, known: Beliefs) -> list[float]:
    """Median errors of TPOT and TTFT of the runs that are not shown, with slopes where the catalogue has them."""
    rest = Rows(one, [i for i in range(len(one)) if i not in shown], kind)
    foreseen = Foresight(lessons_of(rest), doubt(lessons_of(Rows(one, shown, kind)), known), known)
    off = np.split(rest.errors.numpy() - foreseen.mean, len(METRICS))
    return [float(np.median(np.abs(np.expm1(x)))) for x in off]


def compare(one: Measured, kind: str, known: Beliefs) -> dict[str, Any]:
    """Errors after chosen runs, and the mean after random ones."""
    draw = np.random.default_rng(len(one.name) + len(one))
    drawn = {count: [draw.choice(len(one), count, replace=False).tolist() for _ in range(DRAWS)] for count in (2, SHOWN)}
    found = {f"random {n}": np.mean([errors(one, sorted(x), kind, known) for x in sets], axis=0) for n, sets in drawn.items()}
    return found | {f"chosen {n}": np.array(errors(one, chosen(one, n, kind, known), kind, known)) for n in (1, 2, SHOWN)}


def report_choices(kind: str, rows: Sequence[dict[str, Any]]) -> None:
    table = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    for name, values in table.items():
        medians = " ".join(f"{m} {x:.1%}" for m, x in zip(METRICS, np.median(values, axis=0), strict=True))
        print(f"{kind} {name}: {medians} of {len(rows)} deployments")
    for name in ("random 2", "chosen 1", "chosen 2", "chosen 3"):
        reached = np.mean(table[name] <= table["random 3"], axis=0)
        both = np.mean(np.log(table[name] / table["random 3"]).mean(axis=1) <= 0)
        said = f"tpot {reached[0]:.0%}, ttft {reached[1]:.0%}, both together {both:.0%}"
        print(f"{kind} {name} reach the error of three random ones: {said}", flush=True)


def points(one: Measured, which: Sequence[int], kind: str, own: Profile | None) -> list[tuple[tuple[str, ...], Point]]:
    """Runs of a deployment as points of decisions, by the group that they stand in."""
    told = predict(one, which, kind, own or Profile("nothing"))
    made = []
    for place, i in enumerate(which):
        q = one.questions[i]
        real = {f"{m}_s": float(one.seen[m][i]) for m in METRICS}
        logs = {f"{m}_s": (float(told[m][0][place]), float(told[m][1][place])) for m in METRICS}
        known = {n: Estimate(*(float(np.exp(log + side * Z80 * sigma)) for side in (0, -1, 1))) for n, (log, sigma) in logs.items()}
        gpus = float(one.at.tp * one.at.pp * one.at.dp)
        ask = (int(q["concurrency"]), int(q["output_len"]), gpus)
        guess = {n: float(x.value) for n, x in known.items()}
        at = one.at
        key = (one.name.split()[0], at.engine, at.version, at.chip, at.model, at.dtype, str(q["input_len"]), str(q["output_len"]))
        made.append((key, Point(at.tp, real, rate(*ask, real), known, rate(*ask, guess), q["model"].experts is not None, "")))
    return made


def decided(members: Iterable[Measured], kind: str, after: str, known: Beliefs) -> list[list[Point]]:
    """Groups that leave a choice, each deployment after some runs of its own."""
    held: dict[tuple[str, ...], list[Point]] = defaultdict(list)
    for one in members:
        if one.at.disaggregated or one.drafts:
            continue
        count, lengths = min(SHOWN, len(one)), [tuple(row[1:]) for row in one.load.tolist()]
        own = taught(one, chosen(one, count, kind, known), kind) if after == ALL else None
        for alike in dict.fromkeys(lengths):
            which = [i for i, pair in enumerate(lengths) if pair == alike]
            if after == THESE:
                own = taught(one, chosen(one, count, kind, known, which), kind)
            for key, point in points(one, which, kind, own):
                held[key].append(point)
    return [g for g in held.values() if len(g) >= 4 and len({p.tp for p in g}) > 1]


def weighed(group: list[Point], name: str, limit_s: float) -> Decision:
    """The point with the most expected tokens/s/GPU within the limit: rate times the probability that the limit is kept."""
    best = max(p.rate for p in group if p.measured[name] <= limit_s)
    taken = max(group, key=lambda p: (p.predicted_rate * p.predicted[name].kept(limit_s), -float(p.predicted[name].value)))
    broken = taken.measured[name] > limit_s * (1 + 1e-9)
    return Decision(0.0 if broken else min(1.0, taken.rate / best), broken)


def report_weighed(every: list[list[Point]], name: str, limits: Callable[[list[Point], str], list[float]]) -> str:
    made = [weighed(g, name, limit) for g in every for limit in limits(g, name)]
    right, near = (np.mean([d.share > 1 - loss for d in made]) for loss in (1e-9, NEAR))
    broken, kept = np.mean([d.broken for d in made]), np.mean([d.share for d in made])
    words = f"right {right:.1%} (within {NEAR:.0%}: {near:.1%}), limit broken {broken:.1%}, goodput kept {kept:.1%}"
    return f"  by expected goodput: {words}"


def main(data: Path, kept: str, kinds: Sequence[str], decisions: bool) -> None:
    members = read(data, kept)
    for kind in kinds:
        rows: list[dict[str, Any]] = []
        groups: dict[str, list[list[Point]]] = {NONE: [], ALL: [], THESE: []}
        for _, name, known in left_out(members, [kind], kept):
            believe(known)
            mine = [one for one in members if group(one, kind) == name]
            rows += [compare(one, kind, known) for one in mine if len(one) >= JUDGED]
            for after in groups if decisions else ():
                groups[after] += decided(mine, kind, after, known)
        report_choices(kind, rows)
        for after, every in groups.items() if decisions else ():
            for place, limits in (("between", between_points), ("on", on_points)):
                for metric in TIMES:
                    print(f"{kind}, after {after}: {metric} limits {place} points, {len(every)} groups")
                    for confidence in CONFIDENCES:
                        print(report(every, metric, limits, confidence))
                    print(report_weighed(every, metric, limits), flush=True)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("data", type=Path)
    arguments.add_argument("--kept", default="", help="a file that keeps priced deployments; beliefs are kept beside it")
    arguments.add_argument("--only", choices=KINDS, default="")
    arguments.add_argument("--decisions", action="store_true", help="also decisions before and after three runs (minutes)")
    said = arguments.parse_args()
    torch.set_num_threads(1)
    main(said.data, said.kept, [said.only] if said.only else KINDS, said.decisions)
