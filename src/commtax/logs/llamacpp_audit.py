"""A log of llama.cpp: its own figures. Its kernels and formats are not modelled, so that nothing of a claim is judged."""

from collections.abc import Iterator, Sequence
from statistics import median

from commtax.evidence.finding import Claim, Finding, Section
from commtax.logs.llamacpp_log import Timings
from commtax.statement import Note
from commtax.units import plural

MiB = 2**20
BUFFERS = {"model": "memory of the weights", "KV": "memory of the KV cache", "compute": "memory of computations"}


def audit_timings(timings: Timings, claim: Claim | None, name: str = "log") -> Section:
    """Medians of its rates, and its buffers over all devices."""
    notes = [Note("start", "llama.cpp served" if timings.writes else "llama.cpp, which wrote no token in this text")]
    if claim:
        notes.append(Note("claim", "llama.cpp's kernels and formats are not modelled: nothing of the claim is judged"))
    return Section("log", (name,), tuple(_told(timings)), tuple(notes), facts={"engine": "llama.cpp"})


def _told(timings: Timings) -> Iterator[Finding]:
    for title, rates in (("prompt tokens/s", timings.reads), ("generated tokens/s", timings.writes)):
        if rates:
            yield Finding(title, None, median(rates), reason=_range(rates), told=True)
    for kind, devices in timings.buffers.items():
        yield Finding(BUFFERS[kind], None, sum(devices.values()) * MiB, "bytes", reason=f"on {', '.join(devices)}"[:200], told=True)


def _range(rates: Sequence[float]) -> str:
    shown = f"{min(rates):,.10g} to {max(rates):,.10g}, " if min(rates) < max(rates) else ""
    return f"{shown}in {plural(len(rates), 'line')}"
