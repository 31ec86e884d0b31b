"""Links and clocks of a host's GPUs: which carry nothing, which are down, and whose clock the others wait for."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import mean, median

from commtax.files import table
from commtax.runs.evidence.finding import Cause, Claim, Finding, Section
from commtax.runs.evidence.identity import identity_findings
from commtax.runs.machines.smi import Links, Monitor
from commtax.statement import Note
from commtax.thresholds import thresholds
from commtax.units import format_bytes, format_rate, plural

COUNT, LEVEL = thresholds(__name__)
MB = 1e6
CHANGES: Mapping[str, str] = table("runs/machines/words.toml")["changes"]
RESET = "reset the GPU, reseat its bridge or replace the baseboard"


def audit_links(links: Links, claim: Claim | None, name: str = "links") -> Section:
    """Bytes of each GPU over its links, and links that are down, silent, uneven or faulty."""
    carried = links.carried
    sent = {gpu: (plural(len(of), "link"), sum(tx for tx, _ in of.values())) for gpu, of in carried.items()}
    findings = [Finding(Note("sent", f"GPU {gpu}: sent over {over}"), None, n, "bytes") for gpu, (over, n) in sent.items()]
    findings += _speeds(links, claim)
    findings += identity_findings(claim, chip=next(iter(links.names.values()), "")) if claim else ()
    notes = []
    if carried:
        times = len(links.snapshots)
        between = times > 1 and not links.was_reset
        since = f"between the first and the last of {times} outputs" if between else "since the counters were reset"
        notes.append(Note("counters", f"bytes are counted {since}"))
    facts = {"devices": ", ".join(dict.fromkeys(links.names.values())), "gpus": str(len(links.names))}
    causes = (*_inactive_links(links), *_uneven_traffic(carried), *_uneven_gpus(links), *_errors(links))
    return Section("links", (name,), tuple(findings), tuple(notes), causes=causes, facts=facts)


def counted_gpus(count: int, claim: Claim | None) -> Finding:
    """How many GPUs an output lists; fewer than a host has may be those that a container sees."""
    wanted = claim.question.cluster.gpus_per_host if claim else None
    finding = Finding("GPUs", wanted, count, reason="more than a host of the cluster has" if wanted else "").judged()
    return finding.undecided("the output may list a part of the host") if wanted and count < wanted else finding


def named_gpus(gpus: Sequence[int]) -> str:
    more = f" and {len(gpus) - COUNT.named} more" if len(gpus) > COUNT.named else ""
    return f"GPU {', '.join(map(str, gpus[: COUNT.named]))}{more}"


def slow_clocks(clocks: Mapping[int, float], beside: Callable[[int], str] = lambda _: "") -> Iterator[Cause]:
    """A GPU that computes slower than the other busy ones: all of them wait for it; ``beside`` tells more of it."""
    for gpu, clock in clocks.items():
        others = [c for g, c in clocks.items() if g != gpu]
        if others and clock < LEVEL.slow_clock * median(others):
            said = f"GPU {gpu} runs at {clock:,.0f} MHz, the others at {median(others):,.0f}{beside(gpu)}"
            yield Cause("slow-clock", said, share=1 - clock / median(others), change=CHANGES["slow-clock"])


def _speeds(links: Links, claim: Claim | None) -> Iterator[Finding]:
    """What a GPU's links carry together in one direction, against the claimed link where it is made of such."""
    wanted = claim.question.cluster.intra if claim and claim.question.cluster.intra.num_links else None
    for gpu, of in links.speeds.items():
        rate = wanted.bandwidth_Bps if wanted else None
        why = f"{sum(s == 0 for s in of.values())} of {len(of)} links are inactive" if of else "all links are inactive"
        item = Note("speed", f"GPU {gpu}: GB/s over its links, one direction")
        yield Finding(item, rate and rate / 1e9, sum(of.values()) / 1e9, "", LEVEL.speed_tolerance, why, evidence=True).judged()


def _inactive_links(links: Links) -> Iterator[Cause]:
    for gpu, of in links.speeds.items():
        down = [n for n, speed in of.items() if not speed]
        if down and len(down) < len(of):
            said = f"GPU {gpu}: {plural(len(down), 'link')} inactive ({', '.join(map(str, down))}) of {len(of)}"
            yield Cause("link-down", said, share=len(down) / len(of), change=RESET)
        elif down or not of:
            said = f"GPU {gpu}: all of its {f'{len(of)} ' if of else ''}links are inactive: collectives take PCIe"
            yield Cause("links-down", said, share=1.0, change=RESET)


def _uneven_traffic(carried: Mapping[int, Mapping[int, tuple[float, float]]]) -> Iterator[Cause]:
    """GPUs that carry nothing while others do, links that do not while their GPU's others do, and uneven ones."""
    totals = {gpu: sum(tx + rx for tx, rx in of.values()) for gpu, of in carried.items()}
    most = max(totals.values(), default=0.0)
    for gpu, of in carried.items():
        if most and totals[gpu] <= LEVEL.silent * most:
            said = f"GPU {gpu}: its links carried {format_bytes(totals[gpu])}, others' up to {format_bytes(most)}"
            yield Cause("gpu-silent", said, change="it takes no part, or reaches the others over PCIe or the network")
            continue
        each = {n: tx + rx for n, (tx, rx) in of.items()}
        usual = median(each.values()) if each else 0.0
        quiet = [n for n, nbytes in each.items() if usual and nbytes <= LEVEL.silent * usual]
        if quiet:
            said = f"GPU {gpu}: links {', '.join(map(str, quiet))} carried nothing, its others {format_bytes(usual)} each"
            yield Cause("link-silent", said, share=len(quiet) / len(each))
        rest = [nbytes for n, nbytes in each.items() if n not in quiet]
        if rest and max(rest) > LEVEL.uneven * min(rest) > 0:
            said = f"GPU {gpu}: its links carried {format_bytes(min(rest))} to {format_bytes(max(rest))}"
            yield Cause("links-uneven", said, change="pairs have unequal numbers of links, or one rank sends more")


def _uneven_gpus(links: Links) -> Iterator[Cause]:
    """GPUs that carried more than others of one job; what they carried since a reset is history of many jobs."""
    if len(links.snapshots) < 2 or links.was_reset:
        return
    totals = {gpu: sum(tx + rx for tx, rx in of.values()) for gpu, of in links.carried.items()}
    most = max(totals, key=lambda gpu: totals[gpu], default=-1)
    loud = {gpu: nbytes for gpu, nbytes in totals.items() if nbytes > LEVEL.silent * totals[most]}
    if len(loud) > 1 and totals[most] > LEVEL.uneven * min(loud.values()):
        least = min(loud, key=lambda gpu: loud[gpu])
        said = f"GPU {most} carried {format_bytes(totals[most])}, GPU {least} {format_bytes(totals[least])}"
        yield Cause("gpus-uneven", said, change="groups of unequal size or work, or stages of a pipeline")


def _errors(links: Links) -> Iterator[Cause]:
    for gpu, of in links.errors.items():
        for kind in dict.fromkeys(kind for counts in of.values() for kind in counts):
            count = sum(counts.get(kind, 0) for counts in of.values())
            where = ", ".join(str(n) for n, counts in of.items() if counts.get(kind))
            if count:
                said = f"GPU {gpu}: {count:,} x {kind.lower()} (links {where})"
                yield Cause("link-errors", said, change="a cable, bridge or board")


def audit_monitor(seen: Monitor, claim: Claim | None, name: str = "dmon") -> Section:
    """Clocks, power, utilisation and PCIe traffic of each GPU, and the one that stands out."""
    busy = {gpu: _busy(of) for gpu, of in seen.samples.items()}
    findings = [finding for gpu in seen.samples for finding in _figures(gpu, seen.samples[gpu], busy[gpu], claim)]
    most = max((len(v) for of in seen.samples.values() for v in of.values()), default=0)
    notes = [Note("samples", f"{plural(len(seen.samples), 'GPU')}, up to {plural(most, 'sample')} each")]
    if idle := [gpu for gpu, of in seen.samples.items() if "sm" in of and max(of["sm"]) < LEVEL.unused]:
        notes.append(Note("idle", f"GPU {', '.join(map(str, idle))}: no load, so that low clocks and power are as they should be"))
    elif low := [gpu for gpu, of in busy.items() if not of]:
        notes.append(Note("idle", f"GPU {', '.join(map(str, low))}: never busy, so that clocks tell nothing"))
    causes = (
        *_clocks(busy, claim),
        *_throttling_causes(seen),
        *(() if "pid" in seen.columns else _waiting_gpus(seen)),
        *_pcie_causes(seen),
    )
    facts = {"gpus": str(len(seen.samples)), "columns": " ".join(seen.columns)}
    return Section("monitor", (name,), tuple(findings), tuple(notes), causes=causes, facts=facts)


def _busy(of: Mapping[str, tuple[float, ...]]) -> dict[str, list[float]]:
    """The samples in which the GPU computed; all of them where utilisation is not told."""
    used = of.get("sm")
    if used is None:
        return {name: list(values) for name, values in of.items()}
    rows = [i for i, share in enumerate(used) if share >= LEVEL.busy]
    return {name: [values[i] for i in rows] for name, values in of.items() if len(values) == len(used) and rows}


def _figures(
    gpu: int, of: Mapping[str, tuple[float, ...]], busy: Mapping[str, list[float]], claim: Claim | None
) -> Iterator[Finding]:
    chip = claim.question.cluster.chip if claim else None
    if used := of.get("sm"):
        what = "mean utilisation of a process" if "pid" in of else "utilisation"
        item = Note("utilisation", f"GPU {gpu}: {what}")
        yield Finding(item, None, mean(used) / 100, "share", reason=_highest_words(used, "%"), told=True)
    busy_known = bool(busy) and "sm" in of
    when = " when busy" if busy_known else ""
    if clocks := busy.get("pclk") or of.get("pclk"):
        boost = chip.clock_Hz / 1e6 if chip and chip.clock_Hz and busy_known else None
        item = Note("clock", f"GPU {gpu}: clock{when}, MHz")
        why = "the datasheet's boost clock; heavy products run below it" if boost else ""
        yield Finding(item, boost, median(clocks), tolerance=LEVEL.clock_tolerance, reason=why)
    if watts := busy.get("pwr") or of.get("pwr"):
        limit = chip.tdp_w or None if chip and busy_known else None
        item = Note("power", f"GPU {gpu}: power{when}, W")
        yield Finding(item, limit, median(watts), tolerance=LEVEL.clock_tolerance, reason=_highest_words(watts, " W"), told=True)
    if heat := of.get("gtemp") or of.get("temp"):
        yield Finding(Note("temperature", f"GPU {gpu}: highest temperature, °C"), None, max(heat))


def _highest_words(values: Sequence[float], unit: str) -> str:
    """The highest of several samples, beside what is usual."""
    return f"{max(values):,.10g}{unit} at most" if min(values) < max(values) else ""


def _clocks(busy: Mapping[int, Mapping[str, list[float]]], claim: Claim | None) -> Iterator[Cause]:
    """GPUs that are slower than others, or as slow as their power limit makes them."""

    def beside(gpu: int) -> str:
        figures = ((busy[gpu].get(name), unit) for name, unit in (("gtemp", "C"), ("pwr", "W")))
        return "".join(f", {median(values):.0f} {unit}" for values, unit in figures if values)

    clocks = {gpu: median(of["pclk"]) for gpu, of in busy.items() if of.get("pclk")}
    yield from slow_clocks(clocks, beside)
    chip = claim.question.cluster.chip if claim else None
    if chip and chip.tdp_w and chip.clock_Hz:
        for gpu, of in busy.items():
            if of.get("pwr") and gpu in clocks and median(of["pwr"]) >= LEVEL.power_cap * chip.tdp_w:
                said = f"GPU {gpu} draws {median(of['pwr']):.0f} of {chip.tdp_w:.0f} W and runs at {clocks[gpu]:,.0f} MHz"
                yield Cause("power-cap", f"{said}, {clocks[gpu] * 1e6 / chip.clock_Hz:.0%} of its boost clock")


def _throttling_causes(seen: Monitor) -> Iterator[Cause]:
    """Throttling and memory errors that the driver itself says."""
    for column, what in (("pviol", "its power limit"), ("tviol", "its temperature")):
        for gpu, of in seen.samples.items():
            if any(of.get(column, ())):
                share = sum(v > 0 for v in of[column]) / len(of[column])
                yield Cause("throttled", f"GPU {gpu} was held back by {what} in {share:.0%} of the samples", share=share)
    for gpu, of in seen.samples.items():
        if (errors := max(of.get("dbecc", ()), default=0.0)) > 0:
            yield Cause("ecc", f"GPU {gpu}: {errors:,.0f} uncorrectable memory errors", change="reset the GPU; then replace it")


def _tells(used: Sequence[float]) -> bool:
    """Whether samples tell how much a GPU is used: a few do where all are low or all are high."""
    changes = bool(used) and min(used) < LEVEL.busy <= max(used)
    return len(used) >= (COUNT.changing_samples if changes else COUNT.least_samples)


def _waiting_gpus(seen: Monitor) -> Iterator[Cause]:
    """GPUs that wait: one of them for its work, or all for something else."""
    used = {gpu: mean(of["sm"]) for gpu, of in seen.samples.items() if _tells(of.get("sm", ()))}
    used = {gpu: share for gpu, share in used.items() if share >= LEVEL.unused}  # others have no part in what runs
    low = {gpu: share for gpu, share in used.items() if share < LEVEL.starved}
    if low and len(low) == len(used):
        said = f"all GPUs compute {mean(low.values()):.0f}% of the time"
        yield Cause("starved", said, share=1 - mean(low.values()) / 100, change="the host, the data or the load leaves them idle")
    else:
        for gpu, share in low.items():
            others = mean(s for g, s in used.items() if g not in low)
            said = f"GPU {gpu} computes {share:.0f} % of the time, the others {others:.0f} %"
            yield Cause("starved-gpu", said, share=1 - share / 100)


def _pcie_causes(seen: Monitor) -> Iterator[Cause]:
    for gpu, of in seen.samples.items():
        moved = sum(mean(of[column]) * MB for column in ("rxpci", "txpci") if of.get(column))
        if moved >= LEVEL.busy_pcie_bps:
            said = f"GPU {gpu} moves {format_rate(moved)} over PCIe"
            yield Cause("pcie", said, change="collectives over PCIe or host memory instead of NVLink, or offloading")
