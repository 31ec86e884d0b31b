"""The operations of a step that are one launch each: Triton kernels, and plain functions that do the same where there is no GPU."""

from __future__ import annotations

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# Triton reads the types of a kernel's arguments itself: they are not annotated.
import math
import os
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

try:
    import triton
    import triton.language as tl
except ImportError:  # the plain functions below serve without it
    triton = None

TRITON_VERSION = "" if triton is None else str(triton.__version__)
INTERPRETED = bool(os.environ.get("TRITON_INTERPRET"))  # Triton's own switch: its kernels run on a CPU, slowly
EPS = 1e-5
BLOCK_TOKENS = 64  # keys that a block of decode attention takes at once
BLOCKS_PER_SM = 2  # that fit beside each other
MAX_SPLITS = 64
QUERY_ROWS = 16  # least rows of a tensor-core product: grouped queries are padded to it
HEAD_TILE = 8  # heads that one program of the rotary kernel takes
FP8_MAX = 448.0
Turns = tuple[Tensor, Tensor]

if triton is not None:
    # fmt: off

    @triton.jit(do_not_specialize=["width"])
    def _add_norm_kernel(x, residual, weight, summed, out, width, eps, BLOCK: tl.constexpr):
        base = tl.program_id(0).to(tl.int64) * width
        at = tl.arange(0, BLOCK)
        live = at < width
        h = tl.load(x + base + at, live, other=0.0).to(tl.float32) + tl.load(residual + base + at, live, other=0.0).to(tl.float32)
        tl.store(summed + base + at, h.to(tl.bfloat16), live)
        scale = 1.0 / tl.sqrt(tl.sum(h * h) / width + eps)
        w = tl.load(weight + at, live, other=0.0).to(tl.float32)
        tl.store(out + base + at, (h * scale * w).to(tl.bfloat16), live)

    @triton.jit(do_not_specialize=["heads", "kv_heads"])
    def _rotary_kernel(
        qkv, queries, keys, values, angles, places, norms, heads, kv_heads, eps,
        HALF: tl.constexpr, TILE: tl.constexpr, NORMED: tl.constexpr
    ):
        row = tl.program_id(0).to(tl.int64)
        head = tl.program_id(1) * TILE + tl.arange(0, TILE)[:, None]
        at = tl.arange(0, HALF)[None, :]
        total = heads + 2 * kv_heads
        is_q, is_k = head < heads, (head >= heads) & (head < heads + kv_heads)
        is_v = (head >= heads + kv_heads) & (head < total)
        source = qkv + (row * total + head) * (2 * HALF) + at
        a = tl.load(source, head < total, other=0.0).to(tl.float32)
        b = tl.load(source + HALF, head < total, other=0.0).to(tl.float32)
        slot = tl.load(places + 2 * row + 1).to(tl.int64)
        cache = (slot * kv_heads + head - heads) * (2 * HALF) + at
        past_keys = kv_heads * 2 * HALF
        tl.store(values + cache - past_keys, a.to(tl.bfloat16), is_v)
        tl.store(values + cache - past_keys + HALF, b.to(tl.bfloat16), is_v)
        if NORMED:
            scale = 1.0 / tl.sqrt((tl.sum(a * a, 1) + tl.sum(b * b, 1)) / (2 * HALF) + eps)[:, None]
            weight = norms + tl.where(is_q, 0, 2 * HALF) + at  # of queries, then of keys
            wa, wb = tl.load(weight).to(tl.float32), tl.load(weight + HALF).to(tl.float32)
            a, b = a * scale * wa, b * scale * wb
        turn = angles + tl.load(places + 2 * row) * 2 * HALF + at
        c, s = tl.load(turn), tl.load(turn + HALF)
        ra, rb = (a * c - b * s).to(tl.bfloat16), (b * c + a * s).to(tl.bfloat16)
        target = queries + (row * heads + head) * (2 * HALF) + at
        tl.store(target, ra, is_q)
        tl.store(target + HALF, rb, is_q)
        tl.store(keys + cache, ra, is_k)
        tl.store(keys + cache + HALF, rb, is_k)

    @triton.jit(do_not_specialize=["width"])
    def _swiglu_kernel(gate_up, out, width, BLOCK: tl.constexpr):
        row = tl.program_id(0).to(tl.int64)
        at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        live = at < width
        gate = tl.load(gate_up + row * 2 * width + at, live, other=0.0).to(tl.float32)
        up = tl.load(gate_up + row * 2 * width + width + at, live, other=0.0).to(tl.float32)
        tl.store(out + row * width + at, (gate * tl.sigmoid(gate) * up).to(tl.bfloat16), live)

    @triton.jit(do_not_specialize=["width"])
    def _quantise_kernel(x, out, scales, width, limit, BLOCK: tl.constexpr):
        row = tl.program_id(0).to(tl.int64)
        at = tl.arange(0, BLOCK)
        v = tl.load(x + row * width + at, at < width, other=0.0).to(tl.float32)
        scale = tl.maximum(tl.max(tl.abs(v)), 1e-6) / limit
        tl.store(scales + row, scale)
        tl.store(out + row * width + at, (v / scale).to(tl.float8e4nv), at < width)

    @triton.jit(do_not_specialize=["group", "max_len", "chunk"])
    def _split_kernel(
        q, keys, values, lengths, out, sums, scale, group, max_len, chunk, ROWS: tl.constexpr, DIM: tl.constexpr,
        BLOCK: tl.constexpr, WHOLE: tl.constexpr
    ):
        seq, head, split, kv_heads = tl.program_id(0), tl.program_id(1), tl.program_id(2), tl.num_programs(1)
        first = split * chunk
        last = tl.minimum(first + chunk, tl.load(lengths + seq))
        rows, dims = tl.arange(0, ROWS), tl.arange(0, DIM)
        row_heads = (seq * kv_heads + head) * group + rows
        in_group = rows < group
        query = tl.load(q + row_heads[:, None] * DIM + dims[None, :], in_group[:, None], other=0.0)
        base = (seq.to(tl.int64) * max_len * kv_heads + head) * DIM
        top = tl.full([ROWS], -1e30, tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        mixed = tl.zeros([ROWS, DIM], tl.float32)
        for at in range(first, last, BLOCK):
            tokens = at + tl.arange(0, BLOCK)
            live = tokens < last
            where = base + tokens[:, None].to(tl.int64) * kv_heads * DIM + dims[None, :]
            k = tl.load(keys + where, live[:, None], other=0.0)
            score = tl.dot(query, tl.trans(k)) * scale
            score = tl.where(live[None, :], score, -1e30)
            higher = tl.maximum(top, tl.max(score, 1))
            weight = tl.exp2(score - higher[:, None])
            shrink = tl.exp2(top - higher)
            total = total * shrink + tl.sum(weight, 1)
            v = tl.load(values + where, live[:, None], other=0.0)
            mixed = mixed * shrink[:, None] + tl.dot(weight.to(tl.bfloat16), v)
            top = higher
        if WHOLE:
            target = out + row_heads[:, None] * DIM + dims[None, :]
            tl.store(target, (mixed / total[:, None]).to(tl.bfloat16), in_group[:, None])
        else:
            part = row_heads * tl.num_programs(2) + split
            safe = tl.maximum(total, 1e-30)
            tl.store(out + part[:, None] * DIM + dims[None, :], mixed / safe[:, None], in_group[:, None])
            tl.store(sums + part, top + tl.log2(safe), in_group)

    @triton.jit(do_not_specialize=["splits"])
    def _join_kernel(parts, sums, out, splits, DIM: tl.constexpr, SPLITS: tl.constexpr):
        head = tl.program_id(0)
        at, dims = tl.arange(0, SPLITS), tl.arange(0, DIM)
        live = at < splits
        log = tl.load(sums + head * splits + at, live, other=-1e30)
        weight = tl.where(live, tl.exp2(log - tl.max(log)), 0.0)
        values = tl.load(parts + (head * splits + at)[:, None] * DIM + dims[None, :], live[:, None], other=0.0)
        mixed = tl.sum(values * weight[:, None], 0) / tl.sum(weight)
        tl.store(out + head * DIM + dims, mixed.to(tl.bfloat16))

    # fmt: on


def _is_plain(x: Tensor) -> bool:
    return triton is None or (x.device.type == "cpu" and not INTERPRETED)


def _normalise(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS)


def add_norm(x: Tensor, residual: Tensor, weight: Tensor, summed: Tensor, out: Tensor) -> None:
    """Add the residual and apply RMSNorm: summed = x + residual, out = summed / rms(summed) * weight."""
    width = x.shape[-1]
    if _is_plain(x):
        h = x.float() + residual.float()
        summed.copy_(h)
        out.copy_(_normalise(h) * weight.float())
        return
    block = triton.next_power_of_2(width)
    _add_norm_kernel[(x.shape[0],)](x, residual, weight, summed, out, width, EPS, BLOCK=block, num_warps=4 if block <= 2048 else 8)


def turns(positions: Tensor, slots: Tensor, head_dim: int, max_len: int) -> Turns:
    """Return cosines, then sines, of every position, and position and cache slot of each row of the step."""
    rate = 10000.0 ** (-torch.arange(0, head_dim, 2, device=positions.device) / head_dim)
    angle = torch.arange(max_len, device=positions.device)[:, None] * rate
    return torch.cat((angle.cos(), angle.sin()), -1).float(), torch.stack((positions, slots), -1).int()


def rotary_write(qkv: Tensor, queries: Tensor, keys: Tensor, values: Tensor, t: Turns, norms: Tensor | None) -> None:
    """Turn queries and keys by position, and write keys and values to the cache, queries to an array of their own.

    ``norms``: weights of the per-head norms of queries and of keys, (2, head size), or None.
    """
    heads, (kv_heads, dim) = queries.shape[-2], keys.shape[-2:]
    if _is_plain(qkv):
        _plain_rotary(qkv, queries, keys, values, t, norms)
        return
    grid = (qkv.shape[0], triton.cdiv(heads + 2 * kv_heads, HEAD_TILE))
    arrays = (qkv, queries, keys, values, *t, t[0] if norms is None else norms)
    sizes = {"HALF": dim // 2, "TILE": HEAD_TILE, "NORMED": norms is not None}
    _rotary_kernel[grid](*arrays, heads, kv_heads, EPS, **sizes, num_warps=2)


def _plain_rotary(qkv: Tensor, queries: Tensor, keys: Tensor, values: Tensor, t: Turns, norms: Tensor | None) -> None:
    heads, (kv_heads, dim) = queries.shape[-2], keys.shape[-2:]
    q, k, v = qkv.view(qkv.shape[0], -1, dim).float().split((heads, kv_heads, kv_heads), 1)
    if norms is not None:
        q, k = (_normalise(x) * w.float() for x, w in zip((q, k), norms, strict=True))
    angles, places = t
    positions, slots = places.long().unbind(-1)
    c, s = angles[positions][:, None].chunk(2, -1)
    halves = (x.chunk(2, -1) for x in (q, k))
    q, k = (torch.cat((a * c - b * s, b * c + a * s), -1) for a, b in halves)
    queries.view(-1, heads, dim).copy_(q)
    keys.view(-1, kv_heads, dim)[slots] = k.to(keys.dtype)
    values.view(-1, kv_heads, dim)[slots] = v.to(values.dtype)


def swiglu(gate_up: Tensor, out: Tensor) -> None:
    """Compute out = SiLU(gate) * up from the two halves of one row."""
    rows, width = out.shape
    if _is_plain(out):
        gate, up = gate_up.float().split(width, -1)
        out.copy_(torch.nn.functional.silu(gate) * up)
        return
    _swiglu_kernel[(rows, triton.cdiv(width, 1024))](gate_up, out, width, BLOCK=1024, num_warps=4)


def quantise(x: Tensor, out: Tensor, scales: Tensor) -> None:
    """Quantise rows to fp8, each with its own scale (its largest value becomes the largest fp8)."""
    if _is_plain(x):
        scales.copy_(x.float().abs().amax(-1, keepdim=True).clamp(min=1e-6) / FP8_MAX)
        out.copy_((x.float() / scales).to(out.dtype))
        return
    block = triton.next_power_of_2(x.shape[1])
    _quantise_kernel[(x.shape[0],)](x, out, scales, x.shape[1], FP8_MAX, BLOCK=block, num_warps=4 if block <= 4096 else 8)


def num_splits(blocks: int, length: int, num_sms: int) -> int:
    """Return splits of the cache's length that fill the card evenly: the fewest within 15 % of the best filling of waves."""
    places = num_sms * BLOCKS_PER_SM
    most = max(1, min(MAX_SPLITS, math.ceil(length / (2 * BLOCK_TOKENS))))
    if blocks >= 0.8 * places or most == 1:
        return 1
    filled = [blocks * n / places / math.ceil(blocks * n / places) for n in range(1, most + 1)]
    return 1 + next(i for i, f in enumerate(filled) if f >= 0.85 * max(filled))


@dataclass(frozen=True, slots=True)
class Splits:
    """A split of the cache's length, and where parts wait to be joined."""

    num: int
    chunk: int
    parts: Tensor
    sums: Tensor

    @classmethod
    def make(cls, batch: int, heads: int, kv_heads: int, head_dim: int, length: int, device: torch.device, num_sms: int) -> Splits:
        wanted = num_splits(batch * kv_heads, length, num_sms)
        chunk = BLOCK_TOKENS * math.ceil(length / wanted / BLOCK_TOKENS)
        num = math.ceil(length / chunk)
        room = num * batch * heads if num > 1 else 0
        return cls(num, chunk, torch.empty(room, head_dim, device=device), torch.empty(room, device=device))


def decode_attention(q: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, out: Tensor, s: Splits) -> None:
    """Attend with one query per sequence: softmax(q k / sqrt(d)) v, grouped heads together, length split."""
    batch, max_len, kv_heads, dim = keys.shape
    heads = q.shape[-2]
    if _is_plain(q):
        _plain_attention(q, keys, values, lengths, out)
        return
    scale = 1.4426950408889634 / math.sqrt(dim)
    rows = max(QUERY_ROWS, triton.next_power_of_2(heads // kv_heads))
    target = out if s.num == 1 else s.parts
    sizes = {"ROWS": rows, "DIM": dim, "BLOCK": BLOCK_TOKENS, "WHOLE": s.num == 1}
    arrays = (q, keys, values, lengths, target, s.sums)
    grid = (batch, kv_heads, s.num)
    _split_kernel[grid](*arrays, scale, heads // kv_heads, max_len, s.chunk, **sizes, num_warps=4, num_stages=3)
    if s.num > 1:
        sizes = {"DIM": dim, "SPLITS": triton.next_power_of_2(s.num)}
        _join_kernel[(batch * heads,)](s.parts, s.sums, out, s.num, **sizes, num_warps=2 if s.num <= 16 else 4)


def _plain_attention(q: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, out: Tensor) -> None:
    batch, max_len, kv_heads, dim = keys.shape
    heads = q.shape[-2]
    k, v = (x.float().repeat_interleave(heads // kv_heads, 2).transpose(1, 2) for x in (keys, values))
    score = (q.view(batch, heads, 1, dim).float() @ k.transpose(2, 3)) / math.sqrt(dim)
    late = torch.arange(max_len, device=q.device) >= lengths.view(batch, 1, 1, 1)
    mixed = score.masked_fill(late, -torch.inf).softmax(-1) @ v
    out.copy_(mixed.view(out.shape))


BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION, "math": SDPBackend.MATH}


def prefill_attention(q: Tensor, keys: Tensor, values: Tensor, backend: str) -> Tensor:
    """Attend causally to whole prompts: q [batch, length, heads, d], keys and values [batch, length, kv heads, d]."""
    q, k, v = (x.transpose(1, 2) for x in (q, keys, values))
    grouped = q.shape[1] != k.shape[1]
    with sdpa_kernel(BACKENDS[backend]):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped).transpose(1, 2)
