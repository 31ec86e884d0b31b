"""Where a traced job ran: on which chip, on how many ranks, and how many of them left a trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from commtax.audit.finding import AGREE, DISAGREE, Finding, Question, compare, undecided
from commtax.catalog.devices import MEMORY, is_like, recognise
from commtax.readers.trace import Device, Trace
from commtax.statement import Note
from commtax.units import format_bytes


def placed(trace: Trace, asked: Question) -> Iterator[Finding]:
    """The chip and the ranks that a trace's head tells, against what was said."""
    if trace.device:
        yield _chip(trace.device, asked)
    if trace.world and not trace.training:
        yield _world(trace.world, asked)


def _chip(device: Device, asked: Question) -> Finding:
    known, possible = asked.cluster.chip, _possible(device)
    item = Note("chip", f"memory of {device.name or 'its device'}")
    finding = compare(item, known.visible_bytes, device.memory_bytes, "bytes", MEMORY)
    if known.key in possible:
        return replace(finding, verdict=AGREE)
    if possible:
        return replace(finding, verdict=DISAGREE, reason=f"the trace is of {' or '.join(possible)}, not of {known.key}")
    if not is_like(known, device.memory_bytes, device.num_sms):
        return replace(finding, verdict=DISAGREE, reason=f"{_sizes(device, ' and ')} are not those of {known.key}")
    return undecided(finding, f"as large as {known.key}, under a name that the catalogue does not know")


def _possible(device: Device) -> Sequence[str]:
    return recognise(device.name, device.memory_bytes, device.num_sms)


def _sizes(device: Device, joined: str) -> str:
    return f"{format_bytes(device.memory_bytes)}{joined}{device.num_sms} multiprocessors"


def _world(world: int, asked: Question) -> Finding:
    """Ranks of the job; a whole multiple of the plan may be replicas, or a trainer's job around an engine."""
    one = asked.tp * asked.size("pp")
    worlds = {one * dp * cp for dp in (1, asked.size("dp")) for cp in (1, asked.size("cp"))}
    predicted = world if world in worlds else one
    finding = compare("ranks in the job", predicted, world, reason="more or fewer processes than the plan has")
    if finding.verdict == DISAGREE and world % one == 0:
        return undecided(finding, f"{world // one} times the plan's: replicas, or a larger job around it")
    return finding


def place_notes(traces: Sequence[Trace]) -> Iterator[Note]:
    """What is here, and what is not."""
    device, world, here = traces[0].device, traces[0].world, len(traces)
    if device:
        words = f"devices of its host: {device.count} x {device.name or 'a device without a name'} ({_sizes(device, ', ')})"
        yield Note("devices", f"{words}: {' or '.join(_possible(device)) or 'not in the catalogue'}")
    if world > here:
        ranks = ", ".join(str(t.rank) for t in traces[:8]) + (" …" if here > 8 else "")
        words = f"{here} of the job's {world} ranks {'is' if here == 1 else 'are'} here ({ranks})"
        yield Note("absent ranks", f"{words}: waiting for the others cannot be told from transfer")
