"""Every public function of ``cost`` gives an array's elements what it gives them alone: found by introspection."""

import importlib
import inspect
import pkgutil
import typing
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace

import numpy as np
import pytest

import commtax.cost
from commtax import catalog
from commtax.arrays import pick
from commtax.catalog.drafters import drafter
from commtax.catalog.fabric import fabric
from commtax.catalog.hardware import carrier
from commtax.catalog.kernel_constants import kernel_constants
from commtax.cost.closed_form import ClosedLoopLoad, ClosedLoopMeans, Steps
from commtax.cost.collectives import Crossing, PathChoice
from commtax.cost.compute import Placing, step_kernels
from commtax.cost.forms import Table
from commtax.cost.inventory import RankTensor, Tensor, inventory
from commtax.cost.kernel import Kernel, KernelStep, PricingTerms
from commtax.cost.kernels import KernelFactors
from commtax.cost.network import CacheWire, DecodeStation, Flow, PromptStation, flow, nodes_to
from commtax.cost.network import QueueNetwork as Stations
from commtax.cost.placement import Span
from commtax.ledger import Item, Line
from commtax.question import WhatIf
from commtax.spec import (
    Attention,
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
from each import each

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
# About one scalar thing by nature: a whole model, a stage, a name, a message.
SCALAR = {
    *("inventory", "copies", "num_params", "num_active_params", "mtp_params", "weight_bytes", "quantisation"),
    "backend_of",
    *("formats", "format_of", "spellings", "stage_layers", "total_bytes", "kv_pool", "compressed_widths"),
    *("entry_bytes", "unfinished_bytes", "default_utilization", "check_stored", "fewest_microbatches", "check"),
    *("legal_values", "notes", "tokens_per_step", "acceptance_of", "with_draft_layers"),
    *("surface", "by_pp", "power_clock", "source_of", "table_of", "kernel_source", "kernel_line"),
    *("widen_sigma", "num_launches", "choosing", "narrow_note"),
    *("flow", "nodes_to"),  # looked for as well as is asked: tests/verbs/test_disaggregated.py
    *("tower_kernels", "tower_items"),  # of a model that has one: tests/cost/test_pictures.py
    *(
        f"latent_{name}" for name in ("projections", "selector", "decode", "prefill", "attention", "training")
    ),  # tests/cost/test_latent.py
    *("projections", "head_products", "scans", "read", "choose", "visible_tokens", "prompt_sizes", "compressed_pairs"),
    # Of the lines of whole steps: tests/cost/test_overlap.py
    *(
        "expose_lines",
        "exposed",
        "either",
        "both_halves",
        "beside_same_batch",
        "beside_routed",
        "in_tiles",
        "in_flight",
        "is_halved",
        "keeps_sequences",
    ),
    *("exchange_of", "kept_sms"),
    "fused_fabric",  # of one chip: tests/cost/test_reduce_techniques.py
    *("joining_kernels", "split_cache_items", "split_prompt_items"),  # none without a split: tests/cost/test_context_parallel.py
    # Of one kernel or collective that is explained.
    *(
        "terms",
        "fused_by",
        "pace_of",
        "curve_of",
        "equation",
        "equation_of",
        "all_reduce_share",
        "charged_as",
        "selective_attention",
        "part_of_kind",
        "backend_called",
        "default_backend",
        "bulk_backend",
    ),
    *("comm_lines", "reason", "dispatched_bytes", "gemm", "decode_attention", "prefill_attention", "small"),
}


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
        return [
            x
            for f in fields(value)
            if f.name not in ("names", "link", "algorithm", "sources")
            for x in flat(getattr(value, f.name))
        ]
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
