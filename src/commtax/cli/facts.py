"""``commtax catalog`` and ``commtax claims``: what is known, and what is said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from commtax import catalog
from commtax.catalog.models import published
from commtax.cli.options import json_option
from commtax.cli.output import print_json, terminal
from commtax.cost.memory import check_stored
from commtax.statement import Refusal

LOADERS: dict[str, Callable[[str], Any]] = {
    "chips": catalog.chip,
    "links": catalog.link,
    "clusters": catalog.cluster,
    "engines": catalog.engine,
}


@click.command("catalog")
@click.argument("kind", required=False)
@click.argument("name", required=False)
@json_option
def catalog_command(kind: str | None, name: str | None, as_json: bool) -> None:
    """Chips, links, clusters, models and engines, each number with its source.

    commtax catalog models llama-3.1-8b
    """
    from commtax.report import documents, tables

    kinds = ("chips", "links", "clusters", "models", "engines")
    if kind is not None and kind not in kinds:
        raise Refusal(f"catalog '{kind}': one of {', '.join(kinds)}")
    if name is None:
        _list(kinds if kind is None else (kind,), as_json)
        return
    if kind == "models":
        model = catalog.model(name)
        check_stored(model)
        counts = published(model.key) if model.key in catalog.model_keys() else []
        if as_json:
            print_json(documents.model_document(model, counts))
        else:
            tables.show_model(terminal(), model, counts)
        return
    thing = LOADERS[kind or ""](name)
    if as_json:
        print_json(documents.thing_document(thing))
    else:
        tables.show_thing(terminal(), thing)


def _list(kinds: tuple[str, ...], as_json: bool) -> None:
    from commtax.report import tables

    if as_json:
        found = {k: catalog.model_keys() if k == "models" else catalog.keys(k) for k in kinds}
        print_json({"schema": "commtax.catalog/1", **found})
        return
    console = terminal()
    for kind in kinds:
        if kind == "models":
            tables.show_models(console, [catalog.model(k) for k in catalog.model_keys()])
        else:
            tables.show_things(console, [LOADERS[kind](k) for k in catalog.keys(kind)])
        console.print()


@click.command("claims")
@json_option
def claims_command(as_json: bool) -> None:
    """What well-known texts say about the communication tax, and what the arithmetic says."""
    from commtax.claims import claims

    if as_json:
        from commtax.report.documents import claims_document

        print_json(claims_document(claims()))
    else:
        from commtax.report.tables import show_claims

        show_claims(terminal(), claims())
