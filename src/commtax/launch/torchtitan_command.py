"""torchtitan's command: degrees of the plan, and the step in sequences as release 0.3.0 counts it; tokens are read too."""

import math
from collections.abc import Mapping

from commtax.cost.schedules import virtual_layers
from commtax.launch.flags import FlagReading, flags_of
from commtax.launch.jobs import Command, LaunchJob, above_one, count_ranks, global_batch, start
from commtax.spec import Model, Plan
from commtax.statement import Refusal

FLAGS = flags_of("torchtitan")


def understand(reading: FlagReading, loose: list[str], env: Mapping[str, str]) -> None:
    values = reading.values
    for name, variable, usual in (("gpus_per_node", "NGPU", "8"), ("flavour", "CONFIG", ""), ("family", "MODULE", "")):
        values.setdefault(name, env.get(variable, usual))
    for word in loose:
        name, _, kind = word.replace("_", "-").partition(":")
        values.recompute = kind if name == "activation-checkpoint" else values.recompute
    count_ranks(reading)
    values.zero = 3
    if (copies := int(values.copies or 1)) > 1:
        values.hsdp = int(values.dp) // copies
    _batches(reading)
    values.chunks = 2 if values.schedule == "interleaved" else values.chunks
    flavour = str(values.flavour)
    name = flavour if "_" in flavour else f"{values.family}_{flavour}"
    values["model"] = FLAGS.names["model"].get(name.lower(), "")
    if flavour and not values["model"]:
        reading.unread.append(f"--config {flavour}")


def _batches(reading: FlagReading) -> None:
    """Read the sequences of a microbatch and of a step, stated in sequences or (since the release 0.3.0) in tokens."""
    values, length, tokens = reading.values, int(reading.values.context or 0), int(reading.values.micro_tokens or 0)
    of_a_stage, local, dp, micro = int(values.micro_batch or 1), int(values.local_batch or 0), int(values.dp), 0
    if length and tokens:
        micro = tokens // length
    elif local:
        micro = of_a_stage if int(values.pp or 1) > 1 else local
        values.global_batch = local * dp if values.global_batch == "" else values.global_batch
    if length and int(values.step_tokens or 0) > 0:
        values.global_batch = int(values.step_tokens or 0) // length
    elif tokens and micro:
        values.global_batch = micro * int(values.flight or 1) * dp
    values.micro_batch = micro if local or (length and tokens) else ""


def write(job: LaunchJob) -> Command:
    plan, q, kind = job.plan, job.question, FLAGS.theirs("schedule", job.plan.schedule)
    if not kind:
        raise Refusal.of(f"torchtitan has no schedule {plan.schedule}", emit="torchrun")
    if plan.zero != 3:
        raise Refusal.of(f"torchtitan shards with FSDP (zero 3), not {plan.zero}", emit="torchrun")
    flavour, shards = FLAGS.theirs("model", q.model.key), int(plan.num_shards)
    flags = FLAGS.spell(family=flavour.rsplit("_", 1)[0] or "$MODULE", flavour=flavour or "$CONFIG")
    flags += FLAGS.spell(tp=above_one(plan.tp), pp=above_one(plan.pp), cp=above_one(plan.cp), ep=above_one(plan.ep))
    flags += FLAGS.spell(shards=shards, copies=above_one(int(plan.dp) // shards))
    local = micro = int(q.micro_batch)
    if plan.pp > 1:  # stages cut the batch of a rank into microbatches: all of them are in flight
        local *= int(plan.microbatches)
        flags += [*FLAGS.spell(schedule=kind, micro_batch=micro), "--training.disable_cuda_graphs"]  # refused beside stages
        flags += _stages(q.model, plan) if plan.chunks > 2 else []  # two are its own choice
    flags += FLAGS.spell(context=int(q.context), local_batch=local, global_batch=global_batch(job))
    warning = "# float8 is switched on in the configuration, not here" if "fp8" in plan.weights_dtype else ""
    return Command([start(job), "-m torchtitan.train", *flags, f"activation-checkpoint:{plan.recompute}"], warning=warning)


def _stages(model: Model, plan: Plan) -> list[str]:
    """torchtitan cuts stages of equal depth, with fewer layers on the first and the last."""
    layout = virtual_layers(model.num_layers, int(plan.pp), plan.chunks)
    each = max(map(max, layout))
    less = {"first": each - layout[0][0], "last": each - layout[-1][-1]}
    if math.ceil((model.num_layers + sum(less.values())) / each) != int(plan.pp) * plan.chunks:
        rule = f"torchtitan cuts {model.num_layers} layers on pp={int(plan.pp)} into 2 chunks, not {plan.chunks}"
        raise Refusal.of(rule, emit="torchrun")
    ends = [f"--parallelism.pipeline_parallel_{end}_stage_less_layers {count}" for end, count in less.items()]
    return [*FLAGS.spell(stage_layers=each), *ends]
