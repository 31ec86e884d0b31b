"""Sharding is exact, and the column-then-row pairing costs one all-reduce: counted, not claimed."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

_spec = importlib.util.spec_from_file_location("lab_01_group", Path(__file__).with_name("group.py"))
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
Group = _module.Group

RANKS = (1, 2, 4, 8)


def whole(*shape, seed=0):
    """Whole numbers in floating point: sums are exact in any order, so equality can be exact."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(float)


def dense_block(x, wq, wk, wv, wo, up, down, heads):
    tokens, outputs = x.shape[0], []
    for q, k, v in zip(*(np.split(x @ w, heads, axis=1) for w in (wq, wk, wv)), strict=True):
        scores = np.where(np.tri(tokens, dtype=bool), q @ k.T / np.sqrt(q.shape[1]), -np.inf)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        outputs.append(weights / weights.sum(axis=1, keepdims=True) @ v)
    x = x + np.concatenate(outputs, axis=1) @ wo
    return x + np.maximum(x @ up, 0) @ down


@pytest.mark.parametrize("ranks", RANKS)
def test_shards_are_equal_pieces_that_join_again(lab, ranks):
    w = whole(16, 24)
    columns, rows = lab.column_shards(w, ranks), lab.row_shards(w, ranks)
    assert [s.shape for s in columns] == [(16, 24 // ranks)] * ranks, "columns: outputs are divided"
    assert [s.shape for s in rows] == [(16 // ranks, 24)] * ranks, "rows: inputs are divided"
    assert np.array_equal(np.concatenate(columns, axis=1), w)
    assert np.array_equal(np.concatenate(rows, axis=0), w)


def test_what_does_not_divide_is_refused(lab):
    with pytest.raises(ValueError):
        lab.column_shards(whole(16, 24), 5)
    with pytest.raises(ValueError):
        lab.row_shards(whole(16, 24), 3)


@pytest.mark.parametrize("ranks", RANKS)
def test_column_parallel_is_exact_and_gathers_once(lab, ranks):
    x, w, group = whole(5, 16), whole(16, 24, seed=1), Group()
    assert np.array_equal(lab.column_parallel(x, np.split(w, ranks, axis=1), group), x @ w)
    assert group.counts == {"all_reduce": 0, "all_gather": 1}


@pytest.mark.parametrize("ranks", RANKS)
def test_row_parallel_is_exact_and_reduces_once(lab, ranks):
    x, w, group = whole(5, 16), whole(16, 24, seed=1), Group()
    assert np.array_equal(lab.row_parallel(x, np.split(w, ranks, axis=0), group), x @ w)
    assert group.counts == {"all_reduce": 1, "all_gather": 0}


@pytest.mark.parametrize("ranks", RANKS)
def test_the_mlp_costs_exactly_one_all_reduce(lab, ranks):
    x, up, down, group = whole(5, 16), whole(16, 32, seed=1), whole(32, 16, seed=2), Group()
    assert np.array_equal(lab.parallel_mlp(x, up, down, ranks, group), np.maximum(x @ up, 0) @ down)
    assert group.counts == {"all_reduce": 1, "all_gather": 0}, "one all-reduce, and nothing gathered in between"


@pytest.mark.parametrize("ranks", RANKS)
def test_a_block_costs_exactly_two(lab, ranks):
    x, group = whole(5, 16) / 8, Group()
    weights = [whole(16, 16, seed=s) / 8 for s in range(1, 5)] + [whole(16, 32, seed=5) / 8, whole(32, 16, seed=6) / 8]
    found = lab.parallel_block(x, *weights, heads=8, ranks=ranks, group=group)
    np.testing.assert_allclose(found, dense_block(x, *weights, heads=8), rtol=1e-12, atol=1e-12)
    assert group.counts == {"all_reduce": 2, "all_gather": 0}
    with pytest.raises(ValueError):
        lab.parallel_block(x, *weights, heads=8, ranks=16, group=Group())


def test_heads_and_width_cap_the_degree(lab):
    assert lab.legal_degrees(32, 14336, 64) == [1, 2, 4, 8, 16, 32], "Llama-3.1-8B stops at its 32 heads"
    assert lab.legal_degrees(28, 18944, 8) == [1, 2, 4], "28 heads also divide by 7, but the width does not"
    assert lab.legal_degrees(12, 30, 6) == [1, 2, 3, 6]
