"""The command of one server, by engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from commtax.emit.job import Job, above_one, limit_flags, model_id
from commtax.readers.launch.flags import spelled

EVERY_HOST = "# run it on every host, NODE_RANK 0, 1, …"
RANK = "--node-rank $NODE_RANK"


@dataclass(frozen=True, slots=True)
class Command:
    """Its words, the variables before them, the settings that it reads from a file, and what is said below."""

    words: list[str]
    variables: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    remark: str = ""

    def line(self, file: str) -> str:
        """The command itself."""
        return " ".join([*self.variables, *self.words, *([f"--config {file}.yaml"] if self.settings else [])])

    def written(self, file: str) -> list[str]:
        """The lines that write its settings."""
        return [f"cat > {file}.yaml <<EOF", *self.settings, "EOF"] if self.settings else []


def vllm(job: Job) -> Command:
    plan, limits = job.plan, job.limits
    words = ["vllm serve", model_id(job.model)]
    words += spelled(
        "vllm",
        tp=above_one(plan.tp),
        pp=above_one(plan.pp),
        dp=above_one(job.dp),
        expert_parallel=bool(plan.ep > 1),
        ep_backend=limits.ep_backend,
    )
    words += [*_types(job), *limit_flags("vllm", limits)]
    words += spelled("vllm", eager=limits.eager, plain_nccl=limits.library == "nccl")
    return Command(words) if job.hosts == 1 else _vllm_hosts(job, words)


def _vllm_hosts(job: Job, words: list[str]) -> Command:
    """Ranks of one replica, replicas on each host, or (replicas wider than a host) Ray over all hosts."""
    remark, ranks = f"{EVERY_HOST}; hosts above 0 add --headless", job.gpus // job.dp
    if job.dp == 1:
        return Command([*words, *spelled("vllm", nnodes=job.hosts), RANK, *spelled("vllm", address=job.address)], remark=remark)
    if ranks > job.cluster.gpus_per_host:
        ray = spelled("vllm", executor="ray", dp_executor="ray")
        span = ("VLLM_RAY_DP_PACK_STRATEGY=span",)
        return Command([*words, *ray], span, remark="# once, on the head of a Ray cluster of all hosts")
    local = job.cluster.gpus_per_host // ranks
    words += [*spelled("vllm", local_dp=local), f"--data-parallel-start-rank $((NODE_RANK*{local}))"]
    return Command([*words, f"--data-parallel-address {job.address} --data-parallel-rpc-port 13345"], remark=remark)


def sglang(job: Job) -> Command:
    plan, limits = job.plan, job.limits
    shared, deep = bool(plan.ep > plan.tp), limits.ep_backend.startswith("deepep")
    inner = job.dp if shared else 1
    words = ["python -m sglang.launch_server", *spelled("sglang", model=model_id(job.model))]
    words += spelled(
        "sglang",
        tp=above_one(plan.tp * inner),
        pp=above_one(plan.pp),
        dp=above_one(job.dp),
        dp_attention=shared,
        ep=above_one(plan.ep),
        a2a="deepep" if deep else "",
        deepep_mode="" if not deep else "low_latency" if limits.ep_backend == "deepep_low_latency" else "normal",
    )
    # These two are of the whole server: every group gets its part.
    seqs, tokens = limits.max_num_seqs * job.dp, limits.max_num_batched_tokens * inner
    words += [*_types(job), *limit_flags("sglang", replace(limits, max_num_seqs=seqs, max_num_batched_tokens=tokens))]
    words += [*spelled("sglang", graphs="disabled"), "--cuda-graph-backend-prefill disabled"] if limits.eager else []
    words += spelled("sglang", plain_nccl=limits.library == "nccl")
    if job.hosts == 1:
        return Command(words)
    words += [*spelled("sglang", nnodes=job.hosts), RANK, *spelled("sglang", address=f"{job.address}:5000")]
    return Command(words, remark=EVERY_HOST)


def trtllm(job: Job) -> Command:
    plan, limits = job.plan, job.limits
    words = ["trtllm-serve", model_id(job.model)]
    words += spelled("trtllm", tp=above_one(plan.tp * job.dp), pp=above_one(plan.pp), ep=above_one(plan.ep))
    words += limit_flags("trtllm", limits)
    settings = ["enable_attention_dp: true"] * (job.dp > 1) + ["cuda_graph_config: null"] * limits.eager
    settings += ["kv_cache_config:\n  dtype: fp8"] * (plan.kv_dtype == "fp8")
    if job.hosts > 1:
        tasks = f"--ntasks-per-node {job.gpus // job.hosts}" if job.gpus % job.hosts == 0 else f"-n {job.gpus}"
        words.insert(0, f"srun -N {job.hosts} {tasks} --mpi=pmix trtllm-llmapi-launch")
        words += spelled("trtllm", gpus_per_node=job.cluster.gpus_per_host)
    return Command(words, settings=tuple(settings))


WRITERS: Mapping[str, Callable[[Job], Command]] = {"vllm": vllm, "sglang": sglang, "trtllm": trtllm}


def _types(job: Job) -> list[str]:
    """Weights that the engine quantises itself, and the KV cache's type; other types need a checkpoint that has them."""
    wanted = "" if job.model.quant else job.plan.weights_dtype
    return spelled(
        job.engine,
        quantization="fp8" if wanted == "fp8" else "",
        compute="float32" if wanted == "fp32" else "",
        kv_dtype="fp8" if job.plan.kv_dtype == "fp8" else "",
    )


def checkpoint_remark(job: Job) -> list[str]:
    """Said where the plan's weights are of a type that the engine does not make itself."""
    wanted, quant = job.plan.weights_dtype, job.model.quant
    stored = quant.dtype if quant else job.model.dtype
    made = ("bf16", "fp16", "fp32", *(("fp8",) if job.engine != "trtllm" else ()))
    if wanted in ("", stored) or (wanted in made and not quant):
        return []
    return [f"# needs a checkpoint in {wanted}: put its name for {model_id(job.model)}, which is in {stored}"]
