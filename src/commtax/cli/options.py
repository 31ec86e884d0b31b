"""Options that commands share, and the kinds of values they take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from commtax.cost.schedules import DEFAULT, TRAINING
from commtax.question import SPREAD
from commtax.spec import OVERLAPPED, PARALLEL
from commtax.statement import Refusal
from commtax.units import parse_bytes, parse_count, parse_fraction
from commtax.verbs import AUTO_EP

Command = Callable[..., None]
Given = dict[str, Any]
"""Options of a command line by name, as click has read them."""


class Count(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A whole number as vLLM reads it (128k, 128K); with ``auto`` the engine's own choice."""

    name = "N"

    def __init__(self, auto: int | None = None) -> None:
        self.auto = auto

    def convert(self, value: Any, param: click.Parameter | None, _ctx: click.Context | None) -> int:
        if value == "auto" and self.auto is not None:
            return self.auto
        found = parse_count(value, _name(param))
        if self.auto is not None and found < 1:
            raise Refusal(f"{_name(param)}={found}: a whole number of at least 1 is needed, or auto")
        return found


class Bytes(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A size; with ``binary`` a bare K, M or G is a power of two, as nccl-tests reads it."""

    name = "SIZE"

    def __init__(self, binary: bool = False) -> None:
        self.binary = binary

    def convert(self, value: Any, param: click.Parameter | None, _ctx: click.Context | None) -> float:
        text = f"{value}iB" if self.binary and isinstance(value, str) and value[-1:] in "KMGT" else value
        return parse_bytes(text, _name(param))


class Fraction(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    name = "F"

    def convert(self, value: Any, param: click.Parameter | None, _ctx: click.Context | None) -> float:
        return parse_fraction(value, _name(param))


def _name(param: click.Parameter | None) -> str:
    return param.name if param and param.name else "value"


def together(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


json_option = click.option("--json", "as_json", is_flag=True, help="Print a JSON document (versioned schema, units in the names).")
profile_option = click.option(
    "--profile", default="", metavar="FILE", help="A machine's own constants (commtax calibrate, commtax measure calibrate)."
)
spread_option = click.option(
    "--spread",
    type=Fraction(),
    default=None,
    help=f"Lengths vary by this share of their mean to either side; 0: clients in lockstep.  [default: {SPREAD:g}]",
)
where_options = together(
    click.option("--cluster", "-c", default="", help="A host by name, 8xh100-sxm, or 2x8xh100-sxm for two hosts."),
    click.option("--intra", default="", metavar="LINK", help="Another link inside a host."),
    click.option("--inter", default="", metavar="LINK", help="Another fabric between hosts."),
    click.option("--nics", type=Count(), default=None, help="NICs a host has."),
    click.option(
        "--engine",
        "-e",
        default="",
        metavar="NAME",
        help="vllm (default), sglang, trtllm, torch, builtin, textbook; to train megatron (default), fsdp, torchtitan, deepspeed.",
    ),
)
from_option = click.option(
    "--from", "pasted", default="", metavar="COMMAND|FILE", help="A launch command: vllm serve … -tp 8, torchrun …"
)
paste_options = together(
    from_option,
    click.option("--topo", default="", metavar="FILE", help="nvidia-smi topo -m: which GPUs to take, and the link they have."),
)
axis_options = together(
    click.option("--dp", type=Count(), default=1, help="Data parallelism inside one engine (-dp)."),
    click.option("--ep", type=Count(AUTO_EP), default=1, help="Expert-parallel size (-ep alone: tp x dp, as in vLLM)."),
    *(click.option(f"--{axis.name}", type=Count(), default=1, help=axis.help) for axis in list(PARALLEL.values())[4:]),
    click.option("--sequence-parallel", is_flag=True, help="Reduce-scatter and all-gather instead of all-reduce."),
    click.option("--dtype", default="", metavar="TYPE", help="Weights in another type: bf16, fp8, int4, nvfp4 …"),
    click.option("--kv-dtype", default="", metavar="TYPE", help="KV cache type: auto, bf16, fp8."),
)
replicas_option = click.option("--replicas", type=Count(), default=1, help="Servers of their own beside each other.")
training_options = together(
    click.option("--micro-batch", type=Count(), default=1, help="Training: sequences a microbatch."),
    click.option("--global-batch", type=Count(), default=None, help="Training: sequences a step over all replicas."),
    click.option(
        "--zero", type=Count(), default=None, help="Training: ZeRO stage 0-3.  [default: 0; fsdp, torchtitan, deepspeed 3]"
    ),
    click.option(
        "--hsdp", type=Count(), default=0, help="Training: ZeRO 3 shards over groups of this many ranks, replicas of each other."
    ),
    click.option("--recompute", default="none", metavar="KIND", help="Training: none, selective or full."),
    click.option("--schedule", default=DEFAULT, metavar="KIND", help=f"Training: {', '.join(TRAINING[:-1])} or {TRAINING[-1]}."),
    click.option("--chunks", type=Count(), default=1, help="Training: chunks a rank, interleaved schedule."),
)
train_step_options = together(
    click.option(
        "--async",
        "async_axes",
        default=None,
        metavar="AXES",
        help=f"Training: axes whose collectives run beside compute, {','.join(OVERLAPPED)} or none.  [default: the engine's]",
    ),
    click.option("--imbalance", type=float, default=1.0, help="Training: tokens of the busiest expert rank over the mean."),
    click.option("--flops", default="full", metavar="KIND", help="Training: what MFU counts, full (all pairs) or causal."),
    click.option("--tokens", default="", metavar="N", help="Training: days for this many tokens, such as 15T."),
    click.option("--measured-mfu", type=Fraction(), default=None, help="Training: what would explain this MFU."),
)
step_options = together(
    click.option("--tp", type=Count(), default=1, help="Tensor-parallel size (-tp)."),
    click.option("--pp", type=Count(), default=1, help="Pipeline stages (-pp)."),
    axis_options,
    replicas_option,
    click.option("--phase", default="decode", metavar="PHASE", help="decode (default), prefill, mixed or train."),
    click.option("--batch", type=Count(), default=None, help="Sequences in the step, a replica.  [default: 1]"),
    click.option(
        "--context", type=Count(), default=None, help="Cached tokens, prompt or sequence length.  [default: 1024, training 4096]"
    ),
    click.option("--speculative", type=Count(), default=0, help="Drafted tokens a sequence: k + 1 rows are verified."),
    click.option("--eager", is_flag=True, help="Without CUDA graphs: no padding, every kernel launched."),
    click.option(
        "--ep-backend", default="", metavar="NAME", help="allgather_reducescatter, deepep_high_throughput, deepep_low_latency."
    ),
)
what_if_options = together(
    click.option("--slow-rank", type=float, default=1.0, help="The slowest rank's compute over the others': all wait for it."),
    click.option("--overlap", type=Fraction(), default=0.0, help="What-if: this share of communication hides behind compute."),
    click.option(
        "--library", default="", metavar="NAME", help="Another library's collectives: nccl, vllm, sglang, trtllm, gloo, textbook."
    ),
)
