"""Facts as data: chips, links, clusters, models and engines, each in its own file with its sources.

``chip("h100-sxm")``, ``link("nvlink4")``, ``cluster("2x8xh100-sxm")``, ``model("llama-3.1-8b")``, ``engine("vllm")``,
``lengths("sharegpt")``.
"""

import re
from dataclasses import replace
from functools import lru_cache

from commtax.catalog.distributions import lengths
from commtax.catalog.fabric import fabric, kernel_constants, library
from commtax.catalog.loader import did_you_mean, find, normal, record, stems, table
from commtax.catalog.models import config, model
from commtax.spec import ENGINE_PARTS, Chip, Cluster, Engine, Link
from commtax.statement import Refusal

MAX_GPUS = 1_000_000
_MAKERS = {"nvlink": "nvidia", "xgmi": "amd"}
"""Links that only one maker's chips have."""
SLOTS = 8  # GPUs that a usual server holds on PCIe
MEMORY_SPREAD = 0.02  # totals of one chip differ by this much over drivers and error correction
_FORM_FACTORS = ("sxm", "pcie", "nvl")


def keys(kind: str) -> list[str]:
    """All keys of one kind: ``chips``, ``links``, ``clusters``, ``models``, ``engines`` or ``lengths``."""
    return list(stems(kind))


def _known(kind: str, name: str) -> str:
    if stem := find(kind, name):
        return stem
    raise Refusal(f"unknown {kind[:-1]} '{name}'{did_you_mean(name, kind)}", kind[:-1])


@lru_cache(maxsize=256)
def chip(name: str) -> Chip:
    """A chip by key or alias."""
    stem = _known("chips", name)
    return record(Chip, table("chips", stem), f"chips/{stem}")


def recognise(name: str, memory_bytes: float, num_sms: int = 0) -> tuple[str, ...]:
    """Keys of all chips with which name, memory and multiprocessors agree.

    >>> recognise("NVIDIA A100-SXM4-80GB", 84990623744, 108), recognise("NVIDIA H100 80GB HBM3", 85e9, 132)
    (('a100-80-sxm',), ('h100-sxm',))
    >>> recognise("NVIDIA A100-PG509-200", 42297524224, 108), recognise("", 206141652992, 304)
    (('a100-40-pcie', 'a100-40-sxm'), ('mi300x',))
    """
    known = (chip(key) for key in keys("chips"))
    return tuple(sorted(c.key for c in known if is_like(c, memory_bytes, num_sms) and _is_named(c, name)))


def is_like(known: Chip, memory_bytes: float, num_sms: int = 0) -> bool:
    """Whether memory and multiprocessors are the chip's, where both sides tell them."""
    near = abs(memory_bytes / known.visible_bytes - 1) <= MEMORY_SPREAD
    return near and (not num_sms or not known.num_sms or num_sms == known.num_sms)


def _is_named(known: Chip, name: str) -> bool:
    """Whether the driver's name has the chip's words, and no other form factor. Of cards in bridged sets it always says ``NVL``."""
    parts_of_name = re.findall(r"[a-z0-9]+", name[:200].lower())
    if not parts_of_name:
        return known.vendor != "generic"
    parts = known.key.split("-")
    form = next((f for f in _FORM_FACTORS if f in parts), "")
    stated = next((f for f in _FORM_FACTORS if any(w.startswith(f) for w in parts_of_name)), "")
    name_parts = [p for p in parts if p not in _FORM_FACTORS and not (p.isdigit() and len(p) < 4) and not p.startswith("hbm")]
    unsaid = not form or (not stated and form != "nvl")
    return all(p in parts_of_name for p in name_parts) and (unsaid or form == stated)


@lru_cache(maxsize=256)
def link(name: str) -> Link:
    """A link by key or alias; ``nvlink3@8`` has 8 of its 12 NVLinks."""
    base, counted, count = name.partition("@")
    stem = _known("links", base)
    known = record(Link, table("links", stem), f"links/{stem}")
    if not counted:
        return known
    if not known.num_links or not re.fullmatch(r"\d{1,3}", count) or not 1 <= int(count) <= known.num_links:
        rule = f"1 to {known.num_links} links are bonded in {stem}" if known.num_links else f"{stem} is not counted in links"
        near = f"{stem}@{known.num_links}" if known.num_links else stem
        raise Refusal(f"link '{name}': {rule}; nearest valid: {near}", "link")
    rate = known.bandwidth_Bps * int(count) / known.num_links
    return replace(known, key=f"{stem}@{count}", num_links=int(count), bandwidth_Bps=rate, name=f"{known.name}, {count} links")


@lru_cache(maxsize=64)
def engine(name: str) -> Engine:
    """An engine by key or alias, ``vllm`` or ``vllm@0.12``; a version without constants of its own has its neighbour's, aloud."""
    base, _, version = name.partition("@")
    stem = _known("engines", base)
    known = record(Engine, table("engines", stem), f"engines/{stem}", ENGINE_PARTS)
    _check_tiered(known)
    if version and not re.fullmatch(r"v?\d{1,9}(\.\w{1,30}){0,9}", version):
        raise Refusal(f"engine '{name}': '{version}' is not a version (write {stem}@{known.version})", "engine")
    if not version or version == known.version:
        return replace(known, note="")
    near = _nearest(version, [*known.versions, known.version])
    constants = {name: value for name, value in known.versions.get(near, {}).items() if name != "since"}
    same = _parts(version)[: len(_parts(near))] == _parts(near)
    note = "" if same else f"constants of {stem} {near} are used for {version}: that version is not calibrated"
    return known.but(version=version, note=note, **constants)


def _check_tiered(known: Engine) -> None:
    """Tiers are laid over an engine last: a version changes what they set in tiers of its own, or it would change nothing."""
    for version, constants in known.versions.items():
        tiers = (*known.serves.tiers.values(), *constants.get("tiers", {}).values())
        if flat := next((name for name in constants if any(name in tier for tier in tiers)), ""):
            where = f'[versions."{version}"]'
            raise Refusal(f"engines/{known.key}: {flat} of {where} is set by tiers; write it in {where[:-1]}.tiers.*]")


def version_at(name: str, date: str) -> str:
    """The version of an engine that was new at a date (``2025-10``); "" where its file does not say."""
    known = engine(name).versions
    since = {str(table.get("since", "9999")): version for version, table in known.items()}
    return max(((day, version) for day, version in since.items() if day <= date[: len(day)]), default=("", ""))[1]


def _parts(version: str) -> tuple[int, ...]:
    """The numbers of a version: ``1.0.0rc3`` is 1, 0, 0."""
    return tuple(int(number[0]) for part in version.removeprefix("v").split(".") if (number := re.match(r"\d{1,9}", part)))


def _nearest(version: str, known: list[str]) -> str:
    """The newest known version that is not newer, else the oldest."""
    wanted = _parts(version)
    older = [v for v in known if _parts(v) <= wanted]
    return max(older, key=_parts) if older else min(known, key=_parts)


def cluster(text: str, *, intra: str = "", inter: str = "", nics: int | None = None) -> Cluster:
    """A cluster from a name (``dgx-h100``, ``4xdgx-h100``) or from counts (``8xh100-sxm``, ``2x8xh100-sxm``).

    ``intra`` and ``inter`` replace the usual links. A new ``inter`` brings its usual number of NICs: one for each GPU
    on InfiniBand and its like, one a host on Ethernet, and as many cards of EFA as the chip's instances have for each GPU,
    unless ``nics`` says otherwise. More GPUs than a host of that chip holds are several hosts. Cards that bridges join in pairs
    are so in larger hosts too, unless ``intra`` gives all GPUs of a host one link.

    >>> c = cluster("2x8xh100-sxm")
    >>> c.num_hosts, c.gpus_per_host, c.intra.key, c.inter.key, c.nics_per_host
    (2, 8, 'nvlink4', 'ib-ndr', 8)
    """
    place = _named(text) or _counted(text)
    if place.num_gpus > MAX_GPUS:
        raise Refusal(f"cluster '{text}': {place.num_gpus:,} GPUs, more than the {MAX_GPUS:,} that are modelled", "cluster")
    if intra:
        inside = link(intra)
        if inside.scope != "intra":
            instead = f"8x1x{place.chip.key} --inter {inside.key}"
            raise Refusal(f"intra '{intra}': runs between hosts; write one GPU a host, such as {instead}", "intra")
        place = with_inside(place, inside)
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


def _usual_nics(between: Link, place: Cluster) -> int:
    """NICs of a host for a fabric between hosts; EFA's cards by what the instances with this chip offer in sum."""
    if between.kind == "efa" and not between.nic_per_gpu:
        hosts = [table("clusters", key) for key in keys("clusters")]
        for host in (h for h in hosts if h["chip"] == place.chip.key and link(h["inter"]).kind == "efa"):
            per_gpu: float = host["nics_per_host"][0] * link(host["inter"]).bandwidth_Bps / host["gpus_per_host"][0]
            return max(1, round(per_gpu * place.gpus_per_host / between.bandwidth_Bps))
    return place.gpus_per_host if between.nic_per_gpu else 1


def with_inside(place: Cluster, inside: Link) -> Cluster:
    """The same hosts with another link between all of their GPUs, of those that its maker's chips can have."""
    maker = _MAKERS.get(inside.kind, place.chip.vendor)
    if place.chip.vendor not in (maker, "generic"):
        none = f"{place.chip.key} is none; nearest: {place.chip.intra}"
        raise Refusal(f"intra '{inside.key}': {inside.kind} joins {maker.upper()} chips, and {none}", "intra")
    domain = max(place.gpus_per_host, place.nvlink_domain) if inside.kind in _MAKERS else 1
    return replace(place, intra=inside, nvlink_domain=domain, bridge=None)


def with_between(place: Cluster, between: Link) -> Cluster:
    """The same hosts with another network between them, and its usual number of NICs."""
    return replace(place, inter=between, nics_per_host=_usual_nics(between, place))


def _named(text: str) -> Cluster | None:
    """A catalogued host, or ``Nx`` of them."""
    match = re.fullmatch(r"(?:(\d{1,15})x)?(.+)", normal(text))
    tries = [(1, normal(text))] + ([(int(match[1]), match[2])] if match and match[1] else [])
    for hosts, name in tries:
        stem = find("clusters", name)
        if stem and hosts >= 1:
            host = {name: entry for name, entry in table("clusters", stem).items() if name != "aliases"}
            parts = {"chip": chip(host["chip"]), "intra": link(host["intra"]), "inter": link(host["inter"])}
            counted = {"key": stem if hosts == 1 else f"{hosts}x{stem}", "num_hosts": hosts}
            return record(Cluster, host, f"clusters/{stem}", given={**parts, **counted})
    return None


def _counted(text: str) -> Cluster:
    """``HOSTSxGPUSxCHIP`` or ``GPUSxCHIP``; a chip alone is one GPU."""
    match = re.fullmatch(r"(?:(\d{1,15})x)?(?:(\d{1,15})x)?([a-z].*)", normal(text))
    if not match:
        raise Refusal(f"cluster '{text[:60]}': write 8xh100-sxm, 2x8xh100-sxm or a name (commtax catalog clusters)", "cluster")
    first, second, name = match.groups()
    hosts, gpus = (int(first), int(second)) if second else (1, int(first or 1))
    if hosts < 1 or gpus < 1:
        raise Refusal(f"cluster '{text}': hosts and GPUs are whole numbers of at least 1", "cluster")
    try:
        kind = chip(name)
    except ValueError:
        near = did_you_mean(name, "chips", "clusters")
        raise Refusal(f"cluster '{text}': unknown chip or host '{name}'{near}", "cluster") from None
    remark = ""
    if not second:
        hosts, gpus, remark = _in_hosts(gpus, kind)
    elif gpus > _largest_host(kind):
        remark = f"{gpus} {kind.key} in one host: usual are {_largest_host(kind)}"
    inside, between, bridge = link(kind.intra), link(kind.inter), None
    if _bridged(kind) and gpus > 2:  # a bridge joins two cards
        bridge, inside = inside, link("pcie5" if kind.family == "hopper" else "pcie4")
    switched = inside.kind in ("nvlink", "xgmi")
    pairs = f" (pairs over {bridge.name})" if bridge else ""
    usual = f"{inside.name} inside{pairs}, {between.name} between hosts: the usual system of this chip (--intra, --inter change it)"
    return Cluster(
        key=f"{hosts}x{gpus}x{kind.key}" if hosts > 1 or gpus > _largest_host(kind) else f"{gpus}x{kind.key}",
        name=f"{hosts} host{'s' * (hosts > 1)} of {gpus} {kind.name}",
        chip=kind,
        num_hosts=hosts,
        gpus_per_host=gpus,
        nvlink_domain=max(gpus, kind.nvlink_domain) if switched else 1,
        intra=inside,
        inter=between,
        nics_per_host=gpus if between.nic_per_gpu else 1,
        note=usual,
        remark=remark,
        sources=kind.sources,
        bridge=bridge,
    )


def _bridged(kind: Chip) -> bool:
    """Whether such chips are cards that come in bridged pairs."""
    return "bridge" in kind.intra


def _largest_host(kind: Chip) -> int:
    """GPUs of such a chip that one host holds at most: a baseboard's, or the slots of a PCIe server."""
    cards = link(kind.intra).kind == "pcie" or _bridged(kind)
    return MAX_GPUS if kind.vendor == "generic" else max(kind.gpus_per_host, kind.nvlink_domain, SLOTS if cards else 0)


def _in_hosts(gpus: int, kind: Chip) -> tuple[int, int, str]:
    """A number of GPUs as hosts of equal size, and what to say of it: 16 of a chip whose hosts hold 8 are two hosts."""
    if gpus <= _largest_host(kind) or gpus > MAX_GPUS:
        return 1, gpus, ""
    most = kind.gpus_per_host if kind.nvlink_domain else _largest_host(kind)
    hosts = -(-gpus // most)
    if gpus % hosts:
        near = " or ".join(f"{n}x{kind.key}" for n in (gpus // most * most, hosts * most))
        rule = f"a host holds {most}, and {gpus} are not {hosts} equal hosts"
        raise Refusal(f"cluster '{gpus}x{kind.key}': {rule}; nearest valid: {near}", "cluster")
    each, key = gpus // hosts, kind.key
    return hosts, each, f"{gpus}x{key} is read as {hosts} hosts of {each}, {hosts}x{each}x{key} (one host: 1x{gpus}x{key})"
