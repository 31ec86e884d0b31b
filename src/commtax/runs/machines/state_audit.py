"""What the driver says of a host's GPUs: throttling, narrow PCIe links, faulty memory, power caps, NVLink that is not up."""

from collections import Counter
from collections.abc import Iterator, Mapping

from commtax.catalog.foreign_names import find_device_chip
from commtax.files import table
from commtax.runs.evidence.finding import Cause, Claim, Finding, Section
from commtax.runs.machines.smi_audit import CHANGES, counted_gpus, named_gpus, slow_clocks
from commtax.runs.machines.smi_query import States, clock_reasons, figure
from commtax.statement import Note
from commtax.thresholds import levels

Said = Mapping[str, str]
WORDS = table("runs/machines/words.toml")
TITLES: Said = WORDS["titles"]
GEN, WIDTH = "PCI/GPU Link Info/PCIe Generation", "PCI/GPU Link Info/Link Width"
POWER = ("GPU Power Readings", "Power Readings")
FABRIC_UP = ("Completed", "N/A", "")


def audit_states(states: States, claim: Claim | None, name: str = "nvidia-smi -q") -> Section:
    """Every GPU of the output; of several samples the last, and of what comes and goes any."""
    found = [(code, gpu, said) for gpu in states.samples for code, said in _faults(states, gpu)]
    often = Counter(code for code, _, _ in found)
    findings = [counted_gpus(max(states.attached, len(states.samples)), claim)]
    findings += [
        Finding(Note(code, TITLES[code]), 0, often[code], reason=named_gpus([g for c, g, _ in found if c == code])).judged()
        for code in TITLES
        if often[code]
    ]
    findings += [*_chips(states, claim), *(f for gpu in states.samples for f in _gpu_findings(gpu, states.last(gpu)))]
    buses = {gpu: states.last(gpu).get("PCI/Bus Id", "").removeprefix("00000000:") for gpu in states.samples}  # outlive the order
    named = {gpu: f"GPU {gpu} ({bus})" if bus else f"GPU {gpu}" for gpu, bus in buses.items()}
    causes = [Cause(code, f"{named[gpu]}: {said}", change=CHANGES[code]) for code, gpu, said in found]
    limits = [(code, gpu, said) for gpu in states.samples for code, said in _limits(states.last(gpu))]
    causes += [Cause(code, f"GPU {gpu}: {said}", change=CHANGES[code]) for code, gpu, said in limits]
    causes += [*_slow(states), *_mixed_gpus(states)]
    names = dict.fromkeys(states.name(gpu) for gpu in states.samples)
    mig = {states.last(gpu).get("MIG Mode/Current", "") for gpu in states.samples} - {"", "N/A"}
    said = {"devices": ", ".join(filter(None, names)), "gpus": str(len(states.samples)), "MIG": ", ".join(sorted(mig))}
    said["performance states"] = ", ".join(sorted({states.last(gpu).get("Performance State", "") for gpu in states.samples} - {""}))
    facts = {name: value for name, value in said.items() if value}
    return Section("state", (name,), tuple(findings), tuple(_notes(states)), causes=tuple(causes), facts=facts)


def _faults(states: States, gpu: int) -> Iterator[tuple[str, str]]:
    """Codes of ``TITLES`` with what is said, each once."""
    said, seen = states.last(gpu), states.samples[gpu]
    held = Counter(reason for sample in seen for reason in clock_reasons(sample) if reason in WORDS["states"]["faults"])
    if held:
        often = f" in {max(held.values())} of {len(seen)} samples" if len(seen) > 1 else ""
        yield "throttled", f"its clocks are held back{often}: {', '.join(held)}"
    width, widest = figure(said, f"{WIDTH}/Current"), figure(said, f"{WIDTH}/Max")
    if width and widest and width < widest:
        yield "pcie-width", f"its PCIe link has {width:.0f} lanes of {widest:.0f}"
    gen, highest = figure(said, f"{GEN}/Current"), figure(said, f"{GEN}/Max")
    if gen and highest and gen < highest and _busy(said):
        yield "pcie-gen", f"its PCIe link runs as generation {gen:.0f} of {highest:.0f}"
    if wrong := dict(_uncorrectable(said, "Volatile")):
        yield "ecc", f"{sum(wrong.values()):,.0f} uncorrectable memory errors ({', '.join(wrong)})"
    if lost := [words for path, words in WORDS["dead_memory"].items() if said.get(path) == "Yes"]:
        yield "memory", ", ".join(lost)
    state, status = said.get("Fabric/State", ""), said.get("Fabric/Status", "")
    if state not in FABRIC_UP or status not in ("Success", "N/A", ""):
        yield "fabric", f"its NVLink fabric is not up ({', '.join(filter(None, (state, status)))})"


def _busy(said: Said) -> bool:
    """Whether it computed when it was asked; an idle GPU slows its link and its clocks down."""
    used = figure(said, "Utilization/Gpu", "Utilization/GPU")
    told = any(path.endswith(" Reasons/Idle") for path in said)
    return "Idle" not in clock_reasons(said) and (told if used is None else used >= levels("runs.machines.smi_audit").busy)


def _uncorrectable(said: Said, since: str) -> Iterator[tuple[str, float]]:
    """Memory errors beyond repair, since the driver came up (Volatile) or ever (Aggregate), in either wording."""
    for path in said:
        kind = path.removeprefix(f"ECC Errors/{since}/")
        if kind != path and ("Uncorrectable" in kind or kind == "Double Bit/Total") and (count := figure(said, path)):
            yield kind, count


def _limits(said: Said) -> Iterator[tuple[str, str]]:
    """What is set or usual, and costs time all the same."""
    now = figure(said, *(f"{p}/{n}" for p in POWER for n in ("Current Power Limit", "Enforced Power Limit", "Power Limit")))
    usual = figure(said, *(f"{p}/Default Power Limit" for p in POWER))
    if now and usual and now < usual:
        yield "power-limit", f"its power is limited to {now:.0f} W, by default {usual:.0f}"
    clock, most = figure(said, "Clocks/SM"), figure(said, "Max Clocks/SM")
    at = f" ({clock:,.0f} of {most:,.0f} MHz)" if clock and most else ""
    reasons = clock_reasons(said)
    if _busy(said) and "Applications Clocks Setting" in reasons:
        yield "clocks-set", f"its clocks are held by a setting{at}"
    if _busy(said) and "SW Power Cap" in reasons:
        yield "power-cap", f"its power limit holds the clocks back{at}"
    ever = sum(n for _, n in _uncorrectable(said, "Aggregate"))
    if ever and not any(_uncorrectable(said, "Volatile")):
        yield "ecc", f"{ever:,.0f} uncorrectable memory errors in its life"


def _slow(states: States) -> Iterator[Cause]:
    said = {gpu: states.last(gpu) for gpu in states.samples if _busy(states.last(gpu))}
    return slow_clocks({gpu: clock for gpu, of in said.items() if (clock := figure(of, "Clocks/SM"))})


def _mixed_gpus(states: States) -> Iterator[Cause]:
    kinds: dict[str, list[int]] = {}
    for gpu in states.samples:
        kinds.setdefault(states.name(gpu), []).append(gpu)
    if len(kinds) > 1:
        told = "; ".join(f"{named_gpus(who)} {name or 'without a name'}" for name, who in kinds.items())
        yield Cause("mixed", f"GPUs of one host differ: {told}", change=CHANGES["mixed"])


def _chips(states: States, claim: Claim | None) -> Iterator[Finding]:
    """GPUs of another kind than was said; of a name that no chip has nothing can be said."""
    if claim is None:
        return
    wanted = claim.question.cluster.chip.key
    keys = {gpu: find_device_chip(states.name(gpu)) for gpu in states.samples}
    if other := [gpu for gpu, key in keys.items() if key and key != wanted]:
        item, why = Note("chip", f"GPUs that are no {wanted}"), f"{named_gpus(other)}: {states.name(other[0])}"
        yield Finding(item, 0, len(other), reason=why).judged()


def _bytes(words: str) -> float | None:
    number, _, unit = words.partition(" ")
    return float(number) * WORDS["units"][unit] if unit in WORDS["units"] and number.replace(".", "", 1).isdecimal() else None


def _gpu_findings(gpu: int, said: Said) -> Iterator[Finding]:
    for code, (title, *paths) in WORDS["figures"].items():
        value = _bytes(said.get(paths[0], "")) if code == "used" else figure(said, *paths)
        if value is not None:
            seconds = value / 1e6 if code == "capped" else value  # the driver counts microseconds
            yield Finding(Note(code, f"GPU {gpu}: {title}"), None, seconds, "bytes" if code == "used" else "")


def _notes(states: States) -> Iterator[Note]:
    if (told := len(states.samples)) < states.attached:
        yield Note("partial", f"{told} of {states.attached} GPUs are in this text")
    if idle := [gpu for gpu in states.samples if not _busy(states.last(gpu))]:
        yield Note("idle", f"{named_gpus(idle)}: not busy when asked, so that clocks and PCIe generations tell nothing")
    if off := [gpu for gpu in states.samples if states.last(gpu).get("Persistence Mode") == "Disabled"]:
        slow = "persistence mode is off, so that the first start of a job takes seconds longer"
        yield Note("persistence", f"{named_gpus(off)}: {slow}")
    for gpu in states.samples:
        device, host = (figure(states.last(gpu), f"{GEN}/{side} Max") for side in ("Device", "Host"))
        if device and host and host < device:
            yield Note("slot", f"GPU {gpu}: the host has PCIe of generation {host:.0f}, the card {device:.0f}")
