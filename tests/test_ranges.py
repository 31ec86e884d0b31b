"""Every prediction carries an 80 % range: laws."""

import numpy as np
import pytest
from hypothesis import given

import commtax
from commtax import catalog
from strategies import questions


@given(questions(engines=("vllm", "sglang", "trtllm", "torch", "textbook")))
def test_the_range_holds_the_prediction(question):
    model, cluster, plan, engine = question
    words = {name: getattr(plan, name) for name in ("tp", "pp", "dp", "ep", "sequence_parallel")}
    b = commtax.bill(model, cluster, engine=engine, batch=8, **words)
    assert 0 < float(b.low_s) <= float(b.step_s) <= float(b.high_s)
    assert float(b.low_s) * float(b.high_s) == pytest.approx(float(b.step_s) ** 2), "as far down as up, as factors"
    if engine.key == "textbook":
        assert float(b.low_s) == float(b.high_s), "a definition has no range"


def test_weaker_sources_have_wider_ranges():
    known, guessed = (commtax.bill("llama-3.1-8b", f"2x{chip}", tp=2) for chip in ("h100-sxm", "mi300x"))
    assert float(guessed.sigma) > 2 * float(known.sigma)
    assert "assumed" in " ".join(guessed.sources)


def test_ranges_of_arrays_are_those_of_scalars():
    tp = np.array([1, 2, 8])
    many = commtax.bill("llama-3.1-8b", "8xh100-sxm", tp=tp)
    for i, n in enumerate(tp):
        one = commtax.bill("llama-3.1-8b", "8xh100-sxm", tp=int(n))
        assert float(many.low_s[i]) == pytest.approx(float(one.low_s))


def test_the_range_of_a_cache():
    fit = commtax.fit("llama-3.1-8b", "8xh100-sxm", tp=1)
    low, high = fit.kv_tokens_range
    assert low < fit.kv_tokens < high
    assert (high - low) * fit.kv_bytes_per_token == pytest.approx(2 * catalog.engine("vllm").kv_spread_bytes, rel=0.01)
    fixed = commtax.fit("llama-3.1-8b", "8xh100-sxm", tp=1, kv_cache_memory_bytes=2**30)
    assert fixed.kv_tokens_range == (fixed.kv_tokens, fixed.kv_tokens)


def test_training_steps_have_one_too():
    b = commtax.train_bill("llama-3.1-8b", "8xh100-sxm", dp=8, engine="fsdp")
    assert float(b.low_s) < float(b.step_s) < float(b.high_s) < 1.3 * float(b.step_s)
