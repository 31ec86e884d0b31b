"""Fit what whole published runs teach: ``python benchmarks/fit_serving.py DATA [--write]``.

DATA is a folder with ``serving_runs*.csv`` and ``ml_energy.csv``. Kernels and collectives have constants from tables of their own;
runs teach times of the host (a common value times effects of engine, version, publisher and, to the first token, of mixtures and of
mixtures in an engine), never a kernel's time. All are natural logarithms, drawn towards none by a prior. Damped Gauss-Newton
steps on log errors of TPOT and TTFT, a row weighted down as it strays (Cauchy). Half of the runs are fitted
(``commtax_lab.published.serving_rows.may_fit``), the others test; runs that may have drafted tokens, do not fit or beat the
hardware do neither. A prediction knows no publisher.

Then every engine, chip, family, publisher and file is left out in turn, all runs of the others fitted again (around the full
fit), and what was left out predicted. From those errors come the ranges of ``catalog/transfer.toml``; whether they hold is judged
on each group with widths from the other groups. ``--write`` writes ``catalog/transfer.toml``,
the laboratory's ``published/scoring/transfer.toml`` and the times of engines and versions in ``catalog/engines``; with
``--engine NAME``, which fits the runs of one engine alone, only that engine's times.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from fitting import miss
from serving_tables import board_lines, transfer_lines, write, write_times

from commtax import catalog
from commtax.catalog.loader import nearest_version
from commtax.catalog.transfer import Setting
from commtax.cost.pricing import inference_bill
from commtax.ledger import Z80
from commtax.question import Question
from commtax.spec import Chip, Engine, Model
from commtax.verbs.billing import price
from commtax.verbs.closed_loop import simulate
from commtax.verbs.settling import resolve_question, settle, terms_of
from commtax_lab.published import step_rows
from commtax_lab.published.rows import publisher
from commtax_lab.published.scoring.excluded_rows import holds_weights, least_s
from commtax_lab.published.scoring.serving_scores import floor
from commtax_lab.published.serving_rows import distinct_rows, may_draft, may_fit, measured_means, question
from commtax_lab.published.tables import Table
from commtax_lab.published.tables import read as read_table

ARRAYS = ("tp", "dp", "ep", "concurrency", "input_len", "output_len", "num_prompts", "spread")
STEP_ARRAYS = ("tp", "dp", "ep", "batch", "context", "prompts", "prompt_len")
SCALES = {"tpot": 0.04, "ttft": 0.15}  # errors far above these hardly count
METRICS = tuple(SCALES)
FEW = 10  # runs that make a group
HOST = ("host_s", "host_s_per_doubling", "host_s_per_seq", "request_s", "prompt_s")
KINDS_LEFT = ("engine", "chip", "family", "publisher", "file")
COMMON = {"host_s": 3e-4, "host_s_per_doubling": 3e-5, "host_s_per_seq": 5e-6, "request_s": 1.5e-2, "prompt_s": 3e-3}
"""Where each constant starts from, before its common effect."""
Level = tuple[str, ...]


@dataclass(frozen=True)
class Group:
    """Rows of one model, cluster, engine version and launch: one array call."""

    engine: Engine
    version: str
    setting: Setting
    names: Mapping[str, str]  # what it is left out with
    mixture: bool
    words: dict[str, Any]
    arrays: dict[str, Any]
    seen: Mapping[str, Any]  # seconds by metric
    apart: Any  # drafted, or more than the hardware can
    fitted: Any

    def __len__(self) -> int:
        return len(self.fitted)

    @property
    def only_tests(self) -> bool:
        """Whether it is of steps, not of served requests."""
        return "prompts" in self.arrays


def groups(folder: Path) -> list[Group]:
    parts: dict[tuple[Any, ...], list[tuple[dict[str, str], dict[str, Any]]]] = defaultdict(list)
    tables = [row for path in sorted(folder.glob("serving_runs*.csv")) for row in csv.DictReader(path.open())]
    for row in distinct_rows(tables):
        try:
            asked: dict[str, Any] = dict(question(row))
        except ValueError:
            continue
        if not asked.get("disaggregated"):
            engine = asked["engine"]
            runs = engine.serves
            serves = runs.steps_per_decision, runs.batch_wait, runs.ahead, str(engine.kernels.experts_by)
            rest = tuple((k, str(v)) for k, v in sorted(asked.items()) if k not in (*ARRAYS, "engine", "model", "cluster"))
            key = (engine.key, engine.version, *serves, asked["model"].key, asked["cluster"].key, file_of(row), rest)
            parts[key].append((row, asked))
    return [_group(members) for members in parts.values()] + step_groups(folder / "ml_energy.csv")


def step_groups(path: Path) -> list[Group]:
    """Steps at a mean batch, whose lengths between tokens are told: nothing is fitted on them, they are a publisher left out."""
    parts: dict[tuple[Any, ...], list[tuple[step_rows.MixedStep, float]]] = defaultdict(list)
    for row in Table(path.name, "steps", *read_table(path)).dicts():
        try:
            run = step_rows.question(row)
        except ValueError:
            continue
        parts[run.engine, run.model.key, run.cluster.key, run.dtype].append((run, float(row["median_itl_ms"]) * 1e-3))
    return [_step_group(members) for members in parts.values()]


def _step_group(members: list[tuple[step_rows.MixedStep, float]]) -> Group:
    run, count = members[0][0], len(members)
    arrays = {name: np.array([getattr(one, name) for one, _ in members]) for name in STEP_ARRAYS}
    arrays["batch"] = np.maximum(1, np.round(arrays["batch"] / arrays["dp"]))
    words = {"model": run.model, "cluster": run.cluster, "dtype": run.dtype, "kv_dtype": run.kv_dtype}
    seen = {"tpot": np.array([told for _, told in members]), "ttft": np.full(count, np.nan)}
    asked = _steps(catalog.engine(run.engine), words, arrays)
    apart = np.broadcast_to(~holds_weights(asked) | (seen["tpot"] < least_s(price(asked))), count)
    of = grouped(asked.engine, run.cluster.chip, run.model, run.dtype, "ML.ENERGY", "ML.ENERGY")
    return replace(of, words=words, arrays=arrays, seen=seen, apart=apart, fitted=np.zeros(count, bool))


def _steps(engine: Engine, words: Mapping[str, Any], arrays: Mapping[str, Any]) -> Question:
    options = {name: value for name, value in words.items() if name not in ("model", "cluster")}
    options |= {name: arrays[name] for name in ("tp", "dp", "ep", "batch", "context")}
    return settle(resolve_question(words["model"], words["cluster"], {**options, "engine": engine}))


def grouped(engine: Engine, chip: Chip, model: Model, dtype: str, who: str, file: str) -> Group:
    """A group of no runs yet."""
    s = Setting.of(engine, chip, model, dtype)
    version = nearest_version(engine.version, [*engine.versions, catalog.engine(engine.key).version])
    names = {"engine": s.engine, "chip": s.chip, "family": s.family, "publisher": who, "file": file}
    return Group(engine, version, s, names, model.experts is not None, {}, {}, {}, np.zeros(0, bool), np.zeros(0, bool))


def stepped(engine: Engine, group: Group) -> Any:
    """Seconds of the steps of a group."""
    asked = _steps(engine, group.words, group.arrays)
    prompts = group.arrays["prompts"]
    work = replace(asked.work, prefill_seqs=prompts, prefill_tokens=prompts * group.arrays["prompt_len"])
    return inference_bill(terms_of(asked), work, 1).step_s


def file_of(row: Mapping[str, str]) -> str:
    """The file that a row's source names, by its last folders."""
    said = (row.get("silicon_data_source") or "").partition(";")[0].removeprefix("source_file=")
    return "/".join(said.split("/")[-4:])


def _group(members: list[tuple[dict[str, str], dict[str, Any]]]) -> Group:
    row, asked = members[0]
    engine, seconds = asked["engine"], [measured_means(row) for row, _ in members]
    arrays = {name: np.array([q[name] for _, q in members]) for name in ARRAYS}
    words = {key: value for key, value in asked.items() if key not in (*ARRAYS, "engine")}
    seen = {metric: np.array([one.get(f"{metric}_s", np.nan) for one in seconds]) for metric in METRICS}
    tpot_s = seen["tpot"]
    found = simulate(engine=engine, **words, **arrays)
    apart = np.array([may_draft(row) for row, _ in members]) | np.broadcast_to(
        ~holds_weights(found.question) | (tpot_s < floor(found, "decode")), len(tpot_s)
    )
    of = grouped(engine, asked["cluster"].chip, asked["model"], asked["dtype"], publisher(row), file_of(row))
    return replace(of, words=words, arrays=arrays, seen=seen, apart=apart, fitted=np.array([may_fit(row) for row, _ in members]))


def levels(group: Group, field: str) -> list[Level]:
    """The effects that a constant of a group is made of."""
    s = group.setting
    own: list[Level] = [(field, "all"), (field, "e", s.engine), (field, "ev", s.engine, group.version)]
    own += [(field, "x", "mixtures")] if group.mixture and field in ("request_s", "prompt_s") else []
    own += [(field, "xe", s.engine)] if group.mixture and field == "request_s" else []  # an engine may treat them in its own way
    return [*own, (field, "p", group.names["publisher"])] if field in ("host_s", "request_s") else own


WIDTHS: dict[tuple[str, str], float] = {
    (field, level): width
    for field, levels in {
        "host_s": {"all": 0.3, "e": 0.2, "ev": 0.3, "p": 0.1},
        "host_s_per_doubling": {"all": 0.6, "e": 0.3, "ev": 0.4},
        "host_s_per_seq": {"all": 0.3, "e": 0.5, "ev": 0.2},
        "prompt_s": {"all": 0.3, "e": 0.4, "ev": 0.2, "x": 1.0},
        "request_s": {"all": 2.0, "e": 0.5, "ev": 1.5, "p": 0.5, "x": 1.0, "xe": 1.0},
    }.items()
    for level, width in levels.items()
}
"""Standard deviations of the priors, by constant and level."""


class Pool:
    """All groups, the effects they have, and the fit."""

    def __init__(self, members: Sequence[Group]) -> None:
        self.groups = members
        every = (level for group in members for field in HOST for level in levels(group, field))
        self.index: dict[Level, int] = {level: i for i, level in enumerate(dict.fromkeys(every))}
        self.group_of = np.concatenate([np.full(len(METRICS) * len(g), i) for i, g in enumerate(members)])
        self.metric_of = np.concatenate([np.repeat(np.arange(len(METRICS)), len(g)) for g in members])
        self.scale = np.array(list(SCALES.values()))[self.metric_of]
        self.weight = self._rows(lambda g: np.where(g.fitted & ~g.apart, 2.0, 0.0))
        self.every = self._rows(lambda g: np.where(g.apart | g.only_tests, 0.0, 1.0))
        self.only_tests = self._rows(lambda g: np.full(len(g), g.only_tests))
        self.mixture = self._rows(lambda g: np.full(len(g), g.mixture))
        self.apart = self._rows(lambda g: g.apart)

    def _rows(self, of: Callable[[Group], Any]) -> Any:
        return np.concatenate([np.tile(of(group), len(METRICS)) for group in self.groups])

    def logs(self, group: Group, x: Any, stranger: bool = False) -> dict[str, float]:
        """Logarithms of a group's constants; to a ``stranger`` who measured is not known."""
        known = {f: [level for level in levels(group, f) if not (stranger and level[1] == "p")] for f in HOST}
        return {field: float(sum(x[self.index[level]] for level in mine)) for field, mine in known.items()}

    def errors(self, group: Group, logs: Mapping[str, float]) -> Any:
        engine, count = engine_at(group, logs), len(group)
        if group.only_tests:
            off = np.log(np.broadcast_to(stepped(engine, group), count) / group.seen["tpot"])
            return np.concatenate([off, np.full(count, np.nan)])
        found = simulate(engine=engine, **group.words, **group.arrays)
        return np.concatenate([np.log(np.broadcast_to(getattr(found, f"{m}_s"), count) / group.seen[m]) for m in METRICS])

    def all_errors(self, x: Any, stranger: bool = False) -> Any:
        return np.concatenate([self.errors(group, self.logs(group, x, stranger)) for group in self.groups])

    def slopes(self, x: Any, step: float = 0.02) -> tuple[Any, Any]:
        """Errors at ``x``, and their derivatives by every effect."""
        errors, rows = [], []
        for group in self.groups:
            logs = self.logs(group, x)
            here = self.errors(group, logs)
            matrix = np.zeros((len(here), len(self.index)))
            for field in HOST:
                mine = [self.index[level] for level in levels(group, field)]
                if mine:
                    there = self.errors(group, {**logs, field: logs[field] + step})
                    matrix[:, mine] += ((there - here) / step)[:, None]
            errors.append(here)
            rows.append(matrix)
        return np.concatenate(errors), np.concatenate(rows)

    @property
    def precision(self) -> Any:
        return np.array([WIDTHS[level[0], level[1]] ** -2 for level in self.index])

    def loss(self, errors: Any, x: Any) -> float:
        strayed = np.log1p((np.nan_to_num(errors) / self.scale) ** 2)
        return float(np.sum(self.weight * np.isfinite(errors) * strayed) + np.sum(self.precision * x * x))

    def solve(self, x: Any, errors: Any, slopes: Any, weight: Any) -> Any:
        """The best effects by these slopes with rows of such weights."""
        use = np.isfinite(errors) & (weight > 0)
        m, r, s, w, y = slopes[use], errors[use], self.scale[use], weight[use], x
        for _ in range(4):
            strayed = r + m @ (y - x)
            weights = w / (1 + (strayed / s) ** 2) / s**2
            a = (m * weights[:, None]).T @ m + np.diag(self.precision)
            y = np.linalg.solve(a, m.T @ (weights * (m @ x - r)))
        return y

    def fit(self, rounds: int = 10, start: Any = None) -> tuple[Any, Any]:
        x = np.zeros(len(self.index)) if start is None else start
        best = self.loss(self.all_errors(x), x)
        for _ in range(rounds):
            errors, slopes = self.slopes(x)
            wanted = self.solve(x, errors, slopes, self.weight)
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
        return x, (errors, slopes)


def engine_at(group: Group, logs: Mapping[str, float]) -> Engine:
    """The engine of a group with constants as the effects say, and no paces beside them."""
    values = {field: COMMON[field] * math.exp(min(6.0, max(-6.0, logs[field]))) for field in COMMON}
    return group.engine.but(pooled=False, of_mixtures=True, **values)


def folds(pool: Pool, kinds: Sequence[str]) -> Iterator[tuple[str, str, Any]]:
    """Each engine, chip, family, publisher and file, and which rows are its."""
    for kind in kinds:
        names = [group.names[kind] for group in pool.groups]
        yield from ((kind, name, np.array([n == name for n in names])[pool.group_of]) for name in dict.fromkeys(names))


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
    for kind, name, rows in folds(pool, KINDS_LEFT):
        y = pool.solve(x, errors, slopes, np.where(rows, 0.0, pool.every))
        mine = [rows[pool.group_of == i].any() for i in range(len(pool.groups))]
        parts = [
            pool.errors(group, pool.logs(group, y, stranger=True)) if left else errors[pool.group_of == i]
            for i, (group, left) in enumerate(zip(pool.groups, mine, strict=True))
        ]
        found.append(Left(kind, name, rows, np.concatenate(parts)))
    return found


def quantile(errors: Any) -> float:
    """Standard deviation of a normal distribution with as many of these inside its 80 % range."""
    return float(np.quantile(np.abs(errors), 0.8)) / Z80 if len(errors) else math.nan


def choose(pool: Pool, metric: str, mixture: bool) -> Any:
    return (pool.mixture == mixture) & (pool.metric_of == METRICS.index(metric)) & ~pool.apart & ~pool.only_tests


def sigmas(pool: Pool, errors: Any, left: Sequence[Left], without: Left | None = None) -> dict[str, dict[str, dict[str, float]]]:
    """Widths by metric, dense or mixture, and what was left out; ``without`` one group.

    There are one to eight groups of a kind, too few to call one kind surer than the rest: none is narrower than all together, and
    a next group lies as far out as n groups say, times sqrt(1 + 1/n).
    """
    table: dict[str, dict[str, dict[str, float]]] = {}
    for metric in METRICS:
        for mixture in (False, True):
            here = choose(pool, metric, mixture) & np.isfinite(errors)
            known = {"seen": quantile(errors[here & (pool.weight == 0)])}
            others = here if without is None else here & ~without.rows
            floor = quantile(np.concatenate([one.errors[others & one.rows] for one in left]))
            for kind in KINDS_LEFT:
                parts = [one.errors[others & one.rows] for one in left if one.kind == kind]
                groups = sum(len(part) >= FEW for part in parts)
                next_one = math.sqrt(1 + 1 / max(1, groups))
                known[kind] = float(np.fmax(floor, quantile(np.concatenate(parts)))) * next_one
            known["dtype"] = min(known["chip"], known["family"])  # no format was left out alone: formats come with chips and models
            table.setdefault(metric, {})["mixtures" if mixture else "dense"] = known
    return table


def report(pool: Pool, errors: Any, left: Sequence[Left]) -> Iterator[dict[str, Any]]:
    """Each kind of fold: rows, median error, how many the range covers and its half-width, each group's from the others' errors."""
    for metric in METRICS:
        for mixture in (False, True):
            here = choose(pool, metric, mixture) & np.isfinite(errors)
            base = {"metric": metric, "models": "mixtures" if mixture else "dense"}
            own = np.abs(errors[here & (pool.weight == 0)])
            s = sigmas(pool, errors, left)[metric][base["models"]]["seen"]
            yield base | {"fold": "seen", **figures(own, [np.full(len(own), s)])}
            for kind in KINDS_LEFT:
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
        for field in COMMON:
            keys = [(field, "all"), (field, "e", engine), (field, "ev", engine, version), (field, "p", "all")]
            log = sum(x[pool.index[key]] for key in keys if key in pool.index)
            found.setdefault((engine, version), {})[field] = COMMON[field] * math.exp(log)
        for field, name in (("prompt_s", "mixture_prompt"), ("request_s", "mixture_request")):
            keys = [(field, "x", "mixtures"), (field, "xe", engine)]
            found[engine, version][name] = math.exp(sum(x[pool.index[key]] for key in keys if key in pool.index))
    return found


def tell_times(pool: Pool, x: Any) -> None:
    for (engine, version), times in engine_times(pool, x).items():
        print(engine, version, *(f"{name} {value:.4g}" for name, value in times.items()))


def tell_engine(pool: Pool, x: Any) -> None:
    """Errors of one engine's runs that were not fitted, and its times."""
    errors = pool.all_errors(x)
    for metric, mixture in product(METRICS, (False, True)):
        off = errors[choose(pool, metric, mixture) & np.isfinite(errors) & (pool.weight == 0)]
        mean = np.mean(np.abs(np.expm1(off)))
        print(f"{'mixtures' if mixture else 'dense'} {metric}: n {len(off)}  median {miss(off):.1%}  mean {mean:.1%}")
    tell_times(pool, x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--engine", default="", help="fit the runs of this engine alone")
    asked = parser.parse_args()
    members = [group for group in groups(asked.data) if asked.engine in ("", group.setting.engine)]
    if asked.engine:  # whose publishers each have models of their own: no effect of theirs can be told from that of the models
        members = [replace(group, names={**group.names, "publisher": "all"}) for group in members]
    pool = Pool(members)
    print(f"{len(pool.groups)} groups, {len(pool.weight) // 2} runs, {len(pool.index)} effects")
    x, (errors, slopes) = pool.fit()
    if asked.engine:
        tell_engine(pool, x)
        if asked.write:
            write_times(engine_times(pool, x))
        return
    left = left_out(pool, x, errors, slopes)
    errors = pool.all_errors(x, stranger=True)
    rows = list(report(pool, errors, left))
    for row in rows:
        what = f"{row['fold']:10s}{row['models']:9s}{row['metric']:5s}"
        print(f"{what:24s} n {row['n']:4d}  median {row['median']:6.1%}  covered {row['covered']:5.0%}  +-{row['half_width']:6.1%}")
    for one in left:
        here = one.rows & ~pool.apart & ~pool.only_tests & np.isfinite(one.errors)
        if here.any():
            medians = (miss(one.errors[here & (pool.metric_of == i)]) for i in range(len(METRICS)))
            print(f"  without {one.kind} {one.name}: n {here.sum() // 2}  " + "  ".join(f"{m:.1%}" for m in medians))
    for mixture in (False, True):
        off = errors[pool.only_tests & ~pool.apart & np.isfinite(errors) & (pool.mixture == mixture)]
        print(f"steps of {'mixtures' if mixture else 'dense models'}, not fitted: n {len(off)}  median {miss(off):.1%}")
    print(*(f"{' '.join(level)} {x[i]:+.3f}" for level, i in sorted(pool.index.items()) if level[1] in ("p", "x", "xe")), sep="\n")
    tell_times(pool, x)
    if asked.write:
        write_times(engine_times(pool, x))
        write("catalog/transfer.toml", transfer_lines(sigmas(pool, errors, left), pool.groups))
        write("../../laboratory/commtax_lab/published/scoring/transfer.toml", board_lines(rows))


if __name__ == "__main__":
    main()
