"""One layer to scale in the terminal: a compute lane, a communication lane, and what of it is exposed."""

from __future__ import annotations

from dataclasses import dataclass

from rich.text import Text

from commtax.api.billing import StepBill
from commtax.units import format_seconds

WIDTH = 96
COMPUTE, LATENCY, WIRE = "█", "░", "▓"
RUNNING_ORDER = (
    *("down-projection", "QKV", "query", "rotary", "key", "decode attention", "prefill attention", "value"),
    *("output projection", "attention output", "router", "dispatch", "expert routing", "gate", "up", "routing"),
    *("activation", "down", "combine", "output"),
)


@dataclass(frozen=True, slots=True)
class Segment:
    lane: str  # compute | comm
    name: str
    fixed_s: float
    moving_s: float

    @property
    def seconds(self) -> float:
        return self.fixed_s + self.moving_s


def layer_segments(bill: StepBill) -> list[Segment]:
    """The mean layer in the order in which it runs: all layers together over their number."""
    layers = bill.setup.model.num_layers
    before: list[Segment] = []
    after: list[Segment] = []
    for line in bill.items:
        if line.kind == "host" or line.item.what in ("head", "embedding", "logits", "embedding and final norm", "stage hand-off"):
            continue
        share = float(line.item.count) / layers
        lane = "comm" if line.kind == "comm" else "compute"
        part = Segment(lane, line.item.what, float(line.fixed_s) * share, float(line.moving_s) * share)
        second = any(w in line.item.what for w in ("feed-forward", "expert", "router", "routing", "shared"))
        (after if second else before).append(part)
    norms = [s for s in before if s.name == "norms"]
    before = sorted((s for s in before if s.name != "norms"), key=_order)
    half = [Segment(s.lane, "norm", s.fixed_s / 2, s.moving_s / 2) for s in norms]
    return [*half, *before, *half, *sorted(after, key=_order)]


def _order(segment: Segment) -> int:
    return next((i for i, word in enumerate(RUNNING_ORDER) if word in segment.name), len(RUNNING_ORDER))


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
            compute.append(COMPUTE * cells, style="blue" if "attention" in s.name else "cyan")
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
        hidden = bill.settings.overlap
        legend.append(f"; exposed {format_seconds(exposed * (1 - hidden))} of {format_seconds(exposed)}", style="dim")
    return [compute, comm, legend]
