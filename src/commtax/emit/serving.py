"""A job, and the command of one of its servers, by engine."""

import math
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from commtax.question import Question
from commtax.readers.launch.flags import Value, dialect, spelled
from commtax.records import dataclass
from commtax.spec import Model, Plan
from commtax.statement import Refusal

SERVING = ("vllm", "sglang", "trtllm")
MASTER = "$MASTER_ADDR"
EVERY_HOST = "# run it on every host, NODE_RANK 0, 1, …"
RANK = "--node-rank $NODE_RANK"
DEEPEP_MODES = {"deepep_low_latency": "low_latency", "deepep_high_throughput": "normal"}


@dataclass(frozen=True, slots=True)
class Job:
    """A plan cut into equal servers: ``dp`` groups inside each, ``servers`` of them beside each other."""

    engine: str
    question: Question
    dp: int
    servers: int = 1
    address: str = MASTER  # where the hosts of one server meet
    apart: bool = False  # it has either prompts or decodes, not both

    @property
    def plan(self) -> Plan:
        return self.question.plan

    @property
    def gpus(self) -> int:
        """GPUs of one server."""
        return int(self.plan.num_gpus) // int(self.plan.dp) * self.dp

    @property
    def hosts(self) -> int:
        """Hosts of one server."""
        return math.ceil(self.gpus / self.question.cluster.gpus_per_host)


def model_id(model: Model) -> str:
    """The name that the Hub knows, or a folder's path; else our own. Quoted: a path may hold what a shell would run."""
    name = next((a for a in model.aliases if "/" in a), model.key)
    if not name.isprintable():
        raise Refusal(f"emit: no command can hold the model's name {name!r}; rename the folder", "emit")
    return shlex.quote(name)


def above_one(size: float) -> int:
    """A size that is worth a flag, else 0."""
    return int(size) if size > 1 else 0


@dataclass(frozen=True, slots=True)
class Command:
    """Its arguments, the variables before them, the settings that it reads from a file, and what is said below."""

    args: list[str]
    variables: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    remark: str = ""

    def line(self, file: str) -> str:
        """The command itself."""
        return " ".join([*self.variables, *self.args, *([f"--config {file}.yaml"] if self.settings else [])])

    def written(self, file: str) -> list[str]:
        """The lines that write its settings."""
        return [f"cat > {file}.yaml <<EOF", *self.settings, "EOF"] if self.settings else []


def flags(job: Job, **own: Value) -> list[str]:
    """What a server is told, and an engine's ``own`` way to say some of it; for the rest of it the engine has no flag.

    Weights that the engine quantises itself are told too; other types need a checkpoint that has them.
    """
    plan, limits, how = job.plan, job.question.limits, job.question.what_if
    weights = "" if job.question.model.quant else plan.weights_dtype
    whole = job.question.model.tower is not None and plan.tower == "data" and bool(plan.tp > 1)
    facts: dict[str, Value] = {
        "tp": above_one(plan.tp),
        "pp": above_one(plan.pp),
        "dp": above_one(job.dp),
        "dp_attention": False,
        "ep": above_one(plan.ep),
        "expert_parallel": bool(plan.ep > 1),
        "ep_backend": how.ep_backend,
        "a2a": "",
        "deepep_mode": "",
        "quantization": "fp8" if weights == "fp8" else "",
        "compute": "float32" if weights == "fp32" else "",
        "kv_dtype": "fp8" if plan.kv_dtype == "fp8" else "",
        "max_model_len": limits.max_model_len,
        "max_num_seqs": limits.max_num_seqs,
        "max_num_batched_tokens": limits.max_num_batched_tokens,
        "gpu_memory_utilization": float(limits.gpu_memory_utilization),
        "lora": bool(plan.lora_rank),
        "lora_rank": plan.lora_rank,
        "max_loras": plan.max_loras if plan.lora_rank else 0,
        "eplb": bool(plan.redundant),
        "redundant_experts": int(plan.redundant),
        "eplb_config": "",
        "eager": how.eager,
        "graphs": "",
        "plain_nccl": how.library == "nccl",
        "tower": "data" if whole else "",
        "tower_data": whole,
        **own,
    }
    return spelled(job.engine, **{name: value for name, value in facts.items() if name in dialect(job.engine).written})


def vllm(job: Job) -> Command:
    copies = int(job.plan.redundant)
    config = shlex.quote(f'{{"num_redundant_experts":{copies}}}') if copies else ""
    args = ["vllm serve", model_id(job.question.model), *flags(job, redundant_experts=0, eplb_config=config)]
    command = Command(args) if job.hosts == 1 else _vllm_hosts(job, args)
    return replace(command, variables=(*command.variables, *_collectives(job)))


def _collectives(job: Job) -> Iterator[str]:
    """Variables that ask for other collectives than the engine's own."""
    wanted = job.question.what_if.library
    for variable, words in dialect(job.engine).libraries.items():
        yield from (f"{variable}={word}" for word, library in words.items() if wanted and library == wanted)


def _vllm_hosts(job: Job, args: list[str]) -> Command:
    """Ranks of one replica, replicas on each host, or (replicas wider than a host) Ray over all hosts."""
    remark, ranks = f"{EVERY_HOST}; hosts above 0 add --headless", job.gpus // job.dp
    if job.dp == 1:
        return Command([*args, *spelled("vllm", nnodes=job.hosts), RANK, *spelled("vllm", address=job.address)], remark=remark)
    if ranks > job.question.cluster.gpus_per_host:
        ray = spelled("vllm", executor="ray", dp_executor="ray")
        span = ("VLLM_RAY_DP_PACK_STRATEGY=span",)
        return Command([*args, *ray], span, remark="# once, on the head of a Ray cluster of all hosts")
    local = job.question.cluster.gpus_per_host // ranks
    args += [*spelled("vllm", local_dp=local), f"--data-parallel-start-rank $((NODE_RANK*{local}))"]
    return Command([*args, f"--data-parallel-address {job.address} --data-parallel-rpc-port 13345"], remark=remark)


def sglang(job: Job) -> Command:
    limits, how, shared = job.question.limits, job.question.what_if, bool(job.plan.ep > job.plan.tp)
    inner, exchange = job.dp if shared else 1, DEEPEP_MODES.get(how.ep_backend, "")
    if exchange == "low_latency" and not job.apart:  # prompts go in bulk, as they are priced
        exchange = "auto"
    args = ["python -m sglang.launch_server", *spelled("sglang", model=model_id(job.question.model))]
    args += flags(
        job,
        tp=above_one(job.plan.tp * inner),
        dp_attention=shared,
        expert_parallel=False,
        a2a="deepep" if exchange else "",
        deepep_mode=exchange,
        max_num_seqs=limits.max_num_seqs * job.dp,  # of the whole server: every group gets its part
        max_num_batched_tokens=limits.max_num_batched_tokens * inner,
        eager=False,
        graphs="disabled --cuda-graph-backend-prefill disabled" if how.eager else "",
    )
    if job.hosts == 1:
        return Command(args)
    args += [*spelled("sglang", nnodes=job.hosts), RANK, *spelled("sglang", address=f"{job.address}:5000")]
    return Command(args, remark=EVERY_HOST)


def trtllm(job: Job) -> Command:
    args = ["trtllm-serve", model_id(job.question.model)]
    args += flags(job, tp=above_one(job.plan.tp * job.dp), kv_dtype="", graphs="")
    settings = ["enable_attention_dp: true"] * (job.dp > 1) + ["cuda_graph_config: null"] * job.question.what_if.eager
    if job.plan.lora_rank:
        settings.append(f"lora_config:\n  max_lora_rank: {job.plan.lora_rank}\n  max_loras: {job.plan.max_loras}")
    if (experts := job.question.model.experts) and job.plan.redundant:
        slots = experts.num_experts + int(job.plan.redundant)
        settings.append(f"moe_config:\n  load_balancer:\n    num_slots: {slots}\n    layer_updates_per_iter: 1")
    settings += ["kv_cache_config:\n  dtype: fp8"] * (job.plan.kv_dtype == "fp8")
    if job.hosts > 1:
        tasks = f"--ntasks-per-node {job.gpus // job.hosts}" if job.gpus % job.hosts == 0 else f"-n {job.gpus}"
        args.insert(0, f"srun -N {job.hosts} {tasks} --mpi=pmix trtllm-llmapi-launch")
        args += spelled("trtllm", gpus_per_node=job.question.cluster.gpus_per_host)
    return Command(args, settings=tuple(settings))


WRITERS: Mapping[str, Callable[[Job], Command]] = {"vllm": vllm, "sglang": sglang, "trtllm": trtllm}


def checkpoint_remark(job: Job) -> list[str]:
    """Said where the plan's weights are of a type that the engine does not make itself."""
    wanted, model, quant = job.plan.weights_dtype, job.question.model, job.question.model.quant
    stored = quant.dtype if quant else model.dtype
    made = ("bf16", "fp16", "fp32", *(("fp8",) if job.engine != "trtllm" else ()))
    if wanted in ("", stored) or (wanted in made and not quant):
        return []
    return [f"# needs a checkpoint in {wanted}: put its name for {model_id(model)}, which is in {stored}"]
