"""Rows that InferenceMAX (later InferenceX) measured: which they are, how they were launched (``recipes.toml``), which drafted."""

import re
from collections.abc import Mapping

from commtax_lab import lab_table
from commtax_lab.published.rows import Row, cell

INFERENCEMAX = "InferenceMAX"
DATABASE = "db-dump"  # of InferenceMAX: runs without drafted tokens
DAILY = r"\d{4}-\d\d-\d\d\.csv"
_DAY = re.compile(r"measured=(\d{4}-\d\d)(-\d\d)?")
_DRAFTED = re.compile(r"(?<![a-z])(mtp|eagle\d?|spec-(?!none)\w+|speculative)(?![a-z])")
UNDRAFTED = ("", "none", "false", "no", "off", "0", "disabled")
DRAFT_COLUMNS = ("spec_decoding", "spec_method", "speculative", "drafts", "mtp")
SAID = "the row says that tokens were drafted"


def is_by_inferencemax(row: Row) -> bool:
    """Return whether a row is InferenceMAX's: from its daily files, its database, or analyses of one model.

    >>> [is_by_inferencemax({"silicon_data_source": s}) for s in ("db-dump/2026-04-27; config_id=6", "source_file=2026-04-01.csv")]
    [True, True]
    >>> is_by_inferencemax({"silicon_data_source": "source_file=/home/me/kimi-gap-analysis.csv"})
    False
    """
    of_one = r"[\w.-]+-gap-analysis\.csv"
    return bool(re.search(rf"(^|source_file=)({DAILY}|{DATABASE}|{of_one})", row.get("silicon_data_source") or ""))


def day_of(row: Row) -> tuple[str, str]:
    """Return the month and day of a run, or a month after all others where its source states none."""
    day = _DAY.search(row.get("silicon_data_source") or "")
    return (day[1], day[1] + (day[2] or "")) if day else ("9999", "")


def recipe_options(row: Row, is_of: Mapping[str, object], clients: int, dp: int) -> dict[str, object]:
    """Collect what the recipes that fit an InferenceMAX run say of it, later ones overriding earlier ones."""
    month, day = day_of(row)
    is_of = {**is_of, "days": day, "database": DATABASE in (row.get("silicon_data_source") or "")}
    least = {"from_clients": clients, "from_dp": dp, "since": month}
    options: dict[str, object] = {}
    for one in lab_table("published/recipes.toml")["recipe"]:
        conditions = ((value, one[key]) for key, value in is_of.items() if key in one)  # few recipes get past the first
        fits = (value in expected if isinstance(expected, list) else value == expected for value, expected in conditions)
        reached = (value >= one[key] for key, value in least.items() if key in one)
        if month <= one.get("until", "9999") and all(fits) and all(reached):
            settings = {key: value for key, value in one.items() if key not in (*is_of, *least, "until", "source")}
            options |= {key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()}
    return options


def stated_drafts(row: Row) -> dict[str, object]:
    """Return the options of a run that states its drafter, draft length and yield per step, or none if any is missing.

    >>> stated_drafts({"spec_method": "mtp", "num_speculative_tokens": "3", "accepted_length": "2.82"})
    {'technique': 'mtp=3', 'accepted_length': 2.82}
    """
    method = next((cell(row, name).lower() for name in DRAFT_COLUMNS if cell(row, name)), "")
    drafts, length = cell(row, "num_speculative_tokens"), cell(row, "accepted_length")
    if method in UNDRAFTED or not drafts or not length:
        return {}
    return {"technique": f"{method}={drafts}", "accepted_length": float(length)}


def draft_rule(row: Row) -> str:
    """Return the rule that shows a row drafted without stating how many tokens were accepted, or ""."""
    if stated_drafts(row):
        return ""
    column = next((cell(row, name).lower() for name in DRAFT_COLUMNS if cell(row, name)), "")
    if column:
        return "" if column in UNDRAFTED else SAID
    named = " ".join(cell(row, name).lower().replace("_", " ") for name in ("id", "source"))
    return SAID if _DRAFTED.search(named) else ""
