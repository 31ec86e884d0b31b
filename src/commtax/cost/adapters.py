"""LoRA adapters beside a model: bytes of their slots on each rank of a server, the products that they add to a step, and the
parameters that training has left where all others are frozen.

Every linear module W (out x in) gets A (rank x in) and B (out x rank), kept for ``max_loras`` adapters at once in the type of the
activations. As vLLM lays them out (vllm/lora/layers): where the output is split (query, gate, up …) A is whole on every rank
and B is split with its module; where the input is (output and down projections) A is split and B is whole. Experts have one pair
each. Adapters of embedding and head are not counted: few have any.
"""

from collections.abc import Iterator

import numpy as np

from commtax.arrays import pick
from commtax.cost.inventory import RankTensor, Tensor, fullest_of, inventory, share, stage_params
from commtax.cost.kernel import Kernel, KernelStep
from commtax.cost.placement import expert_ranks
from commtax.records import dataclass
from commtax.spec import DTYPE_BYTES, Engine, Experts, Model, Number, Plan

SPLIT_INPUT = ("o_proj", "out_proj", "down_proj", "wo_b")  # modules whose input is split: their outputs are summed over ranks
TOGETHER = {"q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "gate_proj": "gate and up", "up_proj": "gate and up"}
"""Modules that engines pack into one product, whose adapters run in one launch; others run alone."""
SHRUNK_BYTES = 4  # of a value between the two products: fp32


@dataclass(frozen=True, slots=True)
class AdapterPair:
    """A and B of one module on one rank: inputs and outputs that it has there, and how many such matrices (experts) lie there."""

    inputs: Number
    outputs: Number
    matrices: Number = 1

    @property
    def size(self) -> Number:
        """Elements of one adapter, for each unit of its rank."""
        return self.matrices * (self.inputs + self.outputs)


def pair(tensor: Tensor, model: Model, plan: Plan, engine: Engine) -> AdapterPair:
    """Return the pair of a linear tensor as one rank holds it.

    >>> from commtax.catalog import engine, model
    >>> m = model("llama-3.1-8b")
    >>> q = next(t for t in inventory(m) if t.name.endswith("q_proj.weight"))
    >>> pair(q, m, Plan(tp=4), engine("vllm"))
    AdapterPair(inputs=4096, outputs=1024.0, matrices=1)
    """
    *stack, outputs, inputs = tensor.shape
    matrices, split = stack[0] / plan.ep if stack else 1, tensor.split
    part = 1 / expert_ranks(plan, engine).inside if split == "expert" else share(split, model, plan, engine, tensor.units)
    if tensor.name.removesuffix(".weight").endswith(SPLIT_INPUT):
        return AdapterPair(inputs * part, outputs, matrices)
    return AdapterPair(inputs, outputs * part, matrices)


def adapter_bytes(model: Model, plan: Plan, engine: Engine, rows: list[RankTensor]) -> Number:
    """Return the bytes of all slots on a rank that holds these tensors: rank x max_loras x sum of (in + out) over modules."""
    each = sum((pair(r.tensor, model, plan, engine).size * r.copies for r in rows if r.tensor.linear), start=0.0)
    return each * plan.lora_rank * plan.max_loras * DTYPE_BYTES[plan.activations_dtype]


def trained_params(model: Model, plan: Plan, engine: Engine) -> dict[str, Number]:
    """Count the parameters of the fullest stage that one rank trains, grouped as ``stage_params``: all, or those of adapters."""
    if not plan.lora_rank:
        return stage_params(model, plan, engine)
    total: dict[str, Number] = {"layers": 0.0 * plan.pp, "experts": 0.0 * plan.pp, "ends": 0.0 * plan.pp}
    layers = fullest_of(model, plan)
    for tensor in inventory(model):
        if tensor.linear and tensor.where >= 0:
            group = "experts" if tensor.split == "expert" else "layers"
            total[group] = total[group] + (plan.lora_rank * pair(tensor, model, plan, engine).size) * layers[tensor.where]
    return total


def adapter_kernels(s: KernelStep) -> list[Kernel]:
    """List two more products for each packed module: down to the adapters' rank, and back up to the module's output."""
    packed: dict[tuple[int, str], list[Tensor]] = {}
    for tensor in inventory(s.model):
        if tensor.linear and tensor.where >= 0:
            path, _, last = tensor.name.removesuffix(".weight").rpartition(".")
            packed.setdefault((tensor.where, f"{path}.{TOGETHER.get(last, last)}"), []).append(tensor)
    groups = ((group.rpartition(".")[2], tensors, s.model.layers.count(where)) for (where, group), tensors in packed.items())
    return [kernel for one in groups for kernel in _pair_kernels(s, *one)]


def _pair_kernels(s: KernelStep, group: str, tensors: list[Tensor], count: int) -> Iterator[Kernel]:
    """Yield the two products of a packed module, which read up to one adapter per active sequence."""
    pairs = [pair(t, s.model, s.plan, s.engine) for t in tensors]
    rank, size, first = s.plan.lora_rank, DTYPE_BYTES[s.plan.activations_dtype], tensors[0]
    rows, matrices, ffn = s.rows, pick(True, 1, 1), s.model.blocks[first.where].ffn
    if first.split == "expert" and isinstance(ffn, Experts):
        rows = s.rows * ffn.top_k / s.plan.ep
        matrices = np.minimum(ffn.num_experts / s.plan.ep, rows)  # experts on a rank that have any
    adapters = np.minimum(s.plan.max_loras, np.maximum(1, s.work.decode_seqs + s.work.prefill_seqs))
    slices, inputs, outputs = len(pairs), pairs[0].inputs, sum((p.outputs for p in pairs), start=0.0)
    shrunk = rows * rank * slices * SHRUNK_BYTES
    shrink = rows * inputs * size + adapters * matrices * rank * slices * inputs * size + shrunk
    expand = shrunk + adapters * matrices * rank * outputs * size + 2 * rows * outputs * size
    runs = pick(np.asarray(rows) > 0, count, 0)
    for what, n, k, nbytes in (("shrink", rank * slices, inputs, shrink), ("expand", outputs, rank, expand)):
        shape = (2 * rows * n * k, nbytes, rows, n, k, s.plan.activations_dtype, size)
        yield Kernel(f"adapters of {group}, {what}", "gemm", runs, *shape, stored="adapters", part="adapters")
