"""Whole steps of one rank, as a plain engine runs them, built of the operations of ``fused``.

A layer of a dense decoder, one launch a line (``F``: fused, Triton; the products are cuBLAS, bf16):

1. F  residual add and RMSNorm
2.    QKV projection, one product (bias where the model has one)
3. F  rotary embedding, per-head norm of queries and keys where the model has it, write of keys and values to the cache
4. F  decode: attention over the cache split along its length, grouped queries together;
      F a second launch joins the splits (not where one split suffices); prefill: causal attention (cuDNN)
5.    output projection
6. F  residual add and RMSNorm
7.    gate and up projections, one product
8. F  SiLU(gate) * up
9.    down projection

Before the layers: embedding rows; after them: add and RMSNorm, and the product with the vocabulary's shard for the rows that
need logits (all rows of a decode step, the last row of each prompt). No communication and no sampling. The cache is one
array [sequences, length, kv heads, head size] a layer, keys and values apart; every layer has weights and cache of its own.
"""
# mypy: disallow-untyped-calls=False

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from commtax.spec import Mlp, Model
from commtax_lab.measure.study import fused
from commtax_lab.measure.study.timing import OperandPool


@dataclass(frozen=True, slots=True)
class Shard:
    """The part of a dense decoder on one of ``tp`` ranks."""

    model: str
    tp: int
    num_layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    width: int
    vocab: int
    qkv_bias: bool
    qk_norm: bool

    @property
    def qkv(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    def products(self) -> dict[str, tuple[int, int]]:
        """Return (n, k) of every product."""
        return {
            "qkv": (self.qkv, self.hidden),
            "output": (self.hidden, self.heads * self.head_dim),
            "gate_up": (2 * self.width, self.hidden),
            "down": (self.hidden, self.width),
            "head": (self.vocab, self.hidden),
        }

    def num_weights(self) -> int:
        """Count the elements of all matrices, the embedding's shard included."""
        each = {name: n * k for name, (n, k) in self.products().items()}
        head = each.pop("head")
        return self.num_layers * sum(each.values()) + 2 * head

    def cache_elements(self, tokens: int) -> int:
        return 2 * self.num_layers * tokens * self.kv_heads * self.head_dim


def shard(model: Model, tp: int) -> Shard | None:
    """Return the shard of a dense gated decoder, or None where the model is another kind or does not divide."""
    a, block = model.attention, model.blocks[0]
    odd = len(model.blocks) > 1 or block.num_norms != 2 or a.latent or a.sinks or model.positions
    if odd or not isinstance(block.ffn, Mlp) or not block.ffn.gated:
        return None
    kv_heads = max(1, a.num_kv_heads // tp)
    whole = not any(side % tp for side in (a.num_heads, block.ffn.intermediate, model.vocab))
    if not whole or (a.num_heads // tp) % kv_heads or a.num_kv_heads % min(tp, a.num_kv_heads):
        return None
    sides = (a.num_heads // tp, kv_heads, a.head_dim, block.ffn.intermediate // tp, model.vocab // tp)
    return Shard(model.key, tp, model.num_layers, model.hidden, *sides, a.qkv_bias, a.qk_norm == "head")


@dataclass(frozen=True, slots=True)
class LayerTensors:
    qkv: Tensor
    output: Tensor
    gate_up: Tensor
    down: Tensor
    keys: Tensor
    values: Tensor
    bias: Tensor | None = None


def step(
    s: Shard, phase: str, batch: int, length: int, weights: OperandPool, cache: OperandPool, num_sms: int
) -> Callable[[], Tensor]:
    """Return one step as a function to call or to capture: ``decode`` of a batch over ``length`` cached tokens each (the new one
    beside them), or ``prefill`` of a batch of prompts of ``length`` tokens."""
    max_len = length + 1 if phase == "decode" else length
    weights.at = cache.at = 0
    layers = [_layer(s, batch, max_len, weights, cache) for _ in range(s.num_layers)]
    table, head = weights.take(s.vocab, s.hidden), weights.take(s.vocab, s.hidden)
    run = _StepBuffers(s, phase, batch, max_len, weights.data.device, num_sms)
    return lambda: run(layers, table, head)


def _layer(s: Shard, batch: int, max_len: int, weights: OperandPool, cache: OperandPool) -> LayerTensors:
    matrices = {name: weights.take(*side) for name, side in s.products().items() if name != "head"}
    keys, values = (cache.take(batch, max_len, s.kv_heads, s.head_dim) for _ in range(2))
    return LayerTensors(**matrices, keys=keys, values=values, bias=weights.take(s.qkv) if s.qkv_bias else None)


class _StepBuffers:
    """Buffers of one step, and the launches in order."""

    def __init__(self, s: Shard, phase: str, batch: int, max_len: int, device: torch.device, num_sms: int) -> None:
        decode = phase == "decode"
        rows = batch if decode else batch * max_len

        def make(*shape: int) -> Tensor:
            return torch.empty(*shape, dtype=torch.bfloat16, device=device)

        self.s, self.phase, self.batch, self.max_len = s, phase, batch, max_len
        self.ids = torch.arange(rows, device=device) * 7919 % s.vocab
        self.x, self.summed, self.normed = make(rows, s.hidden), make(rows, s.hidden), make(rows, s.hidden)
        self.zeros, self.ones = torch.zeros_like(self.x), make(s.hidden).fill_(1.0)
        self.norms = make(2, s.head_dim).fill_(1.0) if s.qk_norm else None
        self.qkv, self.q, self.mixed = make(rows, s.qkv), make(rows, s.heads, s.head_dim), make(rows, s.heads * s.head_dim)
        self.gate_up, self.wide = make(rows, 2 * s.width), make(rows, s.width)
        self.logits = make(batch, s.vocab)
        index = torch.arange(rows, device=device)
        positions = torch.full_like(index, max_len - 1) if decode else index % max_len
        self.turns = fused.turns(positions, index * max_len + max_len - 1 if decode else index, s.head_dim, max_len)
        self.lengths = torch.full((batch,), max_len, dtype=torch.int32, device=device)
        self.last = torch.arange(1, batch + 1, device=device) * max_len - 1
        self.splits = fused.Splits.make(batch, s.heads, s.kv_heads, s.head_dim, max_len, device, num_sms) if decode else None

    def __call__(self, layers: list[LayerTensors], table: Tensor, head: Tensor) -> Tensor:
        residual = self.zeros
        torch.index_select(table, 0, self.ids, out=self.x)
        for layer in layers:
            self._layer(layer, residual)
            residual = self.summed
        fused.add_norm(self.x, residual, self.ones, self.summed, self.normed)
        rows = self.normed if self.phase == "decode" else self.normed[self.last]
        return torch.mm(rows, head.t(), out=self.logits)

    def _layer(self, w: LayerTensors, residual: Tensor) -> None:
        fused.add_norm(self.x, residual, self.ones, self.summed, self.normed)
        if w.bias is None:
            torch.mm(self.normed, w.qkv.t(), out=self.qkv)
        else:
            torch.addmm(w.bias, self.normed, w.qkv.t(), out=self.qkv)
        fused.rotary_write(self.qkv, self.q, w.keys, w.values, self.turns, self.norms)
        torch.mm(self._attention(w), w.output.t(), out=self.x)
        fused.add_norm(self.x, self.summed, self.ones, self.summed, self.normed)
        torch.mm(self.normed, w.gate_up.t(), out=self.gate_up)
        fused.swiglu(self.gate_up, self.wide)
        torch.mm(self.wide, w.down.t(), out=self.x)

    def _attention(self, w: LayerTensors) -> Tensor:
        if self.splits is not None:
            fused.decode_attention(self.q, w.keys, w.values, self.lengths, self.mixed, self.splits)
            return self.mixed
        q = self.q.view(self.batch, self.max_len, self.s.heads, self.s.head_dim)
        backend = "cudnn" if self.q.device.type == "cuda" else "math"
        return fused.prefill_attention(q, w.keys, w.values, backend).reshape(self.mixed.shape)
