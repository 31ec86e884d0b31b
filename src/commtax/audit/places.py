"""Where a traced job ran: on which chip, on how many ranks, and how many of them left a trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from commtax.audit.finding import AGREE, DISAGREE, Finding, Question, compare, undecided
from commtax.catalog.devices import MEMORY, is_like, recognise
from commtax.readers.devices import Device
from commtax.readers.kineto import Trace
from commtax.units import format_bytes


def placed(trace: Trace, asked: Question) -> Iterator[Finding]:
    """The chip and the ranks that a trace's head tells, against what was said."""
    if trace.device:
        yield _chip(trace.device, asked)
    if trace.world and not trace.training:
        yield _world(trace.world, asked)


def _chip(device: Device, asked: Question) -> Finding:
    known = asked.cluster.chip
    possible = recognise(device.name, device.memory_bytes, device.num_sms)
    shown = device.name or "its device"
    found = compare(f"memory of {shown}", known.visible_bytes, device.memory_bytes, "bytes", MEMORY)
    if known.key in possible:
        return replace(found, verdict=AGREE)
    if possible:
        return replace(found, verdict=DISAGREE, reason=f"the trace is of {' or '.join(possible)}, not of {known.key}")
    if not is_like(known, device.memory_bytes, device.num_sms):
        told = f"{format_bytes(device.memory_bytes)} and {device.num_sms} multiprocessors"
        return replace(found, verdict=DISAGREE, reason=f"{told} are not those of {known.key}")
    return undecided(found, f"as large as {known.key}, under a name that the catalogue does not know")


def _world(world: int, asked: Question) -> Finding:
    """Ranks of the job; a whole multiple of the plan may be replicas, or a trainer's job around an engine."""
    one = asked.tp * asked.pp
    worlds = {one * dp * cp for dp in (1, asked.dp) for cp in (1, int(asked.plan.get("cp", 1)))}
    found = compare(
        "ranks in the job", world if world in worlds else one, world, reason="more or fewer processes than the plan has"
    )
    if found.verdict == DISAGREE and world % one == 0:
        return undecided(found, f"{world // one} times the plan's: replicas, or a larger job around it")
    return found


def place_notes(traces: Sequence[Trace]) -> Iterator[str]:
    """What is here, and what is not."""
    device, world = traces[0].device, traces[0].world
    if device:
        possible = " or ".join(recognise(device.name, device.memory_bytes, device.num_sms)) or "not in the catalogue"
        words = f"{device.count} x {device.name or 'a device without a name'}"
        yield f"devices of its host: {words} ({format_bytes(device.memory_bytes)}, {device.num_sms} multiprocessors): {possible}"
    if world > len(traces):
        ranks = ", ".join(str(t.rank) for t in traces[:8]) + (" …" if len(traces) > 8 else "")
        here = f"{len(traces)} of the job's {world} ranks {'is' if len(traces) == 1 else 'are'} here ({ranks})"
        yield f"{here}: waiting for the others cannot be told from transfer"
