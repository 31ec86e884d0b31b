"""The KV cache: blocks of ``block_size`` tokens from one pool, and a table of blocks for each sequence.

Keys and values lie heads first, (kv heads, blocks x block size, head size), so that the blocks of sequences that own
consecutive blocks are a view, and a product over all sequences and heads is one batched product.
"""

from __future__ import annotations

import math
from typing import Any

import torch


class Blocks:
    """A pool for ``batch`` sequences of at most ``length`` tokens in every layer."""

    def __init__(
        self, layers: int, kv_heads: int, head_dim: int, batch: int, length: int, dtype: Any, device: Any, block_size: int = 16
    ) -> None:
        self.block_size, self.batch, self.kv_heads, self.head_dim = block_size, batch, kv_heads, head_dim
        self.per_seq = math.ceil(length / block_size)
        self.capacity = self.per_seq * block_size
        self.num_blocks = batch * self.per_seq
        shape = (kv_heads, self.num_blocks * block_size, head_dim)
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(layers)]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(layers)]
        self.assign(torch.arange(self.num_blocks, device=device).view(batch, self.per_seq))

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in (*self.keys, *self.values))

    def assign(self, table: Any) -> None:
        """Give each sequence its blocks: row b of ``table`` lists them in order. Consecutive blocks are read in place."""
        self.table = table
        inside = torch.arange(self.block_size, device=table.device)
        self._slots = (table.unsqueeze(-1) * self.block_size + inside).reshape(self.batch, self.capacity)
        self._in_order = bool(torch.equal(table.reshape(-1), torch.arange(self.num_blocks, device=table.device)))

    def slots(self, positions: Any) -> Any:
        """Where (sequence, position) lies in the pool; ``positions`` is (batch, tokens)."""
        return self._slots.gather(1, positions).reshape(-1)

    def write(self, layer: int, slots: Any, key: Any, value: Any) -> None:
        """Store (rows, kv heads, head size) at their slots."""
        self.keys[layer].index_copy_(1, slots, key.transpose(0, 1))
        self.values[layer].index_copy_(1, slots, value.transpose(0, 1))

    def read(self, layer: int, length: int) -> tuple[Any, Any]:
        """Keys and values of the first ``length`` tokens: (kv heads x batch, length, head size) each."""
        return self._read(self.keys[layer], length), self._read(self.values[layer], length)

    def _read(self, pool: Any, length: int) -> Any:
        if self._in_order:
            return pool.view(self.kv_heads * self.batch, self.capacity, self.head_dim)[:, :length]
        chosen = pool.index_select(1, self._slots[:, :length].reshape(-1))
        return chosen.view(self.kv_heads * self.batch, length, self.head_dim)
