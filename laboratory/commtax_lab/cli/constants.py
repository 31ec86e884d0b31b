"""``commtax catalog constants``."""

from collections import Counter
from collections.abc import Iterable, Mapping

import click

from commtax.cli.options import Verb, add_verb_options
from commtax.cli.output import Output
from commtax.files import table
from commtax.report.documents import record
from commtax.report.drawing import Console, Text
from commtax.report.tables import notes, say, show_table
from commtax.statement import Refusal
from commtax_lab.census import KINDS, LAW, CensusEntry, breakers, census, earlier_counts, totals


@click.command("catalog constants", cls=Verb)
@click.argument("part", required=False, default="")
@add_verb_options("constants")
def constants_command(part: str, as_json: bool) -> None:
    """List every number that was fitted, or those of the files whose name has PART in it."""
    numbers = census()
    if part and not any(part in number.file for number in numbers):
        files = ", ".join(dict.fromkeys(number.file for number in numbers))
        raise Refusal(f"constants '{part}': no file with fitted numbers has this in its name; there are {files}", "name")
    Output(as_json).answer(census_document, show_census, numbers, part)


WORDS = table("report/words.toml")["census"]["kinds"]
LONGEST = 60
"""Signs of a source in a table."""


def census_document(numbers: list[CensusEntry], part: str) -> dict[str, object]:
    """Return the document of ``catalog constants --json``."""
    here = [number for number in numbers if part in number.file]
    return record(
        "constants", law=LAW, totals=totals(here), stood={} if part else earlier_counts(), breakers=breakers(here), numbers=here
    )


def show_census(console: Console, numbers: list[CensusEntry], part: str) -> None:
    """Show totals and files (the groups of PART, where one is named), then effects and the numbers that break the law."""
    here = [number for number in numbers if part in number.file]
    law = breakers(numbers)
    if part:
        _show_groups(console, here)
    else:
        _show_totals(console, here, len(law))
        _show_files(console, here, law)
    _show_effects(console, here, law)
    broken = sum(number.where in law for number in here)
    verdict = f"{broken} of them break it" if broken else "all of them obey it"
    effects = sum(number.kind == "effect" and bool(number.fitted_on) for number in here)
    style = "bold red" if broken else "bold"
    say(console, f"the law of parts: {effects} effects on kernels were fitted end to end, {verdict}", style)
    notes(console, [f"an effect lies within {LAW[0]:g} to {LAW[1]:g}, belongs to an engine, a kind of kernel and chips, names its "
                    "mechanism, and never belongs to a model or a family of models"])  # fmt: skip


def _show_totals(console: Console, numbers: list[CensusEntry], broken: int) -> None:
    now, before = totals(numbers), earlier_counts()
    rows = [(kind, WORDS[kind], f"{before[kind]:,}", f"{count:,}", f"{count - before[kind]:+,}") for kind, count in now.items()]
    fitted, was = (sum(counts[kind] for kind in KINDS) for counts in (now, before))
    rows.append(("fitted", "all but those that were chosen", f"{was:,}", f"{fitted:,}", f"{fitted - was:+,}"))
    rows.append(("breakers", "of the law of parts", f"{before['breakers']:,}", f"{broken:,}", f"{broken - before['breakers']:+,}"))
    show_table(console, ("kind", "", f">stood ({before['commit']})", ">stand", ">change"), rows)


def _show_files(console: Console, numbers: list[CensusEntry], law: Mapping[str, tuple[str, ...]]) -> None:
    by_file: dict[str, list[CensusEntry]] = {}
    for number in numbers:
        by_file.setdefault(number.file, []).append(number)
    rows = [_file_cells(file, entries, law) for file, entries in by_file.items()]
    show_table(console, ("file", *(f">{kind}" for kind in KINDS), ">chosen", ">all", ">breakers"), rows)


def _file_cells(file: str, entries: list[CensusEntry], law: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    broken = sum(number.where in law for number in entries)
    counts = totals(entries)
    return (file, *(f"{count:,}" if count else "" for count in counts.values()), f"{sum(counts.values()):,}", str(broken or ""))


def _show_groups(console: Console, numbers: list[CensusEntry]) -> None:
    groups: dict[tuple[str, ...], Counter[str]] = {}
    for n in numbers:
        key = (n.file, n.group, n.owner.engine, n.owner.chips, _shorten(n.fitted_on))
        groups.setdefault(key, Counter())[n.kind] += 1
    rows = [
        (file, group, engine, chips, ", ".join(f"{count} {kind}" for kind, count in kinds.items()), fitted_on or "chosen")
        for (file, group, engine, chips, fitted_on), kinds in groups.items()
    ]
    show_table(console, ("file", "group", "engine", "chips", "numbers", "fitted on"), rows)


def _show_effects(console: Console, numbers: Iterable[CensusEntry], law: Mapping[str, tuple[str, ...]]) -> None:
    effects = [n for n in numbers if n.kind == "effect" and n.fitted_on]
    rows = [
        (
            n.where.removeprefix("catalog/"),
            f"{n.value:.4g}",
            n.owner.engine,
            n.owner.chips,
            n.owner.mechanism,
            Text(", ".join(rules), style="red") if (rules := law.get(n.where, ())) else Text("obeyed", style="green"),
        )
        for n in sorted(effects, key=lambda n: (n.where not in law, n.file))
    ]
    if rows:
        show_table(console, ("effect", ">value", "engine", "chips", "mechanism", "law"), rows)


def _shorten(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
