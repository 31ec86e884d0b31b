"""A cluster that somebody describes in a TOML file of their own: the fields of ``catalog/clusters``, sources where one cares to.

``chip``, ``intra``, ``inter`` and ``bridge`` are names of the catalogue, or tables; all else is as hosts of the chip usually are. A
table that differs from the catalogued entry under its name gets another name, so that no other measurement is taken for its own.
"""

import math
import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path

from commtax.catalog import physics
from commtax.catalog.hardware import chip, link
from commtax.catalog.hosts import usual_hosts, with_between, with_inside_link
from commtax.catalog.loader import find, parse_toml, stems, suggest
from commtax.catalog.physics import TableView
from commtax.files import MiB, decode_text, expand_home, read_bytes
from commtax.records import record_from, with_fields
from commtax.spec import Chip, Citation, Cluster, Link
from commtax.statement import Refusal
from commtax.units import format_seconds

CHIP_TEXTS = ("key", "name", "vendor", "family", "compute_capability", "intra", "inter", "note")
CHIP_FIELDS = {*CHIP_TEXTS, "aliases", "flops_per_s", "sources", *physics.DESCRIBED_CHIP}
LINK_TEXTS = ("key", "name", "kind", "scope", "note")
LINK_FLAGS = ("switched", "nic_per_gpu", "ordered")
LINK_FIELDS = {*LINK_TEXTS, *LINK_FLAGS, "aliases", "sources", *physics.DESCRIBED_LINK}
PEAKS = ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8")  # types of arithmetic that a chip has peaks for
RATES = ("family", "memory_Bps", "flops_per_s")  # what makes a chip the one that was measured under its name
OTHER_KINDS = "ICI or another scale-up link is nvlink through switches, xgmi from chip to chip; Ethernet is roce (docs/hosts.md)"
UNSAID_OF_CHIP = {"visible_bytes": "programs see all of memory_bytes", "l2_bytes": "no cache"}  # assumed where unsaid
UNSAID_OF_CHIP |= {"num_sms": "exchanges take no SMs from kernels", "family": "kernels as other chips'"}
UNSAID_OF_LINK: dict[str, Callable[[float], str]] = {
    "latency_s": format_seconds,
    "mesh": lambda gpus: f"{gpus} GPUs, of which 2 have 1/{gpus - 1} of the bandwidth" if gpus else "",
    "efficiency": lambda share: f"{share:g}" if share < 1 else "",
    "fill_s": lambda seconds: format_seconds(seconds) if seconds else "",
}  # what decides a link's times, and how a value is told that another link lends it; "" where that is none
LONGEST = 200  # signs of a name or a note that are kept
Sources = dict[str, Citation]


def described_chip(part: TableView, links: Mapping[str, str], cited: Sources, name: str) -> tuple[Chip, str]:
    """Return a chip of a table under its name, or this one, with its usual ``links``, and what is assumed of it."""
    check_keys(part, CHIP_FIELDS)
    texts = {key: line(part, key) for key in CHIP_TEXTS}
    makers = {"generic": "generic"} | {one.family: one.vendor for one in map(chip, stems("chips"))}
    family = check_one_of(texts["family"] or "generic", makers, part.named("family"))
    vendor = check_one_of(texts["vendor"] or makers[family], set(makers.values()), part.named("vendor"))
    facts, sources = numbers(part, physics.DESCRIBED_CHIP, cited, needed=("memory_bytes", "memory_Bps"))
    arithmetic = part.part("flops_per_s")
    check_keys(arithmetic, PEAKS)
    peaks, their = numbers(arithmetic, dict.fromkeys(PEAKS, physics.FLOPS), cited)
    if not peaks.keys() & {"bf16", "fp16"}:  # models are computed in 16 bits
        rule = f"missing bf16 or fp16, dense FLOP/s as in {arithmetic.named('bf16')} = 989.4e12"
        raise Refusal(f"{arithmetic.where}: {rule}", arithmetic.where)
    sources |= {f"flops_per_s.{dtype}": source for dtype, source in their.items()}
    values: dict[str, object] = {**texts, **links, "key": texts["key"] or name, "name": texts["name"] or texts["key"] or name}
    values |= {"family": family, "vendor": vendor, "flops_per_s": peaks, "sources": sources}
    values |= {"visible_bytes": facts["memory_bytes"], "gpus_per_host": 1, **facts}
    made = record_from(Chip, values)
    catalogued = made.key in stems("chips") and all(getattr(chip(made.key), fact) == getattr(made, fact) for fact in RATES)
    if not catalogued and (find("chips", made.key) or made.key in stems("kernels")):  # another chip's name, or a family's
        made = replace(made, key=f"{made.key} of {name}")
    unsaid = [f"{key} ({words})" for key, words in UNSAID_OF_CHIP.items() if key not in part.table]
    return made, assumed_words(made.name, "chip", unsaid)


def assumed_words(name: str, where: str, what: Collection[str]) -> str:
    return f"assumed of {name}, as [{where}] does not say: {', '.join(what)}" if what else ""


def described_link(part: TableView, scope: str, cited: Sources, name: str) -> tuple[Link, str]:
    """Return a link of a table, and what is assumed: the rest of the catalogued link of its kind with the nearest rate."""
    check_keys(part, LINK_FIELDS)
    texts = {key: line(part, key) for key in LINK_TEXTS}
    if texts["scope"] not in ("", scope):
        raise Refusal(f"{part.named('scope')}='{texts['scope']}': {scope} is needed here", part.named("scope"))
    facts, sources = numbers(part, physics.DESCRIBED_LINK, cited, needed=("bandwidth_Bps",))
    stated = {**facts, **{key: part.switch(key) for key in LINK_FLAGS if key in part.table}}
    rate, where, kind = facts["bandwidth_Bps"], part.named("kind"), texts["kind"]
    if scope == "intra" and kind in {one.kind for one in map(link, stems("links")) if one.scope == "inter"}:
        if "switched" not in stated:
            rule = "inside a host, switched = true (through switches) or false (from chip to chip) is needed beside it"
            raise Refusal(f"{where}='{kind}': {rule}", where)
        kind = "nvlink" if stated["switched"] else "xgmi"
    near = nearest_links(kind, scope, rate, where)
    for one in near if kind == texts["kind"] else ():
        if texts["key"] in ("", one.key) and all(getattr(one, fact) == value for fact, value in stated.items()):
            return one, ""
    key = texts["key"] if texts["key"] and not find("links", texts["key"]) else name
    made = replace(near[0], key=key, name=texts["name"] or key, note=texts["note"], aliases=(), sources=sources, num_links=0)
    lent = dict.fromkeys(UNSAID_OF_LINK, near[0])
    if kind != texts["kind"]:
        lent["latency_s"] = nearest_links(texts["kind"], "inter", rate, where)[0]
    lent_words = {fact: words(getattr(lent[fact], fact)) for fact, words in UNSAID_OF_LINK.items() if fact not in stated}
    unsaid = [f"{fact} {value} (as {lent[fact].key})" for fact, value in lent_words.items() if value]
    return with_fields(made, {"latency_s": lent["latency_s"].latency_s, **stated}), assumed_words(key, part.where, unsaid)


def nearest_links(kind: str, scope: str, bandwidth_Bps: float, name: str) -> list[Link]:
    """List catalogued links of a kind, the nearest rate first, and of equal ones that which joins all, before a bridge."""
    inside = [one for one in map(link, stems("links")) if one.scope == scope]
    kinds = sorted({one.kind for one in inside})
    if scope == "intra" and kind not in kinds:  # the nearest spelling is rarely the nearest link
        raise Refusal(f"{name}='{kind}': one of {', '.join(kinds)}; {OTHER_KINDS}", name)
    check_one_of(kind, kinds, name)
    alike = [one for one in inside if one.kind == kind]
    return sorted(alike, key=lambda one: (abs(math.log(one.bandwidth_Bps / bandwidth_Bps)), not one.switched))


def numbers(
    part: TableView, ranges: Mapping[str, physics.PhysicalRange], cited: Sources, needed: Collection[str] = ()
) -> tuple[dict[str, float], Sources]:
    """Return the numbers of these names and their sources, where a number is plain, or ``[number, "source"]``."""
    if missing := next((key for key in needed if key not in part.table), ""):
        raise Refusal(f"{part.named(missing)}: missing; {ranges[missing].kind} are needed", part.named(missing))
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


def check_keys(part: TableView, allowed: Collection[str], homes: Mapping[str, Collection[str]] | None = None) -> None:
    """Refuse a key that no such table takes, with those that it does, or with the table (of ``homes``) where it belongs."""
    for key in sorted(set(part.table) - set(allowed)):
        home = next((home for home, keys in (homes or {}).items() if key in keys), "")
        takes = f"[{part.where}] takes {', '.join(sorted(allowed))}" if part.where else f"a file takes {', '.join(sorted(allowed))}"
        says = f": it belongs in {home}" if home else f"{suggest(key, allowed)}; {takes}".replace("?;", "?")
        raise Refusal(f"unknown key '{part.named(key)}'{says}", part.named(key))


def citations(part: TableView) -> Sources:
    """Return the sources that a table names, each with a title, an address and a date as far as it has them."""
    named = part.part("sources")
    tables = {key: named.part(key) for key in named.table}
    for source in tables.values():
        source.check_allowed(("title", "url", "date"))
    return {key: Citation(*(line(source, fact) for fact in ("title", "url", "date"))) for key, source in tables.items()}


def line(part: TableView, key: str) -> str:
    """Return a text in one line, short enough to be shown."""
    return "".join(sign if sign.isprintable() else " " for sign in part.text(key)[:LONGEST]).strip()


def check_one_of(text: str, allowed: Collection[str], name: str) -> str:
    """Return one of the allowed words, or refuse another with them."""
    if text not in allowed:
        raise Refusal(f"{name}='{text}': one of {', '.join(sorted(allowed))}{suggest(text, allowed)}", name)
    return text


MOST_BYTES = MiB // 16  # of such a file
FIELDS = {"key", "name", "aliases", "chip", "intra", "inter", "bridge", "note", "sources", *physics.DESCRIBED_CLUSTER}
SCOPES = {"intra": "intra", "inter": "inter", "bridge": "intra"}  # where each link of a cluster runs
HOMES = {"[chip]": CHIP_FIELDS, "[chip.flops_per_s]": PEAKS, "[intra] or [inter]": LINK_FIELDS}
UNUSED = "100gbe"  # stands between hosts where there is one


def read_cluster(text: str) -> Cluster:
    """Return the cluster of a file, where ``2xFILE.toml`` is two such hosts, however many the file says."""
    text = text.strip()
    count, path = split_count(text)
    hosts = {} if count is None else {"num_hosts": count}
    try:
        document = decode_text(read_bytes(expand_home(path), "cluster", most=MOST_BYTES))
    except Refusal as error:
        raise Refusal(str(error), "cluster") from None
    whole = TableView(parse_toml(document, f"cluster '{path}'", "cluster") | hosts)
    try:
        stem = Path(path).stem
        check_keys(whole, FIELDS, HOMES)
        cited = citations(whole)
        counts, sources = numbers(whole, physics.DESCRIBED_CLUSTER, cited)
        read = {name: _link(whole, name, cited, f"{stem}-{name}") for name in SCOPES if name in whole.table}
        links = {name: one for name, (one, _) in read.items()}
        alone = {"inter": link(UNUSED)} if counts.get("num_hosts", 1) == 1 else {}
        kind, assumed = _chip(whole, alone | links, cited, stem)
        remark = "; ".join(filter(None, [*(words for _, words in read.values()), assumed]))
        place = usual_hosts(kind, 1, int(counts.get("gpus_per_host", kind.gpus_per_host)))
        place = with_inside_link(place, links["intra"]) if "intra" in links else place
        place = with_between(place, links["inter"]) if "inter" in links else place
        called = line(whole, "name") or line(whole, "key") or f"hosts of {place.gpus_per_host} {kind.name}"
        facts = {"key": text, "name": called, "note": line(whole, "note"), "sources": sources, "remark": remark}
        return with_fields(place, {"bridge": links.get("bridge", place.bridge), **facts, **counts})
    except ValueError as error:
        raise Refusal(f"cluster '{text}': {error}", "cluster", getattr(error, "nearest", ())) from None


def split_count(text: str) -> tuple[int | None, str]:
    """Split a text into hosts and file, unless a file has that whole name."""
    match = re.fullmatch(r"(\d{1,15})x(.+)", text, re.DOTALL)
    return (int(match[1]), match[2]) if match and not os.path.exists(expand_home(text)) else (None, text)


def _chip(whole: TableView, links: dict[str, Link], cited: Sources, stem: str) -> tuple[Chip, str]:
    """Return a chip of the catalogue, or a described one with its links, else the cluster's, and what is assumed of it."""
    if "chip" not in whole.table:
        raise Refusal("chip: missing; name one of the catalogue, such as h100-sxm, or describe it in [chip]", "chip")
    if isinstance(named := whole.table["chip"], str):
        return chip(named), ""
    part = TableView.of(named, "chip", "a name, or a table as in catalog/chips,")
    usual = {name: _usual_link(part, name, links) for name in ("intra", "inter")}
    return described_chip(part, usual, cited | citations(part), stem)


def _usual_link(part: TableView, name: str, links: dict[str, Link]) -> str:
    """Return the catalogue's name of a chip's usual link: as it says, else the cluster's, or the catalogued one nearest to that."""
    if part.text(name):
        return _check_scope(link(part.text(name)), name, part.text(name)).key
    if name not in links:
        raise Refusal(f"{name}: missing, and a described chip has no usual one; name a link, or describe it in [{name}]", name)
    one = links[name]
    return one.key if one.key in stems("links") else nearest_links(one.kind, name, one.bandwidth_Bps, name)[0].key


def _link(whole: TableView, name: str, cited: Sources, key: str) -> tuple[Link, str]:
    entry = whole.table[name]
    if isinstance(entry, str):
        return _check_scope(link(entry), SCOPES[name], entry), ""
    part = TableView.of(entry, name, "a name, or a table as in catalog/links,")
    return described_link(part, SCOPES[name], cited | citations(part), key)


def _check_scope(one: Link, scope: str, text: str) -> Link:
    if one.scope != scope:
        where = {"intra": "between hosts; inside run nvlink4, pcie5 …", "inter": "inside a host; between hosts run ib-ndr, 10gbe …"}
        raise Refusal(f"{scope} '{text}': runs {where[scope]}", scope)
    return one
