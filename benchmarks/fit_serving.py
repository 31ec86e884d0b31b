"""Pool the constants of serving engines over published runs: ``python benchmarks/fit_serving.py DATA [--write]``.

DATA is a folder with ``serving_runs*.csv``. Every constant is a common value times effects of engine, version, chip, number
format, kind and family of model (natural logarithms), each drawn towards none by a prior whose width is the spread between
groups. Damped Gauss-Newton steps on log errors of TPOT and TTFT, a row weighted down as it strays (Cauchy), runs that stand in
several tables counted once. Half of the runs are fitted (``commtax.readers.published.serving.may_fit``), the others test; runs
that may have drafted tokens do neither.

Then every engine, chip and family is left out in turn, all runs of the others fitted again (around the full fit), and what was
left out predicted. From those errors come the ranges of ``catalog/transfer.toml``; whether they hold is judged on each group
with widths from the other groups. ``--write`` writes ``catalog/paces.toml``, ``catalog/transfer.toml``, ``validate/transfer.toml``
and the times of engines and versions in ``catalog/engines``. ``--tune`` looks for widths of the priors.
"""

from __future__ import annotations

import argparse
import math
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from serving_runs import read

import commtax
from commtax import catalog
from commtax.catalog.paces import Setting
from commtax.catalog.versions import parts
from commtax.ledger import Z80
from commtax.readers.published.serving import may_draft, may_fit, measured, question
from commtax.spec import Engine
from commtax.verbs.serving import simulate

PACKAGE = Path(commtax.__file__).parent
ARRAYS = ("tp", "dp", "ep", "concurrency", "input_len", "output_len", "num_prompts", "spread")
SCALES = {"tpot": 0.04, "ttft": 0.15}  # errors far above these hardly count
METRICS = tuple(SCALES)
HOME_CHIP, HOME_KIND, HOME_DTYPE = "h100-sxm", "dense", "bf16"  # which have no pace of their own: engines' times are theirs
HOST = ("host_s", "host_s_per_doubling", "host_s_per_seq")
COMMON = {
    "host_s": 3e-4,
    "host_s_per_doubling": 3e-5,
    "host_s_per_seq": 5e-6,
    "request": 1.5e-2,
    "prompt": 3e-3,
    "decode": 1.0,
    "prefill": 1.0,
    "small_kernels": 0.3,
    "experts": 0.8,
    "routing": 1.0,
    "popularity": 0.7,
}
"""Where each constant starts from, before its common effect."""
FIELDS = {**{name: name for name in HOST}, "small_kernels": "small_kernels"}
PLACES = {"e": ("engine",), "c": ("chip",), "q": ("dtype",), "k": ("kind",), "m": ("family",)}
PLACES |= {"ec": ("engine", "chip"), "em": ("engine", "family"), "ev": ("engine", "version")}
"""Levels by their letters, and what names a group of them."""
Level = tuple[str, ...]


@dataclass(frozen=True)
class Group:
    """Rows of one model, cluster, engine version and launch: one array call."""

    engine: Engine
    version: str
    setting: Setting
    name: str  # of the model's family, as it is left out
    mixture: bool
    words: dict[str, Any]
    arrays: dict[str, Any]
    seen: Mapping[str, Any]  # seconds by metric
    drafted: Any
    fitted: Any
    weights: Any  # a run in several tables counts once


def groups(folder: Path) -> list[Group]:
    parts: dict[tuple[Any, ...], list[tuple[dict[str, str], dict[str, Any]]]] = defaultdict(list)
    for path in sorted(folder.glob("serving_runs*.csv")):
        for row in read(path):
            try:
                asked: dict[str, Any] = dict(question(row))
            except ValueError:
                continue
            if not asked.get("disaggregated"):
                engine = asked["engine"]
                serves = (engine.serves.steps_per_decision, engine.serves.batch_wait, engine.serves.ahead)
                rest = tuple((k, str(v)) for k, v in sorted(asked.items()) if k not in (*ARRAYS, "engine", "model", "cluster"))
                key = (engine.key, engine.version, *serves, asked["model"].key, asked["cluster"].key, rest)
                parts[key].append((row, asked))
    return [_group(members) for members in parts.values()]


def _group(members: list[tuple[dict[str, str], dict[str, Any]]]) -> Group:
    asked = members[0][1]
    engine, model = asked["engine"], asked["model"]
    known = [*engine.versions, catalog.engine(engine.key).version]
    seconds = [measured(row) for row, _ in members]
    names = [(*(q[name] for name in ARRAYS), row["silicon_tpot_ms"][:6]) for row, q in members]
    return Group(
        engine=engine,
        version=catalog.nearest(engine.version, known),
        setting=Setting.of(engine, asked["cluster"].chip, model, asked["dtype"]),
        name=model.architecture,
        mixture=model.experts is not None,
        words={key: value for key, value in asked.items() if key not in (*ARRAYS, "engine")},
        arrays={name: np.array([q[name] for _, q in members]) for name in ARRAYS},
        seen={metric: np.array([one.get(f"{metric}_s", np.nan) for one in seconds]) for metric in METRICS},
        drafted=np.array([may_draft(row) for row, _ in members]),
        fitted=np.array([may_fit(row) for row, _ in members]),
        weights=np.array([1 / names.count(name) for name in names]),
    )


def levels(group: Group, field: str) -> list[Level]:
    """The effects that a constant of a group is made of."""
    s, version = group.setting, group.version
    own: list[Level] = [(field, "all"), (field, "e", s.engine), (field, "ev", s.engine, version)]
    if field in HOST:
        return own
    if field == "small_kernels":  # others launch what a plain engine does
        return [(field, "e", s.engine)] if s.engine == "trtllm" else []
    if field in ("experts", "routing"):
        return [*own, (field, "q", s.dtype), (field, "m", s.family)]
    if field == "popularity":
        return [(field, "all"), (field, "m", s.family)]
    found = {"request": own, "prompt": own[:2]}.get(field, [])
    if s.chip != HOME_CHIP:
        found = [*found, (field, "c", s.chip), (field, "ec", s.engine, s.chip)]
    if s.kind != HOME_KIND:
        found = [*found, (field, "k", s.kind), (field, "m", s.family), (field, "em", s.engine, s.family)]
    if s.dtype != HOME_DTYPE and field in ("decode", "prefill"):
        found = [*found, (field, "q", s.dtype)]
    return found


WIDTHS: dict[tuple[str, str], float] = {
    (field, level): width
    for field, levels in {
        "decode": {"c": 0.0063, "ec": 0.015, "em": 0.05, "k": 0.32, "m": 0.016, "q": 0.0069},
        "experts": {"all": 0.47, "e": 0.016, "ev": 0.01, "m": 0.62, "q": 0.25},
        "host_s": {"all": 0.24, "e": 0.05, "ev": 0.15},
        "host_s_per_doubling": {"all": 0.63, "e": 0.32, "ev": 0.5},
        "host_s_per_seq": {"all": 0.19, "e": 0.63, "ev": 0.2},
        "popularity": {"all": 0.25, "m": 1.6},
        "prefill": {"c": 0.0063, "ec": 0.012, "em": 0.6, "k": 0.12, "m": 1, "q": 0.2},
        "prompt": {"all": 0.24, "c": 0.1, "e": 0.38, "ec": 0.079, "em": 0.5, "k": 0.12, "m": 0.19},
        "request": {"all": 2.4, "c": 0.1, "e": 0.24, "ec": 0.063, "em": 2.4, "ev": 1.9, "k": 0.1, "m": 0.48},
        "routing": {"all": 0.15, "e": 0.01, "ev": 0.013, "m": 0.04, "q": 1},
        "small_kernels": {"e": 0.75},
    }.items()
    for level, width in levels.items()
}
"""Standard deviations of the priors, by constant and level: see ``--tune``."""


def width(level: Level) -> float:
    return WIDTHS.get((level[0], level[1]), 0.3)


class Pool:
    """All groups, the effects they have, and the fit."""

    def __init__(self, members: Sequence[Group]) -> None:
        self.groups = members
        every = (level for group in members for field in FIELDS for level in levels(group, field))
        self.index: dict[Level, int] = {level: i for i, level in enumerate(dict.fromkeys(every))}
        of = np.concatenate([np.full(len(METRICS) * len(g.weights), i) for i, g in enumerate(members)])
        self.group_of = of
        self.metric_of = np.concatenate([np.repeat(np.arange(len(METRICS)), len(g.weights)) for g in members])
        self.scale = np.array(list(SCALES.values()))[self.metric_of]
        self.weight = np.concatenate([np.tile(np.where(g.fitted, 2 * g.weights, 0.0), len(METRICS)) for g in members])
        self.every = np.concatenate([np.tile(np.where(g.drafted, 0.0, g.weights), len(METRICS)) for g in members])
        self.drafted = np.concatenate([np.tile(g.drafted, len(METRICS)) for g in members])

    def logs(self, group: Group, x: Any) -> dict[str, float]:
        return {field: float(sum(x[self.index[level]] for level in levels(group, field))) for field in FIELDS}

    def errors(self, group: Group, logs: Mapping[str, float]) -> Any:
        found = simulate(engine=engine_at(group, logs), **group.words, **group.arrays)
        count = len(group.weights)
        return np.concatenate([np.log(np.broadcast_to(getattr(found, f"{m}_s"), count) / group.seen[m]) for m in METRICS])

    def all_errors(self, x: Any) -> Any:
        return np.concatenate([self.errors(group, self.logs(group, x)) for group in self.groups])

    def slopes(self, x: Any, step: float = 0.02) -> tuple[Any, Any]:
        """Errors at ``x``, and their derivatives by every effect."""
        errors, rows = [], []
        for group in self.groups:
            logs = self.logs(group, x)
            here = self.errors(group, logs)
            matrix = np.zeros((len(here), len(self.index)))
            for field in FIELDS:
                mine = [self.index[level] for level in levels(group, field)]
                if mine and (group.mixture or field not in ("experts", "routing", "popularity")):
                    there = self.errors(group, {**logs, field: logs[field] + step})
                    matrix[:, mine] += ((there - here) / step)[:, None]
            errors.append(here)
            rows.append(matrix)
        return np.concatenate(errors), np.concatenate(rows)

    @property
    def precision(self) -> Any:
        return np.array([width(level) ** -2 for level in self.index])

    def loss(self, errors: Any, x: Any) -> float:
        strayed = np.log1p((np.nan_to_num(errors) / self.scale) ** 2)
        return float(np.sum(self.weight * np.isfinite(errors) * strayed) + np.sum(self.precision * x * x))

    def solve(self, x: Any, errors: Any, slopes: Any, weight: Any) -> tuple[Any, Any]:
        """The best effects by these slopes with rows of such weights, and their covariance."""
        use = np.isfinite(errors) & (weight > 0)
        m, r, s, w, y = slopes[use], errors[use], self.scale[use], weight[use], x
        for _ in range(4):
            strayed = r + m @ (y - x)
            weights = w / (1 + (strayed / s) ** 2) / s**2
            a = (m * weights[:, None]).T @ m + np.diag(self.precision)
            y = np.linalg.solve(a, m.T @ (weights * (m @ x - r)))
        return y, np.linalg.inv(a)

    def fit(self, rounds: int = 10, start: Any = None) -> tuple[Any, Any]:
        x = np.zeros(len(self.index)) if start is None else start
        best = self.loss(self.all_errors(x), x)
        for _ in range(rounds):
            errors, slopes = self.slopes(x)
            wanted, _ = self.solve(x, errors, slopes, self.weight)
            step, share, before = np.clip(wanted - x, -0.7, 0.7), 1.0, best
            while share > 0.05:
                tried = x + share * step
                loss = self.loss(self.all_errors(tried), tried)
                if loss < best:
                    x, best = tried, loss
                    break
                share /= 2
            print(f"loss {best:.1f}", flush=True)
            if before - best < 0.003 * before:
                break
        errors, slopes = self.slopes(x)
        return x, (errors, slopes, self.solve(x, errors, slopes, self.weight)[1])


def engine_at(group: Group, logs: Mapping[str, float]) -> Engine:
    """The engine of a group with constants as the effects say, and no paces beside them."""
    values = {FIELDS[field]: COMMON[field] * math.exp(min(6.0, max(-6.0, log))) for field, log in logs.items()}
    values["small_kernels"] = min(1.0, values["small_kernels"]) if group.engine.key == "trtllm" else 1.0
    return group.engine.but(pooled=False, **values)


KINDS = ("engine", "chip", "family")


def folds(pool: Pool) -> Iterator[tuple[str, str, Any]]:
    """Each engine, chip and family, and which rows are its."""
    for kind in KINDS:
        names = [group.name if kind == "family" else getattr(group.setting, kind) for group in pool.groups]
        for name in dict.fromkeys(names):
            yield kind, name, np.array([n == name for n in names])[pool.group_of]


@dataclass(frozen=True)
class Left:
    """Errors of one group that was left out."""

    kind: str
    name: str
    rows: Any  # which of the pool's
    errors: Any  # of all rows of the pool


def left_out(pool: Pool, x: Any, errors: Any, slopes: Any) -> list[Left]:
    """Every group predicted from the others: fitted by the slopes around the full fit, predicted in full."""
    found = []
    for kind, name, rows in folds(pool):
        y, _ = pool.solve(x, errors, slopes, np.where(rows, 0.0, pool.every))
        parts = [
            pool.errors(group, pool.logs(group, y)) if np.any(rows[pool.group_of == i]) else errors[pool.group_of == i]
            for i, group in enumerate(pool.groups)
        ]
        found.append(Left(kind, name, rows, np.concatenate(parts)))
    return found


def quantile(errors: Any) -> float:
    """Standard deviation of a normal distribution with as many of these inside its 80 % range."""
    return float(np.quantile(np.abs(errors), 0.8)) / Z80 if len(errors) else math.nan


def choose(pool: Pool, metric: str, mixture: bool, drafted: bool = False) -> Any:
    kinds = np.array([group.mixture for group in pool.groups])[pool.group_of] == mixture
    return kinds & (pool.metric_of == METRICS.index(metric)) & (~pool.drafted | drafted)


def sigmas(pool: Pool, errors: Any, left: Sequence[Left], without: Left | None = None) -> dict[str, dict[str, dict[str, float]]]:
    """Widths by metric, dense or mixture, and what was left out; ``without`` one group.

    There are two to eight groups of a kind, too few to call one kind surer than the rest: none is narrower than all together.
    """
    table: dict[str, dict[str, dict[str, float]]] = {}
    for metric in METRICS:
        for mixture in (False, True):
            here = choose(pool, metric, mixture) & np.isfinite(errors)
            known = {"seen": quantile(errors[here & (pool.weight == 0)])}
            others = here if without is None else here & ~without.rows
            floor = quantile(np.concatenate([one.errors[others & one.rows] for one in left]))
            for kind in KINDS:
                own = quantile(np.concatenate([one.errors[others & one.rows] for one in left if one.kind == kind]))
                known[kind] = float(np.fmax(floor, own))
            known["dtype"] = min(known["chip"], known["family"])  # no format was left out alone: formats come with chips and models
            table.setdefault(metric, {})["mixtures" if mixture else "dense"] = known
    return table


def report(pool: Pool, errors: Any, left: Sequence[Left]) -> Iterator[dict[str, Any]]:
    """Each kind of fold: how many rows, their median error, how many the range covers, and its half-width.

    The range of a group's rows has a width from the errors of the other groups of its kind.
    """
    for drafted in (False, True):
        for metric in METRICS:
            for mixture in (False, True):
                here = choose(pool, metric, mixture, drafted) & np.isfinite(errors)
                base = {"metric": metric, "models": "mixtures" if mixture else "dense", "drafted": drafted}
                own = np.abs(errors[here & (pool.weight == 0)])
                s = sigmas(pool, errors, left)[metric][base["models"]]["seen"]
                yield base | {"fold": "seen", **figures(own, [np.full(len(own), s)])}
                for kind in KINDS:
                    parts, widths = [], []
                    for one in left:
                        if one.kind == kind and np.any(here & one.rows):
                            parts.append(np.abs(one.errors[here & one.rows]))
                            sigma = sigmas(pool, errors, left, one)[metric][base["models"]][kind]
                            widths.append(np.full(len(parts[-1]), sigma))
                    yield base | {"fold": kind, **figures(np.concatenate(parts), widths)}


def figures(errors: Any, widths: Sequence[Any]) -> dict[str, float]:
    wide = np.concatenate(widths) * Z80
    known = np.isfinite(wide)
    return {
        "n": len(errors),
        "median": float(np.median(np.expm1(errors))),
        "covered": float(np.mean(errors[known] <= wide[known])) if known.any() else math.nan,
        "half_width": float(np.median(np.sinh(wide[known]))) if known.any() else math.nan,
    }


def engine_times(pool: Pool, x: Any) -> dict[tuple[str, str], dict[str, float]]:
    """Times of engines by version, as their files name them."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for engine, version in sorted(dict.fromkeys((group.setting.engine, group.version) for group in pool.groups)):
        for field in (*HOST, "request", "prompt", "experts", "routing", "popularity", "small_kernels"):
            keys = [(field, "all"), (field, "e", engine), (field, "ev", engine, version)]
            log = sum(x[pool.index[key]] for key in keys if key in pool.index)
            found.setdefault((engine, version), {})[FIELDS[field]] = COMMON[field] * math.exp(log)
    return found


def write_times(times: Mapping[tuple[str, str], Mapping[str, float]]) -> None:
    """Into ``catalog/engines``: every version's own where it has a part, and those of the newest that ran for the engine itself."""
    for engine in dict.fromkeys(engine for engine, _ in times):
        path = PACKAGE / f"catalog/engines/{engine}.toml"
        newest = max((version for name, version in times if name == engine), key=parts)
        sections = re.split(r"(?m)^(?=\[)", path.read_text(encoding="utf-8"))
        for i, section in enumerate(sections):
            of = re.match(r'\[versions\."(.+?)"\]', section)
            for name, value in times.get((engine, of[1] if of else newest if i == 0 else ""), {}).items():
                sections[i] = re.sub(rf'(?m)^{name} = \[[^,]+, "fit"\]', f'{name} = [{float(f"{value:.4g}")}, "fit"]', sections[i])
        path.write_text("".join(sections), encoding="utf-8")


def effect_lines(pool: Pool, x: Any, covariance: Any) -> Iterator[str]:
    """``catalog/paces.toml``."""
    yield "# Effects on whole runs of chip, number format, kind and family of model, beside those of engines and versions."
    yield "# Natural logarithms of factors and their standard deviations, pooled by benchmarks/fit_serving.py over published runs"
    yield "# (InferenceMAX and ai-dynamo/aiconfigurator, 2025-10 to 2026-04). H100, bf16 and dense models have none: engines' own"
    yield "# times (engines/*.toml) were fitted with them."
    places: dict[tuple[str, ...], dict[str, tuple[float, float]]] = defaultdict(dict)
    for level, i in pool.index.items():
        field, letters, *names = level
        shown = (field in catalog.paces.FACTORS) and letters in ("c", "q", "k", "m", "ec", "em")
        if shown and abs(x[i]) >= 0.002:
            places[(letters, *names)][field] = (x[i], math.sqrt(covariance[i, i]))
    for (letters, *names), logs in sorted(places.items()):
        yield "\n[[effect]]"
        yield from (f'{level} = "{name}"' for level, name in zip(PLACES[letters], names, strict=True))
        yield from (f"{field} = [{value:.3f}, {spread:.3f}]" for field, (value, spread) in sorted(logs.items()))


def transfer_lines(pool: Pool, errors: Any, left: Sequence[Left]) -> Iterator[str]:
    """``catalog/transfer.toml``."""
    yield "# How far predictions are off where nothing was fitted: standard deviations of log errors, by what no run had."
    yield "# From benchmarks/fit_serving.py: each engine, chip and family of models left out of the fit in turn and predicted."
    for metric, kinds in sigmas(pool, errors, left).items():
        for kind, known in kinds.items():
            yield f"\n[sigma.{metric}.{kind}]"
            yield from (f"{name} = {value:.3f}" for name, value in known.items())
    yield "\n# Runs that the constants were fitted on."
    named = ((g.engine.version, g.words["model"].key, g.setting) for g in pool.groups if g.fitted.any())
    for version, model, s in dict.fromkeys(named):
        yield "\n[[run]]"
        yield from (f'{name} = "{getattr(s, name)}"' for name in ("engine", "chip", "dtype", "family"))
        yield f'version = "{version}"\nmodel = "{model}"'


def board_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """``validate/transfer.toml``."""
    yield "# Errors and ranges at home and abroad, by benchmarks/fit_serving.py: each engine, chip and family of models left out."
    for row in rows:
        yield "\n[[fold]]"
        yield f'left_out = "{"" if row["fold"] == "seen" else row["fold"]}"'
        yield from (f'{name} = "{row[name]}"' for name in ("metric", "models"))
        yield f"drafted = {str(row['drafted']).lower()}"
        yield f"n = {row['n']}"
        yield from (f"{name} = {row[name]:.3f}" for name in ("median", "covered", "half_width"))


def tune(pool: Pool, x: Any, errors: Any, slopes: Any) -> None:
    """Widths of priors that make groups left out come out best, each tried wider and narrower: a search along coordinates."""

    def score() -> float:
        total = 0.0
        for kind in KINDS:
            off = np.full(len(errors), np.nan)
            for _, _, rows in (fold for fold in folds(pool) if fold[0] == kind):
                y, _ = pool.solve(x, errors, slopes, np.where(rows, 0.0, pool.every))
                off[rows] = np.abs(errors[rows] + slopes[rows] @ (y - x))
            for metric in METRICS:
                for mixture in (False, True):
                    own = off[choose(pool, metric, mixture) & np.isfinite(off)]
                    total += (1.0 if metric == "tpot" else 0.3) * (np.median(own) + 0.4 * np.quantile(own, 0.8))
        return float(total)

    kinds = sorted({level[:2] for level in pool.index})
    best, search = score(), True
    while search:
        before = best
        for kind in kinds:
            for factor in (0.4, 2.5):
                old = width((*kind,))
                WIDTHS[kind] = min(4.0, max(0.003, old * factor))  # type: ignore[index]
                found = score()
                if found < best - 5e-4:
                    best = found
                    print(kind, f"{old:.3f} -> {WIDTHS[kind]:.3f}", f"{best:.4f}", flush=True)  # type: ignore[index]
                else:
                    WIDTHS[kind] = old  # type: ignore[index]
        search = before - best > 0.01
    print(WIDTHS)


def write(path: str, lines: Iterator[str]) -> None:
    (PACKAGE / path).write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--tune", action="store_true")
    asked = parser.parse_args()
    pool = Pool(groups(asked.data))
    print(f"{len(pool.groups)} groups, {len(pool.weight) // 2} runs, {len(pool.index)} effects")
    x, (errors, slopes, covariance) = pool.fit()
    if asked.tune:
        tune(pool, x, errors, slopes)
        return
    left = left_out(pool, x, errors, slopes)
    rows = list(report(pool, errors, left))
    for row in rows:
        what = f"{row['fold']:7s}{row['models']:9s}{row['metric']:5s}{' with drafted' if row['drafted'] else ''}"
        print(f"{what:36s} n {row['n']:4d}  median {row['median']:6.1%}  covered {row['covered']:5.0%}  +-{row['half_width']:6.1%}")
    for (engine, version), times in engine_times(pool, x).items():
        print(engine, version, *(f"{name} {value:.4g}" for name, value in times.items()))
    if asked.write:
        write_times(engine_times(pool, x))
        write("catalog/paces.toml", effect_lines(pool, x, covariance))
        write("catalog/transfer.toml", transfer_lines(pool, errors, left))
        write("validate/transfer.toml", board_lines(rows))


if __name__ == "__main__":
    main()
