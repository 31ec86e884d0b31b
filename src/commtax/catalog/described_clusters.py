"""A cluster that somebody describes in a TOML file of their own: the fields of ``catalog/clusters``, sources where one cares to.

``chip``, ``intra``, ``inter`` and ``bridge`` are names of the catalogue, or tables (``own_hardware``); ``num_hosts`` is 1 where the
file does not say it, and all else what hosts of the chip usually have.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

from commtax.catalog import physics
from commtax.catalog.hardware import chip, link
from commtax.catalog.hosts import usual_hosts, with_between, with_inside_link
from commtax.catalog.loader import find
from commtax.catalog.own_hardware import (
    CHIP_FIELDS,
    LINK_FIELDS,
    PEAKS,
    Sources,
    check_keys,
    citations,
    line,
    nearest_links,
    numbers,
    own_chip,
    own_link,
)
from commtax.catalog.table_view import TableView
from commtax.files import MiB, decode_text, expand_home, read_bytes
from commtax.records import with_fields
from commtax.spec import Chip, Cluster, Link
from commtax.statement import Refusal

MOST_BYTES = MiB // 16  # of such a file
FIELDS = {"key", "name", "aliases", "chip", "intra", "inter", "bridge", "note", "sources", *physics.DESCRIBED_CLUSTER}
SCOPES = {"intra": "intra", "inter": "inter", "bridge": "intra"}
"""Where each link of a cluster runs."""
HOMES = {"[chip]": CHIP_FIELDS, "[chip.flops_per_s]": PEAKS, "[intra] or [inter]": LINK_FIELDS}
UNUSED = "100gbe"  # stands between hosts where there is one


def path_of(text: str) -> str:
    """The file of ``FILE.toml`` or ``2xFILE.toml``."""
    return _split_count(text)[1]


def read_cluster(text: str) -> Cluster:
    """The cluster of a file; ``2xFILE.toml`` are two such hosts, however many the file says."""
    text = text.strip()
    count, path = _split_count(text)
    hosts = {} if count is None else {"num_hosts": count}
    whole = TableView(_document(path) | hosts)
    try:
        return replace(_cluster(whole, Path(path).stem), key=text)
    except ValueError as error:
        raise Refusal(f"cluster '{text}': {error}", "cluster", getattr(error, "nearest", ())) from None


def _split_count(text: str) -> tuple[int | None, str]:
    """Hosts and file; a file that has such a name is itself."""
    match = re.fullmatch(r"(\d{1,15})x(.+)", text, re.DOTALL)
    return (int(match[1]), match[2]) if match and not os.path.exists(expand_home(text)) else (None, text)


def _document(path: str) -> dict[str, object]:
    import tomllib  # not for those who describe none

    try:
        return tomllib.loads(decode_text(read_bytes(expand_home(path), "cluster", most=MOST_BYTES)))
    except Refusal as error:
        raise Refusal(str(error), "cluster") from None
    except RecursionError:
        raise Refusal(f"cluster '{path}': not valid TOML (lists or tables too deep in each other)", "cluster") from None
    except ValueError as error:  # also a whole number with more digits than Python reads
        raise Refusal(f"cluster '{path}': not valid TOML ({str(error)[:120]})", "cluster") from None


def _cluster(whole: TableView, stem: str) -> Cluster:
    """The usual hosts of the chip, with what the file says of them."""
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
    said = replace(
        place, name=called, note=line(whole, "note"), sources=sources, bridge=links.get("bridge", place.bridge), remark=remark
    )
    return with_fields(said, counts)


def _chip(whole: TableView, links: dict[str, Link], cited: Sources, stem: str) -> tuple[Chip, str]:
    """A chip of the catalogue, or one of its own with the links that it names, else those that the cluster has; and what is
    assumed of it."""
    if "chip" not in whole.table:
        raise Refusal("chip: missing; name one of the catalogue, such as h100-sxm, or describe it in [chip]", "chip")
    if isinstance(named := whole.table["chip"], str):
        return chip(named), ""
    part = TableView.of(named, "chip", "a name, or a table as in catalog/chips,")
    return own_chip(part, {name: _usual_link(part, name, links) for name in ("intra", "inter")}, cited | citations(part), stem)


def _usual_link(part: TableView, name: str, links: dict[str, Link]) -> str:
    """The catalogue's name of a chip's usual link: as it says, else the cluster's, or the catalogued one nearest to that."""
    if part.text(name):
        return _check_scope(link(part.text(name)), name, part.text(name)).key
    if name not in links:
        raise Refusal(f"{name}: missing, and a described chip has no usual one; name a link, or describe it in [{name}]", name)
    own = links[name]
    return own.key if find("links", own.key) == own.key else nearest_links(own.kind, name, own.bandwidth_Bps, name)[0].key


def _link(whole: TableView, name: str, cited: Sources, key: str) -> tuple[Link, str]:
    """A link of the catalogue, or one of its own and what is assumed of it."""
    entry = whole.table[name]
    if isinstance(entry, str):
        return _check_scope(link(entry), SCOPES[name], entry), ""
    part = TableView.of(entry, name, "a name, or a table as in catalog/links,")
    return own_link(part, SCOPES[name], cited | citations(part), key)


def _check_scope(known: Link, scope: str, text: str) -> Link:
    if known.scope != scope:
        where = {"intra": "between hosts; inside run nvlink4, pcie5 …", "inter": "inside a host; between hosts run ib-ndr, 10gbe …"}
        raise Refusal(f"{scope} '{text}': runs {where[scope]}", scope)
    return known
