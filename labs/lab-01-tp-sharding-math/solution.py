"""Lab 01, reference: column- and row-parallel products, and how pairing them designs communication out."""

import numpy as np


def _pieces(weight, ranks, axis):
    if weight.shape[axis] % ranks:
        raise ValueError(f"{weight.shape[axis]} does not divide by {ranks} ranks")
    return np.split(weight, ranks, axis=axis)


def column_shards(weight, ranks):
    return _pieces(weight, ranks, 1)


def row_shards(weight, ranks):
    return _pieces(weight, ranks, 0)


def column_parallel(x, shards, group):
    return group.all_gather([x @ shard for shard in shards])


def row_parallel(x, shards, group):
    return group.all_reduce([part @ shard for part, shard in zip(column_shards(x, len(shards)), shards, strict=True)])


def parallel_mlp(x, up, down, ranks, group):
    inner = [np.maximum(x @ shard, 0) for shard in column_shards(up, ranks)]
    return group.all_reduce([h @ shard for h, shard in zip(inner, row_shards(down, ranks), strict=True)])


def parallel_block(x, wq, wk, wv, wo, up, down, heads, ranks, group):
    if heads % ranks:
        raise ValueError(f"{heads} heads do not divide by {ranks} ranks")
    shards = zip(*(column_shards(w, ranks) for w in (wq, wk, wv)), row_shards(wo, ranks), strict=True)
    parts = [_attend(x @ q, x @ k, x @ v, heads // ranks) @ o for q, k, v, o in shards]
    x = x + group.all_reduce(parts)
    return x + parallel_mlp(x, up, down, ranks, group)


def _attend(q, k, v, heads):
    """Causal attention of some heads."""
    tokens = q.shape[0]
    mask = np.triu(np.full((tokens, tokens), -np.inf), 1)
    outputs = []
    for a, b, c in zip(*(np.split(m, heads, axis=1) for m in (q, k, v)), strict=True):
        scores = a @ b.T / np.sqrt(a.shape[1]) + mask
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        outputs.append(weights / weights.sum(axis=1, keepdims=True) @ c)
    return np.concatenate(outputs, axis=1)


def legal_degrees(heads, width, most):
    return [n for n in range(1, most + 1) if heads % n == 0 and width % n == 0]
