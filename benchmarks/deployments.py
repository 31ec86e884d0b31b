"""Deployments of published serving runs, each priced by a catalogue whose host times were fitted without its publisher or chip.

A deployment: file, engine, version, model, chip, number format, mode and sizes, with at least three distinct runs.
"""

from __future__ import annotations

import csv
import hashlib
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from fit_serving import ARRAYS, HOST, METRICS, Pool, engine_at, file_of, folds, grouped, groups, levels

from commtax.catalog.posterior import deployment_of
from commtax.runs.calibrate.measurements import MeasuredRun
from commtax.spec import Deployment, Engine
from commtax.verbs.closed_loop import simulate
from commtax_lab.published.rows import publisher
from commtax_lab.published.serving_rows import may_draft, measured_means, question

FEWEST = 3
JUDGED = 7  # distinct runs of a deployment that is judged
KINDS = ("publisher", "chip")
SIZES = ("tp", "pp", "dp", "ep", "prefill_workers", "decode_workers", "prefill_tp", "prefill_dp")


@dataclass(frozen=True)
class Measured:
    """Runs of one deployment: arrays of one length, and what a prior fitted without its publisher or chip says of them."""

    name: str
    publisher: str
    at: Deployment
    drafts: bool
    questions: Sequence[dict[str, Any]]
    engines: Mapping[str, Engine]  # by the kind of group that the prior was fitted without
    seen: Mapping[str, Any]  # seconds by metric
    errors: Mapping[str, Mapping[str, Any]]  # ln(measured / predicted), by kind and metric
    slopes: Mapping[str, Any]  # by metric: a row for each run, a column for each constant
    load: Any  # doublings of clients, input and output

    def __len__(self) -> int:
        return len(self.questions)

    def runs(self, which: Sequence[int], kind: str) -> list[MeasuredRun]:
        """As ``calibrate`` reads them."""
        made = []
        for i in which:
            options = {**self.questions[i], "engine": self.engines[kind]}
            model, cluster = options.pop("model"), options.pop("cluster")
            measured = {metric: float(self.seen[metric][i]) for metric in METRICS}
            made.append(MeasuredRun(model, cluster, options, measured, {}, f"{self.name} run {i:03d}"))  # type: ignore[arg-type]
        return made

    def spread(self, count: int, salt: int) -> list[int]:
        """Runs that lie evenly over the loads; of those of one load any."""
        mixed = [hashlib.sha256(f"{salt} {row.tolist()}".encode()).hexdigest() for row in self.load]
        order = sorted(range(len(self)), key=lambda i: (self.load[i][0], mixed[i]))
        return sorted({order[int((i + 0.5) / count * len(order))] for i in range(count)})


def deployments(folder: Path, names: Sequence[str]) -> list[Measured]:
    """All of them, priced by priors that were fitted without their publisher, and without their chip."""
    pool = Pool(groups(folder))
    x, (errors, slopes) = pool.fit()
    left = [(kind, name, np.where(rows, 0.0, pool.every)) for kind, name, rows in folds(pool, KINDS)]
    priors = {(kind, name): pool.solve(x, errors, slopes, weights) for kind, name, weights in left}
    found = [_measured(members, pool, x, priors, names) for members in _members(folder)]
    return [one for one in found if one is not None]


def _members(folder: Path) -> Iterator[list[tuple[dict[str, str], dict[str, Any]]]]:
    parts: dict[tuple[Any, ...], dict[tuple[Any, ...], tuple[dict[str, str], dict[str, Any]]]] = defaultdict(dict)
    for row in (row for path in sorted(folder.glob("serving_runs*.csv")) for row in csv.DictReader(path.open())):
        try:
            asked: dict[str, Any] = dict(question(row))
        except ValueError:
            continue
        if len(measured_means(row)) < len(METRICS):
            continue
        kind = (row["backend"], row["backend_version"], row["model_path"], row["system"], row["precision"], row["mode"])
        sizes = (asked.get(size, 0) for size in SIZES)
        key = (file_of(row), *kind, *sizes, str(asked.get("dtype")), asked["engine"].serves.batch_wait)
        parts[key].setdefault((asked["concurrency"], asked["input_len"], asked["output_len"]), (row, asked))
    return (list(runs.values()) for runs in parts.values() if len(runs) >= FEWEST)


def _measured(
    members: list[tuple[dict[str, str], dict[str, Any]]],
    pool: Pool,
    x: Any,
    priors: Mapping[tuple[str, str], Any],
    names: Sequence[str],
) -> Measured | None:
    row, asked = members[0]
    engine, model, chip = asked["engine"], asked["model"], asked["cluster"].chip
    like = grouped(engine, chip, model, asked["dtype"], publisher(row), file_of(row))
    engines, errors, first = {}, {}, None
    seen = {m: np.array([measured_means(r)[f"{m}_s"] for r, _ in members]) for m in METRICS}
    try:
        for kind, name in zip(KINDS, (publisher(row), chip.key), strict=True):
            known = priors.get((kind, name), x)
            logs = {f: sum(known[pool.index[lv]] for lv in levels(like, f) if lv in pool.index and lv[1] != "p") for f in HOST}
            engines[kind] = engine_at(like, logs)
            told = list(_asked([q for _, q in members], engines[kind]))
            errors[kind] = {m: np.log(seen[m] / np.array([one[m] for one in told])) for m in METRICS}
            first = first or told
    except ValueError:
        return None  # no such plan runs
    assert first
    slopes = {m: np.array([[one[f"{m} slopes"].get(n, 0.0) for n in names] for one in first]) for m in METRICS}
    load = np.log2([[q[n] for n in ("concurrency", "input_len", "output_len")] for _, q in members])
    at = first[0]["at"]
    sizes = f"tp {at.tp} dp {at.dp} ep {at.ep}"
    version, path = row["backend_version"], row["model_path"]
    name = f"{file_of(row)} {at.engine}@{version} {path} {chip.key} {row['precision']} {sizes}"
    drafts = any(may_draft(r) for r, _ in members)
    return Measured(name, publisher(row), at, drafts, [q for _, q in members], engines, seen, errors, slopes, load)


def _pick(place: int, count: int, value: Any) -> float:
    return float(np.broadcast_to(value, count)[place])


def _asked(questions: Sequence[dict[str, Any]], engine: Engine) -> Iterator[dict[str, Any]]:
    """TPOT, TTFT and their slopes of every run; runs of one kind are one call of arrays."""
    alike: dict[Any, list[int]] = defaultdict(list)
    for i, q in enumerate(questions):
        words = tuple((k, str(v)) for k, v in q.items() if k not in (*ARRAYS, "engine", "model", "cluster"))
        alike[i if q.get("disaggregated") else words].append(i)
    told: dict[int, dict[str, Any]] = {}
    for places in alike.values():
        words = {k: v for k, v in questions[places[0]].items() if k not in (*ARRAYS, "engine")}
        arrays = {n: np.array([questions[i][n] for i in places]) for n in ARRAYS}
        one = {n: v[0].item() for n, v in arrays.items()} if len(places) == 1 else arrays
        answer = simulate(engine=engine, **words, **one)
        q, slopes = answer.question, answer.slopes
        for j, i in enumerate(places):
            pick = partial(_pick, j, len(places))
            sizes = {s: int(pick(getattr(q.plan, s))) for s in ("tp", "pp", "dp", "ep")}
            plan = type(q.plan)(**sizes, weights_dtype=q.plan.weights_dtype)
            told[i] = {m: pick(getattr(answer, f"{m}_s")) for m in METRICS}
            told[i] |= {f"{m} slopes": {n: pick(v) for n, v in slopes[m].items()} for m in METRICS}
            told[i] |= {"at": deployment_of(q.engine, q.cluster.chip, q.model, plan, answer.apart is not None)}
    return (told[i] for i in range(len(questions)))
