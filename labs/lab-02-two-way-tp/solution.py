"""Lab 02, reference: what a two-rank run must show, from its sizes alone."""

import math


def rank_weight_bytes(split_bytes, copied_bytes, ranks):
    return split_bytes // ranks + copied_bytes


def split_parameters(hidden, width, layers, heads, kv_heads, vocab):
    kv = hidden // heads * kv_heads
    return 2 * vocab * hidden + layers * (2 * hidden * hidden + 2 * hidden * kv + 3 * hidden * width)


def kv_blocks(tokens, block_size, sequences):
    return sequences * math.ceil(tokens / block_size)


def kv_bytes_per_rank(blocks, block_size, layers, kv_heads, head_dim, dtype_bytes, ranks):
    return 2 * blocks * block_size * layers * max(1, kv_heads // ranks) * head_dim * dtype_bytes


def collectives_per_step(layers):
    return {"all-reduce": 2 * layers + 1, "all-gather": 1}


def largest_difference(logits, reference):
    found = [abs(a - b) for row, other in zip(logits, reference, strict=True) for a, b in zip(row, other, strict=True)]
    return math.inf if any(math.isnan(x) for x in found) else max(found)


def wire_and_waits(seconds_by_rank):
    wire = min(seconds_by_rank)
    return wire, [s - wire for s in seconds_by_rank], seconds_by_rank.index(wire)


def step_seconds(compute_by_rank, comm_s):
    return max(compute_by_rank) + comm_s


def winner(tp1_step_s, tp_step_s, ranks, batch, goal):
    if goal == "latency":
        return "tp" if tp_step_s < tp1_step_s else "replicas"
    return "tp" if batch / tp_step_s > ranks * batch / tp1_step_s else "replicas"
