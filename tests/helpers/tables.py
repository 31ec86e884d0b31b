"""Cases that are data lie beside their test in a TOML file of the same name."""

import tomllib
from pathlib import Path


def tables(test):
    """What stands in the file of a test, rows as tuples."""
    return as_rows(tomllib.loads(Path(test).with_suffix(".toml").read_text(encoding="utf-8")))


def as_rows(value):
    if isinstance(value, dict):
        return {key: as_rows(one) for key, one in value.items()}
    return tuple(map(as_rows, value)) if isinstance(value, list) else value
