"""Links, clocks and states of a host's GPUs: links that are down or idle, throttling, narrow PCIe, faulty memory, power caps."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import mean, median

from commtax.catalog.foreign_names import find_device_chip
from commtax.files import table
from commtax.runs.evidence.finding import Cause, Claim, Finding, Section
from commtax.runs.evidence.identity import identity_findings
from commtax.runs.machines.smi import Links, Monitor, States, clock_reasons, figure
from commtax.statement import Note
from commtax.thresholds import thresholds
from commtax.units import format_bytes, format_rate, plural

COUNT, LEVEL = thresholds(__name__)

MB = 1e6
CHANGES: Mapping[str, str] = table("runs/machines/words.toml")["changes"]


def audit_links(links: Links, claim: Claim | None, name: str = "links") -> Section:
    """Report bytes of each GPU over its links, and links that are down, silent, uneven or faulty."""
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
    causes = (*_inactive_links(links), *_uneven_traffic(links), *_errors(links))
    return Section("links", (name,), tuple(findings), tuple(notes), causes=causes, facts=facts)


def counted_gpus(count: int, claim: Claim | None) -> Finding:
    """Compare the GPUs that an output lists with those of a host. Fewer may be those that a container sees."""
    wanted = claim.question.cluster.gpus_per_host if claim else None
    finding = Finding("GPUs", wanted, count, reason="more than a host of the cluster has" if wanted else "").judged()
    return finding.undecided("the output may list a part of the host") if wanted and count < wanted else finding


def named_gpus(gpus: Sequence[int]) -> str:
    more = f" and {len(gpus) - COUNT.named} more" if len(gpus) > COUNT.named else ""
    return f"GPU {', '.join(map(str, gpus[: COUNT.named]))}{more}"


def slow_clocks(clocks: Mapping[int, float], beside: Callable[[int], str] = lambda _: "") -> Iterator[Cause]:
    """Yield GPUs that compute slower than the other busy ones, which wait for them. ``beside`` adds details."""
    for gpu, clock in clocks.items():
        others = [c for g, c in clocks.items() if g != gpu]
        if others and clock < LEVEL.slow_clock * median(others):
            text = f"GPU {gpu} runs at {clock:,.0f} MHz, the others at {median(others):,.0f}{beside(gpu)}"
            yield Cause("slow-clock", text, share=1 - clock / median(others), change=CHANGES["slow-clock"])


def _speeds(links: Links, claim: Claim | None) -> Iterator[Finding]:
    """Compare what a GPU's links carry together in one direction with the claimed link, where that is made of such links."""
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
            text = f"GPU {gpu}: {plural(len(down), 'link')} inactive ({', '.join(map(str, down))}) of {len(of)}"
            yield Cause("link-down", text, share=len(down) / len(of), change=CHANGES["link-down"])
        elif down or not of:
            text = f"GPU {gpu}: all of its {f'{len(of)} ' if of else ''}links are inactive: collectives take PCIe"
            yield Cause("links-down", text, share=1.0, change=CHANGES["links-down"])


def _uneven_traffic(links: Links) -> Iterator[Cause]:
    """Yield GPUs and links that carry nothing while others do, and GPUs and links that carry unequal amounts."""
    totals = {gpu: sum(tx + rx for tx, rx in of.values()) for gpu, of in links.carried.items()}
    most = max(totals.values(), default=0.0)
    for gpu, of in links.carried.items():
        if most and totals[gpu] <= LEVEL.silent * most:
            text = f"GPU {gpu}: its links carried {format_bytes(totals[gpu])}, others' up to {format_bytes(most)}"
            yield Cause("gpu-silent", text, change=CHANGES["gpu-silent"])
            continue
        each = {n: tx + rx for n, (tx, rx) in of.items()}
        usual = median(each.values()) if each else 0.0
        quiet = [n for n, nbytes in each.items() if usual and nbytes <= LEVEL.silent * usual]
        if quiet:
            text = f"GPU {gpu}: links {', '.join(map(str, quiet))} carried nothing, its others {format_bytes(usual)} each"
            yield Cause("link-silent", text, share=len(quiet) / len(each))
        rest = [nbytes for n, nbytes in each.items() if n not in quiet]
        if rest and max(rest) > LEVEL.uneven * min(rest) > 0:
            text = f"GPU {gpu}: its links carried {format_bytes(min(rest))} to {format_bytes(max(rest))}"
            yield Cause("links-uneven", text, change=CHANGES["links-uneven"])
    one_job = len(links.snapshots) > 1 and not links.was_reset  # traffic since a reset mixes many jobs
    loud = {gpu: nbytes for gpu, nbytes in totals.items() if one_job and nbytes > LEVEL.silent * most}
    if len(loud) > 1 and most > LEVEL.uneven * min(loud.values()):
        least, first = min(loud, key=lambda gpu: loud[gpu]), max(totals, key=lambda gpu: totals[gpu])
        text = f"GPU {first} carried {format_bytes(most)}, GPU {least} {format_bytes(loud[least])}"
        yield Cause("gpus-uneven", text, change=CHANGES["gpus-uneven"])


def _errors(links: Links) -> Iterator[Cause]:
    for gpu, of in links.errors.items():
        for kind in dict.fromkeys(kind for counts in of.values() for kind in counts):
            count = sum(counts.get(kind, 0) for counts in of.values())
            where = ", ".join(str(n) for n, counts in of.items() if counts.get(kind))
            if count:
                text = f"GPU {gpu}: {count:,} x {kind.lower()} (links {where})"
                yield Cause("link-errors", text, change=CHANGES["link-errors"])


def audit_monitor(seen: Monitor, claim: Claim | None, name: str = "dmon") -> Section:
    """Report clocks, power, utilisation and PCIe traffic of each GPU, and the one that stands out."""
    busy = {gpu: _busy(of) for gpu, of in seen.samples.items()}
    findings = [finding for gpu in seen.samples for finding in _figures(gpu, seen.samples[gpu], busy[gpu], claim)]
    most = max((len(v) for of in seen.samples.values() for v in of.values()), default=0)
    notes = [Note("samples", f"{plural(len(seen.samples), 'GPU')}, up to {plural(most, 'sample')} each")]
    if idle := [gpu for gpu, of in seen.samples.items() if "sm" in of and max(of["sm"]) < LEVEL.unused]:
        notes.append(Note("idle", f"GPU {', '.join(map(str, idle))}: no load, so that low clocks and power are as they should be"))
    elif low := [gpu for gpu, of in busy.items() if not of]:
        notes.append(Note("idle", f"GPU {', '.join(map(str, low))}: never busy, so that clocks tell nothing"))
    causes = [*_clocks(busy, claim), *_throttling_causes(seen), *(() if "pid" in seen.columns else _waiting_gpus(seen))]
    for gpu, of in seen.samples.items():
        moved = sum(mean(of[column]) * MB for column in ("rxpci", "txpci") if of.get(column))
        if moved >= LEVEL.busy_pcie_bps:
            causes.append(Cause("pcie", f"GPU {gpu} moves {format_rate(moved)} over PCIe", change=CHANGES["pcie"]))
    facts = {"gpus": str(len(seen.samples)), "columns": " ".join(seen.columns)}
    return Section("monitor", (name,), tuple(findings), tuple(notes), causes=tuple(causes), facts=facts)


def _busy(samples: Mapping[str, tuple[float, ...]]) -> dict[str, list[float]]:
    """Keep the samples in which the GPU computed, or all where utilisation is not recorded."""
    used = samples.get("sm")
    if used is None:
        return {name: list(values) for name, values in samples.items()}
    rows = [i for i, share in enumerate(used) if share >= LEVEL.busy]
    return {name: [values[i] for i in rows] for name, values in samples.items() if len(values) == len(used) and rows}


def _figures(
    gpu: int, of: Mapping[str, tuple[float, ...]], busy: Mapping[str, list[float]], claim: Claim | None
) -> Iterator[Finding]:
    chip = claim.question.cluster.chip if claim else None
    if used := of.get("sm"):
        what = "mean utilisation of a process" if "pid" in of else "utilisation"
        item = Note("utilisation", f"GPU {gpu}: {what}")
        yield Finding(item, None, mean(used) / 100, "share", reason=_highest_words(used, "%"), remark=True)
    filtered = bool(busy) and "sm" in of
    when = " when busy" if filtered else ""
    if clocks := busy.get("pclk") or of.get("pclk"):
        boost = chip.clock_Hz / 1e6 if chip and chip.clock_Hz and filtered else None
        item = Note("clock", f"GPU {gpu}: clock{when}, MHz")
        why = "the datasheet's boost clock; heavy products run below it" if boost else ""
        yield Finding(item, boost, median(clocks), tolerance=LEVEL.clock_tolerance, reason=why)
    if watts := busy.get("pwr") or of.get("pwr"):
        limit = chip.tdp_w or None if chip and filtered else None
        item = Note("power", f"GPU {gpu}: power{when}, W")
        yield Finding(item, limit, median(watts), tolerance=LEVEL.clock_tolerance, reason=_highest_words(watts, " W"), remark=True)
    if heat := of.get("gtemp") or of.get("temp"):
        yield Finding(Note("temperature", f"GPU {gpu}: highest temperature, °C"), None, max(heat))


def _highest_words(values: Sequence[float], unit: str) -> str:
    return f"{max(values):,.10g}{unit} at most" if min(values) < max(values) else ""


def _clocks(busy: Mapping[int, Mapping[str, list[float]]], claim: Claim | None) -> Iterator[Cause]:
    """Yield a cause for GPUs that are slower than the others, and for GPUs that their power cap holds back."""

    def beside(gpu: int) -> str:
        figures = ((busy[gpu].get(name), unit) for name, unit in (("gtemp", "C"), ("pwr", "W")))
        return "".join(f", {median(values):.0f} {unit}" for values, unit in figures if values)

    clocks = {gpu: median(of["pclk"]) for gpu, of in busy.items() if of.get("pclk")}
    yield from slow_clocks(clocks, beside)
    chip = claim.question.cluster.chip if claim else None
    if chip and chip.tdp_w and chip.clock_Hz:
        for gpu, of in busy.items():
            if of.get("pwr") and gpu in clocks and median(of["pwr"]) >= LEVEL.power_cap * chip.tdp_w:
                text = f"GPU {gpu} draws {median(of['pwr']):.0f} of {chip.tdp_w:.0f} W and runs at {clocks[gpu]:,.0f} MHz"
                yield Cause("power-cap", f"{text}, {clocks[gpu] * 1e6 / chip.clock_Hz:.0%} of its boost clock")


def _throttling_causes(seen: Monitor) -> Iterator[Cause]:
    """Yield throttling and memory errors that the driver reports."""
    for column, what in (("pviol", "its power limit"), ("tviol", "its temperature")):
        for gpu, of in seen.samples.items():
            if any(of.get(column, ())):
                share = sum(v > 0 for v in of[column]) / len(of[column])
                yield Cause("throttled", f"GPU {gpu} was held back by {what} in {share:.0%} of the samples", share=share)
    for gpu, of in seen.samples.items():
        if (errors := max(of.get("dbecc", ()), default=0.0)) > 0:
            yield Cause("ecc", f"GPU {gpu}: {errors:,.0f} uncorrectable memory errors", change="reset the GPU; then replace it")


def _tells(used: Sequence[float]) -> bool:
    """Return whether there are enough samples to judge utilisation: a few suffice where all are low or all are high."""
    changes = bool(used) and min(used) < LEVEL.busy <= max(used)
    return len(used) >= (COUNT.changing_samples if changes else COUNT.least_samples)


def _waiting_gpus(seen: Monitor) -> Iterator[Cause]:
    """Yield GPUs that are idle: one that lacks work, or all of them waiting for something else."""
    used = {gpu: mean(of["sm"]) for gpu, of in seen.samples.items() if _tells(of.get("sm", ()))}
    used = {gpu: share for gpu, share in used.items() if share >= LEVEL.unused}  # others have no part in what runs
    low = {gpu: share for gpu, share in used.items() if share < LEVEL.starved}
    if low and len(low) == len(used):
        text = f"all GPUs compute {mean(low.values()):.0f}% of the time"
        yield Cause("starved", text, share=1 - mean(low.values()) / 100, change=CHANGES["starved"])
    else:
        for gpu, share in low.items():
            others = mean(s for g, s in used.items() if g not in low)
            text = f"GPU {gpu} computes {share:.0f} % of the time, the others {others:.0f} %"
            yield Cause("starved-gpu", text, share=1 - share / 100)


Fields = Mapping[str, str]
WORDS = table("runs/machines/words.toml")
TITLES: Fields = WORDS["titles"]
GEN, WIDTH = "PCI/GPU Link Info/PCIe Generation", "PCI/GPU Link Info/Link Width"
POWER = ("GPU Power Readings", "Power Readings")
FABRIC_UP = ("Completed", "N/A", "")


def audit_states(states: States, claim: Claim | None, name: str = "nvidia-smi -q") -> Section:
    """Audit every GPU of the output by its last sample, and intermittent faults by all samples."""
    faults = [(code, gpu, text) for gpu in states.samples for code, text in _faults(states, gpu)]
    often = Counter(code for code, _, _ in faults)
    findings = [counted_gpus(max(states.attached, len(states.samples)), claim)]
    gpus_by_code = {code: named_gpus([gpu for c, gpu, _ in faults if c == code]) for code in TITLES if often[code]}
    findings += [Finding(Note(code, TITLES[code]), 0, often[code], reason=who).judged() for code, who in gpus_by_code.items()]
    findings += [*_chips(states, claim), *(f for gpu in states.samples for f in _gpu_findings(gpu, states.last(gpu)))]
    buses = {gpu: states.last(gpu).get("PCI/Bus Id", "").removeprefix("00000000:") for gpu in states.samples}  # outlive the order
    named = {gpu: f"GPU {gpu} ({bus})" if bus else f"GPU {gpu}" for gpu, bus in buses.items()}
    causes = [Cause(code, f"{named[gpu]}: {text}", change=CHANGES[code]) for code, gpu, text in faults]
    limits = [(code, gpu, text) for gpu in states.samples for code, text in _limits(states.last(gpu))]
    causes += [Cause(code, f"GPU {gpu}: {text}", change=CHANGES[code]) for code, gpu, text in limits]
    busy = {gpu: states.last(gpu) for gpu in states.samples if _is_busy(states.last(gpu))}
    causes += slow_clocks({gpu: clock for gpu, of in busy.items() if (clock := figure(of, "Clocks/SM"))})
    kinds: dict[str, list[int]] = {}
    for gpu in states.samples:
        kinds.setdefault(states.name(gpu), []).append(gpu)
    if len(kinds) > 1:
        who = "; ".join(f"{named_gpus(gpus)} {kind or 'without a name'}" for kind, gpus in kinds.items())
        causes.append(Cause("mixed", f"GPUs of one host differ: {who}", change=CHANGES["mixed"]))
    mig = {states.last(gpu).get("MIG Mode/Current", "") for gpu in states.samples} - {"", "N/A"}
    levels = {states.last(gpu).get("Performance State", "") for gpu in states.samples} - {""}
    facts = {"devices": ", ".join(filter(None, kinds)), "gpus": str(len(states.samples)), "MIG": ", ".join(sorted(mig))}
    facts["performance states"] = ", ".join(sorted(levels))
    stated = {name: value for name, value in facts.items() if value}
    return Section("state", (name,), tuple(findings), tuple(_notes(states)), causes=tuple(causes), facts=stated)


def _faults(states: States, gpu: int) -> Iterator[tuple[str, str]]:
    """Yield each fault once, with its code in ``TITLES`` and a description."""
    fields, seen = states.last(gpu), states.samples[gpu]
    limits = Counter(reason for sample in seen for reason in clock_reasons(sample) if reason in WORDS["states"]["faults"])
    if limits:
        often = f" in {max(limits.values())} of {len(seen)} samples" if len(seen) > 1 else ""
        yield "throttled", f"its clocks are held back{often}: {', '.join(limits)}"
    width, widest = figure(fields, f"{WIDTH}/Current"), figure(fields, f"{WIDTH}/Max")
    if width and widest and width < widest:
        yield "pcie-width", f"its PCIe link has {width:.0f} lanes of {widest:.0f}"
    gen, highest = figure(fields, f"{GEN}/Current"), figure(fields, f"{GEN}/Max")
    if gen and highest and gen < highest and _is_busy(fields):
        yield "pcie-gen", f"its PCIe link runs as generation {gen:.0f} of {highest:.0f}"
    if wrong := dict(_uncorrectable(fields, "Volatile")):
        yield "ecc", f"{sum(wrong.values()):,.0f} uncorrectable memory errors ({', '.join(wrong)})"
    if lost := [words for path, words in WORDS["dead_memory"].items() if fields.get(path) == "Yes"]:
        yield "memory", ", ".join(lost)
    state, status = fields.get("Fabric/State", ""), fields.get("Fabric/Status", "")
    if state not in FABRIC_UP or status not in ("Success", "N/A", ""):
        yield "fabric", f"its NVLink fabric is not up ({', '.join(filter(None, (state, status)))})"


def _is_busy(fields: Fields) -> bool:
    """Return whether a GPU was computing. An idle one slows its link and its clocks down."""
    used = figure(fields, "Utilization/Gpu", "Utilization/GPU")
    stated = any(path.endswith(" Reasons/Idle") for path in fields)
    return "Idle" not in clock_reasons(fields) and (stated if used is None else used >= LEVEL.busy)


def _uncorrectable(fields: Fields, since: str) -> Iterator[tuple[str, float]]:
    """Yield memory errors beyond repair, since the driver came up (Volatile) or ever (Aggregate), in either wording."""
    for path in fields:
        kind = path.removeprefix(f"ECC Errors/{since}/")
        if kind != path and ("Uncorrectable" in kind or kind == "Double Bit/Total") and (count := figure(fields, path)):
            yield kind, count


def _limits(fields: Fields) -> Iterator[tuple[str, str]]:
    """Yield settings that are intended or usual and still cost time."""
    now = figure(fields, *(f"{p}/{n}" for p in POWER for n in ("Current Power Limit", "Enforced Power Limit", "Power Limit")))
    usual = figure(fields, *(f"{p}/Default Power Limit" for p in POWER))
    if now and usual and now < usual:
        yield "power-limit", f"its power is limited to {now:.0f} W, by default {usual:.0f}"
    clock, most = figure(fields, "Clocks/SM"), figure(fields, "Max Clocks/SM")
    at = f" ({clock:,.0f} of {most:,.0f} MHz)" if clock and most else ""
    reasons = clock_reasons(fields)
    if _is_busy(fields) and "Applications Clocks Setting" in reasons:
        yield "clocks-set", f"its clocks are held by a setting{at}"
    if _is_busy(fields) and "SW Power Cap" in reasons:
        yield "power-cap", f"its power limit holds the clocks back{at}"
    ever = sum(n for _, n in _uncorrectable(fields, "Aggregate"))
    if ever and not any(_uncorrectable(fields, "Volatile")):
        yield "ecc", f"{ever:,.0f} uncorrectable memory errors in its life"


def _chips(states: States, claim: Claim | None) -> Iterator[Finding]:
    """Yield GPUs of another kind than claimed, unless their name is that of no chip in the catalogue."""
    if claim is None:
        return
    wanted = claim.question.cluster.chip.key
    keys = {gpu: find_device_chip(states.name(gpu)) for gpu in states.samples}
    if other := [gpu for gpu, key in keys.items() if key and key != wanted]:
        item, why = Note("chip", f"GPUs that are no {wanted}"), f"{named_gpus(other)}: {states.name(other[0])}"
        yield Finding(item, 0, len(other), reason=why).judged()


def _gpu_findings(gpu: int, fields: Fields) -> Iterator[Finding]:
    for code, (title, *paths) in WORDS["figures"].items():
        value = figure(fields, *paths)
        if code == "used":
            number, _, unit = fields.get(paths[0], "").partition(" ")
            plain = unit in WORDS["units"] and number.replace(".", "", 1).isdecimal()
            value = float(number) * WORDS["units"][unit] if plain else None
        if value is not None:
            seconds = value / 1e6 if code == "capped" else value  # the driver counts microseconds
            yield Finding(Note(code, f"GPU {gpu}: {title}"), None, seconds, "bytes" if code == "used" else "")


def _notes(states: States) -> Iterator[Note]:
    if (listed := len(states.samples)) < states.attached:
        yield Note("partial", f"{listed} of {states.attached} GPUs are in this text")
    if idle := [gpu for gpu in states.samples if not _is_busy(states.last(gpu))]:
        yield Note("idle", f"{named_gpus(idle)}: not busy when asked, so that clocks and PCIe generations tell nothing")
    if off := [gpu for gpu in states.samples if states.last(gpu).get("Persistence Mode") == "Disabled"]:
        slow = "persistence mode is off, so that the first start of a job takes seconds longer"
        yield Note("persistence", f"{named_gpus(off)}: {slow}")
    for gpu in states.samples:
        device, host = (figure(states.last(gpu), f"{GEN}/{side} Max") for side in ("Device", "Host"))
        if device and host and host < device:
            yield Note("slot", f"GPU {gpu}: the host has PCIe of generation {host:.0f}, the card {device:.0f}")
