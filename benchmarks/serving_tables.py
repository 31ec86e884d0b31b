"""What ``fit_serving.py`` found, as the files of the package have it: times of engines, ranges, and errors of what was left out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import commtax
from commtax.catalog.loader import version_parts

PACKAGE = Path(commtax.__file__).parent


def write_times(times: Mapping[tuple[str, str], Mapping[str, float]]) -> None:
    """Into ``catalog/engines``: every version's own where it has a part, and those of the newest that ran for the engine itself."""
    for engine in dict.fromkeys(engine for engine, _ in times):
        path = PACKAGE / f"catalog/engines/{engine}.toml"
        newest = max((version for name, version in times if name == engine), key=version_parts)
        sections = re.split(r"(?m)^(?=\[)", path.read_text(encoding="utf-8"))
        for i, section in enumerate(sections):
            of = re.match(r'\[versions\."(.+?)"\]', section)
            for name, value in times.get((engine, of[1] if of else newest if i == 0 else ""), {}).items():
                sections[i] = re.sub(rf'(?m)^{name} = \[[^,]+, "fit"\]', f'{name} = [{float(f"{value:.4g}")}, "fit"]', sections[i])
        path.write_text("".join(sections), encoding="utf-8")


def transfer_lines(widths: Mapping[str, Mapping[str, Mapping[str, float]]], groups: Iterable[Any]) -> Iterator[str]:
    """``catalog/transfer.toml``."""
    yield "# How far predictions are off where nothing was fitted: standard deviations of log errors, by what no run had."
    yield "# From benchmarks/fit_serving.py: each engine, chip, family, publisher and file left out of the fit and predicted."
    for metric, kinds in widths.items():
        for kind, known in kinds.items():
            yield f"\n[sigma.{metric}.{kind}]"
            yield from (f"{name} = {value:.3f}" for name, value in known.items())
    yield "\n# Runs that the constants were fitted on."
    named = ((g.engine.version, g.words["model"].key, g.names["publisher"], g.setting) for g in groups if g.fitted.any())
    for version, model, who, s in dict.fromkeys(named):
        yield "\n[[run]]"
        yield from (f'{name} = "{getattr(s, name)}"' for name in ("engine", "chip", "dtype", "family"))
        yield f'version = "{version}"\nmodel = "{model}"\npublisher = "{who}"'


def board_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The laboratory's ``published/scoring/transfer.toml``."""
    yield "# Errors and ranges at home and abroad (benchmarks/fit_serving.py): each engine, chip, family, publisher, file left out."
    for row in rows:
        yield "\n[[fold]]"
        yield f'left_out = "{"" if row["fold"] == "seen" else row["fold"]}"'
        yield from (f'{name} = "{row[name]}"' for name in ("metric", "models"))
        yield f"n = {row['n']}"
        yield from (f"{name} = {row[name]:.3f}" for name in ("median", "covered", "half_width"))


def write(path: str, lines: Iterator[str]) -> None:
    (PACKAGE / path).write_text("\n".join(lines) + "\n", encoding="utf-8")
