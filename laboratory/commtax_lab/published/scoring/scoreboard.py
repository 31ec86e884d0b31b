"""How good predictions are at one look: a line for each thing that people ask, at home and abroad.

At home are rows that nothing was fitted on beside rows that something was (``scoreboard.toml`` says which rows a line is of).
Abroad whole engines, chips or families of models were left out of the fits; ``transfer.toml`` holds what was found.
"""

from dataclasses import dataclass
from pathlib import Path

from commtax.records import record_from
from commtax_lab import lab_table
from commtax_lab.published.scoring.prediction_columns import Records
from commtax_lab.published.scoring.statistics import Figures, choose, figures

TRANSFER = "published/scoring/transfer.toml"


@dataclass(frozen=True, slots=True)
class ScoreLine:
    """A line of the scoreboard at home, None where it has no rows."""

    part: str
    name: str
    errors: Figures | None


@dataclass(frozen=True, slots=True)
class Fold:
    """Errors of a metric on models of one kind, with something left out of the fits in turn ("": nothing was)."""

    metric: str
    models: str
    left_out: str
    n: int
    median: float
    covered: float
    half_width: float


def score_lines(records: Records) -> list[ScoreLine]:
    tested = records.where_true(records.timed & ~records.fitted)
    lines = lab_table("published/scoring/scoreboard.toml")["line"]
    return [ScoreLine(one["part"], one["name"], figures(choose(tested, one["rows"])[0])) for one in lines]


def transfer_folds() -> list[Fold]:
    """Return the folds of ``transfer.toml`` in its order, none where the file is missing."""
    if not (Path(__file__).parents[2] / TRANSFER).is_file():
        return []
    return [record_from(Fold, one) for one in lab_table(TRANSFER)["fold"]]
