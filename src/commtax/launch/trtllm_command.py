"""TensorRT-LLM's command: attention data parallelism keeps attention whole on each GPU, and a file has most of its settings."""

from collections.abc import Mapping
from dataclasses import replace

from commtax.files import JsonObject
from commtax.launch.flags import FlagReading, flags_of, group_attention
from commtax.launch.jobs import Address, Command, LaunchJob, above_one, model_id, server_flags
from commtax.launch.yaml_text import yaml_text

FLAGS = flags_of("trtllm")


def understand(reading: FlagReading, _loose: list[str], _env: Mapping[str, str]) -> None:
    reading.values.eager = str(reading.values.graphs).lower() in ("null", "none", "~")
    if str(reading.values.reuse).lower() == "false":
        reading.compute_prompts_whole("enable_block_reuse: false")
    if str(reading.values.mode) in ("prefill", "decode"):
        reading.values["role"] = str(reading.values.mode)
    elif reading.values.transceiver:  # prompts are computed without the overlapping scheduler
        reading.values["role"] = "prefill" if reading.values.plain_scheduler else "decode"
    if int(reading.values.dcp or 1) > 1:  # ranks that split caches are those of tp x cp
        reading.values.tp = int(reading.values.tp or 1) * int(reading.values.dcp)
    if reading.values.dp_attention:
        group_attention(reading, int(reading.values.tp or 1))


def complete(_reading: FlagReading) -> None:
    """Add nothing: its settings are complete as they stand."""


def write(job: LaunchJob) -> Command:
    args = ["trtllm-serve", model_id(job.question.model)]
    args += server_flags(job, tp=above_one(job.plan.tp * job.dp // job.plan.dcp), kv_dtype="", graphs="")
    settings: JsonObject = {"enable_attention_dp": True} if job.dp > 1 else {}
    settings |= {"cuda_graph_config": None} if job.question.what_if.eager else {}
    lora: JsonObject = {"max_lora_rank": job.plan.lora_rank, "max_loras": job.plan.max_loras}
    settings |= {"lora_config": lora} if job.plan.lora_rank else {}
    if job.hosts > 1:
        tasks = f"--ntasks-per-node {job.gpus // job.hosts}" if job.gpus % job.hosts == 0 else f"-n {job.gpus}"
        args.insert(0, f"srun -N {job.hosts} {tasks} --mpi=pmix trtllm-llmapi-launch")
        args += FLAGS.spell(gpus_per_node=job.question.cluster.gpus_per_host)
    return job.with_techniques(
        Command(args, settings=tuple(yaml_text([{**settings, **job.technique_flags.settings}]).splitlines()))
    )


def join(command: Command, role: str, _number: int, _host: str) -> Command:
    """Return a server that has either prompts or decodes."""
    alone: JsonObject = {"disable_overlap_scheduler": True} if role == "prefill" else {}  # prompts need no overlapping one
    carried: JsonObject = command.transfer.settings or {"cache_transceiver_config": {"backend": "DEFAULT"}}
    return replace(command, settings=(*command.settings, *yaml_text([{**alone, **carried}]).splitlines()))


def route(prompts: list[Address], decodes: list[Address], port: int, _wait_s: int) -> Command:
    """Return the command of what clients of two pools talk to: TensorRT-LLM's own server in front of the others."""
    lines = ["hostname: 0.0.0.0", f"port: {port}"]
    for side, at in (("context", prompts), ("generation", decodes)):
        lines += [f"{side}_servers:", f"  num_instances: {len(at)}", "  urls:", *(f'    - "{host}:{port}"' for host, port in at)]
    return Command(["trtllm-serve disaggregated"], settings=tuple(lines), settings_flag="-c")
