"""Copies of popular experts (``--redundant-experts``) and the busiest expert rank (``--imbalance``) of a server."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import commtax
from cli_run import run_here
from commtax import catalog
from commtax.cost.memory import weights
from commtax.launch.read_command import parse
from commtax.launch.writing import launch_command
from commtax.report.view.state import arguments
from commtax.report.view.state import parse as state_of
from commtax.spec import Plan
from commtax.statement import Refusal
from commtax.verbs.settling import AUTO_EP, ask
from each import each
from tables import tables

DATA = tables(__file__)

WIDE = ("deepseek-v3", "-c", "9x8xh100-sxm", "-tp", "1", "-dp", "72", "-ep")
MIXTURES = ("deepseek-v3", "mixtral-8x7b", "qwen3-235b-a22b", "gpt-oss-120b", "kimi-k2")


def of_experts(model, plan, engine="sglang"):
    """Bytes of routed experts on a rank."""
    lines = weights(catalog.model(model), plan, catalog.engine(engine), 0, 1)
    return next(line.nbytes for line in lines if line.part == "experts")


def test_four_experts_a_rank_by_hand():
    """256 experts and 32 copies on 72 ranks: 4 each, in 58 layers, of three 7168 x 2048 fp8 matrices with a scale a tile of 128."""
    each = 3 * (7168 * 2048 + 56 * 16 * 4)
    held = of_experts("deepseek-v3", Plan(dp=72, ep=72, redundant_experts=32))
    assert held == pytest.approx(58 * 4 * each, rel=1e-12)
    assert held == pytest.approx(of_experts("deepseek-v3", Plan(dp=64, ep=64)), rel=1e-12)


@given(st.sampled_from(MIXTURES), st.sampled_from([2, 4, 8, 16]), st.integers(0, 64))
@settings(max_examples=30, deadline=None)
def test_copies_weigh_what_experts_weigh(model, ep, groups):
    experts, copies = catalog.model(model).experts.num_experts, groups * ep
    own, more = (of_experts(model, Plan(dp=ep, ep=ep, redundant_experts=n)) for n in (0, copies))
    assert more / own == pytest.approx((experts + copies) / experts, rel=1e-12)
    arrays = of_experts(model, Plan(dp=np.array([1, ep]), ep=np.array([1, ep]), redundant_experts=copies))
    assert arrays[1] == pytest.approx(more, rel=1e-12)
    assert arrays[0] == pytest.approx(own * ep, rel=1e-12)  # not spread: no copies


@given(st.sampled_from(MIXTURES), st.integers(2, 72), st.integers(0, 100))
@settings(max_examples=30, deadline=None)
def test_all_divide_or_the_nearest_that_do_are_named(model, ep, copies):
    total = catalog.model(model).experts.num_experts + copies
    asked = {"dp": ep, "ep": ep, "engine": "vllm", "redundant_experts": copies}
    most = catalog.model(model).experts.num_experts * (ep - 1)
    if total % ep == 0 and copies <= most:
        assert commtax.bill(model, "9x8xh200-sxm", **asked).question.plan.redundant_experts == copies
        return
    with pytest.raises(Refusal, match="redundant experts would do") as refused:
        commtax.bill(model, "9x8xh200-sxm", **asked)
    if refused.value.argument == "ep":  # nobody asked for copies
        assert copies == 0
        return
    assert refused.value.argument == "redundant_experts"
    for near in refused.value.nearest:
        assert (total - copies + near) % ep == 0
        assert abs(near - copies) < ep or near == most
        commtax.bill(model, "9x8xh200-sxm", **asked | {"redundant_experts": near})


def test_what_is_sent_stays():
    """A token goes to as many experts, whichever copy of them."""
    asked = {"dp": 16, "ep": 16, "batch": 64, "ep_backend": "deepep_low_latency"}
    plain, copied = (commtax.traffic("deepseek-v3", "2x8xh200-sxm", redundant_experts=n, **asked) for n in (0, 32))
    assert [x.item for x in plain.lines] == [x.item for x in copied.lines]


@each(
    ("model", "options", "argument"),
    [
        ("llama-3.1-8b", {"tp": 8, "redundant_experts": 8}, "redundant_experts"),
        ("mixtral-8x7b", {"tp": 8, "redundant_experts": 8}, "redundant_experts"),
        ("mixtral-8x7b", {"tp": 8, "ep": 8, "redundant_experts": -8}, "redundant_experts"),
        ("mixtral-8x7b", {"tp": 8, "ep": 8, "redundant_experts": 2.5}, "redundant_experts"),
        ("mixtral-8x7b", {"tp": 8, "ep": 8, "redundant_experts": np.array([0, 8])}, "redundant_experts"),
        ("mixtral-8x7b", {"tp": 8, "ep": 8, "redundant_experts": 64}, "redundant_experts"),
        ("mixtral-8x7b", {"tp": 8, "imbalance": 1.3}, "imbalance"),
        ("llama-3.1-8b", {"tp": 8, "imbalance": 1.3}, "imbalance"),
        ("mixtral-8x7b", {"tp": 8, "ep": 8, "imbalance": 0}, "imbalance"),
        ("mixtral-8x7b", {"tp": 8, "ep": 8, "imbalance": 0.9}, "imbalance"),
        ("mixtral-8x7b", {"tp": 8, "ep": 8, "imbalance": 8.5}, "imbalance"),
        ("mixtral-8x7b", {"tp": 8, "ep": 8, "imbalance": "much"}, "imbalance"),
    ],
)
def test_rules(model, options, argument):
    for verb in (commtax.bill, commtax.simulate):
        with pytest.raises(Refusal) as refused:
            verb(model, "8xh100-sxm", **options)
        assert refused.value.argument == argument


@pytest.mark.parametrize("words", DATA["where_they_have_no_place"])
def test_where_they_have_no_place(words):
    verb, *options = words
    refused = run_here(verb, "mixtral-8x7b", "-c", "8xh100-sxm", *options)
    assert refused.returncode == 2
    assert len(refused.stderr.strip().splitlines()) == 1


def test_training_refuses_copies_and_is_balanced_unless_it_is_said():
    with pytest.raises(Refusal, match="training has none"):
        commtax.train_bill("mixtral-8x7b", "8xh100-sxm", dp=8, ep=8, redundant_experts=8)
    step = [commtax.train_bill("mixtral-8x7b", "8xh100-sxm", dp=8, ep=8, **how).step_s for how in ({}, {"imbalance": 1.0})]
    assert step[0] == step[1] < commtax.train_bill("mixtral-8x7b", "8xh100-sxm", dp=8, ep=8, imbalance=1.5).step_s


@given(st.sampled_from(MIXTURES), st.sampled_from([1, 16, 256]), st.lists(st.floats(1, 8), min_size=2, max_size=2))
@settings(max_examples=25, deadline=None)
def test_a_busier_rank_is_never_faster(model, batch, factors):
    steps = [commtax.bill(model, "8xh200-sxm", tp=1, dp=8, ep=8, batch=batch, imbalance=f).step_s for f in sorted(factors)]
    assert steps[0] <= steps[1] * (1 + 1e-12)


def test_verbs_say_what_was_set():
    options = ("--redundant-experts", "32", "--imbalance", "1.3", "-e", "sglang")
    for verb, *load in (("bill", "--batch", "64"), ("simulate", "--concurrency", "72")):
        said = run_here(verb, *WIDE, *load, *options).stdout
        assert "busiest expert rank 1.3x" in said
        assert "experts over 72 with 32 redundant ones" in said
        document = json.loads(run_here(verb, *WIDE, *load, *options, "--json").stdout)
        assert (document["plan"]["redundant_experts"], document["imbalance"]) == (32, 1.3)
    assert "as routers were seen to choose" in run_here("bill", *WIDE, *options[:2]).stdout


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("vllm", ("--enable-eplb", """--eplb-config '{"num_redundant_experts": 32}'""")),
        ("sglang", ("--enable-eplb", "--ep-num-redundant-experts 32")),
        ("trtllm", ("load_balancer:", "num_slots: 288")),
    ],
)
def test_commands_say_copies_and_read_back(engine, words, tmp_path):
    written = launch_command(ask("deepseek-v3", "9x8xh100-sxm", dp=72, ep=72, engine=engine, redundant_experts=32), engine)
    assert all(word in written for word in words)
    found = parse(written)
    assert found.axes["ep"] == 72
    assert found.options.get("redundant_experts", found.slots - 256) == 32
    (tmp_path / "launch.sh").write_text(written)
    asked = ("--batch", "64", "--json")
    read = json.loads(run_here("bill", "-c", "9x8xh100-sxm", "--from", str(tmp_path / "launch.sh"), *asked).stdout)
    direct = json.loads(run_here("bill", *WIDE, "-e", engine, "--redundant-experts", "32", *asked).stdout)
    assert (read["plan"], read["step_s"]) == (direct["plan"], direct["step_s"])
    plain = launch_command(ask("deepseek-v3", "8x8xh100-sxm", dp=64, ep=64, engine=engine), engine)
    assert not any(word in plain for word in ("eplb", "redundant", "num_slots"))


@pytest.mark.parametrize(
    ("flags", "copies", "unread"),
    [
        ("--num-redundant-experts 32", 32, 0),
        ("--eplb-config.num_redundant_experts=32", 32, 0),
        ("""--enable-eplb --eplb-config '{"window_size": 1000, "num_redundant_experts": 16}'""", 16, 1),
        ("--num-redundant-experts 0", 0, 0),
        ("--eplb-config nonsense", None, 1),
        ("--eplb-config [1]", None, 1),
    ],
)
def test_other_spellings(flags, copies, unread):
    found = parse(f"vllm serve deepseek-ai/DeepSeek-V3 -dp 8 --enable-expert-parallel {flags}")
    assert found.options.get("redundant_experts") == copies
    assert len(found.unread) == unread


def test_slots_in_a_file_of_their_own(tmp_path):
    (tmp_path / "balance.yaml").write_text("num_slots: 288\nlayer_updates_per_iter: 1\n")
    (tmp_path / "llm.yaml").write_text(f"enable_attention_dp: true\nmoe_config:\n  load_balancer: {tmp_path}/balance.yaml\n")
    command = f"trtllm-serve deepseek-ai/DeepSeek-V3 --tp_size 72 --ep_size 72 --config {tmp_path}/llm.yaml"
    found = parse(command)
    assert (found.slots, found.unread) == (288, ())
    (tmp_path / "balance.yaml").write_text("num_slots: 128\n")
    refused = run_here("bill", "-c", "9x8xh100-sxm", "--from", command)
    assert refused.returncode == 2
    assert "num_slots 128 are fewer than the 256 experts" in refused.stderr
    (tmp_path / "balance.yaml").unlink()
    assert "load_balancer" in parse(command).unread[0]


def test_a_search_keeps_them_for_plans_that_spread_experts():
    options = {"redundant_experts": 16, "imbalance": 3.0, "input_len": 256, "output_len": 32}
    found = commtax.plan("qwen3-235b-a22b", "8xh200-sxm", **options)
    rows = [found.put(found.plans, i) for i in range(len(found.plans))]
    assert {q.plan.redundant_experts for q in rows if q.plan.ep > 1} == {16}
    assert {q.what_if.imbalance for q in rows if q.plan.ep > 2} == {3.0}
    assert {(q.plan.redundant_experts, q.what_if.imbalance) for q in rows if q.plan.ep == 1} == {(0, 0.0)}
    plain = commtax.plan("qwen3-235b-a22b", "8xh200-sxm", input_len=256, output_len=32)
    room = [{a.layout(a.plans, i): a.plans.kv_headroom[i] for i in range(5) if a.plans.ep[i] == 1} for a in (found, plain)]
    alone = set(room[0]) & set(room[1])
    assert alone
    assert all(room[0][name] == room[1][name] for name in alone)
    with pytest.raises(Refusal, match="dense"):
        commtax.plan("llama-3.1-8b", "8xh200-sxm", redundant_experts=16)


def test_a_search_passes_over_plans_with_too_many():
    """Two ranks of 8 experts take 8 copies at most: such plans are rejected by the rule, and others stand."""
    found = commtax.plan("mixtral-8x7b", "8xh100-sxm", redundant_experts=16, input_len=256, output_len=32)
    assert len(found.plans)
    assert 2 not in {int(ep) for ep in found.plans.ep}
    assert any("holds an expert twice" in lost.reason for lost in found.rejected)


def test_workers_for_prompts_take_what_they_can():
    """Their experts lie on one rank: no copies, and no busiest one."""
    asked = {"dp": 16, "ep": 16, "concurrency": 16, "disaggregated": True, "redundant_experts": 32, "imbalance": 1.5}
    s = commtax.simulate("deepseek-v3", "4x8xb200-sxm", prefill_tp=1, **asked)
    assert (int(s.question.plan.redundant), int(s.apart.plan.redundant)) == (32, 0)


def test_the_smallest_that_fits_counts_copies():
    """A search for tp begins where experts lie on one rank."""
    found = commtax.fit("deepseek-v3", "8xh200-sxm", ep=AUTO_EP, redundant_experts=32, max_model_len=8192)
    assert (int(found.question.plan.tp), found.question.plan.redundant_experts) == (8, 32)


def test_the_page_asks_the_same():
    keys = {"m": "deepseek-v3", "c": "9x8xh100-sxm", "e": "sglang", "dp": "72", "ep": "72", "red": "32", "imb": "1.3", "b": "64"}
    state = state_of(keys.items())
    plan = state.question.plan
    assert (plan.redundant_experts, state.question.what_if.imbalance) == (32, 1.3)
    line = " ".join(arguments(state))
    assert "--redundant-experts 32" in line
    assert "--imbalance 1.3" in line
    spread = state_of((keys | {"dp": "1", "ep": "1", "tp": "8"}).items())
    assert "redundant" not in " ".join(arguments(spread))
