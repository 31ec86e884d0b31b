"""What a command's flags mean in each engine: (flag values) -> fields of ``Launch``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from commtax.cost.stages import virtual_layers
from commtax.files import parse_json
from commtax.readers.launch_flags import BACKENDS, COMPUTED, FLAVOURS, KV, QUANTISED, ROLES, SCHEDULES
from commtax.readers.stage_layout import layout_of, stages
from commtax.statement import Refusal

AUTO_EP = -1  # as in api.setup: tp x dp
UNEVEN = ("first_layers", "last_layers", "embedding_counts", "loss_counts")
SERVED = (
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "gpu_memory_utilization",
    "block_size",
    "kv_cache_memory_bytes",
)
Given = dict[str, Any]


def _serving(given: Given, notes: list[str], unread: list[str]) -> Given:
    """What all serving engines have in common."""
    told: Given = {k: given[k] for k in ("model", "tp", "pp", "dp", "ep", "devices", "nnodes", "address", *SERVED) if k in given}
    told |= {k: given[k] for k in ("speculative", "concurrency", "input_len", "output_len", "gpus_per_node") if k in given}
    if told.get("max_num_batched_tokens", 1) < 1:  # chunking switched off
        told.pop("max_num_batched_tokens")
        notes.append("prompts are not cut into chunks here; the price cuts them at the engine's usual size")
    if "input_len" in told:
        told["spread"] = given.get("range_ratio", 0.0)  # drawn from (1 - r) to (1 + r) of the stated length
    method = str(given.get("quantization", "none")).lower()
    if method not in QUANTISED:
        unread.append(f"--quantization {method}")
    told["dtype"] = QUANTISED.get(method, "") or COMPUTED.get(str(given.get("compute", "")).lower(), "")
    cache = str(given.get("kv_dtype", "auto")).lower()
    if cache not in KV:
        unread.append(f"--kv-cache-dtype {cache}")
    told["kv_dtype"] = KV.get(cache, "")
    told |= {"eager": bool(given.get("eager")), "library": "nccl" if given.get("plain_nccl") else ""}
    return told


def _vllm(given: Given, notes: list[str], unread: list[str]) -> Given:
    """Experts go over tp x dp; replicas on several hosts are told by how many of them are local."""
    told = _serving(given, notes, unread)
    if given.get("expert_parallel"):
        told["ep"] = AUTO_EP
    backend = given.get("ep_backend", "")
    if backend and backend not in BACKENDS:
        unread.append(f"--all2all-backend {backend}")
    told["ep_backend"] = backend if backend in BACKENDS else ""
    if given.get("local_dp") and given.get("dp", 1) > given["local_dp"]:
        told.setdefault("nnodes", -(-given["dp"] // given["local_dp"]))
    if "kv_transfer" in given:
        told["role"] = _role(str(given["kv_transfer"]), unread)
    if "draft" in given:
        told["speculative"] = _drafted(str(given["draft"]), unread)
    return told


def _role(text: str, unread: list[str]) -> str:
    """Prompts or decoding, where a server does one of them."""
    try:
        told = parse_json(text, "kv_transfer")
        kind, role = told["kv_connector"], ROLES.get(told["kv_role"], "")
    except (ValueError, KeyError, TypeError):
        kind, role = "", ""
    if kind != "NixlConnector" or not role:
        unread.append(f"--kv-transfer-config {text}")
    return role


def _drafted(text: str, unread: list[str]) -> int | None:
    try:
        return int(parse_json(text, "draft")["num_speculative_tokens"])
    except (ValueError, KeyError, TypeError, OverflowError):
        unread.append(f"--speculative-config {text}")
        return None


def _sglang(given: Given, notes: list[str], unread: list[str]) -> Given:
    """``--tp`` counts all GPUs of a server where attention is data-parallel: dp of them groups of tp / dp."""
    told = _serving(given, notes, unread)
    told["role"] = given["role"] if given.get("role") in ("prefill", "decode") else ""
    deep = given.get("a2a") == "deepep" or given.get("deepep")
    if deep:
        mode = {"low_latency": "deepep_low_latency"}.get(given.get("deepep_mode", ""), "deepep_high_throughput")
        told |= {"ep_backend": mode, "ep": told.get("tp", 1)}
    elif given.get("a2a", "none") != "none":
        unread.append(f"--moe-a2a-backend {given['a2a']}")
    if given.get("expert_parallel"):
        told.setdefault("ep", told.get("tp", 1))
    told["eager"] = told["eager"] or str(given.get("graphs", "")).lower() == "disabled"
    if "spread" in told:
        told |= _drawn_below(told, given.get("range_ratio", 0.0), notes)
    for name, groups in (("max_num_seqs", told.get("dp", 1)), ("max_num_batched_tokens", _groups(given))):
        if name in told:  # of the whole server: every group gets its part
            told[name] = max(1, told[name] // max(1, groups))
    return _attention_dp(told, notes) if given.get("dp_attention") else told


def _drawn_below(told: Given, ratio: float, notes: list[str]) -> Given:
    """Lengths are drawn from ``ratio`` of the stated length up to all of it."""
    mean = (1 + ratio) / 2
    if ratio < 1:
        notes.append(f"lengths are drawn from {ratio:.0%} of the stated ones up to all: the mean is {mean:.0%} of them")
    lengths: Given = {name: max(1, round(told[name] * mean)) for name in ("input_len", "output_len") if name in told}
    return {**lengths, "spread": (1 - ratio) / (1 + ratio)}


def _groups(given: Given) -> int:
    return int(given.get("dp", 1)) if given.get("dp_attention") else 1


def _attention_dp(told: Given, notes: list[str]) -> Given:
    """A server whose attention runs in ``dp`` groups: our tp is what is left of it inside a group."""
    total, groups = told.get("tp", 1), told.get("dp", 1)
    if total % groups:
        raise Refusal(f"from: attention in {groups} groups does not divide the server's {total} GPUs", "from")
    if "ep" not in told and groups > 1:
        notes.append(f"experts split over all {total} GPUs are priced as experts spread over them: the same bytes and weights")
    return {**told, "tp": total // groups, "dp": groups, **({"ep": told.get("ep", total)} if groups > 1 else {})}


def _trtllm(given: Given, notes: list[str], unread: list[str]) -> Given:
    """Attention data parallelism keeps attention whole on each GPU."""
    told = _serving(given, notes, unread)
    told["eager"] = str(given.get("graphs", "")).lower() in ("null", "none", "~")
    if given.get("transceiver"):  # prompts are computed without the overlapping scheduler
        told["role"] = "prefill" if given.get("plain_scheduler") else "decode"
    if not given.get("dp_attention"):
        return told
    return _attention_dp({**told, "dp": told.get("tp", 1)}, notes)


def _world(given: Given) -> int:
    """GPUs of a torchrun job; elastic jobs (1:4) count their most hosts."""
    sizes = []
    for name, flag in (("nnodes", "--nnodes"), ("gpus_per_node", "--nproc-per-node")):
        text = str(given.get(name, "1")).split(":")[-1]
        if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < 1:
            raise Refusal(f"from: '{flag} {text}': a whole number from 1 to 2^48 is needed", "from")
        sizes.append(int(text))
    given["nnodes"], given["gpus_per_node"] = sizes
    return sizes[0] * sizes[1]


def _training(given: Given, names: Iterable[str]) -> Given:
    world = _world(given)
    told = {k: given[k] for k in ("nnodes", "gpus_per_node", *names) if k in given}
    inner = told.get("tp", 1) * told.get("pp", 1) * told.get("cp", 1)
    if world % inner:
        raise Refusal(f"from: tp x pp x cp = {inner} does not divide the {world} GPUs of --nnodes x --nproc-per-node", "from")
    return {"phase": "train", **told, "dp": world // inner}


def _chunks(given: Given, pp: int, notes: list[str]) -> int:
    """Chunks a rank, told in one of three ways; a split of layers other than the priced one is said."""
    layers, chunks = given.get("layers", 0), given.get("chunks") or 1
    if given.get("layers_a_chunk") and layers:
        chunks = max(1, layers // pp // given["layers_a_chunk"])
    told = [sum(column) for column in zip(*layout_of(given["layout"], pp), strict=True)] if "layout" in given else []
    if told:
        chunks, layers = len(stages(given["layout"])) // pp, layers or sum(told)
    elif layers and pp > 1 and any(given.get(name) for name in UNEVEN):
        first = given.get("first_layers") or (-(-layers // pp) - 1 if given.get("embedding_counts") else 0)
        last = given.get("last_layers") or (-(-layers // pp) - 1 if given.get("loss_counts") else 0)
        inner = pp - bool(first) - bool(last)
        told = [first] * bool(first) + [(layers - first - last) // max(1, inner)] * inner + [last] * bool(last)
    priced = [sum(column) for column in zip(*virtual_layers(layers, pp, chunks), strict=True)] if told else []
    if sorted(told) != sorted(priced):
        asked, ours = ("+".join(map(str, sizes)) for sizes in (told, priced))
        notes.append(f"stages of {asked} layers are asked for; priced as {ours}")
    return chunks


def _megatron(given: Given, notes: list[str], unread: list[str]) -> Given:
    """Sizes, schedule and optimiser of a Megatron-LM job; the model is told by its sizes."""
    told = _training(given, ("tp", "pp", "cp", "ep", "micro_batch", "global_batch", "context"))
    told["recompute"] = given.get("recompute") or ("selective" if given.get("selective") else "")
    told |= {"sequence_parallel": bool(given.get("sequence_parallel")), "zero": 1 if given.get("zero") else 0}
    chunks = _chunks(given, told.get("pp", 1), notes)
    if chunks > 1:
        told |= {"schedule": "interleaved", "chunks": chunks}
    if given.get("expert_tp", told.get("tp", 1)) != told.get("tp", 1):
        unread.append(f"--expert-tensor-parallel-size {given['expert_tp']}")
    told["dtype"] = "fp8" if given.get("fp8") else ""
    axes = ["dp"] * bool(given.get("overlap_dp")) + ["cp"] + ["tp"] * bool(given.get("overlap_tp"))
    told["async_axes"] = ",".join(axes)
    if "expert_width" in given:  # beside dense layers, which have a width of their own
        given["width"] = given["expert_width"]
    names = ("layers", "hidden", "heads", "kv_heads", "width", "experts", "vocab", "top_k")
    told["shape"] = tuple((name, given[name]) for name in names if name in given)
    return told


def _torchtitan(given: Given, _notes: list[str], unread: list[str]) -> Given:
    """Sizes of a torchtitan job, in tokens (from 0.5) or in sequences (before)."""
    told = _training(given, ("tp", "pp", "cp", "ep", "context", "global_batch", "stage_layers"))
    told["zero"] = 3
    copies = given.get("copies", 1)
    if copies > 1:
        told["hsdp"] = told["dp"] // copies
    length = told.get("context", 0)
    if length and given.get("micro_tokens"):
        told["micro_batch"] = given["micro_tokens"] // length
    elif given.get("local_batch"):
        told["micro_batch"] = given.get("micro_batch", 1) if told.get("pp", 1) > 1 else given["local_batch"]
        told.setdefault("global_batch", given["local_batch"] * told["dp"])
    if length and given.get("step_tokens", -1) > 0:
        told["global_batch"] = given["step_tokens"] // length
    elif told.get("micro_batch") and given.get("micro_tokens"):
        told["global_batch"] = told["micro_batch"] * given.get("flight", 1) * told["dp"]
    told["recompute"] = given.get("recompute", "")
    kind = str(given.get("pp_schedule", "1F1B")).lower()
    if kind not in SCHEDULES:
        unread.append(f"--parallelism.pipeline_parallel_schedule {given['pp_schedule']}")
    told["schedule"] = SCHEDULES.get(kind, "") if "pp_schedule" in given else ""
    if told["schedule"] == "interleaved":
        told["chunks"] = 2
    flavour = str(given.get("flavour", ""))
    name = flavour.lower() if "_" in flavour else f"{given.get('family', '')}_{flavour}".lower()
    told["model"] = FLAVOURS.get(name, "")
    if flavour and not told["model"]:
        unread.append(f"--config {flavour}")
    return told


MEANINGS: Mapping[str, Callable[[Given, list[str], list[str]], Given]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "trtllm": _trtllm,
    "megatron": _megatron,
    "torchtitan": _torchtitan,
}
