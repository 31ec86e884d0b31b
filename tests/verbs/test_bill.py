"""The priced step: floors, sums, anchors, words; what explains a line adds up to it; slopes are those of the model."""

from __future__ import annotations

import dataclasses
import json
import math
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import commtax
from cli_run import run_here
from commtax import catalog
from commtax.catalog.programs import KINDS, engine_number, mechanism, mechanisms
from commtax.cost.compute import step_kernels
from commtax.cost.forms import DAMPED, RATES, SECONDS
from commtax.cost.inventory import inventory, num_active_params
from commtax.cost.kernels import equation, terms
from commtax.cost.layer_forms import CHIP_FORMS, FORMS
from commtax.files import table
from commtax.question import workload
from commtax.spec import KernelHabits, Plan
from commtax.units import format_seconds
from commtax.verbs.billing import labels, price, with_link
from commtax.verbs.explain import counterfactuals, verdict
from commtax.verbs.settling import terms_of
from commtax.verbs.why import every_why, explained_collective, explained_kernel, line_number, why
from each import each
from strategies import questions
from tables import tables

DATA = tables(__file__)
FIGURES = ("step_s", "compute_s", "comm_s", "exposed_comm_s", "comm_fraction", "tokens_per_s")


@each("key", ["llama-3.1-8b", "llama-3.1-70b", "mixtral-8x7b", "gpt-oss-120b", "deepseek-v3", "gemma-3-27b", "opt-1.3b"])
@each("engine", ["vllm", "sglang", "trtllm", "torch", "textbook"])
@each("cluster", ["8xh100-sxm", "8xl40s", "2x4xa100-80-sxm"])
def test_no_step_below_its_physical_floor(key, engine, cluster):
    """1,000 random steps for each of 105 questions: bytes / bandwidth, FLOPs / peak, wire bytes / link."""
    rng = np.random.default_rng(crc32(f"{key} {engine} {cluster}".encode()))
    place, model = catalog.cluster(cluster), catalog.model(key)
    n = 1000
    degrees = [t for t in (1, 2, 4, 8) if model.attention.num_heads % t == 0]
    phase = ("decode", "prefill", "mixed")[int(rng.integers(3))]
    b = commtax.bill(
        model, place, engine=engine, phase=phase, tp=rng.choice(degrees, n), batch=rng.integers(1, 600, n),
        context=rng.integers(1, 30_000, n),
    )  # fmt: skip
    chip = place.chip
    peak = max(chip.flops_per_s.values())
    read = sum(x.item.count * x.item.nbytes for x in b.lines if x.kind == "compute") / chip.memory_Bps
    math = sum(x.item.count * x.flops for x in b.lines if x.kind == "compute") / peak
    fastest = max(place.intra.bandwidth_Bps, place.nics_per_host * place.inter.bandwidth_Bps)
    wire = sum(x.item.sent_bytes_per_rank for x in b.lines if x.kind == "comm") / 2 / fastest  # a switch may halve a ring's bytes
    assert np.all(b.compute_s >= read * (1 - 1e-9))
    assert np.all(b.compute_s >= math * (1 - 1e-9))
    assert np.all(b.comm_s >= wire * (1 - 1e-9))
    assert np.all(np.isfinite(b.step_s))
    assert np.all((b.comm_fraction >= 0) & (b.comm_fraction < 1))


@given(questions(engines=("vllm", "sglang", "trtllm", "torch", "textbook")), st.integers(1, 300), st.integers(1, 20_000))
def test_items_sum_to_the_step(question, batch, context):
    model, cluster, plan, engine = question
    axes = {"tp": plan.tp, "pp": plan.pp, "dp": plan.dp, "ep": plan.ep}
    b = commtax.bill(model, cluster, **axes, engine=engine, batch=batch, context=context, overlap=0.3)
    assert float(b.step_s) == pytest.approx(sum(float(x.exposed_s) for x in b.items), rel=1e-9)
    assert float(b.step_s) == pytest.approx(float(b.compute_s) + float(b.exposed_comm_s), rel=1e-9)
    assert float(b.exposed_comm_s) == pytest.approx(0.7 * float(b.comm_s), rel=1e-9)
    if plan.num_gpus == 1:
        assert float(b.comm_s) == 0


@settings(max_examples=60)
@given(questions(engines=("vllm", "torch"), max_dp=1), st.sampled_from(["decode", "prefill", "mixed"]))
def test_scalar_equals_array_element(question, phase):
    model, cluster, plan, engine = question
    batches, contexts = np.array([1, 7, 64]), np.array([100, 5000, 33])
    words = {"tp": plan.tp, "pp": plan.pp, "ep": plan.ep, "engine": engine, "phase": phase}
    many = commtax.bill(model, cluster, batch=batches, context=contexts, **words)
    for i in range(3):
        one = commtax.bill(model, cluster, batch=int(batches[i]), context=int(contexts[i]), **words)
        for name in FIGURES:
            assert np.broadcast_to(getattr(many, name), 3)[i] == pytest.approx(float(getattr(one, name)), rel=1e-12)
        at = many.at(i)
        assert at.step_s == pytest.approx(float(one.step_s), rel=1e-12)
        assert {x.algorithm for x in at.items if x.kind == "comm"} == {x.algorithm for x in one.items if x.kind == "comm"}


@pytest.mark.parametrize(("tp", "milliseconds"), [(1, 4.94), (2, 3.30), (4, 2.47), (8, 1.87)])
def test_llama_8b_decode_on_one_h200(tp, milliseconds):
    """One rank's compute of a plain torch engine under a CUDA graph, batch 1, context 512, measured on an H200."""
    b = commtax.bill("llama-3.1-8b", "8xh200-sxm", tp=tp, context=512, engine="torch")
    assert float(b.compute_s) * 1e3 == pytest.approx(milliseconds, rel=0.15)
    roofline = commtax.bill("llama-3.1-8b", "8xh200-sxm", tp=tp, context=512, engine="textbook")
    assert float(roofline.compute_s) * 1e3 < 0.70 * milliseconds, "a roofline is far below"


@pytest.mark.parametrize("key", ["llama-3.1-8b", "qwen3-32b", "mixtral-8x7b"])
def test_flops_are_two_a_parameter_and_token(key):
    """Prefill of a short prompt: 2 x active parameters x tokens, beside attention (the embedding is a lookup)."""
    model, tokens = catalog.model(key), 4096
    work = workload("prefill", 1, tokens)
    kernels = step_kernels(model, Plan(), work, tokens, catalog.engine("torch"))
    products = sum(k.flops * k.count for k in kernels if k.form == "gemm" and k.what != "head")
    table = inventory(model)[0].size
    expected = 2 * tokens * (num_active_params(model) - 2 * table)
    assert products == pytest.approx(expected, rel=0.01)
    attention = sum(k.flops * k.count for k in kernels if k.form == "prefill")
    a = model.attention
    assert attention == pytest.approx(2 * 2 * model.num_layers * a.num_heads * a.head_dim * tokens * (tokens + 1) / 2, rel=0.01)


def test_decode_reads_the_weights_once_and_degrees_of_tp_help_less():
    model = catalog.model("llama-3.1-8b")
    kernels = step_kernels(model, Plan(), workload("decode", 1, 1), 1, catalog.engine("torch"))
    read = sum(k.nbytes * k.count for k in kernels if k.form == "gemm")
    table = inventory(model)[0].size
    assert read == pytest.approx(2 * (num_active_params(model) - table), rel=0.01)
    steps = [float(commtax.bill("llama-3.1-8b", "8xh100-sxm", tp=tp).step_s) for tp in (1, 2, 4, 8)]
    assert steps == sorted(steps, reverse=True)
    assert 1.3 < steps[0] / steps[1] < 1.8
    assert steps[0] / steps[3] < 5


def test_pipelines_buy_throughput_and_nothing_for_latency():
    one = commtax.bill("llama-3.1-70b", "2x8xh100-sxm", tp=8, batch=64)
    two = commtax.bill("llama-3.1-70b", "2x8xh100-sxm", tp=8, pp=2, batch=128)
    assert float(two.step_s) >= float(one.step_s)
    assert float(two.tokens_per_s) > 1.7 * float(one.tokens_per_s)
    starved = commtax.bill("llama-3.1-70b", "2x8xh100-sxm", tp=8, pp=2, batch=1)
    assert "50% of the stages idle" in " ".join(starved.notes)
    assert float(starved.tokens_per_s) <= float(commtax.bill("llama-3.1-70b", "2x8xh100-sxm", tp=8, batch=1).tokens_per_s)
    one = commtax.bill("llama-3.1-70b", "2x8xh100-sxm", tp=8, batch=64, phase="prefill")
    two = commtax.bill("llama-3.1-70b", "2x8xh100-sxm", tp=8, pp=2, batch=64, phase="prefill")
    assert float(two.tokens_per_s) > 1.7 * float(one.tokens_per_s)
    assert "chunks of 8,192" in " ".join(one.notes)


def test_what_drags_what_pays_and_what_is_drafted():
    plain = commtax.bill("llama-3.1-8b", "8xh100-sxm", tp=8)
    slow = commtax.bill("llama-3.1-8b", "8xh100-sxm", tp=8, slow_rank=1.5)
    host = sum(float(x.total_s) for x in plain.lines if x.kind == "host")
    assert float(slow.compute_s) - host == pytest.approx(1.5 * (float(plain.compute_s) - host))
    one, four = (commtax.bill("llama-3.1-70b", "8xh100-sxm", tp=8, speculative=k) for k in (0, 3))
    assert float(one.step_s) < float(four.step_s) < 1.3 * float(one.step_s)
    # Between none and all accepted; what is not modelled is said, and from how many accepted drafts on they pay.
    words = ("bill", "deepseek-r1", "-c", "8xh200-sxm", "-tp", "8", "--batch", "64")
    plain, drafted = (json.loads(run_here(*words, *more, "--json").stdout) for more in ((), ("--speculative", "3")))
    told = run_here(*words, "--speculative", "3").stdout
    least, most = (f"{drafted['tokens_per_s'] * n:,.1f}" for n in (1, 4))
    assert f"{least} to {most} output tokens/s, as none or all 3 drafts are accepted" in told
    assert "how many drafts are accepted is not known here" in told
    assert "who drafts is not said" in told
    pays = drafted["step_s"] / plain["step_s"] - 1
    assert f"drafts pay from a mean of {pays:.2f} accepted per step" in told


def test_decode_is_latency_bound_and_what_ifs_are_recomputed():
    decode = commtax.bill("llama-3.1-70b", "8xh100-sxm", tp=8)
    prefill = commtax.bill("llama-3.1-70b", "8xh100-sxm", tp=8, phase="prefill", context=8192)
    gains = {}
    for name, b in (("decode", decode), ("prefill", prefill)):
        found = {c.what: c.delta_s for c in counterfactuals(b)}
        gains[name] = (found["collective latency / 2"], found["collective bandwidth x 2"])
    assert gains["decode"][0] < gains["decode"][1] <= 0, "halving latency beats doubling bandwidth"
    assert gains["prefill"][1] < gains["prefill"][0] <= 0, "and the reverse"
    b = commtax.bill("llama-3.1-8b", "8xh100-sxm", tp=4)
    found = {c.what: c for c in counterfactuals(b)}
    assert found["tp 2"].step_s == pytest.approx(float(commtax.bill("llama-3.1-8b", "8xh100-sxm", tp=2).step_s))
    assert found["NCCL only"].delta_s > 0
    assert found["eager"].delta_s > 0
    assert float(price(b.question).step_s) == float(b.step_s)
    other = commtax.bill("llama-3.1-8b", "8xh100-sxm", tp=4, library="nccl")
    own = float(other.step_s)
    assert float(price(other.question).step_s) == own > float(b.step_s), "a what-if keeps the library that was asked for"
    assert "NCCL only" not in {c.what for c in counterfactuals(other)}
    host = catalog.cluster("8xh100-sxm")
    slow, slower = (commtax.bill("llama-3.1-8b", with_link(host, link), tp=2) for link in ("pcie5", "10gbe"))
    assert float(commtax.bill("llama-3.1-8b", host, tp=2).comm_s) < float(slow.comm_s) < float(slower.comm_s)
    assert slower.comm_fraction > 0.4, "TP over 10 GbE is fatal for decode"


def sentence(b):
    return verdict(b, counterfactuals(b))


@pytest.mark.parametrize(("question", "words"), DATA["the_sentence"])
def test_the_sentence(question, words):
    model, cluster, options = question
    place = catalog.cluster(cluster, inter=options.pop("inter", ""))
    text = sentence(commtax.bill(model, place, **options))
    assert text.endswith(".")
    for word in words:
        assert word in text, text


@pytest.mark.parametrize(("dtype", "peak"), [("bf16", 2.25e15), ("fp8", 4.5e15), ("nvfp4", 9e15)])
def test_the_peak_of_the_sentence_is_that_of_the_arithmetic(dtype, peak):
    """Products count at the rate of their type, and no step is shorter than what its sentence calls the chip's peak."""
    b = commtax.bill("llama-3.3-70b", "b200-sxm", phase="prefill", context=4096, dtype=dtype)
    products = next(x for x in b.items if x.item.what == "feed-forward down")
    assert products.peak_flops_per_s == peak
    least = sum(float(x.item.count) * float(x.flops) / x.peak_flops_per_s for x in b.items if x.kind != "comm")
    assert least < b.step_s
    assert f"the arithmetic alone takes {format_seconds(least)} at the chip's peak" in sentence(b)


def test_the_sentence_never_contradicts_its_table():
    """Where it says that another degree would be faster, the table says so too, and the other way round."""
    for tp, batch in ((2, 16), (8, 1), (4, 64)):
        b = commtax.bill("llama-3.1-8b", "8xh100-sxm", tp=tp, batch=batch)
        text, found = sentence(b), {c.what: c.delta_s / float(b.step_s) for c in counterfactuals(b)}
        for n in (tp // 2, 2 * tp):
            if f"tp {n}" in found and "would be" in text and f"tp {n} would be" in text:
                assert found[f"tp {n}"] < 0
    assert "tp 4 would be" in sentence(commtax.bill("llama-3.1-8b", "8xh100-sxm", tp=2, batch=16))


@pytest.mark.parametrize(("change", "says"), DATA["bad_questions"])
def test_bad_questions(change, says):
    with pytest.raises(ValueError, match=says):
        commtax.bill("llama-3.1-8b", "8xh100-sxm", **change)


@given(questions(engines=("vllm", "sglang", "trtllm"), max_dp=1), st.integers(1, 400))
def test_graphs_lose_to_eager_only_by_what_they_pad(question, each):
    """A step in a graph is never slower than without one at the size that the graph was captured for."""
    model, cluster, plan, engine = question
    captured = min((size for size in engine.sends.graph_sizes if size >= each), default=each)
    words = {"tp": plan.tp, "pp": plan.pp, "ep": plan.ep, "engine": engine}
    graph = commtax.bill(model, cluster, batch=each * plan.pp, **words).step_s
    eager = commtax.bill(model, cluster, batch=captured * plan.pp, eager=True, **words).step_s
    assert graph <= eager * (1 + 1e-12)


@pytest.mark.parametrize(("model", "cluster", "words"), DATA["launches_belong_to_the_host"])
def test_launches_belong_to_the_host(model, cluster, words):
    """Without graphs nothing is sent otherwise: what is late is the host's, and where nobody waits for it that is said."""
    graphs, eager = (commtax.bill(model, cluster, batch=64, eager=e, **words) for e in (False, True))
    steps = [[float(x.total_s) for x in b.items if x.kind != "host"] for b in (eager, graphs)]
    assert steps[0] == steps[1]
    hosts = [next(float(x.total_s) for x in b.lines if x.kind == "host") for b in (graphs, eager)]
    assert float(eager.step_s - graphs.step_s) == pytest.approx(hosts[1] - hosts[0], abs=1e-12)
    assert float(eager.exposed_comm_s) == float(graphs.exposed_comm_s)
    note = next(x.why for x in eager.lines if x.kind == "host")
    assert "launches without graphs take" in note
    assert (hosts[1] > hosts[0]) == ("start" in note or "longer than" in note)


def test_what_ifs_of_serving_fit_and_launches_that_take_no_time_are_not_told():
    """Half the ranks of 70B have no room for 200 requests, and nothing that lacks memory is advised."""
    priced = commtax.bill("llama-3.1-70b", "8xh100-sxm", tp=4, batch=200)
    told = {c.code: c for c in counterfactuals(priced)}
    assert told["wider"].fits
    assert not told["narrower"].fits
    assert "does not fit in memory" in told["narrower"].note
    large = commtax.bill("llama-3.1-405b", "8xh100-sxm", tp=4, batch=64)
    assert not any(c.fits for c in counterfactuals(large) if c.code in ("narrower", "wider"))
    assert "would be" not in verdict(large, counterfactuals(large))
    bills = [commtax.bill("llama-3.1-8b", "8xh100-sxm", engine=engine, eager=True) for engine in ("textbook", "vllm")]
    notes = {str(note) for bill in bills for note in bill.notes}
    assert not any("launches without graphs take 0 s" in note for note in notes)


LAYOUTS = {"data": {"dp": 8, "ep": 8}, "tensor": {"tp": 8}}


@pytest.mark.parametrize(("batch", "says"), [(1, "without data-parallel attention (tp 8, dp 1) the step takes"), (64, "")])
def test_the_other_layout_of_attention_is_the_step_of_as_many_requests(batch, says):
    """DeepSeek-V3 on eight H200: at one request per rank each rank reads all attention weights for a row; at 64 that pays. The
    sentence names the other layout where the step is much shorter and requests are answered no later."""
    q = {"model": "deepseek-v3", "cluster": "8xh200-sxm", "engine": "sglang"}
    data = commtax.bill(**q, dp=8, ep=8, batch=batch)
    tensor = commtax.bill(**q, tp=8, batch=8 * batch)
    there, back = ({c.code: c for c in counterfactuals(b)} for b in (data, tensor))
    assert there["tensor-attention"].step_s == pytest.approx(float(tensor.step_s))
    assert back["data-attention"].step_s == pytest.approx(float(data.step_s))
    assert says in sentence(data)
    assert ("without data-parallel attention" in sentence(data)) == (float(tensor.step_s) < 0.8 * float(data.step_s)) == bool(says)
    load = {"concurrency": 8 * batch, "input_len": int(data.question.context), "output_len": 128}
    rate = {name: float(commtax.simulate(**q, **sizes, **load).requests_per_s) for name, sizes in LAYOUTS.items()}
    shorter = float(data.step_s) < 0.8 * float(tensor.step_s) and rate["data"] >= rate["tensor"]
    assert ("with data-parallel attention" in sentence(tensor)) == shorter


def test_other_layouts_of_attention_are_of_mixtures_alone():
    codes = {c.code for c in counterfactuals(commtax.bill("llama-3.1-70b", "8xh100-sxm", tp=8, batch=64))}
    assert codes.isdisjoint({"tensor-attention", "data-attention"})
    one = ("deepseek-v3", "-c", "8xh200-sxm", "-e", "sglang", "--concurrency", "1")
    data, tensor = (run_here("simulate", *one, *plan).stdout.splitlines() for plan in (("-dp", "8", "-ep", "8"), ("-tp", "8")))
    best = tensor[0].split(" (")[0]
    assert data[1].startswith(f"Without data-parallel attention (tp 8, dp 1) the same clients have {best} (-")
    assert not any("parallel attention" in line for line in tensor)


EXACT = 1e-9
SERVERS = ("vllm", "sglang", "trtllm", "torch", "fused", "textbook", "vllm@0.11", "vllm-rocm", "trtllm-mlperf", "gpt-fast")
TRAINERS = ("megatron", "megatron-bridge", "fsdp", "torchtitan", "deepspeed", "llm-foundry", "megatron-2021", "deepseek")
sizes = st.sampled_from((1, 1, 2, 4, 8))


def check(bill):
    """Every line's parts add up to its seconds, and every effect says what it is."""
    for one in every_why(bill):
        e = one.explanation
        assert math.isclose(one.explained_s, one.exposed_s, rel_tol=EXACT, abs_tol=EXACT * one.total_s), one.line
        assert math.isclose(sum(p.seconds for p in e.parts), one.each_s, rel_tol=EXACT), one.line
        assert all(p.what for p in e.parts), one.line
        assert all(x.mechanism and x.on and math.isfinite(x.value) for x in e.effects), (one.line, e.effects)
        assert one.range.reasons, one.line
        assert one.range.low_s <= one.exposed_s <= one.range.high_s
        if one.kind in ("compute", "comm"):
            assert e.priced_by
            assert e.priced_by.equation
            assert e.priced_by.constants
            assert e.priced_by.kind
        if one.kind == "compute":
            assert e.floor
            assert e.floor.seconds >= 0
            assert e.shape or not e.flops


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_parts_of_served_lines_add_up(data):
    model = data.draw(st.sampled_from(catalog.keys("models")))
    asked = {
        "engine": catalog.engine(data.draw(st.sampled_from(SERVERS))).but(fp8_rate=data.draw(st.sampled_from((1.0, 0.7, 1.4)))),
        "tp": data.draw(sizes), "pp": data.draw(st.sampled_from((1, 1, 2, 3))),
        "phase": data.draw(st.sampled_from(("decode", "prefill", "mixed"))), "batch": data.draw(st.integers(1, 512)),
        "context": data.draw(st.integers(1, 16384)), "eager": data.draw(st.booleans()),
        "slow_rank": data.draw(st.sampled_from((1.0, 1.3))), "overlap": data.draw(st.sampled_from((0.0, 0.4))),
        "kv_dtype": data.draw(st.sampled_from(("", "fp8"))), "dtype": data.draw(st.sampled_from(("", "", "fp8"))),
    }  # fmt: skip
    if catalog.model(model).experts:
        asked |= {"dp": data.draw(st.sampled_from((1, 2))), "ep": data.draw(st.sampled_from((1, -1)))}
    try:
        bill = commtax.bill(model, data.draw(st.sampled_from(DATA["places"])), **asked)
    except ValueError:
        return
    check(bill)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_parts_of_trained_lines_add_up(data):
    asked = {
        "engine": data.draw(st.sampled_from(TRAINERS)), "tp": data.draw(sizes), "pp": data.draw(st.sampled_from((1, 1, 2, 4))),
        "dp": data.draw(st.sampled_from((1, 2, 4))), "batch": data.draw(st.sampled_from((4, 8))),
        "context": data.draw(st.sampled_from((512, 4096))),
        "recompute": data.draw(st.sampled_from(("none", "selective", "full"))),
        "dtype": data.draw(st.sampled_from(("bf16", "bf16", "fp8"))), "eager": data.draw(st.booleans()),
        "slow_rank": data.draw(st.sampled_from((1.0, 1.3))), "sequence_parallel": True,
    }  # fmt: skip
    model = data.draw(st.sampled_from(catalog.keys("models")))
    if catalog.model(model).experts:
        asked["ep"] = data.draw(st.sampled_from((1, 2)))
    try:
        bill = commtax.train_bill(model, data.draw(st.sampled_from(("4x8xh100-sxm", "8x8xb200-sxm", "4x8xa100-80-sxm"))), **asked)
    except ValueError:
        return
    check(bill)


def test_effects_and_terms_explain_all_seconds():
    """A factor that pricing multiplies stands in the explanation, with its mechanism and its value."""
    engine = catalog.engine("vllm").but(fp8_rate=1.1)
    bill = commtax.bill("llama-3.1-8b", "8xh100-sxm", tp=2, batch=64, dtype="fp8", engine=engine)
    effects = {e.name: e for e in why(bill, "feed-forward down").explanation.effects}
    assert effects["fp8_rate"].value == 1.1
    assert "step.clock" in effects
    # What a kernel's seconds come from: all of them, and to the last digit.
    bill = commtax.bill("deepseek-r1", "8xh200-sxm", tp=8, batch=64)
    t = terms_of(bill.question)
    for line in bill.items:
        if line.kind == "compute":
            kernel = dataclasses.replace(line.priced_from, fused=0.0)
            found = terms(kernel, t.cluster.chip, t.constants, 0.9)
            assert {term.name for term in found} <= {"memory", "arithmetic", *SECONDS, *RATES}
            assert all(term.alone_s >= (term.fixed_s + term.moving_s) * (1 - EXACT) for term in found if term.name != "arithmetic")


def test_constants_that_are_seconds_or_multiplied_are_those_of_the_physics():
    """A new constant of a form is a share, a size, or one of the seconds and rates that a time is split by."""
    kinds = {name: row.get("kind", "") for name, row in table("catalog/physics.toml")["kernel"].items()}
    timed = {name for name, kind in kinds.items() if kind.startswith(("seconds", "bytes a second"))}
    assert timed == {*SECONDS, *RATES, *DAMPED}
    # A number of ``KernelHabits`` that is multiplied onto kernels cannot be added without one.
    plain = catalog.engine("torch")
    flags = {"head_norm_kernels"}  # launches that its source code has, not fitted
    for field in dataclasses.fields(KernelHabits):
        if isinstance(field.default, float | int) and not isinstance(field.default, bool) and field.name not in flags:
            assert mechanism(field.name).kind in ("effect", "kernel"), field.name  # the latter timed by themselves
            assert engine_number(plain, field.name) is not None
    assert {m.kind for m in mechanisms().values()} <= set(KINDS)


@each("form", [*FORMS, *CHIP_FORMS])
def test_every_form_states_its_equation(form):
    assert equation(form).startswith("t = ")


def test_lines_are_named_by_number_or_part_and_no_two_alike():
    names = ["norms", "feed-forward down", "feed-forward up", "norms backward"]
    assert [line_number(names, text) for text in ("1", " DOWN ", "norms", "Backward", "4")] == [0, 1, 0, 3, 3]
    for text in ("feed", "0", "5", "nothing", ""):
        with pytest.raises(ValueError, match="feed-forward down"):
            line_number(names, text)
    names = labels(commtax.bill("gemma-3-27b", "8xh100-sxm", tp=2, context=8192))
    assert len(set(names)) == len(names)
    assert {"decode attention", "decode attention in the window"} <= set(names)
    words = ("bill", "deepseek-v4-flash", "-c", "8xh200", "-tp", "8", "--context", "8192")
    names = labels(commtax.bill("deepseek-v4-flash", "8xh200", tp=8, context=8192))
    assert len(set(names)) == len(names)
    assert {"decode attention (1)", "decode attention (2)"} <= set(names)
    assert "decode attention (2)" in run_here(*words).stdout


def test_the_command_explains_lines_of_steps_and_of_training():
    words = ("bill", "llama-3.1-8b", "-c", "8xh100-sxm", "-tp", "8")
    done = run_here(*words, "--why", "attention output", "--details")
    assert done.returncode == 0
    for text in ("custom one-shot", "window: none", "latency", "80% range", "bandwidth_Bps"):
        assert text in done.stdout
    document = json.loads(run_here(*words, "--why", "2", "--json").stdout)
    assert document["schema"] == "commtax.why/1"
    assert math.isclose(sum(p["seconds"] for p in document["parts"]), document["each_s"], rel_tol=EXACT)
    assert document["total_flops"] == pytest.approx(document["flops"] * document["times"])
    for text, rule in (("feed", "4 lines have this in their name"), ("nix", "no line has this name or number")):
        refused = run_here(*words, "--why", text)
        assert refused.returncode == 2
        assert rule in refused.stderr
        assert "feed-forward down" in refused.stderr
    assert run_here(*words, "--why", "norms", "--exact").returncode == 2
    words = ("bill", "llama-3.1-70b", "-c", "4x8xh100-sxm", "-tp", "8", "-dp", "4", "--phase", "train", "--batch", "8")
    document = json.loads(run_here(*words, "--why", "dp gradients", "--json").stdout)
    assert document["way"]["window"] == "backward"
    assert 0 < document["hidden_s"] < document["total_s"]
    assert math.isclose(document["times"] * sum(p["seconds"] for p in document["parts"]), document["total_s"], rel_tol=EXACT)


@pytest.mark.parametrize("batch", [1, 16, 2048])
def test_a_collective_is_bound_by_what_the_bill_says_binds_it(batch):
    asked = ("bill", "llama-3.1-8b", "-c", "8xh100-sxm", "-tp", "8", "--batch", batch)
    bill = commtax.bill("llama-3.1-8b", "8xh100-sxm", tp=8, batch=batch)
    top = max((one for one in every_why(bill) if one.kind == "comm"), key=lambda one: one.exposed_s)
    parts = {part.name: part.seconds for part in top.explanation.parts}
    assert top.bound == ("latency" if parts["latency"] > parts["wire"] else "bandwidth")
    told, because = (" ".join(run_here(*asked, *more).stdout.split()) for more in ((), ("--why", top.number)))
    assert f", {top.bound}-bound: " in told
    assert f"of the step, {top.bound}-bound " in because
    assert "bytes bind" not in because


@pytest.mark.parametrize(("model", "cluster", "words"), DATA["asked"])
def test_slopes_are_those_of_differences(model, cluster, words):
    usual = commtax.simulate(model, cluster, **words)
    engine = usual.question.engine
    for metric, slopes in usual.slopes.items():
        for name, slope in slopes.items():
            value = getattr(engine.paces if name.startswith("pace_") else engine.host, name)
            if not value:
                continue
            moved = commtax.simulate(model, cluster, **{**words, "engine": engine.but(**{name: value * 1.02})})
            found = np.log(float(getattr(moved, f"{metric}_s") / getattr(usual, f"{metric}_s"))) / np.log(1.02)
            # Slopes leave as it is how many prompts gather while they stop decoding.
            off = 0.07 if metric == "ttft" and engine.serves.prefill_first else 0.025
            assert float(slope) == pytest.approx(found, abs=off), (metric, name)


@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_explained_parts_add_up_at_any_pace(phase):
    engine = catalog.engine("vllm").but(**DATA["paced"])
    bill = commtax.bill("llama-3.1-70b", "8xh100-sxm", tp=4, phase=phase, batch=4, context=1024, engine=engine)
    for line in bill.items:
        if line.kind != "host":
            explained = (explained_kernel if line.kind == "compute" else explained_collective)(bill, line)
            assert sum(part.seconds for part in explained.parts) == pytest.approx(float(line.each_s)), line.item.what


def test_no_pace_beats_the_chip():
    names = [name for name in catalog.engine("vllm").paces.__class__.__dataclass_fields__ if name.startswith("pace_")]
    fast = catalog.engine("vllm").but(**dict.fromkeys(names, 0.01))
    for phase in ("decode", "prefill"):
        bill = commtax.bill("llama-3.1-8b", "8xh100-sxm", tp=1, phase=phase, batch=8, context=2048, engine=fast)
        kernels = sum(float(x.total_s) for x in bill.lines if x.kind == "compute")
        # Kernels may find what was just written in the chip's cache, which the step's own floor does not count.
        assert kernels >= 0.97 * float(bill.least_s(bill.question.cluster.chip.memory_Bps))
