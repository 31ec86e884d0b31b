"""Random legal questions: models, engines, plans and clusters that go together."""

from hypothesis import assume
from hypothesis import strategies as st

from commtax import catalog
from commtax.rules.legality import codes
from commtax.spec import Plan

SERVING = ("vllm", "sglang", "trtllm", "torch")
models = st.sampled_from(catalog.keys("models")).map(catalog.model)
clusters = st.sampled_from(["64x8xh100-sxm", "18x4xgb200", "128x4xl40s", "512xh200-sxm"]).map(catalog.cluster)
powers = st.sampled_from([1, 2, 4, 8, 16])


@st.composite
def questions(draw, engines=SERVING, max_dp=4):
    """(model, cluster, plan, engine), legal."""
    model, cluster = draw(models), draw(clusters)
    engine = catalog.engine(draw(st.sampled_from(engines)))
    tp, pp, dp = draw(powers), draw(st.sampled_from([1, 2, 3, 4, 8])), draw(st.integers(1, max_dp))
    ep = draw(st.sampled_from([1, tp, tp * dp])) if model.experts else 1
    split = draw(st.booleans()) or (engine.key == "megatron" and ep > 1)  # megatron's experts need it
    plan = Plan(tp=tp, pp=pp, dp=dp, ep=ep, order=engine.order, sequence_parallel=split)
    assume(codes(model, cluster, plan, engine) == 0)
    return model, cluster, plan, engine
