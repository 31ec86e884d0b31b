"""Public configurations through ``catalog``, ``fit`` and ``bill``: ``python benchmarks/configs.py CONFIGS.json [COUNTS.json]``.

The first file holds a ``config.json`` by each model's name, with ``hf_quant_config`` inside where there is one. The second lists
published parameter counts (``model``, ``params``, ``kind``, ``digits``, ``includes``). A tensor-parallel size that is refused is
tried at the next one. Prints a row for each configuration, and how many give all three answers.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import commtax
from commtax.catalog.hf import from_config
from commtax.cost.inventory import inventory, mtp_params, num_active_params, num_params
from commtax.spec import Model

CLUSTERS = ("8xb200-sxm", "8x8xb200-sxm")
SIZES = (8, 4, 2, 16, 1)
STORED = ("-NVFP4", "-FP8-Static-PerTensor", "-FP8", "-BF16")
"""Endings of names: the shape is that of the name without them."""


@dataclass
class Outcome:
    """What one configuration gave."""

    name: str
    model: Model | None = None
    fit: str = ""
    bill: str = ""
    refused: str = ""

    @property
    def answered(self) -> int:
        return sum((self.model is not None, bool(self.fit), bool(self.bill)))


def run(name: str, config: dict[str, Any]) -> Outcome:
    """One configuration through all three."""
    out = Outcome(name)
    try:
        out.model = from_config(config, name.split("/")[-1].lower())
    except ValueError as error:
        out.refused = str(error)
        return out
    out.fit = first_answer(out, lambda cluster, tp: fitted(out.model, cluster, tp))
    out.bill = first_answer(out, lambda cluster, tp: billed(out.model, cluster, tp))
    return out


def fitted(model: Model, cluster: str, tp: int) -> str:
    """With 64k tokens, so that caches that no rank shares leave room."""
    answer = commtax.fit(model, cluster, tp=tp, max_model_len=min(model.max_len, 65536))
    return f"tp{tp}" if answer.fits else ""


def billed(model: Model, cluster: str, tp: int) -> str:
    decode, prefill = (commtax.bill(model, cluster, tp=tp, phase=phase, context=2048) for phase in ("decode", "prefill"))
    return f"{decode.step_s * 1e3:.1f}/{prefill.step_s * 1e3:.0f} ms"


def first_answer(out: Outcome, ask) -> str:
    """The first cluster and size that are legal and enough."""
    for cluster in CLUSTERS:
        for tp in SIZES:
            try:
                if answer := ask(cluster, tp):
                    return answer
            except ValueError as error:
                out.refused = str(error)
    return ""


def told(name: str, counts: Iterable[Any]) -> list[Any]:
    """Published counts of a model, or of the one that it is a stored form of."""
    plain = name.split("/")[-1]
    for ending in STORED:
        plain = plain.removesuffix(ending)
    return [
        row for row in counts if row["model"].split("/")[-1].removesuffix("-BF16") in (plain, f"{plain}-it", f"{plain}-Instruct")
    ]


def against(model: Model, rows: Iterable[Any]) -> Iterator[str]:
    """Each published count with the nearest reading of ours: with or without prediction layers, tower and embeddings."""
    for row in rows:
        readings = active(model) if row["kind"] == "active" else totals(model)
        ours = min(readings, key=lambda n: abs(n / row["params"] - 1))
        exact = "exact" if ours == row["params"] else f"{ours / row['params'] - 1:+.2%}"
        yield f"{row['kind']} {row['params']:.4g} ({row['digits'] or 'all'} digits): {exact}"


def totals(model: Model) -> list[int]:
    """All parameters, those of prediction layers and of the tower in or out, and copies of embedding and head beside them."""
    whole, further, table = num_params(model), mtp_params(model), model.vocab * model.hidden
    tower = sum(t.size for t in inventory(model) if t.part == "tower")
    text = whole - tower
    copied = [whole + further + 2 * table, text + further + 2 * table, whole + table]
    return [whole, whole + further, text, text + further, *copied, *([tower] if tower else [])]


def active(model: Model) -> list[int]:
    bare = num_active_params(model, embedding=False)
    return [num_active_params(model), bare, bare - (0 if model.tied else model.vocab * model.hidden)]


def main(configs: str, counts: str = "") -> None:
    published = json.loads(Path(counts).read_text()) if counts else []
    outcomes = [run(name, config) for name, config in json.loads(Path(configs).read_text()).items()]
    for out in outcomes:
        shown = f"{num_params(out.model):>17,}" if out.model else " " * 17
        print(f"{out.name:52s} {shown}  fit {out.fit or '-':6s} bill {out.bill or '-'}")
        if out.answered < 3:
            print(f"    {out.refused}")
        if out.model:
            for line in [*map(str, out.model.notes), *against(out.model, told(out.name, published))]:
                print(f"    {line}")
    whole = sum(out.answered == 3 for out in outcomes)
    print(f"{whole} of {len(outcomes)} configurations give catalog, fit and bill")


if __name__ == "__main__":
    main(*sys.argv[1:])
