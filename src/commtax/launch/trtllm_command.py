"""TensorRT-LLM's command: attention data parallelism keeps attention whole on each GPU, and much is told in a file of settings."""

from collections.abc import Mapping
from dataclasses import replace

from commtax.launch.flags import FlagReading, flags_of
from commtax.launch.jobs import Address, Command, LaunchJob, above_one, model_id, server_flags
from commtax.launch.launch_record import group_attention

FLAGS = flags_of("trtllm")
METHOD = "TRTLLM_FORCE_COMM_METHOD"
METHODS = {
    "ALLGATHER": "allgather_reducescatter",
    "DEEPEP": "deepep_high_throughput",
    "DEEPEPLOWLATENCY": "deepep_low_latency",
    "NVLINK_ONE_SIDED": "flashinfer_nvlink_one_sided",
    "NVLINK_TWO_SIDED": "flashinfer_nvlink_two_sided",
}
"""How tokens reach experts, as that variable says it."""
HELIX = "helix"


def understand(reading: FlagReading, _loose: list[str], env: Mapping[str, str]) -> None:
    said = env.get(METHOD, "")
    if said in METHODS:
        reading.values.ep_backend = METHODS[said]
        reading.unread = [word for word in reading.unread if word != f"{METHOD}={said}"]
    reading.values.eager = str(reading.values.graphs).lower() in ("null", "none", "~")
    if str(reading.values.mode) in ("prefill", "decode"):
        reading.values["role"] = str(reading.values.mode)
    elif reading.values.transceiver:  # prompts are computed without the overlapping scheduler
        reading.values["role"] = "prefill" if reading.values.plain_scheduler else "decode"
    if int(reading.values.dcp or 1) > 1:  # ranks that split caches are tensor-parallel ranks of all other layers
        if str(reading.values.split_caches).lower() != HELIX:
            reading.unread.append(f"context_parallel_size {reading.values.dcp} without cp_type: HELIX")
            reading.values.dcp = 1
        reading.values.tp = int(reading.values.tp or 1) * int(reading.values.dcp)
    if reading.values.dp_attention:
        group_attention(reading, int(reading.values.tp or 1))


def write(job: LaunchJob) -> Command:
    args = ["trtllm-serve", model_id(job.question.model)]
    split = int(job.plan.dcp)
    args += server_flags(job, tp=above_one(job.plan.tp * job.dp // split), dcp=0, split_caches="", kv_dtype="", graphs="")
    helix = [f"context_parallel_size: {split}", f"cp_config:\n  cp_type: {HELIX.upper()}"] * (split > 1)
    settings = helix + ["enable_attention_dp: true"] * (job.dp > 1) + ["cuda_graph_config: null"] * job.question.what_if.eager
    if job.plan.lora_rank:
        settings.append(f"lora_config:\n  max_lora_rank: {job.plan.lora_rank}\n  max_loras: {job.plan.max_loras}")
    if (experts := job.question.model.experts) and job.plan.redundant:
        slots = experts.num_experts + int(job.plan.redundant)
        settings.append(f"moe_config:\n  load_balancer:\n    num_slots: {slots}\n    layer_updates_per_iter: 1")
    settings += ["kv_cache_config:\n  dtype: fp8"] * (job.plan.kv_dtype == "fp8")
    if job.hosts > 1:
        tasks = f"--ntasks-per-node {job.gpus // job.hosts}" if job.gpus % job.hosts == 0 else f"-n {job.gpus}"
        args.insert(0, f"srun -N {job.hosts} {tasks} --mpi=pmix trtllm-llmapi-launch")
        args += FLAGS.spell(gpus_per_node=job.question.cluster.gpus_per_host)
    return Command(args, settings=tuple(settings))


def join(command: Command, role: str, _number: int, _host: str) -> Command:
    """A server that has either prompts or decodes."""
    alone = ["disable_overlap_scheduler: true"] * (role == "prefill")  # prompts are computed without the overlapping scheduler
    return replace(command, settings=(*command.settings, *alone, "cache_transceiver_config:", "  backend: DEFAULT"))


def route(prompts: list[Address], decodes: list[Address]) -> list[str]:
    """What clients talk to."""
    lines = ["cat > disagg.yaml <<EOF", "hostname: 0.0.0.0", "port: 8000"]
    for side, at in (("context", prompts), ("generation", decodes)):
        lines += [f"{side}_servers:", f"  num_instances: {len(at)}", "  urls:", *(f'    - "{host}:{port}"' for host, port in at)]
    return [*lines, "EOF", "trtllm-serve disaggregated -c disagg.yaml"]
