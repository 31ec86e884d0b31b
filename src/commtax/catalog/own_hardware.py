"""A chip or a link from a table that somebody wrote: the fields of ``catalog/chips`` and ``catalog/links``, sources as they like.

What says the same as an entry of the catalogue under its name is that entry; what says something else has a name of its own, so
that no measurement of another thing is taken for its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from commtax.catalog import physics
from commtax.catalog.hardware import chip, link
from commtax.catalog.loader import find, stems, suggest
from commtax.catalog.table_view import TableView
from commtax.records import record_from, with_fields
from commtax.spec import Chip, Citation, Link
from commtax.statement import Refusal
from commtax.units import format_seconds

CHIP_TEXTS = ("key", "name", "vendor", "family", "compute_capability", "intra", "inter", "note")
CHIP_FIELDS = {*CHIP_TEXTS, "aliases", "flops_per_s", "sources", *physics.DESCRIBED_CHIP}
LINK_TEXTS = ("key", "name", "kind", "scope", "note")
LINK_FLAGS = ("switched", "nic_per_gpu", "ordered")
LINK_FIELDS = {*LINK_TEXTS, *LINK_FLAGS, "aliases", "sources", *physics.DESCRIBED_LINK}
PEAKS = ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8")
"""Types of arithmetic that a chip has peaks for."""
RATES = ("family", "memory_Bps", "flops_per_s")
"""What makes a chip the one that was measured under its name."""
OTHER_KINDS = "ICI or another scale-up link is nvlink through switches, xgmi from chip to chip; Ethernet is roce (docs/hosts.md)"
UNSAID_OF_CHIP = {
    "visible_bytes": "programs see all of memory_bytes",
    "l2_bytes": "no cache",
    "num_sms": "exchanges take no SMs from kernels",
    "family": "kernels as other chips'",
}
"""What is assumed of a described chip that does not say it."""
UNSAID_OF_LINK: dict[str, Callable[[float], str]] = {
    "latency_s": format_seconds,
    "mesh": lambda gpus: f"{gpus} GPUs, of which 2 have 1/{gpus - 1} of the bandwidth" if gpus else "",
    "efficiency": lambda share: f"{share:g}" if share < 1 else "",
    "fill_s": lambda seconds: format_seconds(seconds) if seconds else "",
}
"""What decides a link's times, and how a value is told that another link lends it; "" where that is none."""
LONGEST = 200  # signs of a name or a note that are kept

Sources = dict[str, Citation]


def own_chip(part: TableView, links: Mapping[str, str], cited: Sources, name: str) -> tuple[Chip, str]:
    """A chip of a table, and what is assumed of it; ``links`` are its usual ones by the catalogue's names, ``name`` its own where
    the table has none."""
    check_keys(part, CHIP_FIELDS)
    texts = {key: line(part, key) for key in CHIP_TEXTS}
    makers = {"generic": "generic"} | {known.family: known.vendor for known in map(chip, stems("chips"))}
    family = check_one_of(texts["family"] or "generic", makers, part.named("family"))
    vendor = check_one_of(texts["vendor"] or makers[family], set(makers.values()), part.named("vendor"))
    facts, sources = numbers(part, physics.DESCRIBED_CHIP, cited, needed=("memory_bytes", "memory_Bps"))
    peaks, their = _peaks(part.part("flops_per_s"), cited)
    said: dict[str, object] = {**texts, **links, "key": texts["key"] or name, "name": texts["name"] or texts["key"] or name}
    said |= {"family": family, "vendor": vendor, "flops_per_s": peaks, "sources": sources | their}
    said |= {"visible_bytes": facts["memory_bytes"], "gpus_per_host": 1, **facts}
    made = _named_chip(record_from(Chip, said), name)
    return made, assumed_words(
        made.name, "chip", [f"{key} ({words})" for key, words in UNSAID_OF_CHIP.items() if key not in part.table]
    )


def assumed_words(name: str, where: str, what: Collection[str]) -> str:
    return f"assumed of {name}, as [{where}] does not say: {', '.join(what)}" if what else ""


def _peaks(part: TableView, cited: Sources) -> tuple[dict[str, float], Sources]:
    """FLOP/s by type of arithmetic: models are computed in 16 bits, so one such peak is needed."""
    check_keys(part, PEAKS)
    peaks, sources = numbers(part, dict.fromkeys(PEAKS, physics.FLOPS), cited)
    if not peaks.keys() & {"bf16", "fp16"}:
        raise Refusal(f"{part.where}: missing bf16 or fp16, dense FLOP/s as in {part.named('bf16')} = 989.4e12", part.where)
    return peaks, {f"flops_per_s.{name}": source for name, source in sources.items()}


def _named_chip(made: Chip, name: str) -> Chip:
    """The chip under the name that it has; under another one where that is another chip's, or a family's."""
    if made.key in stems("chips") and all(getattr(chip(made.key), fact) == getattr(made, fact) for fact in RATES):
        return made
    taken = find("chips", made.key) or made.key in stems("kernels")
    return replace(made, key=f"{made.key} of {name}") if taken else made


def own_link(part: TableView, scope: str, cited: Sources, name: str) -> tuple[Link, str]:
    """A link of a table, and what is assumed of it: what it does not say is as in the catalogued link of its kind whose rate is
    nearest. A network inside a host is laid out as switches or a mesh are, and is as late as the network."""
    check_keys(part, LINK_FIELDS)
    texts = {key: line(part, key) for key in LINK_TEXTS}
    if texts["scope"] not in ("", scope):
        raise Refusal(f"{part.named('scope')}='{texts['scope']}': {scope} is needed here", part.named("scope"))
    facts, sources = numbers(part, physics.DESCRIBED_LINK, cited, needed=("bandwidth_Bps",))
    given = {**facts, **{key: _flag(part, key) for key in LINK_FLAGS if key in part.table}}
    rate, where = facts["bandwidth_Bps"], part.named("kind")
    kind = _layout(texts["kind"], given, where) if scope == "intra" else texts["kind"]
    near = nearest_links(kind, scope, rate, where)
    for known in near if kind == texts["kind"] else ():
        if texts["key"] in ("", known.key) and all(getattr(known, fact) == value for fact, value in given.items()):
            return known, ""
    key = texts["key"] if texts["key"] and not find("links", texts["key"]) else name
    made = replace(near[0], key=key, name=texts["name"] or key, note=texts["note"], aliases=(), sources=sources, num_links=0)
    lent = dict.fromkeys(UNSAID_OF_LINK, near[0])
    if kind != texts["kind"]:
        lent["latency_s"] = nearest_links(texts["kind"], "inter", rate, where)[0]
    told = {fact: words(getattr(lent[fact], fact)) for fact, words in UNSAID_OF_LINK.items() if fact not in given}
    unsaid = [f"{fact} {value} (as {lent[fact].key})" for fact, value in told.items() if value]
    return with_fields(made, {"latency_s": lent["latency_s"].latency_s, **given}), assumed_words(key, part.where, unsaid)


def _layout(kind: str, given: Mapping[str, object], name: str) -> str:
    """The kind of link inside a host that a network between hosts is laid out as, if it is run there; else the kind itself."""
    if kind not in {known.kind for known in map(link, stems("links")) if known.scope == "inter"}:
        return kind
    if "switched" not in given:
        rule = "inside a host, switched = true (through switches) or false (from chip to chip) is needed beside it"
        raise Refusal(f"{name}='{kind}': {rule}", name)
    return "nvlink" if given["switched"] else "xgmi"


def nearest_links(kind: str, scope: str, bandwidth_Bps: float, name: str) -> list[Link]:
    """Catalogued links of a kind, the nearest rate first; of equal ones that which joins all, before a bridge."""
    inside = [known for known in map(link, stems("links")) if known.scope == scope]
    kinds = sorted({known.kind for known in inside})
    if scope == "intra" and kind not in kinds:  # the nearest spelling is rarely the nearest link
        raise Refusal(f"{name}='{kind}': one of {', '.join(kinds)}; {OTHER_KINDS}", name)
    check_one_of(kind, kinds, name)
    alike = [known for known in inside if known.kind == kind]
    return sorted(alike, key=lambda known: (abs(math.log(known.bandwidth_Bps / bandwidth_Bps)), not known.switched))


def numbers(
    part: TableView, ranges: Mapping[str, physics.PhysicalRange], cited: Sources, needed: Collection[str] = ()
) -> tuple[dict[str, float], Sources]:
    """The numbers of these names, and where each is from; a number is plain, or ``[number, "source"]``."""
    missing = [key for key in needed if key not in part.table]
    if missing:
        raise Refusal(f"{part.named(missing[0])}: missing; {ranges[missing[0]].kind} are needed", part.named(missing[0]))
    values: dict[str, float] = {}
    sources: Sources = {}
    for key in (key for key in ranges if key in part.table):
        entry = part.table[key]
        pair = isinstance(entry, list) and len(entry) == 2 and isinstance(entry[1], str)
        number, source = entry if isinstance(entry, list) and pair else (entry, "given by the user")
        value = ranges[key].read(number, part.named(key))
        values[key] = int(value) if ranges[key].whole else value
        sources[key] = cited.get(source, Citation(source[:LONGEST], "", ""))
    return values, sources


def check_keys(part: TableView, known: Collection[str], homes: Mapping[str, Collection[str]] | None = None) -> None:
    """A key that no such table takes is refused with those that it does, or with the table (of ``homes``) where it belongs."""
    for key in sorted(set(part.table) - set(known)):
        home = next((home for home, keys in (homes or {}).items() if key in keys), "")
        takes = f"[{part.where}] takes {', '.join(sorted(known))}" if part.where else f"a file takes {', '.join(sorted(known))}"
        says = f": it belongs in {home}" if home else f"{suggest(key, known)}; {takes}".replace("?;", "?")
        raise Refusal(f"unknown key '{part.named(key)}'{says}", part.named(key))


def citations(part: TableView) -> Sources:
    """Sources that a table names, each with a title, an address and a date as far as it has them."""
    named = part.part("sources")
    told = {key: named.part(key) for key in named.table}
    for source in told.values():
        source.check_known(("title", "url", "date"))
    return {key: Citation(*(line(source, fact) for fact in ("title", "url", "date"))) for key, source in told.items()}


def line(part: TableView, key: str) -> str:
    """A text in one line, short enough to be shown."""
    return "".join(sign if sign.isprintable() else " " for sign in part.text(key)[:LONGEST]).strip()


def check_one_of(text: str, known: Collection[str], name: str) -> str:
    """A word of a few; another one is refused with them."""
    if text not in known:
        raise Refusal(f"{name}='{text}': one of {', '.join(sorted(known))}{suggest(text, known)}", name)
    return text


def _flag(part: TableView, key: str) -> bool:
    value = part.table[key]
    if not isinstance(value, bool):
        raise Refusal(f"{part.named(key)}={physics.short_repr(value)}: true or false is needed", part.named(key))
    return value
