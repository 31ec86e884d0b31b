"""What the driver says of a host's GPUs: throttling, narrow PCIe links, faulty memory, power caps, NVLink that is not up."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from statistics import median

from commtax.catalog.foreign_names import device_named
from commtax.evidence.finding import Cause, Claim, Finding, Section
from commtax.evidence.thresholds import counts, levels
from commtax.machines.smi_audit import counted_gpus
from commtax.machines.smi_query import States, active, figure
from commtax.statement import Note

Said = Mapping[str, str]
COUNT = counts(__name__)
UNITS = {"MiB": 2.0**20, "GiB": 2.0**30, "MB": 2.0**20, "GB": 2.0**30}  # the last two as amd-smi means them
FAULTS = ("HW Slowdown", "HW Thermal Slowdown", "HW Power Brake Slowdown", "SW Thermal Slowdown")
"""Reasons for low clocks that no sound GPU has; a power cap under load, and low clocks of an idle one, are no fault."""
COOLING = "cooling, air flow and power supply of that GPU: clocks are halved or less while it lasts"
GEN, WIDTH = "PCI/GPU Link Info/PCIe Generation", "PCI/GPU Link Info/Link Width"
POWER = ("GPU Power Readings", "Power Readings")
DEAD_MEMORY = {
    "Remapped Rows/Pending": "rows of its memory wait to be remapped",
    "Remapped Rows/Remapping Failure Occurred": "rows of its memory could not be remapped",
    "Retired Pages/Pending Page Blacklist": "pages of its memory wait to be retired",
    "GPU Reset Status/Reset Required": "it needs a reset",
    "Readings/Lost": "the driver reads errors from it (ERR!)",
}
FABRIC_UP = ("Completed", "N/A", "")
CHANGES = {
    "throttled": COOLING,
    "pcie-width": "reseat the card or its riser, look at the slot and at bifurcation in the BIOS",
    "pcie-gen": "look at the slot, the riser and the BIOS: it computes, and its link did not speed up",
    "ecc": "reset the GPU; where it comes again, replace it",
    "memory": "reset the GPU; where it comes again, replace it",
    "fabric": "start the fabric manager of the driver's own version; NVLink is not usable before it is done",
    "power-limit": "nvidia-smi -pl, where the cap is not meant",
    "clocks-set": "nvidia-smi -rac and -rgc give the clocks free",
    "power-cap": "nothing to mend under load; a cooler or better fed host runs faster",
    "slow-clock": "a slow rank: look at its power limit, cooling and throttle reasons",
    "mixed": "groups run as fast as their slowest GPU",
}


def audit_states(states: States, claim: Claim | None, name: str = "nvidia-smi -q") -> Section:
    """Every GPU of the output; of several samples the last, and of what comes and goes any."""
    found = [(code, gpu, said) for gpu in states.samples for code, said in _faults(states, gpu)]
    often = Counter(code for code, _, _ in found)
    findings = [counted_gpus(max(states.attached, len(states.samples)), claim)]
    findings += [
        Finding(Note(code, TITLES[code]), 0, often[code], reason=_gpus([g for c, g, _ in found if c == code])).judged()
        for code in TITLES
        if often[code]
    ]
    findings += [*_chips(states, claim), *(f for gpu in states.samples for f in _told(gpu, states.last(gpu)))]
    causes = [Cause(code, f"GPU {gpu}{_bus(states, gpu)}: {said}", change=CHANGES[code]) for code, gpu, said in found]
    causes += [*_each(states), *_slow(states), *_mixed(states)]
    return Section("state", (name,), tuple(findings), tuple(_notes(states)), causes=tuple(causes), facts=_facts(states))


TITLES = {
    "throttled": "GPUs held back by heat or by their power supply",
    "pcie-width": "GPUs with fewer PCIe lanes than they have",
    "pcie-gen": "busy GPUs with a PCIe link below its generation",
    "ecc": "GPUs with uncorrectable memory errors since the driver came up",
    "memory": "GPUs that wait for a reset or lost memory",
    "fabric": "GPUs whose NVLink fabric is not up",
}
"""What is off by itself, whoever runs on it."""


def _gpus(gpus: list[int]) -> str:
    more = f" and {len(gpus) - COUNT.named} more" if len(gpus) > COUNT.named else ""
    return f"GPU {', '.join(map(str, gpus[: COUNT.named]))}{more}"


def _bus(states: States, gpu: int) -> str:
    """Its address, which outlives the order of an output."""
    bus = states.last(gpu).get("PCI/Bus Id", "")
    return f" ({bus.removeprefix('00000000:')})" if bus else ""


def _faults(states: States, gpu: int) -> Iterator[tuple[str, str]]:
    """Codes of ``TITLES`` with what is said, each once."""
    said, seen = states.last(gpu), states.samples[gpu]
    held = Counter(reason for sample in seen for reason in active(sample) if reason in FAULTS)
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
    if lost := [words for path, words in DEAD_MEMORY.items() if said.get(path) == "Yes"]:
        yield "memory", ", ".join(lost)
    state, status = said.get("Fabric/State", ""), said.get("Fabric/Status", "")
    if state not in FABRIC_UP or status not in ("Success", "N/A", ""):
        yield "fabric", f"its NVLink fabric is not up ({', '.join(filter(None, (state, status)))})"


def _busy(said: Said) -> bool:
    """Whether it computed when it was asked; an idle GPU slows its link and its clocks down."""
    used = figure(said, "Utilization/Gpu", "Utilization/GPU")
    told = any(path.endswith(" Reasons/Idle") for path in said)
    return "Idle" not in active(said) and (told if used is None else used >= levels("machines.smi_audit").busy)


def _uncorrectable(said: Said, since: str) -> Iterator[tuple[str, float]]:
    """Memory errors beyond repair, since the driver came up (Volatile) or ever (Aggregate), in either wording."""
    for path in said:
        kind = path.removeprefix(f"ECC Errors/{since}/")
        if kind != path and ("Uncorrectable" in kind or kind == "Double Bit/Total") and (count := figure(said, path)):
            yield kind, count


def _each(states: States) -> Iterator[Cause]:
    """What is set or usual, and costs time all the same."""
    for gpu in states.samples:
        for code, told in _limits(states.last(gpu)):
            yield Cause(code, f"GPU {gpu}: {told}", change=CHANGES[code])


def _limits(said: Said) -> Iterator[tuple[str, str]]:
    now = figure(said, *(f"{p}/{n}" for p in POWER for n in ("Current Power Limit", "Enforced Power Limit", "Power Limit")))
    usual = figure(said, *(f"{p}/Default Power Limit" for p in POWER))
    if now and usual and now < usual:
        yield "power-limit", f"its power is limited to {now:.0f} W, by default {usual:.0f}"
    clock, most = figure(said, "Clocks/SM"), figure(said, "Max Clocks/SM")
    at = f" ({clock:,.0f} of {most:,.0f} MHz)" if clock and most else ""
    reasons = active(said)
    if _busy(said) and "Applications Clocks Setting" in reasons:
        yield "clocks-set", f"its clocks are held by a setting{at}"
    if _busy(said) and "SW Power Cap" in reasons:
        yield "power-cap", f"its power limit holds the clocks back{at}"
    ever = sum(n for _, n in _uncorrectable(said, "Aggregate"))
    if ever and not any(_uncorrectable(said, "Volatile")):
        yield "ecc", f"{ever:,.0f} uncorrectable memory errors in its life"


def _slow(states: States) -> Iterator[Cause]:
    """A GPU that computes slower than the other busy ones."""
    clocks = {g: c for g in states.samples if _busy(states.last(g)) and (c := figure(states.last(g), "Clocks/SM"))}
    for gpu, clock in clocks.items():
        others = [c for g, c in clocks.items() if g != gpu]
        if others and clock < levels("machines.smi_audit").slow_clock * median(others):
            said = f"GPU {gpu} runs at {clock:,.0f} MHz, the others at {median(others):,.0f}"
            yield Cause("slow-clock", said, share=1 - clock / median(others), change=CHANGES["slow-clock"])


def _mixed(states: States) -> Iterator[Cause]:
    kinds: dict[str, list[int]] = {}
    for gpu in states.samples:
        kinds.setdefault(states.name(gpu), []).append(gpu)
    if len(kinds) > 1:
        said = "GPUs of one host differ: " + "; ".join(f"{_gpus(who)} {name or 'without a name'}" for name, who in kinds.items())
        yield Cause("mixed", said, change=CHANGES["mixed"])


def _chips(states: States, claim: Claim | None) -> Iterator[Finding]:
    """GPUs of another kind than was said; of a name that no chip has nothing can be said."""
    if claim is None:
        return
    wanted = claim.question.cluster.chip.key
    keys = {gpu: device_named(states.name(gpu)) for gpu in states.samples}
    if other := [gpu for gpu, key in keys.items() if key and key != wanted]:
        item, why = Note("chip", f"GPUs that are no {wanted}"), f"{_gpus(other)}: {states.name(other[0])}"
        yield Finding(item, 0, len(other), reason=why).judged()


COUNTERS = "Clocks Event Reasons Counters"


def _microseconds(said: Said, path: str) -> float | None:
    return None if (counted := figure(said, path)) is None else counted / 1e6


FIGURES: tuple[tuple[str, str, Callable[[Said], float | None]], ...] = (
    ("used", "memory used", lambda said: _bytes(said.get("FB Memory Usage/Used", ""))),
    ("utilisation", "utilisation, %", lambda said: figure(said, "Utilization/Gpu", "Utilization/GPU")),
    ("clock", "clock, MHz", lambda said: figure(said, "Clocks/SM", "Clocks/Graphics")),
    ("power", "power, W", lambda said: figure(said, *(f"{p}/{n}" for p in POWER for n in ("Power Draw", "Average Power Draw")))),
    ("capped", "held back by its power cap so far, s", lambda said: _microseconds(said, f"{COUNTERS}/SW Power Capping")),
    ("temperature", "temperature, °C", lambda said: figure(said, "Temperature/GPU Current Temp")),
)


def _bytes(words: str) -> float | None:
    """Memory as it is printed."""
    number, _, unit = words.partition(" ")
    return float(number) * UNITS[unit] if unit in UNITS and number.replace(".", "", 1).isdecimal() else None


def _told(gpu: int, said: Said) -> Iterator[Finding]:
    for code, words, read in FIGURES:
        if (value := read(said)) is not None:
            yield Finding(Note(code, f"GPU {gpu}: {words}"), None, value, "bytes" if code == "used" else "")


def _notes(states: States) -> Iterator[Note]:
    if (told := len(states.samples)) < states.attached:
        yield Note("partial", f"{told} of {states.attached} GPUs are in this text")
    if idle := [gpu for gpu in states.samples if not _busy(states.last(gpu))]:
        yield Note("idle", f"{_gpus(idle)}: not busy when asked, so that clocks and PCIe generations tell nothing")
    if off := [gpu for gpu in states.samples if states.last(gpu).get("Persistence Mode") == "Disabled"]:
        yield Note("persistence", f"{_gpus(off)}: persistence mode is off, so that the first start of a job takes seconds longer")
    for gpu in states.samples:
        device, host = (figure(states.last(gpu), f"{GEN}/{side} Max") for side in ("Device", "Host"))
        if device and host and host < device:
            yield Note("slot", f"GPU {gpu}: the host has PCIe of generation {host:.0f}, the card {device:.0f}")


def _facts(states: States) -> dict[str, str]:
    names = dict.fromkeys(states.name(gpu) for gpu in states.samples)
    mig = {states.last(gpu).get("MIG Mode/Current", "") for gpu in states.samples} - {"", "N/A"}
    said = {"devices": ", ".join(filter(None, names)), "gpus": str(len(states.samples)), "MIG": ", ".join(sorted(mig))}
    said["performance states"] = ", ".join(sorted({states.last(gpu).get("Performance State", "") for gpu in states.samples} - {""}))
    return {name: value for name, value in said.items() if value}
