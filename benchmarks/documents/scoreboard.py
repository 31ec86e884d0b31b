"""Write docs/scoreboard.md: errors by chip, engine and family of models, from what ``commtax validate`` finds on what ships.

``python benchmarks/documents/scoreboard.py``, or ``make figures``. Rows are those of the lines of accuracy.md that no constant was fitted on.
"""

# ruff: noqa: E501 - sentences of the page stand as they are printed
from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from accuracy import transfer

from commtax import catalog
from commtax_lab import lab_table
from commtax_lab.cli.validate import figure_cells
from commtax_lab.published.scoring import check
from commtax_lab.published.scoring.prediction_columns import Records
from commtax_lab.published.scoring.statistics import choose, figures

PAGE = Path(__file__).parents[2] / "docs" / "scoreboard.md"
LEAST = 5  # figures of a cell
PARTS = ("collectives", "kernels", "steps", "closed loops", "requests in time", "training")
HEADS = ("collectives", "kernels", "whole steps", "TPOT", "TTFT", "requests in time", "training")
ENGINES = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM", "tensorrt-llm": "TensorRT-LLM"}
TEXTS: dict[str, str] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
ABROAD = """
Each engine, chip, family or publisher was left out of the fits in turn and then predicted. Medians, and in brackets the share
of runs inside the 80% range: [how, and what to be careful with](transfer.md).
"""
WEAK = """
A family is the model's class in Transformers, with its kind. Lines and cells with fewer than five figures are left out. *In range* is
the share inside the predicted 80% range: where it is far below 80%, ranges are too narrow; where it is 100%, they are wider than
they need be, or there are few runs. TTFT is the weak figure everywhere: it depends on what waits in front of a request.
"""


def scored(records: Records) -> dict[str, Records]:
    """Tested rows of each part of accuracy.md's scoreboard, each once."""
    tested = records.where_true(records.timed & ~records.fitted)
    numbered = Records({**tested.columns, "number": np.arange(len(tested))})
    found: dict[str, set[int]] = {part: set() for part in PARTS}
    for line in lab_table("published/scoring/scoreboard.toml")["line"]:
        found[line["part"]] |= set(choose(numbered, line["rows"])[0].columns["number"].tolist())
    return {part: tested.where_true(np.array(sorted(numbers), dtype=int)) for part, numbers in found.items()}


def of(records: Records, column: str, value: str) -> Records:
    return records.where_true(records.columns[column] == value)


def cell(records: Records) -> str:
    """Median error and how many figures it is of."""
    found = figures(records) if len(records) >= LEAST else None
    return f"{found.median_ape:.1%} ({found.n:,})" if found else ""


def columns_of(parts: dict[str, Records]) -> dict[str, Records]:
    """What the columns of the first table are of."""
    loops = parts["closed loops"]
    kinds = {"TPOT": of(loops, "kind", "tpot"), "TTFT": of(loops, "kind", "ttft")}
    others = {"whole steps": parts["steps"], **{part: parts[part] for part in PARTS if part not in ("steps", "closed loops")}}
    return {head: (kinds | others)[head] for head in HEADS}


def chips(parts: dict[str, Records]) -> Iterator[str]:
    """A line for each chip with enough figures of anything, the best known first."""
    by_head = columns_of(parts)
    every = [str(chip) for one in by_head.values() for chip in one.chip]
    known = sorted({chip for chip in every if chip}, key=lambda chip: (-every.count(chip), chip))
    yield "| chip | " + " | ".join(by_head) + " |"
    yield "|---|" + "---:|" * len(by_head)
    for chip in known:
        cells = [cell(of(one, "chip", chip)) for one in by_head.values()]
        if any(cells):
            yield f"| {chip} | " + " | ".join(cells) + " |"


def engine_of(records: Records) -> list[str]:
    return [ENGINES.get(str(name), "") for name in records.library]


def family_of(records: Records) -> list[str]:
    """The model's own class, by the name that begins a row's words; "" where it is no name."""

    def known(name: str) -> str:
        try:
            model = catalog.model(name)
        except ValueError:
            return ""
        return f"{model.architecture.removesuffix('ForCausalLM').removesuffix('ForConditionalGeneration')} ({model.kind})"

    names = [str(words).partition(",")[0] for words in records.what]
    families = {name: known(name) for name in set(names)}
    return [families[name] for name in names]


def chip_of(records: Records) -> list[str]:
    return [str(chip) for chip in records.chip]


def served(loops: Records, title: str, group_of: Callable[[Records], Sequence[str]]) -> Iterator[str]:
    """TPOT and TTFT of served runs by what they share."""
    tpot, ttft = of(loops, "kind", "tpot"), of(loops, "kind", "ttft")
    groups = {name: np.array([one == name for one in group_of(tpot)]) for name in dict.fromkeys(group_of(tpot)) if name}
    late = group_of(ttft)
    for name, mine in sorted(groups.items(), key=lambda item: -int(item[1].sum())):
        first, then = figures(tpot.where_true(mine)), figures(ttft.where_true(np.array([one == name for one in late])))
        if first and then and first.n >= LEAST:
            shown = [*figure_cells(first)[:3], figure_cells(first)[4], *figure_cells(then)[1:3], figure_cells(then)[4]]
            yield f"| {title} | {name} | " + " | ".join(shown) + " |"
            title = ""


def served_table(loops: Records) -> Iterator[str]:
    yield "| | | runs | TPOT: median | 90% within | in range | TTFT: median | 90% within | in range |"
    yield "|---|---|---:|---:|---:|---:|---:|---:|---:|"
    for title, group_of in (("engine", engine_of), ("chip", chip_of), ("family", family_of)):
        yield from served(loops, f"**{title}**", group_of)


def page(records: Records) -> str:
    parts = scored(records)
    sections: list[str | Iterable[str]] = [
        *("# Scoreboard", TEXTS["intro"].strip()),
        *("## By chip", chips(parts)),
        *("## Served runs, by engine, chip and family", "Runs of a closed loop: so many clients, each with one request at a time."),
        *(served_table(parts["closed loops"]), WEAK.strip()),
        *("## Where nothing was fitted", ABROAD.strip(), transfer(lambda fold: f"{fold.median:.1%} ({fold.covered:.0%})")),
        *("## Beside other predictors", TEXTS["rivals"].strip()),
    ]
    return "\n\n".join(one if isinstance(one, str) else "\n".join(one) for one in sections) + "\n"


def main() -> None:
    PAGE.write_text(page(check().records), encoding="utf-8")
    print(f"{PAGE.name} {PAGE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
