"""Which collective a kernel, a call or a piece of metadata stands for, whoever named it.

NCCL and RCCL, the engines' own one- and two-shot kernels, multimem and symmetric memory, fused all-reduce and norm, shared memory
and gloo on CPUs: the name of an operation is all that many of them leave in a trace.
"""

import re
from collections.abc import Sequence
from functools import lru_cache

from commtax.files import table
from commtax.thresholds import counts

Names = Sequence[tuple[str, str]]
COUNT = counts(__name__)
UNNAMED = "collective"  # a communication kernel whose name does not show what it does (RCCL's generic kernel)

_TABLE = table("runs/evidence/collective_names.toml")
_NAMES: Names = [(part, op) for part, op in _TABLE["names"]]
_CALLS: Names = [*_NAMES, *((part, op) for part, op in _TABLE["calls"])]
_KERNELS: Names = [(part, op) for part, op in _TABLE["kernels"]]
_NCCL, _OWN, _NOT = (re.compile("|".join(_TABLE[kind]), re.I) for kind in ("nccl", "own", "not"))
_ALGORITHMS = [(re.compile(pattern, re.I), algorithm) for pattern, algorithm in _TABLE["algorithms"]]
_CALL = re.compile(_TABLE["call"])
_MOVED, _NOT_OPERATORS = tuple(_TABLE["moved"]), tuple(_TABLE["not_operators"])


@lru_cache(maxsize=65536)
def kernel_op(name: str) -> str:
    """Return the collective that a device kernel performs, or "" for any other kernel.

    >>> kernel_op("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*, vllm::RankSignals)")
    'all-reduce'
    >>> kernel_op("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"), kernel_op("ncclDevKernel_Generic_4(x)")
    ('all-gather', 'collective')
    >>> kernel_op("void at::native::reduce_kernel<512, 1>(float)"), kernel_op("triton_red_fused_all_reduce_0")
    ('', '')
    """
    base = _function(name)
    if _NCCL.match(base):
        return _find(base, _NAMES) or ("reduce" if "_Reduce_" in base else UNNAMED)
    if _NOT.search(base) or not _OWN.search(base):
        return ""
    last = base.rsplit("::", 1)[-1]
    if op := _find(last, _KERNELS) or _find(last, _NAMES) or _find(base, _NAMES):
        return op
    if re.search(r"reduce|sum", last, re.I):
        return "all-reduce"  # one-shot, two-shot, multimem and user-buffer kernels
    return UNNAMED


@lru_cache(maxsize=65536)
def algorithm_of(name: str) -> str:
    """Return the algorithm of a communication kernel, with the protocol where its name can be trusted, or "" if not stated.

    NCCL's kernels run other variants than the one they are named after: LL says nothing there, and RING may be NVLS.

    >>> algorithm_of("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(x)"), algorithm_of("multimem_all_reduce_kernel")
    ('one-shot', 'multimem')
    >>> algorithm_of("ncclDevKernel_AllReduce_Sum_bf16_TREE_LL(x)"), algorithm_of("ncclDevKernel_AllGather_RING_LL(x)")
    ('tree', 'ring or nvls')
    >>> algorithm_of("void at::native::reduce_kernel<512, 1>(float)")
    ''
    """
    if not kernel_op(name):
        return ""
    base = _function(name)
    return next((algorithm for pattern, algorithm in _ALGORITHMS if pattern.search(base)), "")


def call_op(name: str) -> str:
    """Return the collective of a host call (``nccl:all_reduce``, ``gloo:all_gather``, ``c10d::allreduce_``) or of a metadata word.

    >>> call_op("nccl:_all_gather_base"), call_op("_reduce_scatter_base"), call_op("c10d::alltoall_base_"), call_op("wait")
    ('all-gather', 'reduce-scatter', 'all-to-all', '')
    """
    match = _CALL.match(name)
    return _find(match[1] if match else name[-COUNT.most_signs :].rsplit("::", 1)[-1], _CALLS)


def is_call(name: str) -> bool:
    """Return whether a host event is a process group's record of a collective: ``nccl:…``, ``gloo:…``."""
    return bool(_CALL.match(name))


def shared_memory_op(name: str) -> str:
    """Return the collective of a shared-memory operation on CPUs (``_C::shm_allreduce``), or "".

    >>> shared_memory_op("_C::shm_allreduce"), shared_memory_op("sgl_kernel::shm_allgather"), shared_memory_op("aten::mm")
    ('all-reduce', 'all-gather', '')
    """
    last = name.rsplit("::", 1)[-1]
    return _find(last, _CALLS) if last.startswith("shm_") else ""


@lru_cache(maxsize=65536)
def operator_op(name: str) -> str:
    """Return the collective of an operator that an engine or a library registered with torch, or "".

    >>> operator_op("vllm::all_reduce"), operator_op("symm_mem::two_shot_all_reduce_"), operator_op("_C_custom_ar::all_reduce")
    ('all-reduce', 'all-reduce', 'all-reduce')
    >>> operator_op("aten::scatter"), operator_op("vllm::unified_attention"), operator_op("_C::shm_allreduce")
    ('', '', '')
    """
    _, marks, last = name[-COUNT.most_signs :].rpartition("::")
    if not marks or " " in last or last.startswith("shm_") or name.startswith(_NOT_OPERATORS):
        return ""
    op = _find(last, _NAMES)
    return op if op in _MOVED else ""


def _find(text: str, names: Names) -> str:
    letters = re.sub(r"[^a-z0-9]", "", text.lower())
    return next((op for part, op in names if part in letters), "")


def _function(name: str) -> str:
    """Strip the return type, template arguments and parameters from a kernel's name.

    >>> _function("void (anonymous namespace)::two_shot_all_reduce_kernel<c10::BFloat16, 16>(float)")
    'two_shot_all_reduce_kernel'
    """
    text = name[: COUNT.most_signs].replace("(anonymous namespace)::", "").removeprefix("void ").strip()
    return re.split(r"[<(]", text, maxsplit=1)[0].strip()
