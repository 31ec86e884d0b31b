"""How right is it after one, three and six runs? ``python benchmarks/judge_posterior.py DATA [--only publisher]``.

Every publisher and every chip is left out in turn: host times are fitted without it, and so is what is known of deployments before
they are measured (``fit_posterior.py``). Of each of its deployments some runs are shown to ``calibrate`` and the others predicted
with the profile, as a user would. Beside it: the catalogue alone (prior), and multiplying by what the shown runs were off
(scaling).
"""

from __future__ import annotations

import argparse
import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from deployments import JUDGED, KINDS, METRICS, Measured
from fit_posterior import fit, read, widened
from fit_serving import ARRAYS

from commtax import catalog
from commtax.catalog import posterior
from commtax.catalog.posterior import Beliefs
from commtax.ledger import Z80
from commtax.runs.calibrate.learning import learn
from commtax.spec import Profile
from commtax.verbs.closed_loop import simulate

SALTS = range(3)
COUNTS = (1, 3, 6)
SHOWN = 3  # of a deployment, to predict elsewhere
WORSE = 0.01


def left_out(members: Sequence[Measured], kinds: Sequence[str], kept: str) -> Iterator[tuple[str, str, Beliefs]]:
    """Each publisher and chip, and what is believed without it."""
    for kind in kinds:
        for name in dict.fromkeys(group(one, kind) for one in members if len(one) >= JUDGED):
            file = Path(f"{kept}.{kind}.{name.replace(' ', '-')}") if kept else None
            if file and file.exists():
                known: Beliefs = pickle.loads(file.read_bytes())
            else:
                others = [one for one in members if group(one, kind) != name]
                known = widened(fit(others), others)
                if file:
                    file.write_bytes(pickle.dumps(known))
            yield kind, name, known


def group(one: Measured, kind: str) -> str:
    return one.publisher if kind == "publisher" else one.at.chip


def believe(known: Beliefs) -> None:
    """From here on."""
    posterior.beliefs = lambda: known  # type: ignore[assignment]
    posterior.posterior_of.cache_clear()


def predict(one: Measured, which: Sequence[int], kind: str, own: Profile) -> dict[str, tuple[Any, Any]]:
    """Logarithms of TPOT and TTFT and their deviations, of some runs."""
    told: dict[str, list[tuple[float, float]]] = {metric: [] for metric in METRICS}
    for places in _alike(one, which):
        words = {k: v for k, v in one.questions[places[0]].items() if k not in (*ARRAYS, "engine")}
        arrays = {n: np.array([one.questions[i][n] for i in places]) for n in ARRAYS}
        load = {n: v[0].item() for n, v in arrays.items()} if len(places) == 1 else arrays
        answer = simulate(engine=one.engines[kind], profile=own, **words, **load)
        for metric in METRICS:
            name = f"{metric}_s"
            pairs = (np.broadcast_to(x, len(places)) for x in (np.log(getattr(answer, name)), answer.sigma_of(name)))
            told[metric] += list(zip(*pairs, strict=True))
    return {metric: tuple(np.array(pairs).T) for metric, pairs in told.items()}  # type: ignore[misc]


def _alike(one: Measured, which: Sequence[int]) -> list[list[int]]:
    """Runs in order, those that one call of arrays can ask for together."""
    groups: list[list[int]] = []
    words: list[str] = []
    for i in which:
        q = one.questions[i]
        stated = [(k, str(v)) for k, v in q.items() if k not in (*ARRAYS, "engine", "model", "cluster")]
        text = f"{i}" if q.get("disaggregated") else str(stated)
        if words and words[-1] == text:
            groups[-1].append(i)
        else:
            groups.append([i])
            words.append(text)
    return groups


def taught(one: Measured, shown: Sequence[int], kind: str) -> Profile:
    return learn(one.runs(shown, kind), Profile("judged")).profile


def score(one: Measured, count: int, kind: str, salt: int) -> dict[str, list[float]]:
    """Of the runs that are not shown, by metric: median error of the prior, of scaling, of the posterior; covered; half-width."""
    shown = one.spread(min(count, len(one) - 1), salt)
    rest = [i for i in range(len(one)) if i not in shown]
    told = predict(one, rest, kind, taught(one, shown, kind))
    scores = {}
    for metric in METRICS:
        prior = one.errors[kind][metric]
        off = np.log(one.seen[metric][rest]) - told[metric][0]
        sigma = told[metric][1]
        errors = (prior[rest], prior[rest] - np.mean(prior[shown]), off)
        medians = [float(np.median(np.abs(np.expm1(e)))) for e in errors]
        scores[metric] = [*medians, float(np.mean(np.abs(off) <= Z80 * sigma)), float(np.median(np.expm1(Z80 * sigma)))]
    return scores


def errors_of(one: Measured, which: Sequence[int], kind: str, own: Profile) -> dict[str, list[float]]:
    """Of some runs, by metric: median error of the prior and of the posterior, covered, half-width."""
    told = predict(one, which, kind, own)
    found = {}
    for metric in METRICS:
        off, sigma = np.log(one.seen[metric][which]) - told[metric][0], told[metric][1]
        medians = [float(np.median(np.abs(np.expm1(e)))) for e in (one.errors[kind][metric][which], off)]
        found[metric] = [*medians, float(np.mean(np.abs(off) <= Z80 * sigma)), float(np.median(np.expm1(Z80 * sigma)))]
    return found


def elsewhere(one: Measured, members: Sequence[Measured], kind: str) -> Iterator[tuple[str, dict[str, list[float]]]]:
    """Where the rest differs from what was shown: other lengths, another tp, another model of the kind."""
    lengths = [tuple(row[1:]) for row in one.load.tolist()]
    for shown_at in dict.fromkeys(lengths):
        inside = [i for i, at in enumerate(lengths) if at == shown_at]
        outside = [i for i, at in enumerate(lengths) if at != shown_at]
        if len(inside) >= SHOWN and outside:
            ordered = sorted(inside, key=lambda i: one.load[i][0])
            own = taught(one, [ordered[int((i + 0.5) / SHOWN * len(ordered))] for i in range(SHOWN)], kind)
            yield "other lengths", errors_of(one, outside, kind, own)
    own = None
    for other in members:
        where = relation(one, other)
        if where:
            own = own or taught(one, one.spread(SHOWN, 0), kind)
            yield where, errors_of(other, range(len(other)), kind, own)


def relation(one: Measured, other: Measured) -> str:
    """What a deployment is to another: the same at another tp, or another model of the kind, in one version on one chip."""
    a, b = one.at, other.at
    if one.publisher != other.publisher or (a.engine, a.version, a.chip) != (b.engine, b.version, b.chip):
        return ""
    if (a.model, a.dtype, a.pp, a.dp, a.disaggregated) == (b.model, b.dtype, b.pp, b.dp, b.disaggregated):
        return "another tp" if a.tp != b.tp and (a.ep > 1) == (b.ep > 1) else ""
    mixtures = [catalog.model(x.model).experts is not None for x in (a, b)]
    return "another model" if a.model != b.model and mixtures[0] == mixtures[1] and a.disaggregated == b.disaggregated else ""


def report(members: Sequence[Measured], kinds: Sequence[str], kept: str) -> None:
    rows: dict[tuple[str, int, str], list[Any]] = {}
    others: dict[tuple[str, str, str], list[Any]] = {}
    for kind, name, known in left_out(members, kinds, kept):
        believe(known)
        mine = [one for one in members if group(one, kind) == name]
        judged = [one for one in mine if len(one) >= JUDGED]
        print(f"without {kind} {name}: {len(judged)} deployments", flush=True)
        for one in judged:
            for count in COUNTS:
                found = [score(one, count, kind, salt) for salt in SALTS]
                for metric in METRICS:
                    rows.setdefault((kind, count, metric), []).append(np.mean([x[metric] for x in found], axis=0))
            for where, errors in elsewhere(one, mine, kind):
                for metric in METRICS:
                    others.setdefault((kind, where, metric), []).append(errors[metric])
    show(rows, others)


def show(rows: dict[tuple[str, int, str], list[Any]], others: dict[tuple[str, str, str], list[Any]]) -> None:
    for (kind, count, metric), found in rows.items():
        table = np.array(found)
        prior, scaled, ours, _, half = np.median(table, axis=0)
        worse = [np.mean(table[:, 2] > table[:, i] + WORSE) for i in (0, 1)]
        print(
            f"{kind:9} {count} shown, {metric}: prior {prior:.1%} scaling {scaled:.1%} posterior {ours:.1%}; "
            f"covers {table[:, 3].mean():.0%}, half-width {half:.1%}; "
            f"worse by a point than the prior {worse[0]:.0%}, than scaling {worse[1]:.0%} of {len(table)}"
        )
    for (kind, where, metric), found in sorted(others.items()):
        prior, ours, _, half = np.median(found, axis=0)
        covers = np.mean([x[2] for x in found])
        errors = f"prior {prior:.1%} posterior {ours:.1%}; covers {covers:.0%}, half-width {half:.1%}"
        print(f"{kind:9} {where}, {metric}: {errors} of {len(found)}")


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("data", type=Path)
    arguments.add_argument("--kept", default="", help="a file that keeps priced deployments; beliefs are kept beside it")
    arguments.add_argument("--only", choices=KINDS, default="")
    said = arguments.parse_args()
    torch.set_num_threads(1)
    report(read(said.data, said.kept), [said.only] if said.only else KINDS, said.kept)
