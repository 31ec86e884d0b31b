"""All options in one table, and the kinds of values they take; each verb says which of them it has."""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from commtax.cost.schedules import DEFAULT, TRAINING
from commtax.files import Document, table
from commtax.question import CONFIDENCE, INPUT_LEN, OUTPUT_LEN, SEQUENCE_LEN, SPREAD
from commtax.spec import OVERLAPPED, PARALLEL, SIZES
from commtax.statement import Refusal
from commtax.units import parse_bytes, parse_count, parse_fraction, parse_seconds
from commtax.verbs.asking import AUTO_EP
from commtax.verbs.confidence import confidence_of, margin_of

Command = Callable[..., None]
Given = dict[str, Any]
"""Options of a command line by name, as click has read them."""
MAX_VALUES = 1_024
"""Values of one option that are shown."""


class About(Enum):
    """What a verb's orders ask about."""

    STEP = "one step"
    STEPS = "steps beside each other"
    SERVER = "what a server holds"
    LOOP = "requests of a closed loop"
    SEARCH = "the best plan"

    @property
    def whole(self) -> bool:
        """Serving as a whole, and not a step of it."""
        return self in (About.SERVER, About.SEARCH)

    @property
    def several(self) -> bool:
        """All servers that share the requests, and not one of them."""
        return self in (About.LOOP, About.SEARCH)


class Kind(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A kind of values: what help calls it, and what reads one from a text or a default, told the option's name."""

    def __init__(self, name: str, read: Callable[[Any, str], Any]) -> None:
        self.name, self.read = name, read

    def convert(self, value: Any, param: click.Parameter | None, _ctx: click.Context | None) -> Any:
        return self.read(value, param.name if param and param.name else "value")


def _at_least_1(value: Any, name: str, other: str = "") -> int:
    """A whole number that is at least 1 where somebody gives it."""
    count = parse_count(value, name)
    if count < 1 and isinstance(value, str):
        raise Refusal(f"{name}={count}: a whole number of at least 1 is needed{other}")
    return count


def _ep(value: Any, name: str) -> int:
    """With ``auto`` the engine's own choice."""
    return AUTO_EP if value == "auto" else _at_least_1(value, name, ", or auto")


def _binary(value: Any, name: str) -> float:
    """A bare K, M or G is a power of two, as nccl-tests reads it."""
    return parse_bytes(f"{value}iB" if isinstance(value, str) and value[-1:] in "KMGT" else value, name)


def _counts(value: Any, name: str) -> list[int]:
    return [parse_count(part, name) for part in str(value).split(",")]


def _rates(value: Any, name: str) -> tuple[float, ...]:
    """Requests a second, several by commas; none where nothing is said."""
    try:
        return tuple(float(part) for part in value.split(",") if value)
    except ValueError:
        raise Refusal(f"{name} '{value}': numbers of requests a second are needed, such as 2,6", name) from None


def _shown(value: Any, name: str) -> Any:
    """A whole number, or several: ``1,8,64``."""
    num_values = str(value).count(",") + 1
    if num_values > MAX_VALUES:
        raise Refusal(f"{name}: {num_values:,} values, more than the {MAX_VALUES:,} that are shown", name)
    counts = _counts(value, name)
    return counts[0] if len(counts) == 1 else np.array(counts)


def _length(value: Any, name: str) -> Any:
    """A whole number, or a distribution, which is read where it is drawn from."""
    text = str(value).strip()
    return parse_count(value, name) if text[:1].isdigit() or text[:1] in "+-." else text


def _number(value: Any, name: str) -> float:
    """A number; ``inf`` is one."""
    try:
        return float(value)
    except ValueError:
        raise Refusal(f"{name}: '{str(value)[:40]}' is not a number", name) from None


class Option(NamedTuple):
    """One option: the group that help lists it in, its kind (a text is named by what it holds), its default and its help."""

    group: str
    kind: Any
    default: Any
    help: str
    flags: Sequence[str] = ()  # where they are not its name with dashes
    multiple: bool = False
    required: bool = False
    metavar: str | None = None  # where its kind's own name says too little

    def on(self, name: str) -> Callable[[Command], Command]:
        """The option as click has it."""
        flags = self.flags or (f"--{name.replace('_', '-')}",)
        if self.kind is bool:
            return click.option(*flags, name, is_flag=True, default=self.default, help=self.help)
        kind, metavar = (None, self.kind) if isinstance(self.kind, str) else (self.kind, self.metavar)
        given: Given = {"required": True} if self.required else {"default": self.default, "multiple": self.multiple}
        return click.option(*flags, name, type=kind, metavar=metavar, help=self.help, **given)


GROUPS = ("Where", "Plan", "Step", "Requests", "Limits", "Serving", "Training", "Output")
TIMES = {"ttft": "time to the first token", "itl": "time between tokens", "tpot": "time an output token", "e2e": "whole request"}
SLO = {"mean": "Mean {}, at most.", **{f"p{n}": f"{n} % of requests: {{}}, at most." for n in (50, 90, 95, 99)}}
"""Limits of requests in time: ``--p95-ttft 1s``."""
ENGINES = "vllm (default), sglang, trtllm, torch, builtin, textbook; to train megatron (default), fsdp, torchtitan, deepspeed."
BACKENDS = "allgather_reducescatter, deepep_high_throughput, deepep_low_latency; to train all_to_all, deepep."
IMBALANCE = "Tokens of the busiest expert rank over the mean.  [default: as routers were measured; training 1]"
LIBRARIES = "Another library's collectives: nccl, vllm, sglang, trtllm, quickreduce-int4 …, gloo, textbook."
ORDERS = f"{', '.join(TRAINING[:-1])} or {TRAINING[-1]}."
BESIDE = f"Axes whose collectives run beside compute, {','.join(OVERLAPPED)} or none.  [default: the engine's]"
PROMPT, OUTPUT = ("--input-len", "--context", "--random-input-len"), ("--output-len", "--osl", "--random-output-len")
COUNT, SHARE, TIME = Kind("N", parse_count), Kind("F", parse_fraction), Kind("TIME", parse_seconds)
SURE, MARGIN = Kind("80%", confidence_of), Kind("5%", margin_of)
LENGTH, NUMBER = Kind("N|DIST", _length), Kind("F", _number)
BYTES, BINARY = Kind("SIZE", parse_bytes), Kind("SIZE", _binary)
OPTIONS: Mapping[str, Option] = {
    "cluster": Option(
        "Where", "TEXT", "", "A host by name, 8xh100-sxm, 2x8xh100-sxm for two hosts, or your own FILE.toml.", ("--cluster", "-c")
    ),
    "intra": Option("Where", "LINK", "", "Another link inside a host."),
    "inter": Option("Where", "LINK", "", "Another fabric between hosts."),
    "nics": Option("Where", COUNT, None, "NICs per host."),
    "engine": Option("Where", "NAME", "", ENGINES, ("--engine", "-e")),
    "read_as": Option("Where", "FAMILY", "", "An unknown architecture's config, read as a family's: llama, qwen3moe …", ("--as",)),
    "pasted": Option(
        "Where", "COMMAND|FILE", "", "vllm serve … -tp 8, torchrun …; FILE: shell, Kubernetes, compose or Helm YAML.", ("--from",)
    ),
    "topo": Option("Where", "FILE", "", "nvidia-smi topo -m: which GPUs to take, and the link they have."),
    "profile": Option("Where", "FILE", "", "A machine's own constants (commtax calibrate, commtax measure calibrate)."),
    **{axis.name: Option("Plan", Kind("N", _ep) if axis.name == "ep" else COUNT, 1, axis.help) for axis in PARALLEL.values()},
    "sequence_parallel": Option("Plan", bool, False, "Reduce-scatter and all-gather instead of all-reduce."),
    "dtype": Option("Plan", "TYPE", "", "Weights in another type: bf16, fp8, int4, nvfp4 …"),
    "kv_dtype": Option("Plan", "TYPE", "", "KV cache type: auto, bf16, fp8."),
    "lora_rank": Option("Plan", COUNT, 0, "LoRA adapters of this rank are served beside the model, or alone trained."),
    "max_loras": Option("Plan", COUNT, 1, "… and so many of them at once.  [default: 1]"),
    "redundant_experts": Option("Plan", COUNT, 0, "Copies of popular experts beside the model's own (EPLB), over all ranks."),
    "replicas": Option("Plan", COUNT, 1, "Servers of their own beside each other."),
    "plans": Option("Plan", "PLANS", "", "Plans side by side: tp1,tp8,tp8pp2,tp4dp2 (instead of --over)."),
    "links": Option("Plan", "LINKS", "", "With --plans: on each of these links, nvlink4,pcie5,10gbe."),
    "phase": Option("Step", "PHASE", "decode", "decode (default), prefill, mixed or train."),
    "batch": Option("Step", COUNT, None, "Sequences in the step, per replica.  [default: 1]"),
    "context": Option(
        "Step", COUNT, None, f"Cached tokens, prompt or sequence length.  [default: {INPUT_LEN}, training {SEQUENCE_LEN}]"
    ),
    "images": Option("Step", COUNT, 0, "Pictures of every prompt; their tokens are part of its length."),
    "image_size": Option("Step", "WxH", "1024x1024", "… and their size in pixels.  [default: 1024x1024]"),
    "tower": Option("Plan", "MODE", "weights", "Vision tower: tp cuts its weights or data.", ("--mm-encoder-tp-mode",)),
    "speculative": Option("Step", COUNT, 0, "Drafted tokens per sequence: k + 1 rows are verified."),
    "eager": Option("Step", bool, False, "Without CUDA graphs: no padding, every kernel launched."),
    "ep_backend": Option("Step", "NAME", "", BACKENDS),
    "imbalance": Option("Step", float, None, IMBALANCE),
    "sampling": Option("Step", "NAME", "greedy", "greedy (default), or top-p: among the most likely tokens."),
    "slow_rank": Option("Step", float, 1.0, "The slowest rank's compute over the others': all wait for it."),
    "overlap": Option("Step", SHARE, 0.0, "What-if: this share of communication hides behind compute."),
    "library": Option("Step", "NAME", "", LIBRARIES),
    "over": Option("Step", "AXIS=VALUES", None, "batch=1:256, tp=1,2,4,8, link=nvlink4,10gbe … (twice for a grid).", multiple=True),
    "batches": Option("Step", "N[,N…]", "", "With --plans: sequences over all replicas.  [default: --batch]"),
    "exact": Option("Step", bool, False, "Only what is sent, in bytes and counts."),
    "ranks": Option("Step", COUNT, 0, "GPUs that take part.  [default: all]"),
    "size": Option("Step", BINARY, "1G", "Tensor size; 1G is 2^30, as in nccl-tests.  [default: 1G]"),
    "measured": Option("Step", "BUSBW|TIME|FILE", "", "166GB/s, 25us, or an nccl-tests output: pass or fail."),
    "max_model_len": Option("Serving", COUNT, None, "Longest request, 128k or 131072.  [default: the model's]"),
    "max_num_seqs": Option("Serving", COUNT, None, "Requests that run at once.  [default: the engine's]"),
    "max_num_batched_tokens": Option("Serving", COUNT, None, "Tokens a step.  [default: the engine's]"),
    "gpu_memory_utilization": Option("Serving", SHARE, None, "Share of memory it may use.  [default: the engine's]"),
    "block_size": Option("Serving", COUNT, None, "Tokens a KV block."),
    "kv_cache_memory_bytes": Option("Serving", BYTES, 0.0, "A fixed KV cache per rank, such as 1GiB."),
    "recurrent_dtype": Option(
        "Serving", "TYPE", "", "Recurrent states: auto, fp32, bf16.", ("--state-dtype", "--mamba-ssm-cache-dtype")
    ),
    "state_slots": Option("Serving", COUNT, None, "States of a layer a request: 1 without prefix caching."),
    "concurrency": Option("Requests", Kind("N[,N…]", _shown), 1, "Clients: 32, or 1,8,64.", ("--concurrency", "--max-concurrency")),
    "request_rate": Option("Requests", NUMBER, None, "Requests a second, over all replicas; inf: all at once."),
    "trace": Option("Requests", "FILE", None, "Requests as they came: our CSV, Azure's, Mooncake's, vllm bench --save-detailed."),
    "duration": Option("Requests", "TIME", None, "Those that arrive within it, instead of --num-prompts: 60s."),
    "burstiness": Option("Requests", NUMBER, None, "1 (default) Poisson, less in bursts, inf evenly spaced."),
    "unique_prompts": Option("Requests", COUNT, None, "So many prompts come again and again, and are found in the cache."),
    "shared_prefix": Option("Requests", COUNT, None, "Tokens that all prompts begin with."),
    "prefix_cache": Option("Requests", SHARE, None, "Share of a prompt that is cached.  [default: as prompts share text]"),
    "ramp_up": Option("Requests", "TIME", None, "A closed loop's clients start within this time."),
    "warmup": Option("Requests", COUNT, None, "First requests that no figure counts."),
    "router": Option("Requests", "NAME", None, "Over replicas: round-robin (default), least-loaded, prefix."),
    "seed": Option("Requests", COUNT, None, "Of arrivals and lengths: the same seed, the same answer.  [default: 0]"),
    "goodput": Option("Requests", "LIMITS", None, "Limits of each request in ms: ttft:300 tpot:20 e2el:5000.", multiple=True),
    "headroom": Option("Requests", SHARE, None, "Share by which the rate may grow with all limits held, 0.2.  [default: 0]"),
    **{f"{which}_{metric}": Option("Limits", "TIME", "", SLO[which].format(TIMES[metric])) for metric in TIMES for which in SLO},
    "on": Option("Output", "ADDRESS", "", "Simulate on a Dask cluster: tcp://host:8786 (pip install 'commtax[cluster]')."),
    "sweep": Option("Requests", "OVER", None, "request-rate=1:64, request-rate=1,2,4 or concurrency=1:256."),
    "kv_tokens": Option("Serving", COUNT, None, "Tokens of a replica's KV cache, where they are known."),
    "workload": Option("Serving", "NAME", "", "Lengths of a usual workload."),
    "input_len": Option("Requests", COUNT, INPUT_LEN, f"Mean prompt length.  [default: {INPUT_LEN}]", PROMPT),
    "output_len": Option("Requests", COUNT, OUTPUT_LEN, f"Mean output length.  [default: {OUTPUT_LEN}]", OUTPUT),
    "num_prompts": Option("Requests", COUNT, None, "Requests of the whole benchmark.  [default: the steady state]"),
    "prompts_per_client": Option("Requests", COUNT, None, "The same for each client (10 is usual)."),
    "spread": Option("Requests", SHARE, None, f"Lengths vary by this share to either side; 0: lockstep.  [default: {SPREAD:g}]"),
    "ttft": Option("Requests", "TIME", "", "Mean time to the first token, at most: 500ms."),
    "tpot": Option("Requests", "TIME", "", "Mean time an output token, at most: 30ms."),
    "margin": Option("Requests", MARGIN, None, "Recommend a simpler plan that the best beats by less.  [default: 5-10%]"),
    "confidence": Option("Requests", SURE, CONFIDENCE, "Limits are kept with this probability; 50%: as predicted.  [default: 65%]"),
    "objective": Option("Serving", "WHAT", None, "throughput (default), latency, cost or gpus."),
    "disaggregated": Option("Serving", bool, False, "Prompts run on workers of their own."),
    "prefill_workers": Option("Serving", COUNT, None, "Disaggregated: how many.  [default: enough]"),
    "prefill_tp": Option("Serving", COUNT, None, "Disaggregated: their tensor-parallel size.  [default: --tp]"),
    "prefill_dp": Option("Serving", COUNT, None, "Disaggregated: their attention data parallelism.  [default: 1]"),
    "decode_workers": Option("Serving", COUNT, None, "Disaggregated: workers that decode.  [default: enough]"),
    "prefill_cluster": Option("Where", "TEXT", "", "Disaggregated: prompts run there, and decoding on --cluster."),
    "decode_cluster": Option("Where", "TEXT", "", "Another spelling of --cluster beside --prefill-cluster."),
    "max_concurrency": Option("Serving", COUNT, None, "Clients in all, at most.  [default: what caches hold, 1024 per rank]"),
    "cost_of": Option("Serving", "TOKENS", "output", "Dollars are spread over output tokens (default) or total, with input."),
    "price": Option("Serving", float, None, "Dollars per GPU-hour.  [default: the catalogue's]"),
    "micro_batch": Option("Training", COUNT, 1, "Sequences per microbatch."),
    "global_batch": Option("Training", COUNT, None, "Sequences a step over all replicas."),
    "zero": Option("Training", COUNT, None, "ZeRO stage 0-3.  [default: 0; fsdp, torchtitan, deepspeed 3]"),
    "hsdp": Option("Training", COUNT, 0, "ZeRO 3 shards over groups of this many ranks, replicas of each other."),
    "recompute": Option("Training", "KIND", "none", "none, selective, full, or modules by name: core_attn,moe."),
    "schedule": Option("Training", "KIND", DEFAULT, ORDERS),
    "chunks": Option("Training", COUNT, 1, "Chunks per rank, interleaved schedule."),
    "async_axes": Option("Training", "AXES", None, BESIDE, ("--async",)),
    "flops": Option("Training", "KIND", "full", "What MFU counts, full (all pairs) or causal."),
    "tokens": Option("Training", "N", "", "Days for this many tokens, such as 15T."),
    "measured_mfu": Option("Training", SHARE, None, "What would explain this MFU."),
    "lost_after": Option("Output", TIME, "20s", "End the run when a rank was stopped for this long.  [default: 20s]"),
    "top": Option("Output", COUNT, 10, "Plans to list, up to 1,000.  [default: 10]"),
    "emit": Option("Output", "ENGINE", "", "Also the launch command: vllm, sglang, trtllm, megatron, torchrun."),
    "why": Option("Output", "LINE", "", "Explain one line, by a part of its name or its number (the costliest is 1)."),
    "plot": Option("Output", "FILE", "", "Draw it: .svg, .png or .pdf."),
    "timeline": Option("Output", "FILE", None, "Requests in time: the engines' steps, a trace that Perfetto opens."),
    "save": Option("Output", "FILE", None, "Requests in time: a CSV of all requests, which --trace reads again."),
    "html": Option("Output", "FILE", "", "Also the page's pictures of it, in one file that needs no server."),
    "as_csv": Option("Output", bool, False, "Print CSV.", ("--csv",)),
    "as_json": Option("Output", bool, False, "Print a JSON document (versioned schema, units in the names).", ("--json",)),
}
PLACE = ("cluster", "intra", "inter", "nics")
WHERE = (*PLACE, "engine", "read_as")
POOLS = ("prefill_cluster", "decode_cluster")
PASTED = ("pasted", "topo")
AXES = (*SIZES[2:], "sequence_parallel", "dtype", "kv_dtype")
LORA = ("lora_rank", "max_loras")
COPIES = ("redundant_experts",)
LAID = (*SIZES[:2], *AXES, "replicas")
STEP = (
    "phase",
    "batch",
    "context",
    "speculative",
    "eager",
    "ep_backend",
    "imbalance",
    "sampling",
    "slow_rank",
    "overlap",
    "library",
)
PICTURES = ("images", "image_size", "tower")
LIMITS = ("max_num_batched_tokens", "max_num_seqs", "gpu_memory_utilization")
TRAINED = tuple(name for name, option in OPTIONS.items() if option.group == "Training")
KEPT = TRAINED[: TRAINED.index("async_axes")]
"""What of a training step its memory depends on."""


class Verb(click.Command):
    """A command whose help lists its options by what they are about."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {group: [] for group in GROUPS}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record:
                groups[OPTIONS[param.name].group if param.name in OPTIONS else "Output"].append(record)
        for group, records in groups.items():
            if records:
                with formatter.section(group):
                    formatter.write_dl(records)


KINDS: Given = {
    "count": COUNT,
    "counts": Kind("N,N", _counts),
    "rates": Kind("R,R", _rates),
    "some": Kind("N", _at_least_1),
    "names": Kind("NAMES", lambda value, _: [name for name in value.split(",") if name]),
    "integer": int,
    "number": float,
    "share": SHARE,
    "size": BINARY,
    "path": click.Path(path_type=Path),
    "flag": bool,
}
"""What ``options.toml`` calls the kinds of values."""
OWN = Option("Output", "TEXT", None, "")
"""What an option is that the table does not know, where ``options.toml`` says nothing of it."""


def taking(*names: str, **others: Given) -> Callable[[Command], Command]:
    """Options of the table; ``others`` says what is otherwise with some of them."""
    return _added({name: OPTIONS[name]._replace(**others.get(name, {})) for name in names})


def listed(verb: str, **others: Given) -> Callable[[Command], Command]:
    """Options as ``options.toml`` lists them for a verb; ``others`` says what only code knows of some of them."""
    options = {}
    for name, entry in _tables()[verb].items():
        usual = OWN if "kind" in entry else OPTIONS[name]
        kind = entry.get("kind", usual.kind)
        options[name] = usual._replace(**{**entry, "kind": KINDS.get(kind, kind), **others.get(name, {})})
    return _added(options)


@cache
def _tables() -> Document:
    return table("cli/options.toml")


def _added(options: Mapping[str, Option]) -> Callable[[Command], Command]:
    def add(command: Command) -> Command:
        for name, option in reversed(list(options.items())):
            command = option.on(name)(command)
        return command

    return add
