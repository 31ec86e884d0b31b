"""An array's elements are what each is alone, for prices and for rules; and what a bill charges for published kernel tables."""

import gzip
import importlib
import inspect
import json
import math
import pkgutil
import typing
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import commtax.cost
from commtax import catalog
from commtax.arrays import pick
from commtax.catalog.drafters import drafter
from commtax.catalog.fabric import fabric
from commtax.catalog.hardware import carrier
from commtax.catalog.kernel_constants import kernel_constants
from commtax.cost.attention import prefill_attention
from commtax.cost.closed_form import ClosedLoopLoad, ClosedLoopMeans, Steps
from commtax.cost.collectives import Crossing, PathChoice
from commtax.cost.compute import Placing, step_kernels
from commtax.cost.forms import Table, _tile_pairs
from commtax.cost.inventory import RankTensor, Tensor, inventory
from commtax.cost.kernel import Kernel, KernelContext, KernelStep, PricingTerms
from commtax.cost.kernels import KernelFactors, least_s, seconds
from commtax.cost.network import CacheWire, DecodeStation, Flow, PromptStation, flow, nodes_to
from commtax.cost.network import QueueNetwork as Stations
from commtax.cost.placement import Span
from commtax.ledger import Item, Line
from commtax.question import WhatIf
from commtax.rules.legality import RULES, check, codes, legal_values, notes
from commtax.spec import (
    Attention,
    Block,
    Chip,
    Cluster,
    Condition,
    DeltaNet,
    Drafter,
    Engine,
    Experts,
    Fabric,
    Hyper,
    KernelConstants,
    Mamba2,
    Mixer,
    Model,
    Network,
    NetworkCurve,
    Number,
    Path,
    Plan,
    Quant,
    Techniques,
    TrainStep,
    Workload,
)
from commtax.spec.hardware import CacheCarrier
from commtax_lab.published.kernel_kinds.plain import product, with_rotating_weights
from commtax_lab.published.kernel_tables import tables_of_file
from commtax_lab.published.scoring.parts import LAWFUL, UNLIKE, _model, groups
from each import each
from paths import FIXTURES
from strategies import models
from tables import tables

DATA = tables(__file__)
N = 3
CLUSTER, ENGINE, MODEL = catalog.cluster("4x8xh100-sxm"), catalog.engine("vllm"), catalog.model("mixtral-8x7b")
NUMBERS = np.array([2, 3, 8])
TP, DP = np.array([1, 2, 8]), np.array([2, 1, 2])
WORK = Workload(np.array([1, 5, 9]), np.array([100, 700, 9000]), np.array([0, 1, 2]), np.array([0, 64, 300]), np.array([0, 0, 10]))
PLAN = Plan(tp=TP, pp=np.array([1, 2, 2]), dp=DP, ep=np.array([1, 2, 16]), microbatches=np.array([1, 4, 8]))
KERNEL = step_kernels(MODEL, PLAN, WORK, WORK.rows, ENGINE)[0]
TERMS = PricingTerms(MODEL, PLAN, CLUSTER, ENGINE, fabric("vllm", CLUSTER), kernel_constants(ENGINE, CLUSTER.chip))
STATIONS = Stations(
    NUMBERS * 10, NUMBERS * 20, 0.01,
    PromptStation(NUMBERS, NUMBERS * 0.1, 0.05, NUMBERS * 1.0), CacheWire(NUMBERS * 0.01, NUMBERS * 0.01, NUMBERS * 0.02),
    DecodeStation.of(NUMBERS, 1, 64.0, 0.01 + nodes_to(64.0) / 1000), 0.5,
)  # fmt: skip

# One sample for each type that a cost function takes; numbers inside are arrays of N.
SAMPLES = {
    Number: NUMBERS,
    Condition: NUMBERS > 2,
    float: 0.5,
    int: 2,
    str: "all-reduce",
    bool: False,
    Model: MODEL,
    Plan: PLAN,
    Workload: WORK,
    TrainStep: TrainStep(np.array([1, 2, 4]), np.array([1024, 2048, 4096])),
    Engine: ENGINE,
    Cluster: CLUSTER,
    Chip: CLUSTER.chip,
    Experts: Experts(16, 2, 128),
    Attention: Attention(32, 8, 128, 128),
    Kernel: KERNEL,
    Path: Path("all-reduce", "ring", 1e9, 1e-6, 1e-6),
    Span: Span(np.array([16, 16, 16]), np.array([8, 8, 8]), np.array([2, 2, 2])),
    PathChoice: PathChoice(NUMBERS * 1e-6, NUMBERS * 1e-6, NUMBERS * 0),
    Network: catalog.fabric("nccl", CLUSTER).network,
    Crossing: Crossing("all-reduce", NUMBERS * 1e6, NUMBERS * 8, NUMBERS * 0 + 8, NUMBERS, NUMBERS * 1e11, CLUSTER.inter),
    Fabric: fabric("vllm", CLUSTER),
    KernelConstants: kernel_constants(ENGINE, CLUSTER.chip),
    WhatIf: WhatIf(async_axes=("dp", "cp", "ep")),
    Table: kernel_constants(ENGINE, CLUSTER.chip).tables["gemm.bf16"],
    KernelFactors: KernelFactors((("step.clock", 0.9),), 1.1),
    Item: Item("sums", "tp", "all-reduce", NUMBERS * 1e6, NUMBERS, NUMBERS),
    list[Line]: [],
    PricingTerms: TERMS,
    list[Item]: [Item("sums", "tp", "all-reduce", NUMBERS * 1e5, TP, NUMBERS, part="attention", place="reduced")],
    list[Kernel]: [KERNEL],
    ClosedLoopLoad: ClosedLoopLoad(
        np.array([2, 30, 300]), np.array([100, 5000, 900]), np.array([10, 300, 20]), np.array([20, 300, 900]), np.array([0, 0.1, 0])
    ),
    Steps: Steps(np.array([1e-3, 2e-3, 9e-3]), np.array([2e-3, 3e-2, 5e-2]), np.array([1, 2, 1])),
    ClosedLoopMeans: ClosedLoopMeans(*(NUMBERS * 0.1 * (i + 1) for i in range(9))),
    CacheCarrier: carrier("mooncake"),
    Stations: STATIONS,
    Flow: flow(STATIONS),
    tuple[Path, ...]: fabric("vllm", CLUSTER).paths["all-reduce"],
    Quant | None: None,
    Mixer | None: Mamba2(16, 64, 4, 128),
    Tensor: inventory(MODEL)[-5],
    list[RankTensor]: [RankTensor(inventory(MODEL)[-5], 3, NUMBERS * 1.0, NUMBERS * 1.0)],
    DeltaNet: DeltaNet(16, 32, 128, 128, decay_rank=64),
    Mamba2: Mamba2(16, 64, 4, 128),
    Drafter: drafter("eagle3", MODEL, 3),
    Drafter | None: drafter("eagle3", MODEL, 3),
    KernelStep: KernelStep(replace(MODEL, hyper=Hyper(4)), replace(PLAN, lora_rank=16, max_loras=2), WORK, WORK.rows, ENGINE),
}
CURVE = NetworkCurve("all-reduce", (2, 8), (1024.0, 1e6), ((1.0, 1.2), (0.9, 1.1)), ((0.1, 0.2), (0.3, 0.1)), 0.1)
FUSING = replace(SAMPLES[PricingTerms], engine=catalog.engine("sglang"), techniques=Techniques(fused_reduce="auto"))
SPECIAL = {  # arguments whose type does not tell their meaning
    ("sigma_over", "curve"): CURVE,
    ("share", "split"): "kv",
    ("fuse", "t"): FUSING,
    ("runs_fused", "t"): FUSING,
    ("most_fused_bytes", "ranks"): TP,
    ("pieces_sent", "engine"): "vllm",
    ("span", "axis"): "tp",
    ("busiest_rank", "placing"): Placing(0.7, 32, True),
    ("idle_s", "schedule"): "zb-h1",
    ("recomputed_kernels", "plan"): replace(PLAN, recompute="full"),
    ("exchange_item", "place"): "dispatch",
    ("tp_item", "op"): "all-reduce",
    ("tp_item", "part"): "layers",
    ("kv_bytes_per_token_layer", "kv_dtype"): "bf16",
    ("wide_twin", "k"): replace(KERNEL, form="gemm", dtype="fp8", weight_bytes=1.0),
    ("quantised_before", "product"): replace(KERNEL, static_scales=True),
    ("rank_tensors", "stage"): 0,
    ("rank_tensors", "pp"): 1,
    ("weights", "stage"): 0,
    ("weights", "pp"): 1,
    ("draft_step", "t"): replace(TERMS, drafter=drafter("eagle3", MODEL, 3)),
    ("draft_host_s", "t"): replace(TERMS, drafter=drafter("eagle3", MODEL, 3)),
    **{(name, "work"): replace(WORK, rows_per_seq=4) for name in ("draft_passes", "draft_step", "draft_items", "draft_host_s")},
}

# Records whose numbers are arrays.
AT = {
    *("Plan", "Workload", "TrainStep", "Kernel", "Span", "PathChoice", "Crossing", "QueueNetwork", "ClosedLoopLoad", "Steps"),
    *("ClosedLoopMeans", "PromptStation", "CacheWire", "DecodeStation", "Flow", "PricingTerms", "KernelStep", "Item"),
}
SCALAR = set(DATA["scalar"])
FORMS = ("commtax.cost.forms", "commtax.cost.layer_forms")  # each takes a kernel of its own shape: tried as a step prices them


def functions():
    priced = [module.name for module in pkgutil.iter_modules(commtax.cost.__path__, "commtax.cost.")]
    for module in sorted(({*priced} - {*FORMS}) | {"commtax.rules.legality"}):
        loaded = importlib.import_module(module)
        for name, function in inspect.getmembers(loaded, inspect.isfunction):
            if function.__module__ == module and not name.startswith("_") and name not in SCALAR:
                yield pytest.param(function, id=f"{module.split('.')[-1]}.{name}")


def at(value, i):
    """One element of everything that is an array of N."""
    if isinstance(value, np.ndarray):
        return value[i].item() if value.ndim == 1 and len(value) == N else value
    if isinstance(value, list):
        return [at(x, i) for x in value]
    if is_dataclass(value) and not isinstance(value, type) and type(value).__name__ in AT:
        return replace(value, **{f.name: at(getattr(value, f.name), i) for f in fields(value)})
    return value


def flat(value):
    """All numbers in a result, in order."""
    if isinstance(value, (list, tuple, Iterator)):
        return [x for v in value for x in flat(v)]
    if isinstance(value, dict):
        return [x for v in value.values() for x in flat(v)]
    if isinstance(value, Item):  # what is not sent has no size worth comparing
        sent = np.asarray(value.count) > 0
        return [value.count, pick(sent, value.nbytes, 0), pick(sent, value.ranks, 0)]
    if isinstance(value, Line):
        return [*flat(value.item), value.total_s, value.hidden_s]
    if is_dataclass(value) and not isinstance(value, type):
        names = [f.name for f in fields(value) if f.name not in ("names", "link", "algorithm", "sources")]
        return [x for name in names for x in flat(getattr(value, name))]
    return [value] if isinstance(value, (int, float, np.ndarray, np.generic)) and not isinstance(value, bool) else []


@each("function", list(functions()))
def test_scalar_equals_array(function):
    hints = typing.get_type_hints(function)
    arguments = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.default is not parameter.empty:
            continue
        key = (function.__name__, name)
        assert key in SPECIAL or hints[name] in SAMPLES, f"no sample for {name}: {hints[name]}"
        arguments[name] = SPECIAL.get(key, SAMPLES.get(hints[name]))
    many = flat(function(**arguments))
    assert many
    for i in range(N):
        one = flat(function(**{k: at(v, i) for k, v in arguments.items()}))
        assert len(one) == len(many)
        for a, b in zip(many, one, strict=True):
            assert np.broadcast_to(a, N)[i] == pytest.approx(float(b), rel=1e-12), function.__name__


SAMPLE = FIXTURES / "kernel_shapes.json.gz"
MOST_EXPERTS, MOST_OTHERS = 0.12, 0.10
MORE = {"l40s": 0.005}  # of a sample that weighs engines alike: all of its rows are 9.8 % off
FEW = 12  # rows of a sample below which a median says little


@cache
def found():
    """Groups of the committed sample: rows of each chip, engine, kind and number format that a hash chose."""
    tables = json.loads(gzip.decompress(SAMPLE.read_bytes()))["tables"]
    return groups(table for t in tables for _, table in tables_of_file(t["name"], t["header"], t["rows"]))


def median_error(some):
    return math.expm1(float(np.median(np.abs(np.concatenate([g.errors for g in some])))))


@pytest.mark.parametrize("chip", ["a100-80-sxm", "h100-sxm", "b200-sxm", "b300-sxm", "gb200", "l40s"])
def test_experts_and_other_kernels_are_charged_what_tables_measured(chip):
    here = [g for g in found() if g.chip == chip and not g.why]
    experts, others = ([g for g in here if (g.kind == "experts") is yes] for yes in (True, False))
    assert median_error(experts) <= MOST_EXPERTS
    assert median_error(others) <= MOST_OTHERS + MORE.get(chip, 0.0)


def test_groups_of_shapes_are_within_one_and_a_half_times_or_say_why():
    by_kernel = defaultdict(list)
    for g in found():
        if not g.why:
            by_kernel[g.chip, g.engine, g.kind].append(g.errors)
    medians = {key: abs(float(np.median(np.concatenate(e)))) for key, e in by_kernel.items() if sum(map(len, e)) >= FEW}
    assert len(medians) > 60
    assert {key: math.exp(m) for key, m in medians.items() if m > math.log(LAWFUL)} == {}
    assert {g.why for g in found() if g.why} <= set(UNLIKE)
    assert all(fact["why"] for fact in UNLIKE.values())
    off = [g for g in found() if g.why == "untuned-fp8-experts"]
    assert np.median(np.concatenate([g.errors for g in off])) < -math.log(2)  # else it need not be told


@given(st.integers(1, 400), st.integers(0, 300), st.integers(0, 300), st.sampled_from((16, 64, 128)))
def test_tiles_of_a_prompt_see_every_key_that_any_of_their_queries_sees(new, past, window, tile):
    kernel = Kernel("prompt", "prefill", 1, 0.0, 0.0, length=new, past=past, shape=KernelContext(window))
    tiles = range(1, math.ceil(new / tile) + 1)
    most = [min(n * tile + past, window + tile) if window else n * tile + past for n in tiles]
    pairs = float(_tile_pairs(kernel, tile))
    assert pairs == pytest.approx(tile * sum(most))
    queries = (min(past + i + 1, window) if window else past + i + 1 for i in range(new))
    assert pairs >= sum(queries), "of whole tiles no fewer than of queries"


@pytest.mark.parametrize(
    ("framework", "mebibytes", "warm"), [("vllm", 8, 1.0), ("vllm", 32, 0.0), ("trtllm", 8, 1.0), ("trtllm", 80, 0.0)]
)
def test_tables_of_products_find_weights_in_the_cache_that_all_their_copies_fit_into(framework, mebibytes, warm):
    """vLLM's collector multiplies 6 matrices in turn, TensorRT-LLM's as many as fill the cache, at most 5: L40S holds 96 MB."""
    one = product(1.0, mebibytes * 2**9, 1024.0, "bf16", 2.0, 2.0)
    kept = with_rotating_weights(one, {"framework": framework, "written": "bfloat16"}, {"l2_bytes": np.array(96e6)}).shape.kept
    assert float(kept) / (mebibytes * 2**20) == pytest.approx(warm, abs=0.1)


@pytest.mark.parametrize("chip", ["l40s", "h100-sxm"])
def test_activations_stay_in_a_cache_where_that_was_measured_and_weights_never(chip):
    """A product of few columns whose activations fit, beside one of a wide matrix; nothing goes below what is moved."""
    here, constants = catalog.chip(chip), catalog.kernel_constants(catalog.engine("vllm"), catalog.chip(chip))
    narrow, wide = product(8192.0, 256.0, 2048.0, "bf16", 2.0, 2.0), product(16.0, 16384.0, 8192.0, "bf16", 2.0, 2.0)
    from_memory_s = narrow.nbytes / here.memory_Bps
    assert bool(sum(seconds(narrow, here, constants)) < from_memory_s) is (chip == "l40s")
    assert sum(seconds(wide, here, constants)) > wide.nbytes / here.memory_Bps
    assert all(sum(seconds(one, here, constants)) >= least_s(one, here, constants) for one in (narrow, wide))


def test_a_step_charges_the_write_of_keys_and_values_by_itself():
    """Tables of prompts time it with attention; a step has a kernel for it."""
    attention, engine = Attention(32, 8, 128, 128), catalog.engine("vllm")
    step = KernelStep(_model(Block(None, None), 4096), Plan(), Workload(0, 0, 4, 4096, 0), 4096, engine)
    assert [one.shape.written for one in prefill_attention(step, attention, 1)] == [0.0]


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


@each(("key", "cluster", "plan", "says"), DATA["rules"])
def test_rules_name_themselves_and_the_nearest_legal(key, cluster, plan, says):
    with pytest.raises(ValueError, match=says):
        check(catalog.model(key), catalog.cluster(cluster), Plan(**plan), catalog.engine("vllm"))


@each(("cluster", "plan", "larger"), DATA["larger_clusters"])
def test_the_cluster_that_is_named_has_the_gpus_of_all_replicas(cluster, plan, larger):
    model, engine, plan = catalog.model("llama-3.1-8b"), catalog.engine("vllm"), Plan(**plan)
    with pytest.raises(ValueError, match=f"at least {plan.all_gpus} GPUs, such as {larger}$"):
        check(model, catalog.cluster(cluster), plan, engine)
    check(model, catalog.cluster(larger), plan, engine)


def test_legal_values_and_notes():
    model, cluster, engine = catalog.model("llama-3.1-8b"), catalog.cluster("8xh100-sxm"), catalog.engine("vllm")
    assert legal_values("tp", model, cluster, Plan(), engine) == [1, 2, 4, 8]
    assert legal_values("tp", model, cluster, Plan(pp=4), engine) == [1, 2]
    assert legal_values("pp", model, cluster, Plan(tp=2), engine) == [1, 2, 3, 4]
    model = catalog.model("llama-3.1-70b")
    found = " ".join(notes(model, catalog.cluster("4x8xh100-sxm"), Plan(tp=16, pp=1), VLLM))
    assert "KV heads replicated: 8 heads over tp 16, 2 copies" in found
    assert "16 of 32 GPUs idle" in found
    assert "uneven pipeline: 80 layers as 27+27+26" in " ".join(notes(model, catalog.cluster("3xh100-sxm"), Plan(pp=3), VLLM))
    assert "latent KV is whole" in " ".join(notes(catalog.model("deepseek-v3"), catalog.cluster("8xh200-sxm"), Plan(tp=8), VLLM))
