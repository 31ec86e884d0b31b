"""A line of a bill as the sum that it is, with its numbers in place; every text can be evaluated again."""

from __future__ import annotations

from commtax.ledger import Line
from commtax.spec import Chip
from commtax.units import format_bytes, format_count, format_rate, format_seconds, format_si
from commtax.verbs.layer import Segment

WIRE = {"all-reduce": "2·({n}−1)/{n}·", "send-recv": ""}
"""What one rank sends of a tensor if an operation moves the least it can; the others (n-1)/n of it."""


def formula(line: Line, chip: Chip) -> str:
    """``64 × (4.83 µs + 2·(8−1)/8·8 KiB ÷ 66.6 GB/s) = 323 µs``: times, latency, bytes sent over the rate they move at."""
    each, total = _each(line, chip), format_seconds(float(line.total_s))
    count = float(line.item.count)
    if count == 1:
        return f"{each} = {total}"
    times = format_count(count) if count == int(count) else f"{count:.4g}"
    return f"{times} × ({each}) = {total}"


def _each(line: Line, chip: Chip) -> str:
    fixed, moving = float(line.fixed_s), float(line.moving_s)
    first = [format_seconds(fixed)] if fixed > 0 or moving <= 0 else []
    return " + ".join([*first, *([_moving(line, chip, moving)] if moving > 0 else [])])


def _moving(line: Line, chip: Chip, seconds: float) -> str:
    """Bytes over the rate at which they move, or FLOPs where arithmetic binds."""
    item, nbytes, ranks = line.item, float(line.item.nbytes), int(line.item.ranks)
    if line.kind == "comm" and nbytes > 0 and ranks > 1:
        sent = float(item.sent_bytes_per_rank) / float(item.count)
        factor = WIRE.get(item.op, "({n}−1)/{n}·").format(n=ranks)
        return f"{factor}{format_bytes(nbytes)} ÷ {format_rate(sent / seconds)}"
    flops = float(line.flops)
    if flops / line.peak_flops_per_s > nbytes / chip.memory_Bps:
        return f"{format_si(flops, 'FLOP')} ÷ {format_si(flops / seconds, 'FLOP/s')}"
    return f"{format_bytes(nbytes)} ÷ {format_rate(nbytes / seconds)}" if nbytes else format_seconds(seconds)


def share_formula(segment: Segment, chip: Chip) -> str:
    """A bar of the layer: the line's sum, and this bar's share of it."""
    line, share = segment.line, segment.seconds
    if not float(line.total_s):
        return ""
    return f"{_each(line, chip)} each; here {share / float(line.each_s):.3g} × = {format_seconds(share)}"


def source(line: Line, library: str) -> str:
    """What a number rests on: the kind of source first, then its name."""
    name = f"{library} over {line.link}" if line.kind == "comm" else ""
    kind = "datasheet: NIC bandwidth, hierarchical formula" if line.source.kind == "datasheet" else line.source
    return f"{kind}: {name}" if name and ":" not in kind else f"{kind}, {name}" if name else kind
