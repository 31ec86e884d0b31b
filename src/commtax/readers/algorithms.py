"""By which algorithm and protocol a collective kernel works, where its name tells."""

import re
from functools import lru_cache

MOST_SIGNS = 2_000
_ALGORITHMS = (  # the first that fits
    ("nvls tree", re.compile(r"nvls_?tree")),
    ("nvls", re.compile(r"nvls|multimem(?!_?(?:one|two)_?shot)|ldmc|stmc|nvlink_?sharp")),
    ("collnet", re.compile(r"coll_?net")),
    ("pat", re.compile(r"_pat(?:_|$)")),
    ("ring", re.compile(r"_ring(?:_|$)|^ring_")),
    ("tree", re.compile(r"_tree(?:_|$)")),
    ("two-shot", re.compile(r"two_?shots?|2_?stage|2_?shot")),
    ("one-shot", re.compile(r"one_?shots?|1_?stage|1_?shot|min_?latency")),
)
_PROTOCOL = re.compile(r"_(ll128|ll|simple)(?:_|$)")
_BROKEN = re.compile(r"[<(]")


@lru_cache(maxsize=65536)
def algorithm_of(name: str) -> str:
    """Algorithm and protocol of a kernel, or "" where its name tells neither.

    >>> algorithm_of("ncclDevKernel_AllReduce_Sum_bf16_RING_LL128(ncclDevKernelArgsStorage<4096ul>)")
    'ring ll128'
    >>> algorithm_of("ncclKernel_AllReduce_TREE_LL_Sum_float(x)"), algorithm_of("ncclDevKernel_AllReduce_Sum_f32_NVLS_SIMPLE(x)")
    ('tree ll', 'nvls simple')
    >>> algorithm_of("void vllm::cross_device_reduce_1stage<half, 8>(x)"), algorithm_of("ncclDevKernel_Generic(x)")
    ('one-shot', '')
    """
    text = name[:MOST_SIGNS].replace("(anonymous namespace)::", "").removeprefix("void ").strip()
    base = _BROKEN.split(text, maxsplit=1)[0].lower()
    algorithm = next((word for word, pattern in _ALGORITHMS if pattern.search(base)), "")
    protocol = _PROTOCOL.search(base) if "nccl" in base or "rccl" in base else None
    return " ".join(filter(None, (algorithm, protocol[1] if protocol else "")))
