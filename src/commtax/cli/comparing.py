"""``compare --plans``: plans side by side."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from commtax.api.plans import Axes, compare_plans
from commtax.cli.options import together
from commtax.cli.output import print_json, terminal
from commtax.files import read_text
from commtax.spec import Cluster
from commtax.statement import Refusal
from commtax.units import parse_count

plan_options = together(
    click.option("--plans", default="", metavar="PLANS", help="Plans side by side: tp1,tp8,tp8pp2,tp4dp2 (instead of --over)."),
    click.option("--links", default="", metavar="LINKS", help="With --plans: on each of these links, nvlink4,pcie5,10gbe."),
    click.option("--batches", default="", metavar="N[,N…]", help="With --plans: sequences over all replicas.  [default: --batch]"),
)


def show_plan_comparison(
    model: str, cluster: Cluster, words: dict[str, Any], given: dict[str, str], *, as_csv: bool, as_json: bool, plot: str
) -> None:
    """``given``: plans, links, batches and topo as they were written."""
    from commtax.report import plans as report

    for axis in ("tp", "pp", "dp", "ep", "cp"):
        if words.get(axis, 1) != 1:
            raise Refusal(f"{axis}: the plans say it; leave it out beside --plans", axis)
    if words.get("global_batch") and given["batches"]:
        raise Refusal("batches: give them or global_batch, not both", "batches")
    words["batch"] = words.get("global_batch") or words["batch"]
    sizes = [parse_count(b, "batches") for b in given["batches"].split(",")] if given["batches"] else [int(words["batch"] or 1)]
    words = {k: v for k, v in words.items() if k not in ("tp", "pp", "dp", "ep", "cp", "batch", "global_batch")}
    notes: list[str] = []
    where = _where(given["topo"], cluster, notes) if given["topo"] else None
    links = [name for name in given["links"].split(",") if name]
    found = compare_plans(model, cluster, given["plans"].split(","), links=links, batches=sizes, where=where, **words)
    if all(row.bill is None for row in found.rows):
        raise Refusal(f"plans: none of them is legal; first: {found.rows[0].refused}", "plans")
    found = replace(found, notes=(*dict.fromkeys(notes), *_remarks(found.rows)))
    if plot:
        report.plot_plans(found, f"{model} on {cluster.key}, {found.phase}, context {found.context:,}", Path(plot))
    if as_json:
        print_json(report.plans_document(found))
    elif as_csv:
        click.echo(report.plans_csv(found), nl=False)
    else:
        report.show_plans(terminal(), found)


def _where(file: str, cluster: Cluster, notes: list[str]) -> Any:
    """The cluster that a plan meets on the GPUs that suit it best."""
    from commtax.readers import topology
    from commtax.readers.placement import place

    found = topology.parse(read_text(file, "topo"))

    def where(axes: Axes) -> Cluster:
        laid = place(found, cluster, axes["tp"], axes["dp"] * axes["pp"])
        notes.extend(laid.notes)
        return laid.cluster

    return where


def _remarks(rows: Any) -> list[str]:
    """What the bills say that matters to all: batches are shared out, assumed constants."""
    found = ["batch counts sequences over all replicas; each gets its share, and tokens/s are those of the whole batch"]
    told = [note for row in rows if row.bill is not None for note in row.bill.notes if note.code == "assumed-links"]
    return [*found, *dict.fromkeys(told)]
