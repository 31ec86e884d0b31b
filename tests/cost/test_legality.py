"""Rules: an array's mask equals the scalar rule for every element, and each rule says what would be legal."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commtax import catalog
from commtax.rules.legality import RULES, check, codes, legal_values, notes
from commtax.spec import Plan
from each import each
from strategies import models

VLLM = catalog.engine("vllm")
ENGINES = ("vllm", "sglang", "torch", "megatron")
sizes = st.lists(st.integers(-1, 40) | st.sampled_from([64, 128, 1000, 10**12]), min_size=4, max_size=4)
numbers = sizes | st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=4, max_size=4)


@settings(max_examples=150)
@given(models, st.sampled_from(ENGINES), numbers, sizes, sizes, sizes)
def test_mask_equals_the_scalar_rule(model, engine, tp, pp, dp, ep):
    cluster, engine = catalog.cluster("4x8xh100-sxm"), catalog.engine(engine)
    mask = codes(model, cluster, Plan(*(np.array(x, dtype=float) for x in (tp, pp, dp, ep))), engine)
    for i in range(4):
        plan = Plan(tp[i], pp[i], dp[i], ep[i])
        assert mask[i] == codes(model, cluster, plan, engine)
        if mask[i]:
            with pytest.raises(ValueError, match=RULES[mask[i] - 1].name):
                check(model, cluster, plan, engine)
        else:
            check(model, cluster, plan, engine)


@given(models)
def test_one_gpu_is_always_legal(model):
    assert codes(model, catalog.cluster("h100-sxm"), Plan(), catalog.engine("vllm")) == 0


@each(
    ("key", "cluster", "plan", "says"),
    [
        ("llama-3.1-8b", "8xh100-sxm", Plan(tp=3), "heads-divisible: the 32 attention heads.*nearest legal tp: 2 or 4"),
        ("llama-3.1-70b", "8xh100-sxm", Plan(tp=6), "heads-divisible: the 64"),
        ("qwen2.5-7b", "8xh100-sxm", Plan(tp=7), "kv-heads-divisible: 4 KV heads"),
        ("llama-3.1-8b", "2xh100-sxm", Plan(tp=8), "gpus: .* = 8 GPUs, but 2xh100-sxm has 2; nearest legal tp: 2"),
        ("llama-3.1-8b", "8x8xh100-sxm", Plan(pp=33), "layers: pp=33 stages.*nearest legal pp: 32"),
        ("mixtral-8x7b", "8x8xh100-sxm", Plan(tp=8, dp=2, ep=16), "experts-divisible: 8 experts"),
        ("llama-3.1-8b", "8xh100-sxm", Plan(tp=8, ep=8), "ep-needs-experts: ep=8.*dense"),
        ("mixtral-8x7b", "8xh100-sxm", Plan(tp=8, ep=4), "ep-group: ep=4, but vllm spreads experts over tp x dp = 8"),
        ("llama-3.1-8b", "8xh100-sxm", Plan(tp=0), "sizes-positive"),
        ("llama-3.1-8b", "8xh100-sxm", Plan(tp=2.5), "sizes-positive"),
        ("minimax-m2.5", "8xh200-sxm", Plan(tp=8), "quant-block-divisible: .*nearest legal tp: 4"),
        ("mixtral-8x22b", "24xh100-sxm", Plan(tp=24), "expert-width-divisible: expert width 16384"),
    ],
)
def test_rules_name_themselves_and_the_nearest_legal(key, cluster, plan, says):
    with pytest.raises(ValueError, match=says):
        check(catalog.model(key), catalog.cluster(cluster), plan, catalog.engine("vllm"))


@each(
    ("cluster", "plan", "larger"),
    [
        ("8xh100-sxm", Plan(tp=8, replicas=2), "2x8xh100-sxm"),
        ("2xh100-sxm", Plan(tp=4), "4xh100-sxm"),
        ("8xh100-sxm", Plan(pp=17), "3x8xh100-sxm"),
        ("dgx-h100", Plan(tp=8, pp=2), "2x8xh100-sxm"),
        ("gb200-nvl72", Plan(tp=8, replicas=12), "24x4xgb200"),
    ],
)
def test_the_cluster_that_is_named_has_the_gpus_of_all_replicas(cluster, plan, larger):
    model, engine = catalog.model("llama-3.1-8b"), catalog.engine("vllm")
    with pytest.raises(ValueError, match=f"at least {plan.all_gpus} GPUs, such as {larger}$"):
        check(model, catalog.cluster(cluster), plan, engine)
    check(model, catalog.cluster(larger), plan, engine)


def test_legal_values():
    model, cluster, engine = catalog.model("llama-3.1-8b"), catalog.cluster("8xh100-sxm"), catalog.engine("vllm")
    assert legal_values("tp", model, cluster, Plan(), engine) == [1, 2, 4, 8]
    assert legal_values("tp", model, cluster, Plan(pp=4), engine) == [1, 2]
    assert legal_values("pp", model, cluster, Plan(tp=2), engine) == [1, 2, 3, 4]


def test_notes():
    model = catalog.model("llama-3.1-70b")
    found = " ".join(notes(model, catalog.cluster("4x8xh100-sxm"), Plan(tp=16, pp=1), VLLM))
    assert "KV heads replicated: 8 heads over tp 16, 2 copies" in found
    assert "16 of 32 GPUs idle" in found
    assert "uneven pipeline: 80 layers as 27+27+26" in " ".join(notes(model, catalog.cluster("3xh100-sxm"), Plan(pp=3), VLLM))
    assert "latent KV is whole" in " ".join(notes(catalog.model("deepseek-v3"), catalog.cluster("8xh200-sxm"), Plan(tp=8), VLLM))
