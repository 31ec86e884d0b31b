"""Clusters as people write them: a host by name, counts of a chip, or a TOML file of their own."""

import os
from dataclasses import replace

from commtax.catalog.hardware import link
from commtax.catalog.hosts import MAX_GPUS, catalogued_hosts, parse_counts, unit_hosts, with_between, with_inside_link
from commtax.catalog.loader import find, normal
from commtax.spec import Cluster
from commtax.statement import Refusal


def is_file(text: str) -> bool:
    """Return whether a cluster's name is a file's: it ends in ``.toml``, or has a folder in it.

    >>> is_file("my-hosts.toml"), is_file("2x8xh100-sxm")
    (True, False)
    """
    return text.strip().lower().endswith(".toml") or "/" in text or os.sep in text


def cluster(text: str, *, intra: str = "", inter: str = "", nics: int | None = None) -> Cluster:
    """Return a cluster from a name (``dgx-h100``, ``4xdgx-h100``), from counts (``8xh100-sxm``, ``2x8xh100-sxm``) or from a file of
    one's own (``my-hosts.toml``, ``4xmy-hosts.toml``).

    ``intra`` and ``inter`` replace the usual links. A new ``inter`` brings its usual number of NICs: one for each GPU
    on InfiniBand and its like, one a host on Ethernet, and as many cards of EFA as the chip's instances have for each GPU,
    unless ``nics`` says otherwise. More GPUs than a host of that chip holds are several hosts. Cards that bridges join in pairs
    are so in larger hosts too, unless ``intra`` gives all GPUs of a host one link.

    >>> c = cluster("2x8xh100-sxm")
    >>> c.num_hosts, c.gpus_per_host, c.intra.key, c.inter.key, c.nics_per_host
    (2, 8, 'nvlink4', 'ib-ndr', 8)
    """
    if is_file(text):
        from commtax.catalog.described_clusters import read_cluster  # not for those whose cluster has a name

        place = read_cluster(text)
    else:
        place = catalogued_hosts(text) or parse_counts(text)
    if place.num_gpus > MAX_GPUS:
        raise Refusal(f"cluster '{text}': {place.num_gpus:,} GPUs, more than the {MAX_GPUS:,} that are modelled", "cluster")
    if intra:
        inside = link(intra)
        if inside.scope != "intra":
            instead = f"8x1x{place.chip.key} --inter {inside.key}"
            raise Refusal(f"intra '{intra}': runs between hosts; write one GPU per host, such as {instead}", "intra")
        place = with_inside_link(place, inside)
    if inter:
        between = link(inter)
        if between.scope != "inter":
            raise Refusal(f"inter '{inter}': runs inside a host; a fabric such as ib-ndr or 10gbe is needed between hosts", "inter")
        place = with_between(place, between)
    if nics is not None:
        if not 1 <= nics <= 1024:
            raise Refusal(f"nics={nics}: a host has 1 to 1,024 NICs", "nics")
        place = replace(place, nics_per_host=nics)
    return place


def with_hosts(place: Cluster, hosts: int, gpus: int) -> Cluster:
    """Return ``hosts`` of the same kind under the name that a user would type, or of a chip in counts, with ``gpus`` each.

    Of racks so many as have these hosts, where those are whole racks.
    """
    if is_file(place.key):
        from commtax.catalog.described_clusters import split_count

        _, path = split_count(place.key)
        return replace(place, key=path if hosts == place.num_hosts == 1 else f"{hosts}x{path}", num_hosts=hosts)
    entry = _entry(place)
    if entry and hosts % unit_hosts(entry) == 0:
        units = hosts // unit_hosts(entry)
        return cluster(entry if units == 1 else f"{units}x{entry}")
    key = f"{hosts}x{gpus}x{place.chip.key}" if hosts > 1 else f"{gpus}x{place.chip.key}"
    return replace(place, key=key, num_hosts=hosts, gpus_per_host=gpus, typed="")


def _entry(place: Cluster) -> str:
    """Return the key of the catalogued host or rack that it is made of, or "" where it was counted or described."""
    return next((stem for name in (place.key, normal(place.key).partition("x")[2]) if (stem := find("clusters", name))), "")


def whole_host(place: Cluster) -> int:
    """Return the GPUs of one whole host, as catalogued or described, else no fewer than its chips usually have."""
    fixed = is_file(place.key) or _entry(place)
    return place.gpus_per_host if fixed else max(place.gpus_per_host, place.chip.gpus_per_host)


def whole_unit(place: Cluster) -> int:
    """Return the hosts by which it grows: a rack's where it is whole racks, by whatever name, else one."""
    racks = place.nvlink_domain > place.gpus_per_host and place.num_gpus % place.nvlink_domain == 0
    return place.nvlink_domain // place.gpus_per_host if racks else 1
