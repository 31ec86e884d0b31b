"""``commtax catalog``: facts with their sources."""

from collections.abc import Callable

import click

from commtax import catalog
from commtax.catalog.loader import did_you_mean, find, suggest
from commtax.catalog.models import published_counts
from commtax.cli.options import Verb, add_verb_options
from commtax.cli.output import Output
from commtax.cost.memory import check_stored
from commtax.spec import Chip, Cluster, Engine, Link
from commtax.statement import Refusal

HARDWARE: dict[str, Callable[[str], Chip | Link | Cluster | Engine]] = {
    "chips": catalog.chip,
    "links": catalog.link,
    "clusters": catalog.cluster,
    "engines": catalog.engine,
}
KINDS = ("chips", "links", "clusters", "models", "engines")


@click.command("catalog", cls=Verb)
@click.argument("kind", required=False)
@click.argument("name", required=False)
@add_verb_options("catalog")
def catalog_command(kind: str | None, name: str | None, read_as: str, as_json: bool) -> None:
    """Show chips, links, clusters, models and engines, each number with its source, and constants: every number that was fitted."""
    from commtax.report import catalog as report

    output = Output(as_json)
    if kind is not None and kind not in KINDS:
        kinds, beside, name = (*KINDS, "constants"), name, kind
        kind = next((one for one in KINDS if find(one, name)), "")
        if kind and beside:
            raise Refusal.of(f"one of {kind}; they are shown one by one: commtax catalog {kind} {name}", kinds, catalog=name)
        if not kind:
            near = suggest(name, kinds) or did_you_mean(name, *KINDS)
            raise Refusal.of(f"one of {', '.join(kinds)}, or what one of them is called{near}", kinds, catalog=name)
    if kind is None or name is None:
        listed = {key: catalog.keys(key) for key in (KINDS if kind is None else (kind,))}
        every = {key: [HARDWARE.get(key, catalog.model)(one) for one in names] for key, names in listed.items()}
        output.answer(lambda _: {"schema": "commtax.catalog/1", **listed}, report.show_catalog, every)
    if read_as and kind != "models":
        raise Refusal(f"as '{read_as}': belongs to models, not to {kind}", "as")
    if kind != "models":
        output.answer(report.entry_document, report.show_entry, HARDWARE[kind](name))
    model = catalog.model(name, read_as)
    check_stored(model)
    counts = published_counts(model.key) if model.key in catalog.keys("models") else []
    output.answer(report.model_document, report.show_model, model, counts)
