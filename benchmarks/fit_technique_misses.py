"""How far off are predicted gains of techniques? ``python benchmarks/fit_technique_misses.py DATA``.

DATA holds techniques.csv. Prints what belongs in src/commtax/catalog/technique_misses.toml, by which ``commtax worth`` widens its
ranges: of free sources alone, each left out in turn; those that are held out are not read.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from commtax_lab.published.scoring.technique_misses import covered_share, left_out, misses
from commtax_lab.published.scoring.technique_scores import score_row
from commtax_lab.published.technique_rows import held_out, read_technique_rows, technique_readings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    rows = read_technique_rows(parser.parse_args().data / "techniques.csv", held=False)
    readings = technique_readings()
    found = list(misses(score_row(row, readings) for row in rows if not held_out(row.source)))
    for kind in sorted({one.kind for one in found}):
        own = [one for one in found if one.kind == kind]
        fitted = left_out(own)
        sources = len({one.source for one in own})
        shares = f"{fitted.coverage:.0%} where left out, {covered_share(own, fitted):.0%} here"
        print(f"[{kind}]  # {sources} sources, {len(own)} rows; {shares}")
        print(f"least = {fitted.least:.3g}\nshare = {fitted.share:.3g}\n")


if __name__ == "__main__":
    main()
