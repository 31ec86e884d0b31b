"""The drawings of docs/concepts, from commtax's own answers: ``python benchmarks/documents/concepts.py``, or ``make figures``."""

from __future__ import annotations

import math
from pathlib import Path

from drawings import MARGIN, WIDTH, Drawing

import commtax
from commtax import catalog
from commtax.units import format_bytes, format_seconds

FOLDER = Path(__file__).parents[2] / "docs" / "concepts"
MODEL, HOST = "llama-3.1-8b", "8xh100-sxm"
LARGE = "llama-3.1-70b"
EXPERTS, WIDE = "deepseek-v3", "8x8xh200-sxm"
BATCHES = (1, 4, 16, 64, 256, 512)
INNER = WIDTH - 2 * MARGIN


def ring_sends(ranks: int) -> list[list[int]]:
    """The piece that each rank sends to the next one, step by step: a reduce-scatter, then an all-gather."""
    scatter = [[(rank - step) % ranks for rank in range(ranks)] for step in range(ranks - 1)]
    gather = [[(rank + 1 - step) % ranks for rank in range(ranks)] for step in range(ranks - 1)]
    return scatter + gather


def ring_sums(ranks: int) -> list[list[frozenset[int]]]:
    """Whose parts are in each piece on each rank when the ring is done."""
    held = [[frozenset([rank]) for _ in range(ranks)] for rank in range(ranks)]
    for step, sends in enumerate(ring_sends(ranks)):
        sent = [held[rank][piece] for rank, piece in enumerate(sends)]
        for rank, piece in enumerate(sends):
            after = (rank + 1) % ranks
            held[after][piece] = sent[rank] | held[after][piece] if step < ranks - 1 else sent[rank]
    return held


def ring() -> Drawing:
    """Four GPUs in a ring, and what each sends in each of the six steps."""
    ranks, top, cell, left = 4, 84, 38, 268
    sends = ring_sends(ranks)
    drawn = Drawing("Four GPUs in a ring. In each of six steps every GPU sends a quarter of the tensor to the next one.", 300)
    centre, radius = (118.0, 158.0), 68.0
    turns = [2 * math.pi * rank / ranks for rank in range(ranks)]
    spots = [(centre[0] + radius * math.sin(a), centre[1] - radius * math.cos(a)) for a in turns]
    for (x, y), (u, v) in zip(spots, spots[1:] + spots[:1], strict=True):
        away = math.hypot(u - x, v - y)
        along = ((u - x) / away, (v - y) / away)
        drawn.stroke((x + 24 * along[0], y + 24 * along[1]), (u - 30 * along[0], v - 30 * along[1]), colour="soft", wide=2)
        drawn.head(u - 24 * along[0], v - 24 * along[1], along)
    for rank, (x, y) in enumerate(spots):
        drawn.dot(x, y, 22, "compute-soft", line="compute")
        drawn.text(x, y + 5, str(rank), anchor="middle", bold=True)
    drawn.text(MARGIN, 30, "A ring of 4 GPUs", bold=True)
    drawn.text(left - 44, 30, "Which quarter each one sends", bold=True)
    half = (ranks - 1) * cell
    for at, words in ((0, "reduce-scatter"), (1, "all-gather")):
        drawn.text(left + at * half + half / 2, 58, words, anchor="middle", fill="comm" if not at else "compute")
    for step, pieces in enumerate(sends):
        drawn.text(left + step * cell + cell / 2, 76, str(step + 1), anchor="middle", fill="soft", size=12)
        for rank, piece in enumerate(pieces):
            x, y = left + step * cell, top + rank * cell
            drawn.box(x + 2, y + 2, cell - 4, cell - 4, "comm-soft" if step < ranks - 1 else "compute-soft", round_by=4)
            drawn.text(x + cell / 2, y + cell / 2 + 5, "abcd"[piece], anchor="middle")
    for rank in range(ranks):
        drawn.text(left - 10, top + rank * cell + cell / 2 + 5, f"GPU {rank}", anchor="end", fill="soft")
    times = len(sends)
    drawn.text(MARGIN, 270, f"{times} steps × ¼ of the tensor = {times / ranks:g} × the tensor leaves each GPU.")
    drawn.text(MARGIN, 290, "With N GPUs: 2 (N − 1) steps × 1/N, never more than twice the tensor.", fill="soft")
    return drawn


def decode() -> Drawing:
    """One all-reduce at several batches: what is there at any size, and what grows."""
    bills = [commtax.bill(MODEL, HOST, tp=8, batch=batch) for batch in BATCHES]
    lines = [next(line for line in bill.items if line.item.what == "attention output") for bill in bills]
    longest, left, step = max(line.each_s for line in lines), 150, 34
    drawn = Drawing("One all-reduce of a decode step by batch: at small batches it is nearly all latency.", 84 + step * len(lines))
    drawn.text(MARGIN, 30, "One all-reduce of Llama-3.1-8B at TP 8 on H100s", bold=True)
    drawn.key(54, ("comm", "latency"), ("comm-soft", "moving bytes"))
    scale = (INNER - left - 150) / longest
    for i, (batch, line) in enumerate(zip(BATCHES, lines, strict=True)):
        y = 72 + i * step
        drawn.text(left, y + 16, f"batch {batch}, {format_bytes(line.item.nbytes)}", anchor="end", fill="soft")
        drawn.box(left + 10, y, line.fixed_s * scale, 22, "comm")
        drawn.box(left + 10 + line.fixed_s * scale, y, line.moving_s * scale, 22, "comm-soft")
        end = left + 10 + line.each_s * scale
        drawn.text(end + 8, y + 16, f"{format_seconds(line.each_s)}, {line.fixed_s / line.each_s:.0%} latency")
    return drawn


def prefill() -> Drawing:
    """Time of a step by its tokens: flat while weights are read, rising once products bind."""
    chip, tokens = catalog.chip("h100-sxm"), [2**i for i in range(14)]
    weights = float(commtax.fit(MODEL, "1xh100-sxm").weights_bytes)
    read_s = weights / chip.memory_Bps
    product_s = [weights * n / chip.flops_per_s["bf16"] for n in tokens]  # 2 bytes and 2 FLOPs a parameter
    decodes = [(n, commtax.bill(MODEL, "1xh100-sxm", batch=n).step_s) for n in tokens if n <= 256]
    prompts = [(n, commtax.bill(MODEL, "1xh100-sxm", phase="prefill", context=n).step_s) for n in tokens if n >= 512]
    drawn = Drawing("Time of one step by the tokens in it: flat up to some 300 tokens, then in proportion.", 330)
    left, right, top, bottom = 78.0, WIDTH - 24.0, 66.0, 282.0
    low, high = 1e-3, 0.3

    def x_of(n: float) -> float:
        return left + (right - left) * math.log2(n) / math.log2(tokens[-1])

    def y_of(seconds: float) -> float:
        return bottom - (bottom - top) * math.log(seconds / low) / math.log(high / low)

    drawn.text(MARGIN, 30, "One step of Llama-3.1-8B on one H100, by its tokens", bold=True)
    drawn.key(52, ("compute", "decode steps"), ("comm", "prompts"))
    for seconds in (1e-3, 1e-2, 1e-1):
        drawn.stroke((left, y_of(seconds)), (right, y_of(seconds)), wide=1)
        drawn.text(left - 8, y_of(seconds) + 5, format_seconds(seconds), anchor="end", fill="soft", size=12)
    for n in tokens[::2]:
        drawn.text(x_of(n), bottom + 18, f"{n:,}", anchor="middle", fill="soft", size=12)
    drawn.text((left + right) / 2, bottom + 38, "tokens in the step", anchor="middle", fill="soft")
    drawn.stroke((left, y_of(read_s)), (right, y_of(read_s)), colour="soft", dashed=True)
    seen = [(x_of(n), y_of(s)) for n, s in zip(tokens, product_s, strict=True) if s >= low]
    drawn.stroke(*seen, colour="soft", dashed=True)
    drawn.text(x_of(1.15), y_of(read_s) + 18, "reading the weights", fill="soft", size=12)
    drawn.text(x_of(1100), y_of(product_s[9]) + 8, "multiplying", fill="soft", size=12)
    for points, colour in ((decodes, "compute"), (prompts, "comm")):
        drawn.stroke(*((x_of(n), y_of(s)) for n, s in points), colour=colour, wide=2)
        for n, s in points:
            drawn.dot(x_of(n), y_of(s), 4, colour)
    return drawn


def memory() -> Drawing:
    """What a GPU holds at three degrees of tensor parallelism."""
    fits = [commtax.fit(LARGE, HOST, tp=tp, max_model_len=8192) for tp in (2, 4, 8)]
    visible, left, step = float(fits[0].question.cluster.chip.visible_bytes), 62, 56
    title = "What one GPU holds of Llama-3.1-70B at TP 2, 4 and 8: weights shrink, room for KV grows."
    drawn = Drawing(title, 82 + step * len(fits))
    drawn.text(MARGIN, 30, "One H100 of 80 GB under Llama-3.1-70B", bold=True)
    drawn.key(54, ("compute", "weights"), ("line", "working memory"), ("comm", "KV cache"), ("idle", "left to others"))
    scale = (INNER - left) / visible
    for i, fit in enumerate(fits):
        y, x = 74 + i * step, float(MARGIN + left)
        work = fit.activation_bytes + fit.other_bytes + fit.graph_bytes
        drawn.text(x - 10, y + 17, f"TP {fit.question.plan.tp}", anchor="end", bold=True)
        drawn.box(x, y, visible * scale, 24, "idle")
        for held, colour in ((fit.weights_bytes, "compute"), (work, "line"), (fit.kv_bytes, "comm")):
            drawn.box(x, y, float(held) * scale, 24, colour, round_by=0)
            x += float(held) * scale
        room = f"{format_bytes(fit.weights_bytes)} of weights, {format_bytes(fit.kv_bytes)} of KV: {int(fit.kv_tokens):,} tokens"
        drawn.text(MARGIN + left, y + 41, room, fill="soft", size=13)
    return drawn


def bubble() -> Drawing:
    """Two pipelines of four stages: few microbatches and many."""
    runs = [commtax.pipeline(4, m) for m in (4, 12)]
    drawn = Drawing("Four pipeline stages under 1F1B: with 4 microbatches 43 % of the time is idle, with 12 it is 20 %.", 328)
    drawn.text(MARGIN, 30, "Four stages, one microbatch after the other (1F1B)", bold=True)
    drawn.key(54, ("compute", "forward"), ("compute-mid", "backward"), ("idle", "idle: the bubble"))
    for i, run in enumerate(runs):
        y, lines = 96 + i * 126, run.timeline
        end = float(lines.end_s.max())
        scale = (INNER - 62) / end
        drawn.text(MARGIN, y - 10, f"{run.m} microbatches: {run.over_total:.0%} idle", fill="ink")
        for lane in range(run.p):
            drawn.text(MARGIN, y + lane * 23 + 15, f"stage {lane}", fill="soft", size=12)
            drawn.box(MARGIN + 62, y + lane * 23, end * scale, 20, "idle")
        for lane, start, stop, kind in zip(lines.lane, lines.start_s, lines.end_s, lines.kind, strict=True):
            fill = "compute" if lines.kinds[int(kind)] == "F" else "compute-mid"
            drawn.box(MARGIN + 62 + start * scale + 0.5, y + int(lane) * 23, (stop - start) * scale - 1, 20, fill, round_by=2)
    return drawn


def experts() -> Drawing:
    """Whom a token goes to, and what a rank sends when tokens go to their experts alone or to all ranks."""
    everyone = commtax.traffic(EXPERTS, WIDE, dp=64, ep=64, batch=128)
    chosen = commtax.traffic(EXPERTS, WIDE, dp=64, ep=64, batch=128, ep_backend="deepep_low_latency")
    title = "Tokens go to the GPUs that hold their experts, and back; sending them to all GPUs costs eight times as much."
    drawn = Drawing(title, 348)
    drawn.text(MARGIN, 30, "Tokens leave for the GPUs that hold their experts", bold=True)
    gpus, wanted = 8, {1: (0, 2, 5), 6: (3, 5, 7)}
    spots = [MARGIN + 38 + i * (INNER - 76) / (gpus - 1) for i in range(gpus)]
    for source, (home, aims) in enumerate(wanted.items()):
        colour = "comm" if not source else "compute"
        for aim in aims:
            drawn.stroke((spots[home], 92), (spots[aim], 158), colour=colour, wide=2)
    for i, x in enumerate(spots):
        drawn.box(x - 26, 62, 52, 30, "compute-soft" if i == 6 else "comm-soft" if i == 1 else "idle", round_by=4)
        drawn.text(x, 82, f"GPU {i}", anchor="middle", size=12)
        drawn.box(x - 26, 158, 52, 30, "idle", round_by=4)
        drawn.text(x, 178, f"GPU {i}", anchor="middle", size=12)
    drawn.text(MARGIN, 52, "holds the token", fill="soft", size=12)
    drawn.text(MARGIN, 206, "holds the expert; results come back the same way", fill="soft", size=12)
    drawn.text(MARGIN, 244, "Sent by each of 64 GPUs in one decode step of DeepSeek-V3, batch 128", bold=True, size=13)
    scale = (INNER - 236) / float(everyone.sent_bytes_per_rank)
    for i, (words, sent, colour) in enumerate((("to the chosen experts", chosen, "compute"), ("to every GPU", everyone, "comm"))):
        y, nbytes = 262 + i * 38, float(sent.sent_bytes_per_rank)
        drawn.text(MARGIN, y + 17, words, fill="soft")
        drawn.box(MARGIN + 164, y, nbytes * scale, 24, colour)
        drawn.text(MARGIN + 172 + nbytes * scale, y + 17, format_bytes(nbytes))
    return drawn


DRAWINGS = {draw.__name__: draw for draw in (ring, decode, prefill, memory, bubble, experts)}


def main() -> None:
    for name, draw in DRAWINGS.items():
        path = FOLDER / f"{name}.svg"
        path.write_text(draw().svg(), encoding="utf-8")
        print(f"{path.name} {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
