"""``commtax plan``."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commtax import catalog
from commtax.catalog.profile import load as load_profile
from commtax.cli.emitting import emitted, show_emitted
from commtax.cli.options import Count, Fraction, json_option, profile_option, spread_option, where_options
from commtax.cli.output import carried, how_read, print_json, terminal
from commtax.cli.pages import html_option, write_plan_page
from commtax.cli.pasting import from_option, pasting_whole
from commtax.cost.serving import SPREAD
from commtax.planner import (
    WORKLOADS,
    ServingPlans,
    Standing,
    TrainPlans,
    apart_standing,
    plan,
    plan_training,
    standing,
    training_standing,
)
from commtax.planner.training import Kind
from commtax.spec import Cluster
from commtax.statement import Refusal
from commtax.units import parse_seconds

if TYPE_CHECKING:
    from commtax.readers.launch import Launch

MOST_LISTED = 1000
"""Plans that are listed at most: a table that somebody may still read."""
RUN = ("kv_dtype", "max_num_batched_tokens", "max_num_seqs", "gpu_memory_utilization")
"""What a launch command says for every plan."""
UNSEARCHED = ("eager", "library", "ep_backend", "speculative", "block_size", "kv_cache_memory_bytes")
"""What it may say and the search does not know: refused."""
SERVING, TRAINING = ("vllm", "sglang", "trtllm"), ("megatron", "torchrun")
"""What --emit writes for each phase."""


@click.command("plan")
@click.argument("model", required=False)
@where_options
@from_option
@click.option("--phase", default="serve", metavar="PHASE", help="serve (default) or train.")
@click.option("--workload", default="", metavar="NAME", help=f"Lengths of a usual workload: {', '.join(WORKLOADS)}.")
@click.option("--input-len", "--context", "input_len", type=Count(), default=None, help="Prompt tokens; training: sequence length.")
@click.option("--output-len", "--osl", "output_len", type=Count(), default=None, help="Output tokens.  [default: 128]")
@spread_option
@click.option("--ttft", default="", metavar="TIME", help="Mean time to the first token, at most: 500ms.")
@click.option("--tpot", default="", metavar="TIME", help="Mean time an output token, at most: 30ms.")
@click.option("--objective", default=None, metavar="WHAT", help="throughput (default), latency, cost or gpus.")
@click.option(
    "--disaggregated/--no-disaggregated", default=True, help="Also plans with workers of their own for prompts.  [default: yes]"
)
@click.option("--dtype", default="", metavar="TYPE[,TYPE]", help="Weights: fp8,bf16 compares both.  [default: as stored]")
@click.option("--kv-dtype", default="", metavar="TYPE", help="KV cache type: auto, bf16, fp8.")
@click.option("--max-num-batched-tokens", type=Count(), default=None, help="Tokens a step.  [default: the engine's]")
@click.option("--max-num-seqs", type=Count(), default=None, help="Requests that run at once.  [default: the engine's]")
@click.option("--gpu-memory-utilization", type=Fraction(), default=None, help="Share of memory.  [default: the engine's]")
@click.option("--max-concurrency", type=Count(), default=None, help="Clients a copy, at most.  [default: 1024]")
@click.option("--price", type=float, default=None, help="Dollars a GPU-hour.  [default: the catalogue's]")
@click.option("--global-batch", type=Count(), default=None, help="Training: sequences a step.")
@click.option("--top", type=Count(), default=10, show_default=True, help="Plans to list, up to 1,000.")
@click.option(
    "--emit", default="", metavar="ENGINE", help="Also the winner's launch command: vllm, sglang, trtllm, megatron, torchrun."
)
@click.option("--plot", default="", metavar="FILE", help="Draw the Pareto front: .svg, .png or .pdf.")
@profile_option
@html_option
@json_option
@pasting_whole
def plan_command(model: str, phase: str, top: int, plot: str, as_json: bool, **options: Any) -> None:
    """The best parallelism plan for a cluster, and why the others lost. Exit code 1: no plan is good.

    commtax plan llama-3.1-70b --cluster 2x8xh100-sxm --ttft 500ms --tpot 30ms

    commtax plan --cluster 8xh100-sxm --from "vllm serve meta-llama/Llama-3.1-70B -tp 8" --tpot 30ms
    """
    if not 1 <= top <= MOST_LISTED:
        raise Refusal(f"top={top}: from 1 to {MOST_LISTED:,} plans are listed; nearest valid: {1 if top < 1 else MOST_LISTED}")
    place = how_read(catalog.cluster(options.pop("cluster"), **{key: options.pop(key) for key in ("intra", "inter", "nics")}))
    launch = options["launch"]
    if launch and launch.phase != phase:
        raise Refusal(f"phase '{phase}': the pasted command is one to {launch.phase}", "phase")
    options["profile"] = load_profile(options["profile"]) if options["profile"] else None
    if phase == "train":
        _train(model, place, options, top, plot, as_json)
    elif phase == "serve":
        _serve(model, place, options, top, plot, as_json)
    else:
        raise Refusal(f"phase '{phase}': serve or train", "phase")


def _serve(model: str, place: Cluster, options: dict[str, Any], top: int, plot: str, as_json: bool) -> None:
    from commtax.report import planning

    if options["global_batch"] is not None:
        raise Refusal("global_batch: belongs to --phase train", "global_batch")
    given = options["input_len"], options["output_len"]
    if options["workload"] and any(x is not None for x in given):
        raise Refusal("workload: give it or lengths, not both", "workload")
    if options["workload"] and options["workload"] not in WORKLOADS:
        raise Refusal(f"workload '{options['workload']}': one of {', '.join(WORKLOADS)}", "workload")
    lengths = WORKLOADS[options["workload"]] if options["workload"] else (_or(given[0], 512), _or(given[1], 128))
    _check_emit(options["emit"], SERVING)
    if options["launch"]:
        _check_launch(options["launch"], sum(lengths))
    dtypes = tuple(options["dtype"].split(","))
    if len(dtypes) > 1 and "" in dtypes:
        raise Refusal(f"dtype '{options['dtype']}': a type is missing between the commas", "dtype")
    start = time.process_time()
    found = plan(
        model,
        place,
        input_len=lengths[0],
        output_len=lengths[1],
        ttft_s=parse_seconds(options["ttft"], "ttft") if options["ttft"] else math.inf,
        tpot_s=parse_seconds(options["tpot"], "tpot") if options["tpot"] else math.inf,
        spread=SPREAD if options["spread"] is None else options["spread"],
        objective=options["objective"] or "throughput",
        disaggregated=options["disaggregated"],
        engine=options["engine"],
        dtypes=dtypes,
        max_concurrency=_or(options["max_concurrency"], 1024),
        usd_per_gpu_hour=options["price"],
        profile=options["profile"],
        **{name: options[name] for name in RUN},
    )
    spent = time.process_time() - start
    pasted = _stands(found, options["launch"]) if options["launch"] else None
    commands = _commands(found, options["emit"]) if options["emit"] and len(found.plans) else {}
    if plot and len(found.front):
        planning.plot_front(found, Path(plot))
    elif plot:
        click.echo(f"plot: no plan is good, {plot} is not written", err=True)
    write_plan_page(options["html"], found)
    if as_json:
        print_json(planning.plans_document(found, top, pasted), **({"emit": commands} if options["emit"] else {}))
    else:
        _speed(found.candidates, spent)
        planning.show_plans(terminal(), found, top, pasted)
        show_emitted(commands)
    sys.exit(0 if len(found.plans) else 1)


def _check_launch(launch: Launch, length: int) -> None:
    """What a pasted command says is searched with, or refused: nothing that changes the answer is dropped."""
    said = {name: getattr(launch, name) for name in UNSEARCHED if getattr(launch, name)}
    if said:
        name, value = next(iter(said.items()))
        raise Refusal(f"from: the command sets {name} ({value}), and plans are searched without it; leave it out", "from")
    if launch.max_model_len and length > launch.max_model_len:
        raise Refusal(
            f"from: the command's {launch.max_model_len:,} tokens a request are fewer than input_len + output_len = {length:,}",
            "from",
        )


def _stands(found: ServingPlans, launch: Launch) -> Standing:
    """The pasted plan: groups that share experts are one copy, all others are replicas."""
    if launch.prefill_workers:
        split = (launch.tp or 1, launch.servers), (launch.prefill_tp or 1, launch.prefill_workers)
        return apart_standing(found, *split, launch.dtype, launch.concurrency or 0)
    sizes, inner = dict(launch.axes), launch.dp or 1
    if launch.engine == "vllm" and inner > 1 and found.model.experts and not launch.ep:
        sizes["ep"] = sizes["tp"] * inner  # vLLM splits experts over all of them
    shared = found.model.experts is not None and sizes["ep"] > sizes["tp"]
    plan_ = {"tp": sizes["tp"], "pp": sizes["pp"], "dp": inner if shared else 1, "ep": sizes["ep"]}
    replicas = launch.servers * (1 if shared else inner)
    return standing(found, plan_, replicas, launch.dtype, launch.concurrency or 0)


def _commands(found: ServingPlans, engine: str) -> dict[str, str]:
    """The launch of the best plan, all of its servers, and the benchmark that would check it."""
    from commtax.emit import Limits, apart_command, benchmark_command, launch_command

    rows, goal, run = found.plans, found.goal, found.run
    one, copies = found.setup(rows, 0).plan, int(rows.replicas[0])
    limits = Limits(
        max_model_len=carried().get("max_model_len", found.longest(rows, 0)),
        max_num_seqs=max(1, int(rows.running[0])),
        max_num_batched_tokens=run.max_num_batched_tokens or 0,
        gpu_memory_utilization=run.gpu_memory_utilization or 0.0,
    )
    if int(rows.mode[0]):
        workers = replace(one, tp=int(rows.prefill_tp[0])), int(rows.prefill_replicas[0])
        launch = apart_command(found.model, engine, found.cluster, workers, (one, copies), limits)
    else:
        launch = launch_command(found.model, replace(one, replicas=copies), engine, found.cluster, limits)
    bench = benchmark_command(
        found.model,
        engine,
        input_len=goal.input_len,
        output_len=goal.output_len,
        concurrency=int(rows.concurrency[0]),
        spread=goal.spread,
    )
    return {"launch": launch, "benchmark": bench}


def _or(given: int | None, usual: int) -> int:
    return usual if given is None else given


def _check_emit(engine: str, able: tuple[str, ...]) -> None:
    if engine and engine not in able:
        raise Refusal(f"emit '{engine}': one of {', '.join(able)} here", "emit")


def _speed(candidates: int, seconds: float) -> None:
    """How long it took, beside the answer: it differs from run to run."""
    rate = candidates / max(seconds, 1e-9)
    click.echo(f"{candidates:,} plans considered in {seconds:.2f} s of CPU, {rate:,.0f} a second", err=True)


def _train(model: str, place: Cluster, options: dict[str, Any], top: int, plot: str, as_json: bool) -> None:
    from commtax.report import planning

    serving = ("workload", "output_len", "spread", "ttft", "tpot", "objective", "max_concurrency", "price", *RUN)
    given = [name for name in serving if options[name] not in (None, "")] + (["plot"] if plot else [])
    if given:
        raise Refusal(f"{given[0]}: belongs to serving, not to --phase train")
    if options["global_batch"] is None:
        raise Refusal("global_batch: training needs the sequences of a step, such as --global-batch 1024", "global_batch")
    _check_emit(options["emit"], TRAINING)
    start = time.process_time()
    found = plan_training(
        model,
        place,
        global_batch=options["global_batch"],
        seq=_or(options["input_len"], 4096),
        engine=options["engine"],
        dtype=options["dtype"],
        profile=options["profile"],
    )
    spent = time.process_time() - start
    pasted = _trains(found, options["launch"]) if options["launch"] else None
    commands = emitted(found.bill(found.plans, 0), options["emit"]) if len(found.plans) else {}
    write_plan_page(options["html"], found)
    if as_json:
        print_json(planning.plans_document(found, top, pasted), **({"emit": commands} if options["emit"] else {}))
    else:
        _speed(found.candidates, spent)
        planning.show_plans(terminal(), found, top, pasted)
        show_emitted(commands)
    sys.exit(0 if len(found.plans) else 1)


def _trains(found: TrainPlans, launch: Launch) -> Standing:
    """The pasted job, with its own overlap."""
    sizes = {**launch.axes, "micro_batch": launch.micro_batch or 1}
    zero = found.engine.trains.zero if launch.zero is None else launch.zero
    kind = Kind(zero, launch.recompute or "none", launch.schedule or "1f1b", launch.chunks_of(found.model.num_layers) or 1)
    words: dict[str, Any] = {"sequence_parallel": launch.sequence_parallel or None, "hsdp": launch.hsdp or 0}
    if launch.async_axes:
        words["async_axes"] = tuple(launch.async_axes.split(","))
    return training_standing(found, sizes, kind, **words)
