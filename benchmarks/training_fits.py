"""What fits of training share: published runs that can be priced, constants tried in turn, and errors of groups left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from fitting import Array, leave_out

from commtax.cost.kernel import PricingTerms
from commtax.cost.training import training_bill
from commtax.ledger import Z80
from commtax.spec import TrainStep
from commtax.verbs.settling import resolve_question, settle, terms_of
from commtax_lab.published import training
from commtax_lab.published.rows import Row, read

Values = dict[str, float]


@dataclass(frozen=True)
class Constant:
    """A number that runs decide between two bounds; ``steps`` are tried around it, as shares of its range that shrink."""

    name: str
    low: float
    high: float
    steps: tuple[float, ...] = (-1 / 3, 1 / 3)
    shrinks: float = 2.0

    def tried(self, value: float, sweep: int) -> list[float]:
        reach = (self.high - self.low) / self.shrinks**sweep
        return [value, *(float(np.clip(value + step * reach, self.low, self.high)) for step in self.steps)]


@dataclass(frozen=True)
class Run:
    """A published run, and the step that it asks for."""

    row: Row
    took_s: float
    terms: PricingTerms
    step: TrainStep
    tokens: float

    @property
    def chip(self) -> str:
        return self.terms.cluster.chip.key

    @property
    def engine(self) -> str:
        return self.terms.engine.key

    def seconds(self, habits: Values, tables: Mapping[str, Mapping[str, float] | None]) -> float:
        """The step with other habits of the engine, and tables in place of the catalogue's."""
        t = self.terms
        known = {name: table for name, table in {**t.constants.tables, **tables}.items() if table is not None}
        terms = replace(t, engine=t.engine.but(**habits), constants=replace(t.constants, tables=known))
        return float(training_bill(terms, self.step, self.tokens).step_s)


def runs_of(rows: list[Row], wanted: Callable[[str], bool]) -> Iterator[Run]:
    """Runs of wanted engines that can be priced."""
    for row, asked in zip(rows, read(rows, training.describe, training.ask), strict=True):
        if asked.question is None or not wanted(str(asked.question["engine"])):
            continue
        options: dict[str, Any] = dict(asked.question)
        model, cluster = options.pop("model"), options.pop("cluster")
        try:
            q = settle(resolve_question(model, cluster, {**options, "phase": "train"}))
        except ValueError as error:
            print("left out:", row["model"], row["gpu_type"], error)
            continue
        yield Run(row, asked.entries[0].measured, terms_of(q), q.step, float(q.tokens))


Errors = Callable[[Sequence[Run], Values], Array]
"""Predicted over measured, less 1."""


def search(
    constants: Iterable[Constant], runs_for: Callable[[Constant], Sequence[Run]], values: Values, errors: Errors, sweeps: range
) -> Values:
    """Each constant in turn takes the best of some values, by the mean absolute logarithm; one that no run shows keeps its own."""
    constants, values = list(constants), dict(values)
    for sweep in sweeps:
        for c in constants:
            if runs := runs_for(c):
                losses = {v: np.mean(np.abs(np.log1p(errors(runs, {**values, c.name: v})))) for v in c.tried(values[c.name], sweep)}
                values[c.name] = min(losses, key=lambda v: losses[v])
    return values


def told(name: str, found: Array) -> str:
    if not len(found):
        return f"{name}: no rows"
    off, spread = np.abs(found), np.quantile(np.abs(np.log1p(found)), 0.8) / Z80
    middle = f"mean {np.mean(off):.1%}, median {np.median(off):.1%}, bias {np.mean(found):+.1%}"
    return f"{name}: {len(found)} rows, {middle}, sigma of the range that covers 80 %: {spread:.3f}"


def tell_left_out(
    runs: Sequence[Run], of: Callable[[Run], object], kinds: Mapping[str, Callable[[Run], bool]], name: str,
    fit: Callable[[str, Sequence[Run]], Values], errors: Errors,
) -> None:  # fmt: skip
    """Errors on each group with constants that the others decided, by kind of run."""
    whole: dict[str, list[Array]] = {}
    for group, others, own in leave_out(runs, of):
        values = fit(str(group), others)
        for kind, is_kind in kinds.items():
            off = errors([run for run in own if is_kind(run)], values)
            whole.setdefault(kind, []).append(off)
            if len(off):
                print(told(f"  without {name} {group}{kind}", off), flush=True)
    for kind, parts in whole.items():
        print(told(f"each {name} left out in turn{kind}", np.concatenate(parts)), flush=True)
