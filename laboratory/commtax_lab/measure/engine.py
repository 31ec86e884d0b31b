"""A small tensor-parallel decoder: prefill and greedy decode of Llama-like models, one rank's part.

Megatron's cut and nothing else: queries, keys, values, gates and ups by output rows, outputs and downs by input columns, so
that a layer sends two all-reduces; the embedding one more, and the logits one gather. On CUDA the decode step is captured
as a graph.
"""

# mypy: disallow-untyped-decorators=False

import importlib.util
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ParamSpec, TypeVar, cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function

from commtax.statement import Refusal
from commtax_lab.measure.arch import Arch, rotary_angles
from commtax_lab.measure.comm import IssuedCollective, RankGroup
from commtax_lab.measure.weights import LayerWeights, RankWeights

P = ParamSpec("P")
T = TypeVar("T")
Angles = tuple[Tensor, Tensor]  # cosines and sines
SENDING = ""  # the line of what passes inside a collective: the group's ledger holds it
OFF_CORE = "waiting for a core"  # the line of what others took from this thread while it had something to compute


def rotate(both: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary positions to queries and keys at once, with halves swapped and the sign in the sines."""
    return torch.addcmul(both * cos, both.roll(both.shape[-1] // 2, -1), sin)


def gated_silu(both: Tensor) -> Tensor:
    gate, up = both.chunk(2, dim=-1)
    return F.silu(gate) * up


def add_and_norm(x: Tensor, more: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Add a layer's result to the residual stream, and return the stream with its norm."""
    total = x + more
    return total, F.rms_norm(total, (total.shape[-1],), weight, eps)


def _compile_on_cuda(function: Callable[P, T], device: torch.device) -> Callable[P, T]:
    """Compile to one kernel on CUDA. On CPUs, or without a compiler, the function runs as it stands."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return function
    return cast("Callable[P, T]", torch.compile(function))


class Blocks:
    """The KV cache: blocks of ``block_size`` tokens from one pool for ``batch`` sequences of at most ``length`` tokens in every
    layer, of the type and on the device of the tensor ``like``, and a table of blocks for each sequence.

    Keys and values lie heads first, (kv heads, blocks x block size, head size), so that the blocks of sequences that own
    consecutive blocks are a view, and a product over all sequences and heads is one batched product.
    """

    def __init__(
        self, layers: int, kv_heads: int, head_dim: int, batch: int, length: int, like: Tensor, block_size: int = 16
    ) -> None:
        self.block_size, self.batch, self.kv_heads, self.head_dim = block_size, batch, kv_heads, head_dim
        self.per_seq = math.ceil(length / block_size)
        self.capacity = self.per_seq * block_size
        self.num_blocks = batch * self.per_seq
        shape = (kv_heads, self.num_blocks * block_size, head_dim)
        self.keys = [torch.zeros(shape, dtype=like.dtype, device=like.device) for _ in range(layers)]
        self.values = [torch.zeros(shape, dtype=like.dtype, device=like.device) for _ in range(layers)]
        self.assign(torch.arange(self.num_blocks, device=like.device).view(batch, self.per_seq))

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in (*self.keys, *self.values))

    def assign(self, table: Tensor) -> None:
        """Give each sequence its blocks: row b of ``table`` lists them in order. Consecutive blocks are read in place."""
        self.table = table
        inside = torch.arange(self.block_size, device=table.device)
        self._slots = (table.unsqueeze(-1) * self.block_size + inside).reshape(self.batch, self.capacity)
        self._in_order = bool(torch.equal(table.reshape(-1), torch.arange(self.num_blocks, device=table.device)))

    def slots(self, positions: Tensor) -> Tensor:
        """Return where (sequence, position) lies in the pool. ``positions`` is (batch, tokens)."""
        return self._slots.gather(1, positions).reshape(-1)

    def write(self, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> None:
        """Store (rows, kv heads, head size) at their slots."""
        self.keys[layer].index_copy_(1, slots, key.transpose(0, 1))
        self.values[layer].index_copy_(1, slots, value.transpose(0, 1))

    def read(self, layer: int, length: int) -> tuple[Tensor, Tensor]:
        """Return keys and values of the first ``length`` tokens: (kv heads x batch, length, head size) each."""
        return self._read(self.keys[layer], length), self._read(self.values[layer], length)

    def _read(self, pool: Tensor, length: int) -> Tensor:
        if self._in_order:
            return pool.view(self.kv_heads * self.batch, self.capacity, self.head_dim)[:, :length]
        chosen = pool.index_select(1, self._slots[:, :length].reshape(-1))
        return chosen.view(self.kv_heads * self.batch, length, self.head_dim)


class LiveEngine:
    """One rank of a tensor-parallel decoder with room for ``batch`` sequences of ``length`` tokens."""

    def __init__(self, a: Arch, weights: RankWeights, group: RankGroup, batch: int, length: int, block_size: int = 16) -> None:
        m, att = a.model, a.model.attention
        window = max(m.windows)
        if window and length > window:
            raise Refusal(f"length={length}: beyond the attention window of {window}, which the engine does not cut to")
        self.arch, self.weights, self.group, self.batch = a, weights, group, batch
        self.device, self.dtype = weights.embed.device, weights.embed.dtype
        self.heads = att.num_heads // group.size
        self.kv_heads = att.num_kv_heads // min(group.size, att.num_kv_heads)
        self.cache = Blocks(m.num_layers, self.kv_heads, att.head_dim, batch, length, weights.embed, block_size)
        cos, sin = rotary_angles(a, self.cache.capacity, self.device)
        self._cos, self._sin = cos.to(self.dtype), sin.to(self.dtype)
        self._vocab_start = group.rank * weights.embed.shape[0]
        self._positions = torch.arange(self.cache.capacity, device=self.device)
        self.watch(None)
        self._rotate, self._gate = _compile_on_cuda(rotate, self.device), _compile_on_cuda(gated_silu, self.device)
        self._add_and_norm = _compile_on_cuda(add_and_norm, self.device)
        self._tokens = torch.zeros(batch, 1, dtype=torch.long, device=self.device)
        self._at = torch.zeros(batch, 1, dtype=torch.long, device=self.device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._graph_sends: list[IssuedCollective] = []

    def watch(self, lines: dict[str, float] | None) -> None:
        """Charge the seconds of each line of the bill to ``lines`` from now on, or stop. On CPU ranks only."""
        self._lines, self._lapped_s, self._ran_s = lines, time.perf_counter(), time.thread_time()

    def _lap(self, line: str) -> None:
        """Charge the core time since the last lap, and the time off the core separately, if anybody watches."""
        lines = self._lines
        if lines is None:
            return
        now, ran = time.perf_counter(), time.thread_time()
        if line != SENDING:
            on_core = min(ran - self._ran_s, now - self._lapped_s)
            lines[line] = lines.get(line, 0.0) + on_core
            lines[OFF_CORE] = lines.get(OFF_CORE, 0.0) + now - self._lapped_s - on_core
        self._lapped_s, self._ran_s = now, ran

    @torch.inference_mode()
    def prefill(self, tokens: Tensor) -> Tensor:
        """Compute whole prompts, (batch, length) token ids, and return the last position's logits, (batch, vocabulary)."""
        positions = self._positions[: tokens.shape[1]].expand(self.batch, -1)
        return self._forward(tokens, positions, tokens.shape[1], None)

    @torch.inference_mode()
    def decode(self, tokens: Tensor, position: int) -> Tensor:
        """Compute one new token per sequence, (batch,) ids at ``position``, and return logits, (batch, vocabulary)."""
        if self._graph is None:
            positions = self._positions[position : position + 1].expand(self.batch, 1)
            return self._forward(tokens.view(-1, 1), positions, position + 1, None)
        self.place(tokens, position)
        self._graph.replay()
        self.group.ledger.sent.extend(self._graph_sends)
        return self._logits

    def _forward(self, tokens: Tensor, positions: Tensor, length: int, mask: Tensor | None) -> Tensor:
        """Run rows of all sequences through all layers. ``mask`` is for graphs, whose shapes cannot follow the length."""
        self.group.resume()
        lap, w = self._lap, self.weights
        x = self._embed(tokens.reshape(-1))
        flat = positions.reshape(-1)
        angles = self._cos[flat].unsqueeze(1), self._sin[flat].unsqueeze(1)
        slots = self.cache.slots(positions)
        lap("embedding and final norm")
        normed = self._norm(x, w.layers[0].norm_in)
        lap("norms")
        following = [layer.norm_in for layer in w.layers[1:]] + [w.norm]
        for index, (layer, after) in enumerate(zip(w.layers, following, strict=True)):
            mixed = self._attention(index, layer, normed, angles, slots, tokens.shape[1], length, mask)
            x, normed = self._add_and_norm(x, mixed, layer.norm_post, self.arch.eps)
            lap("norms")
            x, normed = self._add_and_norm(x, self._ffn(layer, normed), after, self.arch.eps)
            lap("norms")
        last = normed.view(self.batch, -1, x.shape[-1])[:, -1]
        lap("embedding and final norm")
        logits = F.linear(last, w.head)
        lap("head")
        logits = self.group.all_gather(logits, "logits")
        lap(SENDING)
        return logits

    def _embed(self, tokens: Tensor) -> Tensor:
        """Look up this rank's rows of the table, zero for the others'. Their sum is the embedding."""
        table = self.weights.embed
        if self.group.size == 1:
            return F.embedding(tokens, table)
        local = tokens - self._vocab_start
        local_rows = (local >= 0) & (local < table.shape[0])
        x = F.embedding(local.clamp(0, table.shape[0] - 1), table) * local_rows.unsqueeze(-1)
        self._lap("embedding and final norm")
        return self._sum(x, "embedding")

    def _sum(self, partial: Tensor, what: str) -> Tensor:
        total = self.group.all_reduce(partial, what)
        self._lap(SENDING)
        return total

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, self.arch.eps)

    def _attention(
        self, index: int, w: LayerWeights, x: Tensor, angles: Angles, slots: Tensor, tokens: int, length: int, mask: Tensor | None
    ) -> Tensor:
        lap, rows = self._lap, x.shape[0]
        qkv = F.linear(x, w.qkv, w.qkv_bias).view(rows, self.heads + 2 * self.kv_heads, -1)
        lap("QKV projection")
        both, value = qkv.split((self.heads + self.kv_heads, self.kv_heads), dim=1)
        if w.q_norm is not None:
            q, k = both.split((self.heads, self.kv_heads), dim=1)
            both = torch.cat((self._norm(q, w.q_norm), self._norm(k, w.k_norm)), dim=1)
        both = self._rotate(both, *angles)
        query, key = both.split((self.heads, self.kv_heads), dim=1)
        self.cache.write(index, slots, key, value)
        lap("rotary and KV write")
        if tokens > 1:
            mixed = self._prefill_attention(query, key, value)
            lap("prefill attention")
        else:
            mixed = self._decode_attention(query, *self.cache.read(index, length), mask)
            lap("decode attention")
        out = F.linear(mixed, w.out)
        lap("output projection")
        out = self._sum(out, "attention output")
        return out if w.out_bias is None else out + w.out_bias

    def _prefill_attention(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend causally within each prompt."""
        q, k, v = (t.reshape(self.batch, -1, t.shape[1], t.shape[2]).transpose(1, 2) for t in (query, key, value))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.kv_heads)
        return mixed.transpose(1, 2).reshape(query.shape[0], -1)

    def _decode_attention(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Attend with one query per sequence: all heads and sequences that share a KV head in one batched product."""
        rows, dim = query.shape[0], query.shape[-1]
        grouped = query.reshape(rows, self.kv_heads, -1, dim).transpose(0, 1).reshape(self.kv_heads * rows, -1, dim)
        scale = dim**-0.5
        if mask is None:
            scores = torch.bmm(grouped * scale, keys.transpose(1, 2))
        else:
            scores = torch.baddbmm(mask, grouped, keys.transpose(1, 2), alpha=scale)
        mixed = torch.bmm(torch.softmax(scores, dim=-1), values)
        return mixed.view(self.kv_heads, rows, -1).transpose(0, 1).reshape(rows, -1)

    def _ffn(self, w: LayerWeights, normed: Tensor) -> Tensor:
        lap = self._lap
        if w.router is not None:
            out = self._mixture(w, normed)
        else:
            both = F.linear(normed, w.up)
            lap("feed-forward gate and up")
            inner = self._gate(both)
            lap("feed-forward activation")
            out = F.linear(inner, w.down)
            lap("feed-forward down")
        return self._sum(out, "feed-forward output")

    def _mixture(self, w: LayerWeights, x: Tensor) -> Tensor:
        """Run each token through its chosen experts. Every expert is cut over the ranks, so their sum is partial too."""
        lap, moe = self._lap, self.arch.model.experts
        assert moe is not None
        shares = torch.softmax(F.linear(x, w.router).float(), dim=-1)
        lap("router")
        chosen, experts = shares.topk(moe.top_k, dim=-1)
        if self.arch.normed_top_k:
            chosen = chosen / chosen.sum(-1, keepdim=True)
        chosen, out = chosen.to(x.dtype), torch.zeros_like(x)
        for expert in experts.unique().tolist():
            rows, which = torch.where(experts == expert)
            picked = x[rows]
            lap("routing, permutation and activation")
            gate, up = F.linear(picked, w.up[expert]).chunk(2, dim=-1)
            lap("experts gate and up")
            inner = F.silu(gate).mul_(up)
            lap("routing, permutation and activation")
            made = F.linear(inner, w.down[expert])
            lap("experts down")
            out.index_add_(0, rows, made * chosen[rows, which].unsqueeze(-1))
        lap("routing, permutation and activation")
        return out

    @torch.inference_mode()
    def capture(self) -> None:
        """Record the decode step as a CUDA graph: static tensors, all cached positions read and masked to the length."""
        if self.arch.model.experts:
            return  # which experts run is decided on the host: such a step cannot be captured
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with self.group.record_sends(), torch.cuda.stream(stream):
            for _ in range(3):
                self.static_step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with self.group.record_sends() as sends, torch.cuda.graph(graph):
            self._logits = self.static_step()
        self._graph, self._graph_sends = graph, sends

    def static_step(self) -> Tensor:
        """Run a decode step whose shapes do not depend on the length, with tokens and position from static tensors."""
        mask = self._hide_scores(self._positions.unsqueeze(0) > self._at[:1])
        return self._forward(self._tokens, self._at, self.cache.capacity, mask.unsqueeze(0))

    def _hide_scores(self, hidden: Tensor) -> Tensor:
        """Return the mask to add to the scores."""
        return torch.zeros(hidden.shape, dtype=self.dtype, device=self.device).masked_fill_(hidden, float("-inf"))

    def place(self, tokens: Tensor, position: int) -> None:
        """Set what the next static step reads."""
        self._tokens.copy_(tokens.view(-1, 1))
        self._at.fill_(position)


@contextmanager
def trace(engine: LiveEngine, file: Path) -> Iterator[None]:
    """Trace what is run meanwhile."""
    watched = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if engine.device.type == "cuda" else [])]
    with profile(activities=watched, record_shapes=True) as seen:
        yield
    seen.export_chrome_trace(str(file))


class NamedStepsEngine(LiveEngine):
    """An engine whose steps have names in a trace."""

    def prefill(self, tokens: Tensor) -> Tensor:
        with record_function(f"execute_context_{self.batch}({tokens.numel()})_generation_0(0)"):
            return super().prefill(tokens)

    def decode(self, tokens: Tensor, position: int) -> Tensor:
        with record_function(f"execute_context_0(0)_generation_{self.batch}({self.batch})"):
            return super().decode(tokens, position)
