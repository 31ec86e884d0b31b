"""torchrun, which starts training jobs: its hosts and ranks, and what the jobs' own flags share."""

import re

from commtax.launch.flags import RULES, TORCHRUN, FlagReading, SaidValues
from commtax.launch.jobs import LaunchJob, above_one
from commtax.spec import Plan
from commtax.statement import Refusal


def count_ranks(reading: FlagReading) -> None:
    """Hosts and replicas of a torchrun job; elastic jobs (1:4) count their most hosts."""
    values, world = reading.values, 1
    for name, flag in (("nnodes", "--nnodes"), ("gpus_per_node", "--nproc-per-node")):
        text = str(values.get(name, "1")).split(":")[-1]
        if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < 1:
            raise Refusal(f"from: '{flag} {text}': {RULES['int']}", "from")
        values[name] = int(text)
        world *= int(text)
    inner = int(values.tp or 1) * int(values.pp or 1) * int(values.cp or 1)
    if world % inner:
        raise Refusal(f"from: tp x pp x cp = {inner} does not divide the {world} GPUs of --nnodes x --nproc-per-node", "from")
    values.dp = world // inner


def start(job: LaunchJob) -> str:
    """The words before the script."""
    per = min(job.gpus, job.question.cluster.gpus_per_host)
    if job.gpus % per:
        raise Refusal.about(emit=f"{job.gpus} GPUs do not fill hosts of {per}; torchrun starts as many ranks on each")
    start = ["torchrun", *TORCHRUN.spell(gpus_per_node=per, nnodes=above_one(job.hosts))]
    return " ".join(start + [f"--node-rank $NODE_RANK --master-addr {job.address} --master-port 29500"] * (job.hosts > 1))


def global_batch(job: LaunchJob) -> int:
    return int(job.plan.microbatches) * int(job.question.micro_batch) * int(job.plan.dp)


def further_axes(plan: Plan) -> SaidValues:
    """The axes beyond tensors, stages and replicas, where they split anything."""
    return SaidValues(cp=above_one(plan.cp), ep=above_one(plan.ep))
