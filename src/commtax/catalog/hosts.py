"""Hosts by name or by counts: those of the catalogue, and the usual host of a chip."""

import re

from commtax import shipped_tables
from commtax.catalog.hardware import chip, link
from commtax.catalog.loader import check_measured, did_you_mean, find, normal, record, stems, table
from commtax.records import replace
from commtax.spec import Chip, Cluster, Link
from commtax.statement import Refusal

MAX_GPUS = 1_000_000
_ROWS = shipped_tables.table("catalog/makers.toml")
_BRIDGES = shipped_tables.table("catalog/bridges.toml")
_MAKERS = {kind: maker for maker, row in _ROWS.items() for kind in row["links"]}  # links that only one maker's chips have
SLOTS = 8  # GPUs that a usual server holds on PCIe


def with_inside_link(place: Cluster, inside: Link) -> Cluster:
    """Return the same hosts with another link between all of their GPUs, one that its maker's chips can have."""
    maker = _MAKERS.get(inside.kind, place.chip.vendor)
    if place.chip.vendor not in (maker, "generic"):
        none = f"{place.chip.key} is none; nearest: {place.chip.intra}"
        raise Refusal(f"intra '{inside.key}': {inside.kind} joins {maker.upper()} chips, and {none}", "intra")
    domain = max(place.gpus_per_host, place.nvlink_domain) if inside.kind in _MAKERS else 1
    return replace(place, intra=inside, nvlink_domain=domain, bridge=None)


def with_between(place: Cluster, between: Link) -> Cluster:
    """Return the same hosts with another network between them, and its usual number of NICs."""
    nics = place.gpus_per_host if between.nic_per_gpu else 1
    if between.kind == "efa" and not between.nic_per_gpu:  # cards by what the instances with this chip offer in sum
        hosts = (host for host in (table("clusters", key) for key in stems("clusters")) if host["chip"] == place.chip.key)
        if host := next((host for host in hosts if link(host["inter"]).kind == "efa"), None):
            per_gpu: float = host["nics_per_host"][0] * link(host["inter"]).bandwidth_Bps / host["gpus_per_host"][0]
            nics = max(1, round(per_gpu * place.gpus_per_host / between.bandwidth_Bps))
    return replace(place, inter=between, nics_per_host=nics)


def usual_library(made: Chip) -> str:
    """Return the library whose collectives a test on such chips measures."""
    return str(_ROWS.get(made.vendor.lower(), _ROWS["generic"])["library"])


def catalogued_hosts(text: str) -> Cluster | None:
    """Return a catalogued host, or ``Nx`` of them, where a rack is as many hosts as its file says."""
    match = re.fullmatch(r"(\d{1,15})x(.+)", normal(text))
    for hosts, name in ((1, normal(text)), *([(int(match[1]), match[2])] if match else [])):
        if (stem := find("clusters", name)) and hosts >= 1:
            host = {name: entry for name, entry in table("clusters", stem).items() if name != "aliases"}
            parts = {"chip": chip(host["chip"]), "intra": link(host["intra"]), "inter": link(host["inter"])}
            alone = {} if "num_hosts" in host else {"num_hosts": 1}
            unit = record(Cluster, host, f"clusters/{stem}", fixed={**parts, **alone, "key": stem})
            return unit if hosts == 1 else replace(unit, key=f"{hosts}x{stem}", num_hosts=hosts * unit.num_hosts)
    return None


def unit_hosts(stem: str) -> int:
    """Return the hosts of one catalogued entry: 18 trays of a rack, else one."""
    return int(table("clusters", stem).get("num_hosts", [1])[0])


def parse_counts(text: str) -> Cluster:
    """Read ``HOSTSxGPUSxCHIP`` or ``GPUSxCHIP``, in whatever words. A rack's trays are its hosts: 72xgb200 is 18x4xgb200."""
    check_measured(text, "cluster")
    match = re.fullmatch(r"(?:([0-9]{1,15})x)?(?:([0-9]{1,15})x)?([a-z].*|[0-9]{4})", normal(text))  # a card may be called 4090
    if not match or not find("chips", match[3]):
        return _read_spelling(text, match[3] if match else "")
    first, second, name = match.groups()
    hosts, gpus = (int(first), int(second)) if second else (1, int(first or 1))
    if hosts < 1 or gpus < 1:
        raise Refusal(f"cluster '{text}': hosts and GPUs are whole numbers of at least 1", "cluster")
    kind, remark = chip(name), ""
    if not second or (kind.nvlink_domain and gpus > _largest_host(kind)):
        hosts, gpus, remark = _split_into_hosts(hosts * gpus, kind)
    elif gpus > _largest_host(kind):
        remark = f"{gpus} {kind.key} in one host: usual are {_largest_host(kind)}"
    catalogued = catalogued_hosts(f"{hosts}x{gpus}x{kind.key}") if remark and not second else None
    place = catalogued or usual_hosts(kind, hosts, gpus)
    return replace(place, remark=remark, typed=text.strip() if remark and not second else "")


def _read_spelling(text: str, name: str) -> Cluster:
    """Return the hosts that people mean who write neither counts nor a catalogued ``name``, or refuse where in doubt."""
    from commtax.catalog.foreign_names import usual_spellings  # names of the catalogue need no second reading

    meant = usual_spellings(text)
    if len(meant) == 1:
        place = catalogued_hosts(meant[0]) or parse_counts(meant[0])
        return replace(place, typed=text.strip(), remark=place.remark or f"'{text.strip()}' is read as {place.key}")
    wanted = " or ".join(meant) or "8xh100-sxm, 2x8xh100-sxm or a name (commtax catalog clusters)"
    if meant or not name:
        raise Refusal(f"cluster '{text[:60]}': write {wanted}", "cluster", meant)
    near = did_you_mean(name, "chips", "clusters").removesuffix("?")
    instead = f"{near}? Or describe" if near else ": commtax catalog chips lists those that are known; or describe"
    part = f" '{name}'" if name != normal(text) else ""
    instead += " it in a FILE.toml (commtax catalog --help shows one)"
    raise Refusal(f"cluster '{text}': unknown chip or host{part}{instead}", "cluster")


def usual_hosts(kind: Chip, hosts: int, gpus: int) -> Cluster:
    """Return hosts as such chips usually come: their links, one NIC for each GPU if the network has it, bridged card pairs."""
    inside, between, bridge, beside = link(kind.intra), link(kind.inter), None, _BRIDGES["beside"]
    if inside.key in _BRIDGES["links"] and gpus > 2:  # a bridge joins two cards
        bridge, inside = inside, link(beside.get(kind.family, beside[""]))
    pairs = f" (pairs over {bridge.name})" if bridge else ""
    system = f"{inside.name} inside{pairs}, {between.name} between hosts"
    return Cluster(
        key=f"{hosts}x{gpus}x{kind.key}" if hosts > 1 or gpus > _largest_host(kind) else f"{gpus}x{kind.key}",
        name=f"{hosts} host{'s' * (hosts > 1)} of {gpus} {kind.name}",
        chip=kind,
        num_hosts=hosts,
        gpus_per_host=gpus,
        nvlink_domain=max(gpus, kind.nvlink_domain) if inside.kind in _MAKERS else 1,
        intra=inside,
        inter=between,
        nics_per_host=gpus if between.nic_per_gpu else 1,
        note=f"{system}: the usual system of this chip (--intra, --inter change it)",
        sources=kind.sources,
        bridge=bridge,
    )


def _largest_host(kind: Chip) -> int:
    """Return the most GPUs of such a chip in one host: a baseboard's, the slots of a PCIe server, one beside its own CPU."""
    inside = link(kind.intra)
    cards = kind.gpus_per_host > 1 and (inside.kind == "pcie" or inside.key in _BRIDGES["links"])
    return MAX_GPUS if kind.vendor == "generic" else max(kind.gpus_per_host, SLOTS if cards else 0)


def _split_into_hosts(gpus: int, kind: Chip) -> tuple[int, int, str]:
    """Split a number of GPUs into hosts of equal size, with a remark: 16 of a chip whose hosts hold 8 are two hosts."""
    most = _largest_host(kind)
    if gpus <= most or gpus > MAX_GPUS:
        return 1, gpus, ""
    hosts = -(-gpus // most)
    if gpus % hosts:
        near = " or ".join(f"{n}x{kind.key}" for n in (gpus // most * most, hosts * most))
        rule = f"a host holds {most}, and {gpus} are not {hosts} equal hosts"
        raise Refusal(f"cluster '{gpus}x{kind.key}': {rule}; nearest valid: {near}", "cluster")
    each, key = gpus // hosts, kind.key
    read = f"{gpus}x{key} is read as {hosts} hosts of {each}, {hosts}x{each}x{key} (one host: 1x{gpus}x{key})"
    return hosts, each, "" if kind.nvlink_domain else read  # a rack's trays are its only hosts
