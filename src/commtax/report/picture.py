"""One layer to scale in the terminal: a compute lane, a communication lane, and what of it is exposed."""

from __future__ import annotations

from rich.text import Text

from commtax.units import format_seconds
from commtax.verbs.billing import StepBill
from commtax.verbs.layer import layer_segments

WIDTH = 96
COMPUTE, LATENCY, WIRE = "█", "░", "▓"


def draw_layer(bill: StepBill) -> list[Text]:
    """Two lanes on one time axis, and a legend of what the widths mean."""
    segments = layer_segments(bill)
    total = sum(s.seconds for s in segments)
    if total <= 0:
        return []
    scale = WIDTH / total
    compute, comm = Text("compute  ", style="dim"), Text("comm     ", style="dim")
    position, edge = 0.0, 0
    for s in segments:
        position += s.seconds * scale
        cells = max(0, round(position) - edge)
        edge += cells
        if s.lane == "compute":
            compute.append(COMPUTE * cells, style="blue" if s.line.item.part == "attention" else "cyan")
            comm.append(" " * cells)
        else:
            latency = round(cells * s.fixed_s / s.seconds) if s.seconds else 0
            compute.append(" " * cells)
            comm.append(LATENCY * latency, style="bold red")
            comm.append(WIRE * (cells - latency), style="bold yellow")
    exposed = sum(s.seconds for s in segments if s.lane == "comm")
    legend = Text(
        f"one layer, {format_seconds(total)}, to scale: {COMPUTE} compute  {LATENCY} latency  {WIRE} bandwidth of collectives",
        style="dim",
    )
    if exposed:
        hidden = bill.question.what_if.overlap
        legend.append(f"; exposed {format_seconds(exposed * (1 - hidden))} of {format_seconds(exposed)}", style="dim")
    return [compute, comm, legend]
