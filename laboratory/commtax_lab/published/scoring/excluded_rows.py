"""Rows that are no test of a prediction, set apart by rule and counted: drafted tokens, impossible runs, what was told before."""

from collections import Counter

import numpy as np

from commtax.arrays import Array
from commtax_lab.published.scoring.prediction_columns import Records

UNFIT = "its weights alone exceed the memory of its GPUs"
FASTER = "measured faster than the hardware allows"
TOLD = "told before: a measurement is counted once"


def exclude_impossible(records: Records) -> Records:
    """Rows of which a time lies below what bytes over bandwidth and FLOPs over peak allow are apart with all of their figures."""
    faster = records.timed & (records.measured < records.floor)
    return _mark(records, np.isin(records.row, records.row[faster]), FASTER)


def exclude_repeated(records: Records, known: dict[str, bool]) -> Records:
    """Rows of runs that another row or an earlier file told are apart; ``known``: runs so far, and whether they were priced.

    A row that is priced goes before one that is not: one table may say what another one leaves open.
    """
    runs = {row: run for row, run in zip(records.row.tolist(), records.run.tolist(), strict=True) if run}
    priced = set(records.row[records.priced].tolist())
    told = set()
    for row in sorted(runs, key=lambda row: (row not in priced, row)):
        if known.get(runs[row], False) or (runs[row] in known and row not in priced):
            told.add(row)
        known[runs[row]] = known.get(runs[row], False) or row in priced
    return _mark(records, np.isin(records.row, list(told)), TOLD)


def _mark(records: Records, chosen: Array, rule: str) -> Records:
    """What has a rule already keeps it, unless it was told before."""
    free = chosen & ((records.apart == "") | (rule == TOLD)) & (records.skipped == "")
    return Records({**records.columns, "apart": np.where(free, rule, records.apart).astype(object)})


def count_by_rule(records: Records) -> Counter[str]:
    """Rules, and how many rows of one file each sets apart."""
    rows = {(str(rule), int(row)) for rule, row in zip(records.apart, records.row, strict=True) if rule}
    return Counter(rule for rule, _ in rows)


def excluded_share(records: Records) -> tuple[float, int]:
    """Share of a file's rows, each told once, that are apart; and how many rows those are of."""
    told = set(records.row[records.apart == TOLD].tolist())
    rows = set(records.row.tolist()) - told
    away = set(records.row[(records.apart != "") & (records.apart != TOLD)].tolist()) - told
    return len(away) / max(1, len(rows)), len(rows)
